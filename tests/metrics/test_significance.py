"""The sign test equals brute force and scipy; sacreBLEU's tests are bounded from below."""

from random import Random
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from covnmt.base.arrays import IntArray
from covnmt.base.errors import UserError
from covnmt.metrics.bleu import bleu_from_totals, bleu_statistics, paper_bleu
from covnmt.metrics.significance import (
    ResamplingMethod,
    binomial_tail,
    binomial_two_sided,
    paired_tests,
    sign_test,
)

# matched 1- to 4-grams of ten each
ROUNDED = [(1, 3, 4, 4), (1, 4, 4, 3)]

sentence = st.lists(st.sampled_from("abc"), min_size=1, max_size=8).map(" ".join)


def corpus(sentences: int, errors: float, seed: int) -> tuple[list[str], list[str]]:
    """Return references, and an output with this share of words replaced."""
    random = Random(seed)
    vocabulary = [f"w{k}" for k in range(50)]
    references = [random.choices(vocabulary, k=random.randint(4, 40)) for _ in range(sentences)]
    output = [
        [random.choice(vocabulary) if random.random() < errors else word for word in line]
        for line in references
    ]
    return [" ".join(line) for line in references], [" ".join(line) for line in output]


@given(st.integers(0, 400), st.integers(0, 400))
def test_binomial_equals_scipy(up: int, down: int) -> None:
    trials = up + down
    if trials:
        two_sided, greater = (
            binomtest(up, trials, 0.5, alternative).pvalue
            for alternative in ("two-sided", "greater")
        )
        assert binomial_two_sided(up, down) == pytest.approx(two_sided, rel=1e-9)
        assert binomial_tail(up, trials) == pytest.approx(greater, rel=1e-9)


def test_binomial_of_zero_and_of_very_many_throws() -> None:
    assert binomial_two_sided(0, 0) == 1.0
    assert binomial_two_sided(2500, 2500) == 1.0
    assert binomial_two_sided(5000, 0) == 0.0  # 2 / 2**5000 is below the smallest float
    assert binomial_two_sided(1, 0) == 1.0


@given(st.lists(st.tuples(sentence, sentence, sentence), min_size=1, max_size=8))
def test_swaps_equal_brute_force(rows: list[tuple[str, str, str]]) -> None:
    references, baseline, system = ([row[k] for row in rows] for k in range(3))
    before = paper_bleu(baseline, [references]).value
    up = down = 0
    for k in range(len(rows)):
        swapped = [*baseline[:k], system[k], *baseline[k + 1 :]]
        change = paper_bleu(swapped, [references]).value - before
        up += change > 1e-9
        down += change < -1e-9
    result = sign_test(
        bleu_statistics(baseline, [references]), bleu_statistics(system, [references])
    )
    assert (result.up, result.down) == (up, down)
    assert result.up + result.down + result.same == len(rows)
    assert result.p_value == binomial_two_sided(up, down)


def counts(sentences: int, errors: float, seed: int) -> IntArray:
    references, output = corpus(sentences, errors, seed)
    return bleu_statistics(output, [references])


def test_better_worse_and_equal_systems() -> None:
    good, bad = counts(200, 0.1, seed=1), counts(200, 0.3, seed=1)
    better, worse = sign_test(bad, good), sign_test(good, bad)
    assert better.p_value < 0.01 < 0.5 < sign_test(good, good).p_value
    assert better.up > better.down
    assert worse.down > worse.up
    assert worse.p_value < 0.01
    assert sign_test(good, good).same == 200


def test_changes_by_rounding_do_not_count() -> None:
    """The precisions are the same in another order, so their product differs in the last digit."""
    before, after = (np.array([[10, 10, *matched, *[10] * 4]]) for matched in ROUNDED)
    assert bleu_from_totals(before[0]) != bleu_from_totals(after[0])
    assert sign_test(before, after).same == 1


def test_one_sided_test_asks_only_for_better() -> None:
    good, bad = counts(200, 0.1, seed=1), counts(200, 0.3, seed=1)
    assert sign_test(bad, good, "greater").p_value < 0.01
    assert sign_test(good, bad, "greater").p_value > 0.99


def test_different_numbers_of_sentences_are_an_error() -> None:
    with pytest.raises(ValueError, match="5 and 4 sentences"):
        sign_test(counts(5, 0.1, seed=1), counts(4, 0.1, seed=1))


def test_sign_test_of_five_thousand_sentences() -> None:
    references, baseline = corpus(5000, 0.3, seed=2)
    _, system = corpus(5000, 0.25, seed=2)
    result = sign_test(
        bleu_statistics(baseline, [references]), bleu_statistics(system, [references])
    )
    assert result.p_value < 0.01


@pytest.mark.parametrize("method", get_args(ResamplingMethod))
def test_paired_tests_separate_good_from_bad(method: ResamplingMethod) -> None:
    references, bad = corpus(60, 0.5, seed=3)
    _, good = corpus(60, 0.1, seed=3)
    systems = {"bad": bad, "good": good, "same": list(bad)}
    results = paired_tests(systems, [references], method, samples=200)
    table = {(row.system, row.metric): row for row in results}
    assert table["bad", "BLEU"].p_value is None
    assert (table["good", "BLEU"].p_value or 1) < 0.01
    assert (table["good", "chrF2"].p_value or 1) < 0.01
    assert table["same", "BLEU"].p_value == 1  # equal output is never "different"
    assert "200" in table["good", "BLEU"].signature
    assert np.isfinite(table["good", "BLEU"].score)


@pytest.mark.parametrize("method", get_args(ResamplingMethod))
@pytest.mark.parametrize(("differing", "least"), [(1, 1.0), (2, 0.5), (4, 0.125)])
def test_few_differing_lines_have_a_large_p_value(
    method: ResamplingMethod, differing: int, least: float
) -> None:
    references, output = corpus(60, 0.2, seed=4)
    other = [*references[:differing], *output[differing:]]
    results = paired_tests({"a": output, "b": other}, [references], method, samples=200)
    p_values = [row.p_value for row in results if row.system == "b"]
    assert all(p is not None and p >= least for p in p_values)


def test_paired_tests_refuse_an_unknown_tokenizer() -> None:
    with pytest.raises(UserError, match="no tokenizer 'moses'"):
        paired_tests({"a": ["x"], "b": ["y"]}, [["x"]], "bootstrap", tokenize="moses")
