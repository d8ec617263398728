"""Evaluate one system and compare several."""

import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
from sacrebleu.metrics.ter import TER

from covnmt.base import processes
from covnmt.base.errors import UserError
from covnmt.evaluation.evaluate import SIGNIFICANCE_MARKS, EvaluationOptions, compare, evaluate
from covnmt.evaluation.system_output import SystemOutput
from covnmt.evaluation.test_set import EvaluationSet
from covnmt.metrics import bleu
from covnmt.metrics.alignment import Links, link_matrix, parse_links
from covnmt.metrics.bleu import paper_bleu, sacre_bleu

WORDS = ["kappa", "delta", "omega", "sigma", "theta", "gamma"]


def sentence(start: int, length: int) -> list[str]:
    return [WORDS[(start + k * k) % len(WORDS)] for k in range(length)]


REFERENCES = [" ".join(sentence(n, 4 + n % 20)) for n in range(60)]
SOURCE = [line.upper() for line in REFERENCES]
# word for word, so that every gold link is (k, k)
DIAGONAL: list[Links] = [frozenset((k, k) for k in range(len(s.split()))) for s in SOURCE]
SET = EvaluationSet(
    [REFERENCES],
    SOURCE,
    [parse_links(" ".join(f"{k}-{k}" for k, _ in sorted(links))) for links in DIAGONAL],
    unique_reference=True,
)
MATRICES = [link_matrix(links, (len(links), len(links))) for links in DIAGONAL]
PERFECT = SystemOutput(REFERENCES, reference_attention=MATRICES, attention=MATRICES)
# every sentence without its last word
SHORT = SystemOutput([" ".join(line.split()[:-1]) for line in REFERENCES])


def value(
    output: SystemOutput,
    name: str,
    test_set: EvaluationSet = SET,
    options: EvaluationOptions | None = None,
) -> float:
    return evaluate(output, test_set, options).scores[name].value


def test_perfect_output_has_perfect_scores() -> None:
    result = evaluate(PERFECT, SET)
    figures = {s.name: s.value for group in result.groups().values() for s in group}
    expected = {
        "BLEU (paper)": 100,
        "BLEU": 100,
        "chrF": 100,
        "TER": 0,
        "AER": 0,
        "SAER": 0,
        "alignment precision": 100,
        "alignment recall": 100,
        "alignment F1": 100,
        "left out": 0,
        "said twice": 0,
        "DROP": 0,
        "little attention": 0,
        "attention entropy": 0,
    }
    assert {name: figures[name] for name in expected} == pytest.approx(expected)
    assert result.scores["little attention"].signature.startswith("below:0.2|")
    assert all(bucket.bleu == pytest.approx(100) for bucket in result.by_length)
    assert [bucket.label for bucket in result.by_length] == ["1-10", "11-20", "21-30"]
    assert sum(bucket.sentences for bucket in result.by_length) == 60


def test_inputs_decide_which_scores_there_are() -> None:
    result = evaluate(SystemOutput(REFERENCES), EvaluationSet([REFERENCES]))
    assert list(result.groups()) == ["translation", "proxies"]
    assert not result.by_length
    assert not {"AER", "DROP"} & result.scores.keys()


def test_scores_are_those_of_the_metrics() -> None:
    references = [REFERENCES, SHORT.text]
    result = evaluate(SHORT, EvaluationSet(references))
    assert result.translation[0] == paper_bleu(SHORT.text, references)
    assert result.translation[1] == sacre_bleu(SHORT.text, references)


def test_omission_rate_by_length() -> None:
    result = evaluate(SHORT, SET)
    words = sum(len(line.split()) for line in SOURCE)
    assert value(SHORT, "left out") == pytest.approx(100 * 60 / words)
    for bucket in result.by_length:
        assert bucket.measures["left out"] == pytest.approx(100 / bucket.reference_length)
    assert result.by_length[0].output_length < result.by_length[0].reference_length


def test_links_of_another_aligner_are_preferred_to_matrices() -> None:
    nothing = [frozenset[tuple[int, int]]()] * 60
    assert value(replace(PERFECT, links=nothing), "AER") == 100
    assert value(replace(PERFECT, links=nothing), "SAER") == 0
    joined = replace(PERFECT, links=nothing, reverse_links=DIAGONAL)
    assert value(joined, "AER", options=EvaluationOptions(symmetrization="union")) == 0
    assert value(joined, "AER", options=EvaluationOptions(symmetrization="intersection")) == 100


def test_drop_needs_the_same_aligner_for_output_and_reference() -> None:
    nothing = [frozenset[tuple[int, int]]()] * 60
    assert "DROP" not in evaluate(replace(PERFECT, links=DIAGONAL), SET).scores
    assert value(replace(PERFECT, links=DIAGONAL, output_links=nothing), "DROP") == 100
    assert value(replace(PERFECT, links=DIAGONAL, output_links=DIAGONAL), "DROP") == 0


def test_attention_over_subwords_gives_no_drop() -> None:
    pieces = [np.pad(matrix, ((0, 0), (0, 1))) for matrix in MATRICES]
    result = evaluate(replace(PERFECT, attention=pieces), SET)
    assert "DROP" not in result.scores
    assert value(replace(PERFECT, attention=pieces), "AER") == 0
    assert value(replace(PERFECT, attention=pieces), "little attention") > 0


def test_options_change_scores_and_signatures() -> None:
    faint = replace(PERFECT, reference_attention=[soft * 0.4 for soft in MATRICES])
    threshold = EvaluationOptions(link_method="threshold", threshold=0.5, renormalize=True)
    assert value(faint, "AER", options=threshold) == 100
    assert value(faint, "SAER", options=threshold) == pytest.approx(0)
    assert value(faint, "SAER") == pytest.approx(100 * (1 - 0.8 / 1.4), abs=1e-4)
    result = evaluate(faint, SET, threshold)
    signatures = {score.name: score.signature for score in result.alignment}
    assert "links:threshold(0.5)" in signatures["AER"]
    assert "rows:renormalised" in signatures["SAER"]
    assert "TER" not in evaluate(SHORT, SET, EvaluationOptions(ter=False)).scores


def test_ter_does_not_depend_on_the_number_of_processes() -> None:
    outputs = SystemOutput([f"the {k % 7} dogs and {k} cats saw {k % 3} birds" for k in range(230)])
    test_set = EvaluationSet(
        [[f"{k % 5} birds saw the {k % 7} dogs and a cat" for k in range(230)], ["x"] * 230]
    )
    one, two = (value(outputs, "TER", test_set, EvaluationOptions(workers=n)) for n in (1, 2))
    expected = TER().corpus_score(list(outputs.text), [list(r) for r in test_set.references])
    assert one == two == pytest.approx(expected.score)


def kill_worker(line: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_error_names_lines_but_no_text_if_ter_workers_die(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_RETRIES", 0)
    monkeypatch.setattr(bleu, "count_ter_edits", kill_worker)
    outputs, references = SystemOutput(["secret"] * 150), EvaluationSet([["reference"] * 150])
    with pytest.raises(UserError, match=r"^lines 1 to 100: ") as raised:
        evaluate(outputs, references, EvaluationOptions(workers=2))
    assert "secret" not in str(raised.value)


def test_fertility_that_equals_attention_fits_exactly() -> None:
    fertility = [soft.sum(axis=0).tolist() for soft in MATRICES]
    result = evaluate(replace(PERFECT, fertility=fertility), SET)
    score = result.scores["fertility-attention correlation"]
    assert score.details["mean_absolute_difference"] == 0


def test_exact_rates_need_gold() -> None:
    with pytest.raises(UserError, match="--unique-reference"):
        evaluate(SHORT, EvaluationSet([REFERENCES], unique_reference=True))


def test_different_numbers_of_sentences_are_an_error() -> None:
    with pytest.raises(UserError, match=r"hypothesis .*59 .*reference 1 .*60"):
        evaluate(SystemOutput(REFERENCES[:-1]), SET)


def test_comparison_tests_every_pair_of_systems() -> None:
    result = compare({"short": SHORT, "perfect": PERFECT, "again": SHORT}, SET)
    assert result.baselines == ("short",)
    assert [result.marks(name) for name in result.systems] == ["", SIGNIFICANCE_MARKS[0], ""]
    assert len(result.sign_tests) == 6
    assert result.sign_tests["short", "perfect"].up == 60
    assert result.sign_tests["perfect", "short"].down == 60
    p_values = {row.system: row.p_value for row in result.bootstrap if row.metric == "BLEU"}
    assert p_values["short"] is None
    assert (p_values["perfect"] or 1) < 0.01
    assert p_values["again"] == 1
    assert len(result.randomization) == len(result.bootstrap) == 6


def test_marks_need_p_below_one_percent() -> None:
    """8 ups and no down have p = 1/128, 7 ups and no down 1/64."""
    for better, mark in ((8, "†"), (7, "")):
        mixed = SystemOutput([*REFERENCES[:better], *SHORT.text[better:]])
        assert compare({"short": SHORT, "mixed": mixed}, SET).marks("mixed") == mark


def test_each_baseline_has_its_mark() -> None:
    outputs = {"perfect": PERFECT, "short": SHORT, "third": PERFECT}
    result = compare(outputs, SET, baselines=["short", "perfect"])
    # worse than a baseline, however surely, earns no mark
    assert [result.marks(name) for name in outputs] == ["†", "", "†"]
    twice = compare(outputs, SET, baselines=["short", "short"])
    assert twice.baselines == ("short",)


@pytest.mark.parametrize(
    ("names", "baselines", "message"),
    [
        (["a"], [], "at least two"),
        (["a", "b"], ["c"], "baseline 'c' is not among the systems: a, b"),
        (list("abcde"), list("abcde"), "only 4 marks"),
    ],
)
def test_bad_comparisons_are_errors(names: list[str], baselines: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        compare(dict.fromkeys(names, SHORT), SET, baselines)


def test_json_is_plain_and_complete() -> None:
    result = compare({"short": SHORT, "perfect": PERFECT}, SET)
    text = json.dumps(result.to_json(), allow_nan=False)
    back = json.loads(text)
    assert back["systems"]["perfect"]["marks"] == "†"
    assert back["marks"] == {"†": "short"}
    perfect = back["systems"]["perfect"]
    for group in ("translation", "alignment", "adequacy", "proxies", "diagnostics"):
        assert all(score["signature"] for score in perfect[group])
    assert perfect["by_length"][0]["label"] == "1-10"
    assert {row["alternative"] for row in back["sign_tests"]} == {"two-sided"}


def test_empty_output_is_scored() -> None:
    result = evaluate(SystemOutput([""] * 60, attention=[np.zeros((0, 3), np.float32)] * 60), SET)
    assert result.translation[0].value == 0
    assert result.scores["left out"].value == 100
