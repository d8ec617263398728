"""Validation: the loss by hand, BLEU as `Model` gives it, samples and interruption."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from covnmt.base.config import Config
from covnmt.data.batching import collate
from covnmt.data.corpus import Corpus
from covnmt.decoding.engines import SearchResult
from covnmt.decoding.gpu.beam_search import GpuBeamSearch
from covnmt.decoding.torch import TorchEngine
from covnmt.inference.model import Model
from covnmt.metrics.bleu import paper_bleu
from covnmt.model.seq2seq import Seq2Seq
from covnmt.training.distributed import SINGLE_PROCESS, World
from covnmt.training.validation import SAMPLES, DevSet, ValidationResult, total_nll, validate
from tests.model.small import load_model
from tests.training.runs import CPU, changed


def validated(model: Seq2Seq, data: Path, config: Config) -> ValidationResult:
    result = validate(model, DevSet.open(Corpus.open(data)), config, CPU)
    assert result is not None
    return result


def mean_loss(model: Seq2Seq, data: Path) -> float:
    split = Corpus.open(data).split("dev")
    nll, target_tokens = total_nll(model, split, CPU, SINGLE_PROCESS, lambda: None)
    return nll / target_tokens


def test_dev_loss_by_hand(tiny_model: Path, tiny_corpus: Path) -> None:
    model, _ = load_model(tiny_model)
    dev = Corpus.open(tiny_corpus).split("dev")
    total, target_tokens = 0.0, 0
    for k in range(len(dev)):
        batch = collate([(dev.source[k], dev.target[k])], dev.source_end_id, dev.target_end_id)
        with torch.no_grad():
            log_probs = model.readout.logits(model(batch).features[0]).log_softmax(-1)
        total -= sum(float(row[word]) for row, word in zip(log_probs, batch.target[0], strict=True))
        target_tokens += len(dev.target[k]) + 1
    assert mean_loss(model, tiny_corpus) == pytest.approx(total / target_tokens, rel=1e-5)


@pytest.mark.parametrize("ends", [True, False])
def test_bleu_equals_that_of_the_translator(
    ends: bool, tiny_model: Path, tiny_corpus: Path
) -> None:
    """Also if no hypothesis ends: validation does not retry with wider beams."""
    model, config = load_model(tiny_model)
    if not ends:
        model.readout.b.data[-1] = -100
    config = changed(config, train__validate_beam=2, train__validate_lines=7)
    corpus = Corpus.open(tiny_corpus)
    result = validated(model.train(), tiny_corpus, config)
    assert not model.training
    dev = corpus.split("dev")
    decode = config.decode.model_copy(update={"beam": 2, "retry": False})
    translator = Model([model], corpus.codec("source"), corpus.codec("target"), decode)
    outputs = translator.translate(dev.text("source")[:7])
    expected = paper_bleu([output.text for output in outputs], [dev.text("target")[:7]])
    assert result.bleu == expected.value
    assert result.loss == mean_loss(model, tiny_corpus)  # of all lines
    assert [sample.output for sample in result.samples] == [
        " ".join(output.tokens) for output in outputs[:SAMPLES]
    ]
    assert [sample.reference for sample in result.samples] == dev.text("target")[:SAMPLES]


def test_samples_link_each_output_token(tiny_model: Path, tiny_corpus: Path) -> None:
    model, config = load_model(tiny_model)
    for sample in validated(model, tiny_corpus, config).samples:
        links = [tuple(map(int, link.split("-"))) for link in sample.links.split()]
        assert sorted(i for _, i in links) == list(range(len(sample.output.split())))
        assert all(j < len(sample.source.split()) for j, _ in links)


def test_validate_bleu_false_translates_nothing(
    tiny_model: Path, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, config = load_model(tiny_model)
    monkeypatch.delattr(Model, "translate")
    config = changed(config, train__validate_bleu=False, train__select="loss")
    result = validated(model, tiny_corpus, config)
    assert result.bleu is None
    assert result.samples == ()
    assert math.isfinite(result.loss)


def test_validation_leaves_the_random_state(tiny_model: Path, tiny_corpus: Path) -> None:
    """Otherwise the schedule of validations would change the weights."""
    model, config = load_model(tiny_model)
    before = torch.get_rng_state()
    validate(model, DevSet.open(Corpus.open(tiny_corpus)), config, CPU)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("batch_size", [1, 5])
def test_validation_can_be_interrupted_between_decoding_steps(
    batch_size: int, tiny_model: Path, tiny_corpus: Path
) -> None:
    """At once, in the loss, and while translating."""
    model, config = load_model(tiny_model)
    config = changed(config, decode__batch_size=batch_size)
    dev = DevSet.open(Corpus.open(tiny_corpus))
    asked = 0

    def stopped() -> bool:
        nonlocal asked
        asked += 1
        return asked > patience

    for patience in (0, 1, 7):
        asked = 0
        assert validate(model, dev, config, CPU, SINGLE_PROCESS, stopped) is None
        assert asked == patience + 1
    patience = 10**6
    assert validate(model, dev, config, CPU, SINGLE_PROCESS, stopped) is not None


@pytest.mark.parametrize("batch_size", [1, 2])
def test_validation_can_be_interrupted_between_gpu_batches(
    batch_size: int, tiny_model: Path, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU search cannot be interrupted between steps; here it runs on the CPU."""
    begin, search, searched = TorchEngine.__init__, GpuBeamSearch.search, list[int]()

    def pretend(engine: TorchEngine, models: Sequence[Seq2Seq], end: int) -> None:
        begin(engine, models, end)
        engine.device = "cuda"

    def count(device_search: GpuBeamSearch, source_ids: torch.Tensor, *others: Any) -> SearchResult:
        searched.append(len(source_ids))
        return search(device_search, source_ids, *others)

    monkeypatch.setattr(TorchEngine, "__init__", pretend)
    monkeypatch.setattr(GpuBeamSearch, "search", count)
    model, config = load_model(tiny_model)
    config = changed(config, decode__batch_size=batch_size)
    dev = DevSet.open(Corpus.open(tiny_corpus))
    assert validate(model, dev, config, CPU, SINGLE_PROCESS, lambda: len(searched) == 2) is None
    assert searched == [batch_size] * 2
    searched.clear()
    assert validate(model, dev, config, CPU) is not None
    assert sum(searched) == 5


def test_interruption_on_one_rank_leaves_no_rank_a_result(
    tiny_model: Path, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, config = load_model(tiny_model)
    monkeypatch.setattr(World, "all_gather", lambda _, mine: [mine, None])
    assert validate(model, DevSet.open(Corpus.open(tiny_corpus)), config, CPU, World(0, 2)) is None


def test_validation_summary_and_json() -> None:
    shown = ValidationResult(math.log(8), 12.346, ()).summary()
    assert shown == "dev loss 2.079  perplexity 8.0  BLEU 12.35"
    assert ValidationResult(math.log(8), None, ()).summary() == "dev loss 2.079  perplexity 8.0"
    assert "perplexity" in ValidationResult(1e6, None, ()).summary()  # no overflow
    assert json.loads(json.dumps(asdict(ValidationResult(1.0, None, ())))) == {
        "loss": 1.0,
        "bleu": None,
        "samples": [],
    }
