"""ONNX Runtime against PyTorch: the same translations, attention and probabilities.

The models are small, random and in float32, with weights so large that every part matters. Two
engines add up in different orders, so where two hypotheses are equally likely but for rounding,
either may win; the tests count how often that is the excuse.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from covnmt.base.config import PAPER_SYSTEMS, Config, CoverageConfig, DecodeConfig, ModelConfig
from covnmt.base.errors import UserError
from covnmt.data.padding import PaddedIds, pad_ids
from covnmt.decoding.backtrace import Hypothesis
from covnmt.decoding.engines import SearchResult
from covnmt.decoding.onnx import format as directories
from covnmt.decoding.onnx import runtime
from covnmt.decoding.onnx.export import write_graphs
from covnmt.decoding.onnx.format import STEP_FILE
from covnmt.decoding.onnx.runtime import (
    OnnxEngine,
    OnnxModel,
    OnnxScorer,
    group_size,
)
from covnmt.decoding.torch import TorchEngine
from covnmt.model.directory import ModelDescription
from covnmt.model.initialize import initialize_weights
from covnmt.model.seq2seq import Seq2Seq
from covnmt.text.codec import Side
from tests.decoding.exported import exported
from tests.model.small import COVERAGES, END, small_config, small_model

VARIANTS = list(itertools.product(("code", "paper"), ("exact", "reset_after")))
SENTENCES = 500
ROUNDING = 2e-5  # of a log-probability, between the engines


def model_of(coverage: CoverageConfig, seed: int = 0, **changes: object) -> Seq2Seq:
    model = small_model(small_config(coverage, **changes), seed).float()
    model.readout.b.data[END] += 2  # sentences end before their steps are used up
    return model


def sentences(number: int, seed: int = 0, longest: int = 12) -> PaddedIds:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, longest, number)
    return pad_ids([random.integers(1, END, length).tolist() for length in lengths], END)


def engines(directory: Path, *models: Seq2Seq) -> tuple[TorchEngine, OnnxEngine]:
    graphs = [exported(model, directory / str(number)) for number, model in enumerate(models)]
    return TorchEngine(models, END), OnnxEngine(graphs, END)


def is_tie(one: Hypothesis, other: Hypothesis) -> bool:
    return abs(one.score - other.score) < ROUNDING * max(1, len(one.token_ids))


def assert_same(actual: SearchResult, expected: SearchResult, ties: int) -> None:
    """Compare hypotheses, except those of at most `ties` sentences, where rounding decides."""
    excused = 0
    for ours, theirs in zip(actual.hypotheses, expected.hypotheses, strict=True):
        assert len(ours) == len(theirs)
        if [mine.token_ids for mine in ours] != [other.token_ids for other in theirs]:
            excused += 1
            assert all(map(is_tie, ours, theirs))
            continue
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.finished == other.finished
            assert mine.score == pytest.approx(other.score, abs=1e-4)
            np.testing.assert_allclose(mine.attention, other.attention, atol=1e-4)
    assert excused <= ties


@pytest.mark.parametrize(("order", "cell"), VARIANTS)
@pytest.mark.parametrize("system", PAPER_SYSTEMS)
def test_translations_equal_pytorch(system: str, order: str, cell: str, tmp_path: Path) -> None:
    """Token for token on 500 sentences, in one batch from which the finished ones leave."""
    pytorch, onnx = engines(tmp_path, model_of(PAPER_SYSTEMS[system], order=order, cell=cell))
    source = sentences(SENTENCES)
    decode = DecodeConfig(beam=4, retry=False)
    assert_same(onnx.search(source, decode, None), pytorch.search(source, decode, None), ties=2)


@pytest.mark.parametrize(("order", "cell"), VARIANTS)
@pytest.mark.parametrize("kind", COVERAGES)
def test_forced_decoding_equals_pytorch(kind: str, order: str, cell: str, tmp_path: Path) -> None:
    """Every coverage model with every option: attention, probabilities and fertility."""
    pytorch, onnx = engines(tmp_path, model_of(COVERAGES[kind], order=order, cell=cell))
    source, target = sentences(20), sentences(20, seed=1)
    found, wanted = onnx.force_decode(source, target), pytorch.force_decode(source, target)
    for row, expected, real in zip(found.alpha, wanted.alpha, target.mask, strict=True):
        np.testing.assert_allclose(row[real], expected[real], atol=1e-5)
    ours, theirs = (engine.ablate_coverage(source, target) for engine in (onnx, pytorch))
    np.testing.assert_array_equal(ours.alpha, found.alpha)
    for row, expected, real in zip(ours[1], theirs[1], target.mask, strict=True):
        np.testing.assert_allclose(row[real], expected[real], atol=1e-5)
    assert (ours.fertility is None) == (theirs.fertility is None)
    np.testing.assert_allclose(found.log_probs, wanted.log_probs, atol=1e-4)
    assert (found.fertility is None) == (wanted.fertility is None)
    if found.fertility is not None and wanted.fertility is not None:
        inside = source.mask
        np.testing.assert_allclose(found.fertility[inside], wanted.fertility[inside], atol=1e-5)


@pytest.mark.parametrize(
    "changes", [{"output": "full"}, {"rank": 2}, {"tie_target": True, "rank": 5}]
)
def test_translations_equal_pytorch_with_other_output_layers(
    changes: dict[str, object], tmp_path: Path
) -> None:
    pytorch, onnx = engines(tmp_path, model_of(PAPER_SYSTEMS["gru1"], 0, **changes))
    source = sentences(50)
    decode = DecodeConfig(beam=3, nbest=3)
    assert_same(onnx.search(source, decode, None), pytorch.search(source, decode, None), ties=1)


SETTINGS = {
    "greedy": DecodeConfig(beam=1),
    "wider than the vocabulary": DecodeConfig(beam=20, nbest=20),
    "penalties": DecodeConfig(beam=5, nbest=5, coverage_penalty=0.3, length_penalty=0.6),
    "no unk": DecodeConfig(beam=3, nbest=3, forbid_unk=True),
    "no length rules": DecodeConfig(beam=4, length_rules=False, max_length=9),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_translations_equal_pytorch_with_every_setting(name: str, tmp_path: Path) -> None:
    pytorch, onnx = engines(tmp_path, model_of(PAPER_SYSTEMS["fertility"]))
    source, decode = sentences(30), SETTINGS[name]
    assert_same(onnx.search(source, decode, None), pytorch.search(source, decode, None), ties=2)


def test_unfinished_sentences_are_retried(tmp_path: Path) -> None:
    model = model_of(PAPER_SYSTEMS["gru10"])
    model.readout.b.data[END] = -1000
    pytorch, onnx = engines(tmp_path, model)
    source, decode = sentences(4, longest=4), DecodeConfig(beam=30)
    assert_same(onnx.search(source, decode, None), pytorch.search(source, decode, None), ties=1)


def test_ensemble_equals_pytorch(tmp_path: Path) -> None:
    models = [model_of(PAPER_SYSTEMS["fertility"], seed) for seed in range(3)]
    pytorch, onnx = engines(tmp_path, *models)
    source, decode = sentences(60), DecodeConfig(beam=4, nbest=2)
    found, wanted = onnx.search(source, decode, None), pytorch.search(source, decode, None)
    assert_same(found, wanted, ties=1)
    assert found.fertility is not None
    assert wanted.fertility is not None
    np.testing.assert_allclose(
        found.fertility[source.mask], wanted.fertility[source.mask], atol=1e-5
    )


def test_ensemble_has_no_fertility_unless_all_models_predict_it(tmp_path: Path) -> None:
    _, onnx = engines(
        tmp_path, model_of(PAPER_SYSTEMS["fertility"]), model_of(PAPER_SYSTEMS["gru1"])
    )
    assert onnx.search(sentences(2), DecodeConfig(beam=1), None).fertility is None


def test_step_does_not_change_its_state(tmp_path: Path) -> None:
    """A step from a state gives the same twice, whatever happened between."""
    model = exported(model_of(PAPER_SYSTEMS["gru10"]), tmp_path)
    scorer, state = OnnxScorer.encode([model], sentences(3), END, beam=3, all_tokens=False)
    after = scorer.step(state, None, 3).state.select(np.array([0, 0, 1, 2, 2, 1]))
    words = np.array([2, 3, 4, 5, 6, 7])
    first = scorer.step(after, words, 3)
    scorer.step(first.state.select(np.array([5, 4, 3, 2, 1, 0])), words, 3)
    again = scorer.step(after, words, 3)
    for one, other in zip(first[:3], again[:3], strict=True):
        np.testing.assert_array_equal(one, other)


def test_kept_sentences_are_in_the_order_asked_for(tmp_path: Path) -> None:
    model = exported(model_of(PAPER_SYSTEMS["gru10"]), tmp_path)
    scorer, state = OnnxScorer.encode([model], sentences(3), END, beam=1, all_tokens=False)
    order = np.array([2, 0, 1])
    wanted = scorer.step(state, None, 3)
    found = scorer.keep(order).step(state.select(order), None, 3)
    np.testing.assert_allclose(found.log_probs, wanted.log_probs[order], atol=1e-6)
    np.testing.assert_allclose(found.attention, wanted.attention[order], atol=1e-6)


def test_forced_decoding_and_ablation_can_be_interrupted(tmp_path: Path) -> None:
    source, target = sentences(2), sentences(2, seed=1)

    def stop() -> None:
        raise TimeoutError

    for engine in engines(tmp_path, model_of(PAPER_SYSTEMS["gru10"])):
        engine.before_step = stop
        for computation in (engine.force_decode, engine.ablate_coverage):
            with pytest.raises(TimeoutError):
                computation(source, target)


# --- int8 --------------------------------------------------------------------------------------


def realistic(coverage: CoverageConfig, seed: int = 0, **changes: object) -> Seq2Seq:
    """Large enough, and with weights small enough, that rounding to bytes is a small change."""
    torch.manual_seed(seed)
    sizes = {"embedding": 48, "hidden": 64, "rank": 48, "coverage": coverage}
    config = ModelConfig.model_validate(sizes | changes)
    model = Seq2Seq(config, END + 1, END + 1)
    initialize_weights(model, "modern")
    return model.eval()


@pytest.mark.parametrize("exact_bytes", [True, False])
@pytest.mark.parametrize(
    ("system", "changes"),
    [
        *((system, {}) for system in PAPER_SYSTEMS),
        ("gru10", {"tie_target": True}),
        ("gru10", {"cell": "reset_after"}),
        ("gru10", {"order": "paper"}),
    ],
)
def test_int8_stays_near_float32(
    system: str,
    changes: dict[str, object],
    exact_bytes: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Much nearer than another model, also with 7 bits on older processors."""
    monkeypatch.setattr(directories, "has_exact_int8_products", lambda: exact_bytes)
    model = realistic(PAPER_SYSTEMS[system], 0, **changes)
    model.target.b.data.normal_(std=0.1)
    source, target = sentences(20), sentences(20, seed=1)
    exact = TorchEngine([model], END).force_decode(source, target)
    near = OnnxEngine([exported(model, tmp_path, "int8")], END).force_decode(source, target)
    far = TorchEngine([realistic(PAPER_SYSTEMS[system], seed=1)], END).force_decode(source, target)
    per_word = np.abs(near.log_probs - exact.log_probs) / target.lengths
    assert per_word.max() < 0.05
    assert per_word.max() < 0.1 * (np.abs(far.log_probs - exact.log_probs) / target.lengths).max()
    np.testing.assert_allclose(near.alpha[target.mask], exact.alpha[target.mask], atol=0.05)


def each_alone(many: PaddedIds) -> list[PaddedIds]:
    """Each sentence alone, without padding."""
    rows = zip(many.ids, many.lengths, strict=True)
    return [pad_ids([words[: length - 1].tolist()], END) for words, length in rows]


SMALL_RANK: dict[str, object] = {
    "embedding": 24,
    "rank": 24,
}  # with less than half of the states W_1 stays
ALONE: list[tuple[str, dict[str, object]]] = [
    ("linguistic", {}),
    ("fertility", {"cell": "reset_after"}),
    ("gru10", SMALL_RANK),
    ("gru10", {"tie_target": True, **SMALL_RANK}),
    ("gru10", {"order": "paper"}),
]


@pytest.mark.parametrize("beam", [1, 5])
@pytest.mark.parametrize(("system", "changes"), ALONE)
def test_int8_translation_does_not_depend_on_batch_composition(
    system: str, changes: dict[str, object], beam: int, tmp_path: Path
) -> None:
    """Alone, with three others and with many: the same tokens and scores."""
    model = realistic(PAPER_SYSTEMS[system], 0, **changes)
    for weights in (model.source.E, model.target.E, model.readout.C_o):
        weights.data *= 3  # so that sentences differ more
    engine = OnnxEngine([exported(model, tmp_path, "int8")], END)
    decode = DecodeConfig(beam=beam, nbest=beam, length_rules=False, max_length=12, retry=False)
    many = sentences(runtime.MIN_SENTENCES_TO_PROJECT_CONTEXTS + 5, longest=30)
    few = PaddedIds(many.ids[:4], many.mask[:4])
    alone = [engine.search(one, decode, None).hypotheses[0] for one in each_alone(many)]
    for source in (many, few):
        together = engine.search(source, decode, None).hypotheses
        for ours, theirs in zip(together, alone, strict=False):
            assert [mine.token_ids for mine in ours] == [other.token_ids for other in theirs]
            for mine, other in zip(ours, theirs, strict=True):
                assert mine.score == pytest.approx(other.score, rel=1e-6)
    assert len({round(best.score, 4) for best, *_ in alone}) > len(alone) / 2


@pytest.mark.parametrize("length", range(1, 10))
def test_sources_are_padded_to_the_stride_of_the_runtime(length: int) -> None:
    """Sums over the last few positions, taken in another order, would differ in the last bit."""
    source = pad_ids([[2] * length, [3]], END)
    words, mask = runtime.pad_to_stride(source)
    J = length + 1
    assert words.shape[1] == mask.shape[1] == J + -J % runtime.STRIDE
    assert (words[:, :J] == source.ids).all()
    assert (mask[:, :J] == source.mask).all()
    assert not mask[:, J:].any()


def test_tied_embeddings_are_stored_once(tmp_path: Path) -> None:
    sizes = {}
    for tied in (True, False):
        torch.manual_seed(0)
        config = ModelConfig(embedding=16, hidden=32, rank=16, tie_target=tied)
        model = Seq2Seq(config, END + 1, 1000)
        initialize_weights(model, "modern")
        sizes[tied] = sum(write_graphs(model, tmp_path, "int8").values())
    assert 1000 * 16 < sizes[False] - sizes[True] < 1000 * 24


# --- the parts ---------------------------------------------------------------------------------

GROUPS = [  # sentences, beam, and how many of the sentences make a group
    (1, 1, 1),
    (1, 10, 1),
    (32, 10, 1),
    (32, 5, 2),
    (32, 1, 8),
    (30, 1, 10),
    (31, 1, 31),
    (31, 5, 31),
    (3, 1, 3),
]


@pytest.mark.parametrize(("sentences", "beam", "size"), GROUPS)
def test_groups_are_small_and_equal(sentences: int, beam: int, size: int) -> None:
    assert group_size(sentences, beam) == size


@pytest.mark.parametrize("order", ["code", "paper"])
@pytest.mark.parametrize("kind", COVERAGES)
def test_translation_does_not_depend_on_groups_or_narrow_contexts(
    kind: str, order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many sentences attend together, and whatever the mean is taken of."""
    engine = OnnxEngine([exported(model_of(COVERAGES[kind], order=order), tmp_path)], END)
    source, target = sentences(12), sentences(12, seed=1)
    found = []
    for together, many in [(1, 1), (1, 100), (3, 1), (100, 100)]:
        monkeypatch.setattr(runtime, "GROUP_ROWS", together)
        monkeypatch.setattr(runtime, "MIN_SENTENCES_TO_PROJECT_CONTEXTS", many)
        group_size.cache_clear()
        found.append(engine.force_decode(source, target))
    group_size.cache_clear()
    for other in found[1:]:
        np.testing.assert_allclose(other.alpha[target.mask], found[0].alpha[target.mask], atol=1e-5)
        np.testing.assert_allclose(other.log_probs, found[0].log_probs, atol=1e-4)


# settings that are not those of the graphs
OTHERS = {
    "gru10": small_config(PAPER_SYSTEMS["tanh1"]),
    "baseline": small_config(PAPER_SYSTEMS["fertility"]),
    "linguistic": small_config(PAPER_SYSTEMS["fertility"]),
    "fertility": small_config(PAPER_SYSTEMS["baseline"]),
    "tanh1": small_config(PAPER_SYSTEMS["tanh1"], hidden=8),
}


@pytest.mark.parametrize("system", OTHERS)
def test_config_of_another_model_is_an_error(system: str, tmp_path: Path) -> None:
    exported(model_of(COVERAGES[system]), tmp_path)
    words: dict[Side, int] = {"source": END + 1, "target": END + 1}
    other = ModelDescription(Config(model=OTHERS[system]), words, fingerprint="")
    with pytest.raises(
        UserError, match=rf"config\.json: of another model than {STEP_FILE}; copy it"
    ):
        OnnxModel(tmp_path, other, threads=1)
