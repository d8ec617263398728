"""BLEU equals sacreBLEU where the definitions agree, and a slow rewrite where they differ."""

import math
from collections.abc import Sequence
from fractions import Fraction
from random import Random
from urllib.error import URLError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.ter import TER

from covnmt.base.errors import UserError
from covnmt.metrics.bleu import (
    bleu_from_totals,
    bleu_statistics,
    chrf,
    paper_bleu,
    sacre_bleu,
    sentence_bleu_statistics,
    ter,
)

# hypothesis, references, the ten counts: lengths, matched and all 1- to 4-grams
CASES = [
    ("a b c d", ["a b c d"], [4, 4, 4, 3, 2, 1, 4, 3, 2, 1]),
    ("a a a", ["a b", "a a b c"], [3, 2, 2, 1, 0, 0, 3, 2, 1, 0]),  # clipped to the best reference
    ("", ["a"], [0, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
    ("A Bc", ["a bC"], [2, 2, 2, 1, 0, 0, 2, 1, 0, 0]),  # case does not count
    ("Hello, world.", ["hello , world ."], [4, 4, 4, 3, 2, 1, 4, 3, 2, 1]),
    ("3.14 1-2", ["3.14 1 - 2"], [4, 4, 4, 3, 2, 1, 4, 3, 2, 1]),  # points in numbers stay
    ("&quot;x&quot;", ['" x "'], [3, 3, 3, 2, 1, 0, 3, 2, 1, 0]),
    ("&QUOT;", ['"'], [3, 1, 0, 0, 0, 0, 3, 2, 1, 0]),  # lower-cased only after tokenizing
    ("É", ["é"], [1, 1, 0, 0, 0, 0, 1, 0, 0, 0]),  # only A to Z is lower-cased
]

words = st.lists(st.sampled_from("abcde"), max_size=9)
some_words = words.filter(bool)
# untokenized text: numbers, points, dashes, quotes, capitals, white space
raw = st.text("aB c.,-12'\"&;(?\u3000", min_size=1, max_size=30).filter(str.strip)


@pytest.mark.parametrize(("hypothesis", "references", "expected"), CASES)
def test_statistics_by_hand(hypothesis: str, references: list[str], expected: list[int]) -> None:
    assert bleu_statistics([hypothesis], [[line] for line in references]).tolist() == [expected]


def slow_bleu(hypotheses: Sequence[list[str]], references: Sequence[Sequence[list[str]]]) -> float:
    """Compute BLEU from its definition: shortest reference, no smoothing."""
    output = sum(map(len, hypotheses))
    shortest = sum(min(len(r) for r in refs) for refs in references)
    logs = 0.0
    for n in range(1, 5):
        matched = total = 0
        for hypothesis, refs in zip(hypotheses, references, strict=True):
            grams = [hypothesis[k : k + n] for k in range(len(hypothesis) - n + 1)]
            total += len(grams)
            for gram in {tuple(gram) for gram in grams}:
                most = max(
                    sum(tuple(r[k : k + n]) == gram for k in range(len(r) - n + 1)) for r in refs
                )
                matched += min(grams.count(list(gram)), most)
        if matched == 0:
            return 0.0
        logs += math.log(Fraction(matched, total)) / 4
    penalty = 1.0 if output >= shortest else math.exp(1 - shortest / output)
    return 100 * penalty * math.exp(logs)


@given(st.lists(st.tuples(words, some_words, some_words, some_words), min_size=1, max_size=6))
def test_equals_slow_rewrite_with_references_of_different_length(
    rows: list[tuple[list[str], ...]],
) -> None:
    hypotheses, *references = ([" ".join(row[k]) for row in rows] for k in range(4))
    expected = slow_bleu([row[0] for row in rows], [row[1:] for row in rows])
    assert paper_bleu(hypotheses, references).value == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.tuples(raw, raw), min_size=1, max_size=6))
def test_equals_sacrebleu_with_one_reference(rows: list[tuple[str, str]]) -> None:
    hypotheses, references = [list(column) for column in zip(*rows, strict=True)]
    expected = BLEU(lowercase=True, smooth_method="none").corpus_score(hypotheses, [references])
    score = paper_bleu(hypotheses, [references])
    assert score.value == pytest.approx(expected.score, abs=1e-6)
    assert score.details["brevity_penalty"] == pytest.approx(expected.bp)


def test_shortest_reference_counts_where_sacrebleu_takes_the_closest() -> None:
    hypothesis, references = ["a b c d e"], [["a b c d e f"], ["a b c"]]
    assert paper_bleu(hypothesis, references).details["brevity_penalty"] == 1.0
    assert sacre_bleu(hypothesis, references).details["brevity_penalty"] == pytest.approx(
        math.exp(1 - 6 / 5)
    )


@given(st.lists(st.tuples(words, some_words), min_size=1, max_size=6), st.randoms())
def test_order_of_sentences_does_not_matter(
    rows: list[tuple[list[str], list[str]]], random: Random
) -> None:
    counts = np.array([sentence_bleu_statistics(h, [r]) for h, r in rows])
    shuffled = random.sample(range(len(rows)), len(rows))
    assert bleu_from_totals(counts.sum(axis=0)) == bleu_from_totals(counts[shuffled].sum(axis=0))


def test_bleu_of_several_totals_at_once() -> None:
    counts = bleu_statistics(["a b c d e", "a b x d", "q"], [["a b c d e", "a b c d", "a"]])
    together = bleu_from_totals(counts)
    assert together.shape == (3,)
    assert together.tolist() == [float(bleu_from_totals(row)) for row in counts]


def test_signatures_name_every_choice() -> None:
    score = paper_bleu(["a b c d"], [["a b c d"], ["x"]])
    assert score.value == pytest.approx(100)
    assert score.signature.startswith(
        "nrefs:2|case:lc|eff:no|tok:13a|smooth:none|len:shortest|version:covnmt-"
    )
    for metric in (sacre_bleu, chrf, ter):
        assert "nrefs:1" in metric(["a b"], [["a b"]]).signature


def test_scores_of_perfect_and_hopeless_output() -> None:
    perfect, hopeless = ["a b c d e"], ["z z z z z"]
    references = [["a b c d e"]]
    assert chrf(perfect, references).value == pytest.approx(100)
    assert ter(perfect, references).value == 0
    assert chrf(hopeless, references).value == 0
    assert ter(hopeless, references).value == pytest.approx(100)
    assert paper_bleu(hopeless, references).value == 0


def test_ter_equals_sacrebleu() -> None:
    outputs = [f"the {k % 7} dogs and {k} cats saw {k % 3} birds" for k in range(30)]
    references = [
        [f"{k % 5} birds saw the {k % 7} dogs and a cat" for k in range(30)],
        ["" for _ in range(30)],
    ]
    metric = TER()
    expected = metric.corpus_score(outputs, references)
    score = ter(outputs, references)
    assert score.value == pytest.approx(expected.score)
    assert score.signature == str(metric.get_signature())


@pytest.mark.parametrize(("output", "value"), [("", 0), ("a", 100)])
def test_ter_with_empty_reference_equals_sacrebleu(output: str, value: float) -> None:
    assert ter([output], [[""]]).value == TER().corpus_score([output], [[""]]).score == value


def test_chinese_is_split_into_characters() -> None:
    assert bleu_statistics(["你好"], [["你好吗"]], tokenize="zh")[0, :3].tolist() == [2, 3, 2]


def test_unknown_tokenizer_is_an_error_with_the_choices() -> None:
    with pytest.raises(UserError, match=r"choose from .*13a"):
        paper_bleu(["a"], [["a"]], tokenize="13b")


def test_tokenizer_that_cannot_be_downloaded_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise URLError("no route")

    monkeypatch.setattr("covnmt.metrics.bleu.BLEU.__init__", unreachable)
    with pytest.raises(UserError, match=r"'flores200' .*no route"):
        paper_bleu(["a"], [["a"]], tokenize="flores200")


def test_different_numbers_of_sentences_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        bleu_statistics(["a"], [["a", "b"]])
