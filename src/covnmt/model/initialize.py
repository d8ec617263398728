"""Initial weights as in the paper (docs/paper-to-code.md, section 1.3), or a modern scheme."""

from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import torch
from torch import Tensor, nn

from covnmt.base.cpus import available_cpus
from covnmt.model.coverage import Coverage

# Inputs of attention and of the coverage network, which the paper draws closer to zero.
SMALL_WEIGHTS = (
    "attention.W_a",
    "attention.U_a",
    "attention.V_a",
    "coverage.Q",
    "coverage.S",
    "coverage.from_context",
    "coverage.from_current",
)
ZERO_WEIGHTS = ("attention.v", "coverage.P", "coverage.from_energies")
RECURRENT_WEIGHTS = (".gates", ".candidate")
# Weights of r, z and c, stacked in one matrix.
STACKED_GATE_WEIGHTS = ("cell.W", "ahead.W", "back.W", ".Cx")


def initialize_weights(model: nn.Module, scheme: Literal["paper", "modern"]) -> None:
    """Fill every parameter from the global random generator, which must be seeded first.

    Accumulated attention has no bound, so with Glorot's rule it would dominate the energies. The
    weights that read it start near zero in both schemes.
    """
    fill = {"paper": _paper, "modern": _modern}[scheme]
    sums = any(isinstance(m, Coverage) and m.sums_attention for m in model.modules())
    gaussians: list[tuple[Tensor, Tensor]] = []  # by the square block that becomes orthogonal
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith((".b", ".bias")):
                parameter.zero_()
            elif name.endswith(RECURRENT_WEIGHTS):
                for block in parameter.split(parameter.shape[1]):
                    gaussians.append((block, torch.randn(block.shape, dtype=torch.float64)))
            elif sums and name.endswith("attention.V_a"):
                _paper(name, parameter)
            else:
                fill(name, parameter)
        _orthogonal(gaussians)


def _paper(name: str, parameter: Tensor) -> None:
    if name.endswith(ZERO_WEIGHTS):
        parameter.zero_()
    else:
        parameter.normal_(std=0.001 if name.endswith(SMALL_WEIGHTS) else 0.01)


def _modern(name: str, parameter: Tensor) -> None:
    """Draw from Glorot's uniform, each gate and each vector by itself; embeddings of norm one."""
    if name.endswith(".E"):
        parameter.normal_(std=parameter.shape[1] ** -0.5)
    elif parameter.dim() < 2:
        nn.init.xavier_uniform_(parameter.unsqueeze(0))
    else:
        for gate in parameter.chunk(3 if name.endswith(STACKED_GATE_WEIGHTS) else 1):
            nn.init.xavier_uniform_(gate)


def _orthogonal(gaussians: list[tuple[Tensor, Tensor]]) -> None:
    """Fill each square block with the left singular vectors of a Gaussian.

    A block of one number becomes +1 or -1.

    One thread decomposes one matrix: the result does not depend on the number of CPUs, and no
    thread waits busily for others that a second training holds up.
    """
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(available_cpus(), "svd", torch.set_num_threads, (1,)) as pool:
            vectors = [
                (block, pool.submit(torch.linalg.svd, matrix)) for block, matrix in gaussians
            ]
            for block, svd in vectors:
                block.copy_(svd.result()[0])
    finally:
        torch.set_num_threads(threads)
