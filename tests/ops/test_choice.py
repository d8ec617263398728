"""Which implementation is used: the environment, the precision and the model decide."""

import pytest
import torch

from covnmt import ops
from covnmt.config import CoverageConfig, ModelConfig
from covnmt.errors import UserError
from covnmt.model.decoder import Decoder

from .compare import random_weights

# What the kernels do not know, so that the reference answers whatever was asked for.
UNKNOWN = {
    "energies": CoverageConfig(kind="gru", size=2, energies=True),
    "previous context": CoverageConfig(kind="tanh", size=2, previous_context=True),
    "many units": CoverageConfig(kind="gru", size=17),
}


def decode(coverage: CoverageConfig, dtype: torch.dtype = torch.float32) -> ops.Unrolled:
    torch.manual_seed(0)
    decoder = Decoder(ModelConfig(embedding=3, hidden=4, coverage=coverage)).to(dtype)
    random_weights(decoder)
    h, y = torch.randn(2, 3, 8, dtype=dtype), torch.randn(2, 2, 3, dtype=dtype)
    return decoder.unroll(decoder.remember(h, torch.ones(2, 3, dtype=torch.bool)), y)


@pytest.mark.parametrize("name", UNKNOWN)
def test_falls_back_to_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="the fast path needs Triton")
    monkeypatch.setenv("COVNMT_OPS", "reference")
    expected = decode(UNKNOWN[name])
    monkeypatch.setenv("COVNMT_OPS", "triton")
    assert torch.equal(decode(UNKNOWN[name]).t, expected.t)


def test_float64_and_cpu_use_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for choice, dtype in [("triton", torch.float64), ("auto", torch.float32)]:
        monkeypatch.setenv("COVNMT_OPS", choice)
        assert decode(CoverageConfig(), dtype).t.dtype == dtype


def test_a_wrong_choice_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVNMT_OPS", "cuda")
    with pytest.raises(UserError, match="COVNMT_OPS is 'cuda'; set it to"):
        decode(CoverageConfig())
