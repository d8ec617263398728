"""Tuning penalties on a dev set: trials, scores, and saved settings."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covnmt.base.config import DecodeConfig
from covnmt.base.errors import UserError
from covnmt.base.files import read_lines, write_lines
from covnmt.decoding import backtrace
from covnmt.decoding.onnx.export import export_model
from covnmt.decoding.search_rules import penalized_score, search_attempts
from covnmt.inference import tune_penalties as tune_module
from covnmt.inference.model import Model, ModelLoader
from covnmt.inference.parallel import TranslationJob
from covnmt.inference.translate import Translation
from covnmt.inference.tune_penalties import (
    LENGTH_PENALTIES,
    PenaltyCandidates,
    PenaltyTrial,
    PenaltyTuning,
    check_can_save_decoding,
    decoding_for_tuning,
    penalty_grid,
    save_decoding,
    score_penalties,
    tune_penalties,
)
from covnmt.metrics.bleu import paper_bleu
from covnmt.model.directory import BUNDLED_MODELS, bundled_models, load_config

LENGTHS, COVERAGES = (0.0, 0.7, 3.0), (0.0, 0.3)
# BLEU by length penalty, and the best penalty
BEST: list[tuple[dict[float, float], float]] = [
    ({0.0: 20.0, 0.5: 21.0, 1.0: 20.5}, 0.5),
    ({0.0: 20.0, 0.5: 21.0, 1.0: 21.0}, 0.5),
    ({0.0: 0.0, 0.5: 0.0, 1.0: 0.0}, 0.0),
    ({0.0: 20.0, 0.5: 21.0, 1.0: 22.0}, 1.0),
]
# length penalties, coverage penalties, and the error
REFUSED: list[tuple[list[float], list[float], str]] = [
    ([-1.0], [], "length_penalty: .* greater than or equal to 0"),
    ([1.0, 11.0], [], "length_penalty: .* less than or equal to 10"),
    ([], [-0.1], "coverage_penalty: .* greater than or equal to 0"),
]


def tuning(scores: dict[float, float]) -> PenaltyTuning:
    trials = [PenaltyTrial(DecodeConfig(length_penalty=p), bleu, 1.0) for p, bleu in scores.items()]
    return PenaltyTuning(trials, "signature")


@pytest.fixture(scope="module")
def exported(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "exported"
    export_model(tiny_model, directory, "int8")
    return directory


@pytest.mark.parametrize("kind", ["trained", "exported"])
@pytest.mark.parametrize("beam", [3, 8])
def test_a_trial_scores_like_translating_with_its_settings(
    tiny_model: Path, exported: Path, tiny_text: Path, kind: str, beam: int
) -> None:
    translator = Model.load(tiny_model if kind == "trained" else exported)
    decode = translator.decode.model_copy(update={"beam": beam})
    lines = [*read_lines(tiny_text / "dev.src"), ""]
    references = [*read_lines(tiny_text / "dev.tgt"), ""]
    settings = penalty_grid(decode, LENGTHS, COVERAGES)
    assert len(settings) == 6
    whole = translator.translate_stream(lines, decoding_for_tuning(decode))
    # by characters, because the tiny model gets too few words right
    found = score_penalties(whole, references, settings, tokenize="char")
    outputs = set()
    for trial, setting in zip(found.trials, settings, strict=True):
        texts = [each.text for each in translator.translate(lines, setting)]
        outputs.add(tuple(texts))
        score = paper_bleu(texts, [references], tokenize="char")
        assert trial.decode == setting
        assert (trial.bleu, found.signature) == (score.value, score.signature)
        assert trial.length_ratio == score.details["length_ratio"]
    assert len(outputs) > 2
    assert len({trial.bleu for trial in found.trials}) > 2


class RewardingConfig(DecodeConfig):
    length_reward: float = 0.0


def score_with_reward(
    log_prob: Any, length: Any, received: Callable[[], Any], config: RewardingConfig
) -> Any:
    return penalized_score(log_prob, length, received, config) + config.length_reward * length


def test_a_new_penalty_is_one_edit(
    translator: Model, tiny_text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The penalty of docs/architecture.md, "Adding a penalty", in search and tuning."""
    for module in (backtrace, tune_module):
        monkeypatch.setattr(module, "penalized_score", score_with_reward)
    lines = list(read_lines(tiny_text / "dev.src"))
    references = list(read_lines(tiny_text / "dev.tgt"))
    decode = translator.decode.model_copy(update={"beam": 8}).model_dump()
    settings = [RewardingConfig(**decode, length_reward=reward) for reward in (0.0, 1.0)]
    every_hypothesis = translator.translate(lines, decoding_for_tuning(settings[1]))
    found = score_penalties(every_hypothesis, references, settings, tokenize="char")
    lengths = []
    for trial, setting in zip(found.trials, settings, strict=True):
        texts = [translation.text for translation in translator.translate(lines, setting)]
        assert trial.bleu == paper_bleu(texts, [references], tokenize="char").value
        lengths.append(sum(map(len, texts)))
    assert lengths[0] < lengths[1]


@given(
    st.floats(-50, 0),
    st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=6),
    st.booleans(),
    st.floats(0, 3),
    st.floats(0, 3),
)
def test_candidate_scores_equal_search_scores(
    log_prob: float, rows: list[list[float]], fertile: bool, length: float, coverage: float
) -> None:
    """A translation holds less than the attention [I + 1, J + 1] of the search, but enough."""
    attention = np.array(rows, dtype=np.float32)
    J, tokens = attention.shape[1] - 1, ("w",) * (len(rows) - 1)
    fertility = np.array([0.5, 2.0], dtype=np.float32) if fertile else None
    received = attention[:, :J].sum(axis=0)
    expected = received if fertility is None else received / fertility
    made = Translation(
        *("", ("s",) * J, "w", tokens, 0.0, (attention[:-1, :J],), expected, fertility),
        log_prob=log_prob,
    )
    decode = DecodeConfig(length_penalty=length, coverage_penalty=coverage)
    [score] = PenaltyCandidates.from_n_best(made).scores(decode)
    searched = penalized_score(
        log_prob, len(attention), lambda: attention[:, :-1].sum(axis=0), decode
    )
    assert score == pytest.approx(searched, abs=1e-4)


@pytest.mark.parametrize(("scores", "best"), BEST)
def test_best_trial_prefers_smaller_penalties_on_ties(
    scores: dict[float, float], best: float
) -> None:
    for order in (list(scores), list(scores)[::-1]):
        found = tuning({penalty: scores[penalty] for penalty in order})
        assert found.best.decode.length_penalty == best
        assert found.best_is_last == (best == 1.0)


def test_a_single_length_penalty_gives_no_advice_to_try_larger_ones() -> None:
    assert not tuning({1.0: 20.0}).best_is_last


def test_penalty_grid_combines_all_values() -> None:
    decode = DecodeConfig(beam=4, length_penalty=0.3, coverage_penalty=0.1)
    usual = penalty_grid(decode)
    assert [each.length_penalty for each in usual] == list(LENGTH_PENALTIES)
    assert {each.coverage_penalty for each in usual} == {0.1}
    assert {each.beam for each in usual} == {4}
    pairs = [
        (each.length_penalty, each.coverage_penalty)
        for each in penalty_grid(decode, [1.0, 0.5, 1.0], [0.2, 0.0])
    ]
    assert pairs == [(0.5, 0.0), (0.5, 0.2), (1.0, 0.0), (1.0, 0.2)]


@pytest.mark.parametrize(("lengths", "coverages", "message"), REFUSED)
def test_penalties_out_of_range_are_refused(
    lengths: list[float], coverages: list[float], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        penalty_grid(DecodeConfig(), lengths, coverages)


def test_a_beam_of_one_is_refused() -> None:
    with pytest.raises(UserError, match="a beam of 1"):
        penalty_grid(DecodeConfig(beam=1))


def test_tuning_on_files_equals_tuning_on_translations(
    tiny_model: Path, tiny_text: Path, tmp_path: Path
) -> None:
    translator = Model.load(tiny_model)
    decode, settings = translator.decode, penalty_grid(translator.decode)
    source, reference = tiny_text / "dev.src", tiny_text / "dev.tgt"
    # chunks of four lines: four batches of one line
    job = TranslationJob(
        ModelLoader.find([tiny_model]), decode.model_copy(update={"batch_size": 1})
    )
    found = tune_penalties(job, source, reference, settings, "char")
    whole = translator.translate_stream(read_lines(source), decoding_for_tuning(decode))
    assert found.best == score_penalties(whole, list(read_lines(reference)), settings, "char").best
    assert "tok:char" in found.signature
    write_lines(tmp_path / "short", ["a"])
    with pytest.raises(UserError, match=r"short ends after line 1 but .* continues"):
        tune_penalties(job, source, tmp_path / "short", settings)
    write_lines(tmp_path / "other", ["x"] * len(list(read_lines(source))))
    with pytest.raises(UserError, match="other: BLEU is 0"):
        tune_penalties(job, source, tmp_path / "other", settings)
    write_lines(tmp_path / "none", [])
    with pytest.raises(UserError, match="none are empty"):
        tune_penalties(job, tmp_path / "none", tmp_path / "none", settings)


@pytest.mark.parametrize("kind", ["trained", "exported"])
def test_saved_decoding_becomes_the_default_of_the_model(
    tiny_model: Path, exported: Path, kind: str, tmp_path: Path
) -> None:
    """Nothing else changes, and the directory still opens."""
    directory = tmp_path / "model"
    shutil.copytree(tiny_model if kind == "trained" else exported, directory)
    before = load_config(directory)
    decode = before.config.decode.model_copy(update={"length_penalty": 0.6, "beam": 7})
    check_can_save_decoding(directory)
    save_decoding(directory, decode)
    after = load_config(directory)
    assert after.config.decode == Model.load(directory).decode == decode
    own = after.config.model_copy(update={"decode": before.config.decode})
    assert replace(after, config=own) == before


def test_bundled_models_cannot_be_changed() -> None:
    name = bundled_models()[0]
    remedy = f"^{name}: .* copy {BUNDLED_MODELS / name} and tune"
    with pytest.raises(UserError, match=remedy):
        check_can_save_decoding(Path(name))


def test_rows_advice_and_json_of_tuning() -> None:
    found = tuning({0.0: 20.0, 0.5: 21.0, 1.0: 20.5})
    assert [row[0] for row in found.rows()] == ["0", "0.5", "1"]
    assert [row[-1] for row in found.rows()] == ["", "best", ""]
    options = "--length-penalty 0.5 --coverage-penalty 0 --beam 10"
    assert found.advice() == f"BLEU: signature\nbest: covnmt translate {options}"
    assert "try larger" in tuning({0.0: 20.0, 1.0: 21.0}).advice()
    both = PenaltyTrial(DecodeConfig(length_penalty=1, coverage_penalty=0.2), 30.0, 1.0)
    assert "--length-penalty 1 --coverage-penalty 0.2" in PenaltyTuning([both], "s").advice()
    told = json.loads(json.dumps(found.to_json()))
    assert told["best"] == told["trials"][1]
    assert told["best"]["bleu"] == 21.0


@pytest.mark.parametrize("beam", [2, 10, 99, 300])
def test_tuning_keeps_the_hypotheses_of_the_widest_retry(beam: int) -> None:
    """Also if no hypothesis finished at first and the beam was doubled."""
    decode = DecodeConfig(beam=beam)
    assert decoding_for_tuning(decode).nbest >= max(
        attempt.beam for attempt in search_attempts(decode)
    )
