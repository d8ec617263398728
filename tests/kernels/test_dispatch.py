"""Environment, precision and model decide whether Triton or plain PyTorch computes."""

import pytest
import torch
from torch import Tensor

from covnmt.base.config import CoverageConfig, ModelConfig
from covnmt.base.errors import UserError
from covnmt.kernels import dispatch
from covnmt.kernels.tensors import DecoderSteps, EncodedSource
from covnmt.model import decoder as model_decoder
from covnmt.model.coverage import Coverage, CoverageInputs
from covnmt.model.decoder import Decoder

from .compare import DEVICE, random_weights

# Settings without kernels: plain PyTorch computes whatever was asked for.
WITHOUT_KERNELS = {
    "energies": CoverageConfig(kind="gru", size=2, energies=True),
    "previous context": CoverageConfig(kind="tanh", size=2, previous_context=True),
    "current context": CoverageConfig(kind="tanh", size=2, current_context=True),
    "many units": CoverageConfig(kind="gru", size=17),
}


def decode(coverage: CoverageConfig, dtype: torch.dtype = torch.float32) -> DecoderSteps:
    torch.manual_seed(0)
    decoder = Decoder(ModelConfig(embedding=3, hidden=4, coverage=coverage)).to(dtype)
    random_weights(decoder)
    h, y = torch.randn(2, 3, 8, dtype=dtype), torch.randn(2, 2, 3, dtype=dtype)
    source = decoder.encode_source(h, torch.ones(2, 3, dtype=torch.bool))
    return decoder.decode_teacher_forced(source, y)


@pytest.fixture
def references(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """The precision of every call of plain PyTorch."""
    calls: list[torch.dtype] = []
    original = Decoder.decode_stepwise

    def recorded(decoder: Decoder, memory: EncodedSource, y: Tensor) -> DecoderSteps:
        calls.append(y.dtype)
        return original(decoder, memory, y)

    monkeypatch.setattr(Decoder, "decode_stepwise", recorded)
    return calls


@pytest.mark.parametrize("name", WITHOUT_KERNELS)
def test_settings_without_kernels_use_plain_pytorch(
    name: str, references: list[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="the fast path needs Triton")
    monkeypatch.setenv("COVNMT_OPS", "triton")
    decode(WITHOUT_KERNELS[name])
    assert references == [torch.float32]


def test_long_sentences_use_plain_pytorch(
    references: list[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    attention = pytest.importorskip("covnmt.kernels.triton.attention", reason="Triton is needed")
    monkeypatch.setattr(attention, "MAX_TOKENS", 2)
    monkeypatch.setenv("COVNMT_OPS", "triton")
    decode(CoverageConfig())
    assert references == [torch.float32]


class LastAttention(Coverage):
    """A coverage model as a user may add it: C_i = alpha_i."""

    size = 1

    def prepare(self, h: Tensor) -> Tensor:
        return h.new_empty(*h.shape[:2], 0)

    def initial(self, h: Tensor) -> Tensor:
        return h.new_zeros(h.shape[0], 1, h.shape[1], 1)

    def step(self, C: Tensor, alpha: Tensor, Phi: Tensor, auxiliary: CoverageInputs) -> Tensor:
        return alpha.unsqueeze(-1)


def test_custom_coverage_model_uses_plain_pytorch(
    references: list[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="the fast path needs Triton")
    monkeypatch.setattr(model_decoder, "build_coverage", lambda *_: LastAttention())
    monkeypatch.setenv("COVNMT_OPS", "triton")
    decode(CoverageConfig())
    assert references == [torch.float32]


@pytest.mark.parametrize(
    ("choice", "dtype"),
    [("reference", torch.float32), ("auto", torch.float32), ("triton", torch.float64)],
)
def test_plain_pytorch_on_request_on_cpu_and_in_float64(
    choice: str, dtype: torch.dtype, references: list[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COVNMT_OPS", choice)
    decode(CoverageConfig(), dtype)
    assert references == [dtype]


def test_triton_kernels_run_on_request(
    references: list[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="the fast path needs Triton")
    if torch.cuda.is_available():
        pytest.skip("the interpreter was not asked for, and the tensors are on the CPU")
    monkeypatch.setenv("COVNMT_OPS", "triton")
    decode(CoverageConfig())
    assert references == []


def test_module_keeps_its_kernels_until_it_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="the kernels need Triton")
    decoder = Decoder(ModelConfig(embedding=3, hidden=4)).to(DEVICE)
    monkeypatch.setenv("COVNMT_OPS", "reference")
    chosen = decoder.kernels
    assert type(chosen) is dispatch.Kernels
    monkeypatch.setenv("COVNMT_OPS", "triton")
    assert decoder.kernels is chosen
    assert type(decoder.to(DEVICE).kernels).__name__ == "TritonKernels"


def test_unknown_choice_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVNMT_OPS", "cuda")
    with pytest.raises(UserError, match="COVNMT_OPS is 'cuda'; set it to"):
        decode(CoverageConfig())


def test_triton_that_cannot_run_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVNMT_OPS", "triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(dispatch, "_triton_installed", lambda: True)
    with pytest.raises(UserError, match=r"runs on a CPU; unset it, or .* TRITON_INTERPRET=1"):
        decode(CoverageConfig())
    monkeypatch.setattr(dispatch, "_triton_installed", lambda: False)
    with pytest.raises(UserError, match=r"not installed: pip install .*\[gpu\]"):
        decode(CoverageConfig())
