"""Initial weights follow docs/paper-to-code.md, section 1.3."""

import pytest
import torch

from covnmt.base.config import CoverageConfig, ModelConfig
from covnmt.model.cells import GruCell
from covnmt.model.initialize import initialize_weights
from covnmt.model.seq2seq import Seq2Seq

# How wide each weight starts in the paper's scheme; what is not named here has 0.01.
SPREAD = {
    "decoder.attention.W_a": 0.001,
    "decoder.attention.U_a": 0.001,
    "decoder.attention.V_a": 0.001,
    "decoder.attention.v": 0.0,
    "decoder.coverage.P": 0.0,
    "decoder.coverage.Q": 0.001,
    "decoder.coverage.S": 0.001,
}


def started(scheme: str, coverage: CoverageConfig, seed: int = 0) -> Seq2Seq:
    config = ModelConfig.model_validate(
        {"embedding": 60, "hidden": 80, "rank": 50, "init": scheme, "coverage": coverage}
    )
    torch.manual_seed(seed)
    model = Seq2Seq(config, 200, 200)
    initialize_weights(model, config.init)
    return model


@pytest.mark.parametrize(
    "coverage", [CoverageConfig(kind="gru", size=10), CoverageConfig(kind="fertility")], ids=str
)
def test_paper_scheme_draws_the_papers_distributions(coverage: CoverageConfig) -> None:
    for name, weight in started("paper", coverage).named_parameters():
        if name.endswith((".gates", ".candidate")):
            continue
        spread = 0.0 if name.endswith((".b", ".bias")) else SPREAD.get(name, 0.01)
        tolerance = 6 * spread / weight.numel() ** 0.5
        assert weight.std().item() == pytest.approx(spread, abs=tolerance), name
        assert weight.mean().item() == pytest.approx(0.0, abs=tolerance), name


@pytest.mark.parametrize("scheme", ["paper", "modern"])
@pytest.mark.parametrize("size", [1, 10])
def test_recurrent_matrices_are_orthogonal(scheme: str, size: int) -> None:
    model = started(scheme, CoverageConfig(kind="gru", size=size))
    for name, weight in model.named_parameters():
        if name.endswith((".gates", ".candidate")):
            for block in weight.detach().split(weight.shape[1]):
                identity = torch.eye(len(block))
                torch.testing.assert_close(block @ block.T, identity, atol=1e-5, rtol=0)


@pytest.mark.parametrize("scheme", ["paper", "modern"])
def test_initial_weights_depend_on_the_seed(scheme: str) -> None:
    coverage = CoverageConfig(kind="gru", size=4)
    first, again, other = (started(scheme, coverage, seed) for seed in (1, 1, 2))
    for a, b, c in zip(first.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c) == (not a.any())


def test_modern_scheme_keeps_activations_alive() -> None:
    model = started("modern", CoverageConfig(kind="gru", size=4))
    for name, weight in model.named_parameters():
        if not name.endswith((".b", ".bias")):
            assert weight.std() > 0.03, name


@pytest.mark.parametrize("scheme", ["paper", "modern"])
@pytest.mark.parametrize("kind", ["linguistic", "fertility"])
def test_weights_that_read_summed_attention_start_near_zero(scheme: str, kind: str) -> None:
    model = started(scheme, CoverageConfig.model_validate({"kind": kind}))
    weights = dict(model.named_parameters())
    assert weights["decoder.attention.V_a"].std().item() == pytest.approx(0.001, rel=0.5)
    assert (weights["decoder.attention.W_a"].std() > 0.03) == (scheme == "modern")


def test_one_thread_decomposes_each_matrix_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    svd, counts, threads = torch.linalg.svd, list[int](), torch.get_num_threads()

    def counted_svd(matrix: torch.Tensor) -> object:
        counts.append(torch.get_num_threads())
        return svd(matrix)

    monkeypatch.setattr(torch.linalg, "svd", counted_svd)
    torch.set_num_threads(2)
    try:
        initialize_weights(torch.nn.ModuleDict({"cell": GruCell(4, 6, "exact")}), "modern")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert counts == [1, 1, 1]
