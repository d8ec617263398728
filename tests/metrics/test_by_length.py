"""Buckets by source length, their scores and confidence intervals."""

import pytest

from covnmt.metrics.bleu import bleu_statistics, paper_bleu
from covnmt.metrics.by_length import scores_by_length

# source length -> label of its group
GROUPS = [
    (0, "1-10"),
    (1, "1-10"),
    (10, "1-10"),
    (11, "11-20"),
    (60, "51-60"),
    (61, "61+"),
    (500, "61+"),
]

REFERENCES = ["a b c d e", "a b c d", "f g h i j k", "a c e g i k"]
OUTPUT = ["a b c d e", "a b c", "f g h i j k", "a c e g x x x"]
LENGTHS = [5, 8, 12, 19]


@pytest.mark.parametrize(("length", "label"), GROUPS)
def test_bucket_of_each_length(length: int, label: str) -> None:
    (bucket,) = scores_by_length(bleu_statistics(["a"], [["a"]]), [length])
    assert bucket.label == label


def test_each_bucket_is_scored_as_a_corpus() -> None:
    short, long = scores_by_length(bleu_statistics(OUTPUT, [REFERENCES]), LENGTHS)
    assert (short.label, short.sentences, long.label, long.sentences) == ("1-10", 2, "11-20", 2)
    assert short.bleu == pytest.approx(paper_bleu(OUTPUT[:2], [REFERENCES[:2]]).value)
    assert long.bleu == pytest.approx(paper_bleu(OUTPUT[2:], [REFERENCES[2:]]).value)
    assert (short.output_length, short.reference_length) == (4, 4.5)
    assert short.length_ratio == pytest.approx(8 / 9)
    assert long.length_ratio == pytest.approx(13 / 12)


def test_intervals_contain_the_score_and_are_reproducible() -> None:
    counts = bleu_statistics(OUTPUT * 25, [REFERENCES * 25])
    buckets = scores_by_length(counts, LENGTHS * 25)
    for bucket in buckets:
        assert bucket.bleu_interval[0] < bucket.bleu < bucket.bleu_interval[1]
        assert (
            bucket.output_length_interval[0]
            < bucket.output_length
            < bucket.output_length_interval[1]
        )
    assert scores_by_length(counts, LENGTHS * 25) == buckets


@pytest.mark.parametrize(("words", "mean"), [((9, 0, 0), 3), ((9, 9, 0), 6)])
def test_lengths_are_means_with_95_percent_intervals(words: tuple[int, ...], mean: int) -> None:
    """All three draws are one sentence in 1 of 27 samples: more than the 2.5% left out."""
    counts = bleu_statistics(["a " * n for n in words], [["a"] * 3])
    (bucket,) = scores_by_length(counts, [1] * 3, samples=20_000)
    assert bucket.output_length == mean
    assert bucket.output_length_interval == (0, 9)


def test_more_sentences_narrow_the_interval() -> None:
    widths = []
    for times in (5, 500):
        (bucket,) = scores_by_length(
            bleu_statistics(OUTPUT * times, [REFERENCES * times]), [3] * 4 * times
        )
        widths.append(bucket.bleu_interval[1] - bucket.bleu_interval[0])
    assert widths[1] < widths[0] / 5


def test_further_measures_get_the_sentences_of_the_bucket() -> None:
    measures = {"first": lambda chosen: float(chosen[0]), "n": lambda chosen: float(len(chosen))}
    short, long = scores_by_length(bleu_statistics(OUTPUT, [REFERENCES]), LENGTHS, measures)
    assert dict(short.measures) == {"first": 0.0, "n": 2.0}
    assert dict(long.measures) == {"first": 2.0, "n": 2.0}
    assert long.to_json()["measures"] == {"first": 2.0, "n": 2.0}


def test_wrong_number_of_source_lengths_is_an_error() -> None:
    with pytest.raises(ValueError, match="3 source lengths for 4 sentences"):
        scores_by_length(bleu_statistics(OUTPUT, [REFERENCES]), LENGTHS[:3])
