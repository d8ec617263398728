"""A lexicon learned from pairs of lines, and the support that it gives to words."""

import random
from pathlib import Path

import numpy as np
import pytest

from covnmt.base.errors import UserError
from covnmt.data.lexicon import Lexicon, WordSplitter, train_lexicon

WORDS = {"Hund": "dog", "Katze": "cat", "rot": "red", "blau": "blue", "klein": "small"}


def word_by_word_pairs() -> list[tuple[str, str]]:
    """Return sentences in which every word has one translation, and a word that has none."""
    rng = random.Random(1)
    chosen = [rng.sample(sorted(WORDS), 3) for _ in range(200)]
    return [(" ".join(["der", *row]), " ".join(WORDS[word] for word in row)) for row in chosen]


@pytest.fixture(scope="module")
def lexicon() -> Lexicon:
    return train_lexicon(word_by_word_pairs())


def keys(lexicon: Lexicon, source: str, target: str) -> tuple[list[str], list[str]]:
    sides = (lexicon.source, source), (lexicon.target, target)
    first, second = ([word.key for word in side.splitter.words(line)] for side, line in sides)
    return first, second


@pytest.mark.parametrize("word", WORDS)
def test_a_word_is_supported_by_its_translation_alone(lexicon: Lexicon, word: str) -> None:
    others = " ".join(other for other in WORDS.values() if other != WORDS[word])
    for target, is_supported in ((WORDS[word], True), (others, False)):
        source, _ = lexicon.score_support(*keys(lexicon, word, target))
        assert (source.support > 0.5 * source.mean_support).all() == is_supported
        assert source.mean_support[0] > 1


def test_a_word_without_translation_has_little_support_as_usual(lexicon: Lexicon) -> None:
    source, _ = lexicon.score_support(*keys(lexicon, "der Hund", "dog"))
    assert source.mean_support[0] < 1 < source.mean_support[1]


def test_target_words_without_a_source_word_have_no_support(lexicon: Lexicon) -> None:
    _, target = lexicon.score_support(*keys(lexicon, "Hund", "dog blue"))
    assert target.support[0] > 1
    assert target.support[1] < 0.5


def test_unknown_words_are_nan_unless_they_are_copied(lexicon: Lexicon) -> None:
    source, _ = lexicon.score_support(*keys(lexicon, "Quarz 1868", "dog 1868"))
    assert np.isnan(source.support[0])
    assert source.support[1] == source.mean_support[1] > 1


def test_a_word_that_is_own_support_has_little_support_by_itself(lexicon: Lexicon) -> None:
    usual, of_itself = lexicon.own_support(["hund", "1868"])
    assert usual[0] > 1 > of_itself[0]
    assert usual[1] == 0  # unknown


def test_a_word_that_stands_twice_needs_two_translations(lexicon: Lexicon) -> None:
    line = "Hund rot Katze Hund"
    source, target = lexicon.score_support(*keys(lexicon, line, "dog red cat"))
    assert (source.support[[0, 1, 2]] > 1).all()
    assert source.support[3] < source.support[0] / 2
    assert (target.support > 1).all()
    source, _ = lexicon.score_support(*keys(lexicon, line, "dog red cat dog"))
    assert (source.support > 1).all()
    source, _ = lexicon.score_support(*keys(lexicon, "1868 rot blau Katze 1868", "1868 red cat"))
    assert source.support[0] > 1
    assert np.isnan(source.support[4])


def test_a_doubled_word_needs_one_translation(lexicon: Lexicon) -> None:
    source, _ = lexicon.score_support(*keys(lexicon, "Katze Hund Hund rot Hund", "dog red cat"))
    assert source.support[1] == source.support[2] > 1
    assert source.support[4] < source.support[1] / 2


def test_partners_are_counted_as_often_as_they_stand(lexicon: Lexicon) -> None:
    line = keys(lexicon, "Hund rot der Hund 7 7", "dog red blue 7 Quarz")
    assert lexicon.count_partners(*line) == [2, 1, 0, 2, 0]
    assert lexicon.count_partners([], ["dog"]) == [0]


def test_words_that_are_equally_frequent_have_a_fixed_order() -> None:
    """Not that of a set, which differs between processes."""
    lexicon = train_lexicon([("zwei acht sechs drei eins neun vier elf", "two")] * 3)
    assert list(lexicon.source.ids) == sorted(lexicon.source.ids)


def test_a_saved_lexicon_gives_the_same_support(lexicon: Lexicon, tmp_path: Path) -> None:
    path = tmp_path / "lexicon.npz"
    assert Lexicon.load(path) is None
    lexicon.save(path)
    loaded = Lexicon.load(path)
    assert loaded is not None
    line = keys(lexicon, "Hund rot", "red cat")
    for mine, theirs in zip(lexicon.score_support(*line), loaded.score_support(*line), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"lexicon\.npz: damaged"):
        Lexicon.load(path)


def test_empty_sides_have_no_words(lexicon: Lexicon) -> None:
    source, target = lexicon.score_support(["hund"], [])
    assert source.support.tolist() == [0.0]
    assert target.support.size == 0


def test_words_are_found_without_spaces_and_keep_their_places() -> None:
    pairs = [
        (f"{a}は{b}です。", f"{a} {b}")
        for a in ("東京", "京都", "奈良")
        for b in ("都", "寺", "山")
    ]
    lexicon = train_lexicon(pairs * 5, (True, False))
    line = "京都はKyoto、 テレビです"
    found = [line[word.start : word.end] for word in lexicon.source.splitter.words(line)]
    assert "".join(found) == "京都はKyotoテレビです"
    assert {"Kyoto", "テレビ"} <= {*found}
    assert max(map(len, found)) < len("京都はKyoto")


def test_long_forms_of_a_word_share_a_key() -> None:
    words = WordSplitter().words("Translate translation, TRANSLATED 1234567")
    assert len({word.key for word in words[:3]}) == 1
    assert words[3].key == "1234567"
