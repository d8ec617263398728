"""Vocabularies, their files, and training of sentencepiece models."""

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covnmt.base.errors import UserError
from covnmt.text.tokenize import SentencePieceTokenizer
from covnmt.text.vocabulary import (
    PAD_ID,
    UNK_ID,
    Vocabulary,
    most_frequent,
    reservoir_sample,
    train_sentencepiece,
)

DAMAGED = [
    (b"one\n\ntwo\n", "line 2: ''"),
    (b"one\ntwo words\n", "line 2: 'two words'"),
    (b"one\ntwo\none\n", "line 3: 'one'"),
    (b"one\n\xff\n", "line 2: not UTF-8"),
    (b"", "has no tokens"),
]

words = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=3)
counters = st.dictionaries(words, st.integers(1, 5), min_size=1)


def test_a_vocabulary_of_the_papers_size() -> None:
    counts = {f"w{number}": 1 for number in range(40_000)}
    vocabulary = Vocabulary.from_counts(counts, 30_000)
    assert len(vocabulary.tokens) == 29_998
    assert len(vocabulary) == 30_001
    assert vocabulary.end_id == 30_000


def test_ids_follow_frequency_and_then_the_alphabet() -> None:
    vocabulary = Vocabulary.from_counts(Counter("ccabbd"), 5)
    assert vocabulary.tokens == ("b", "c", "a")
    assert vocabulary.encode("abcd") == [4, 2, 3, UNK_ID]
    assert (PAD_ID, UNK_ID, vocabulary.end_id) == (0, 1, 5)


@given(counters, st.integers(3, 20))
def test_the_order_of_counting_does_not_matter(counts: dict[str, int], size: int) -> None:
    backwards = dict(reversed(counts.items()))
    assert Vocabulary.from_counts(counts, size) == Vocabulary.from_counts(backwards, size)


@given(counters, st.integers(0, 20))
def test_no_omitted_token_is_more_frequent(counts: dict[str, int], number: int) -> None:
    chosen = most_frequent(counts, number)
    left_out = [count for word, count in counts.items() if word not in chosen]
    assert len(chosen) == min(number, len(counts))
    assert all(count <= kept for count in left_out for kept in chosen.values())


@given(counters, st.lists(words))
def test_decode_undoes_encode(counts: dict[str, int], tokens: list[str]) -> None:
    vocabulary = Vocabulary.from_counts(counts, 10)
    shown = [token if token in vocabulary.tokens else "UNK" for token in tokens]
    assert vocabulary.decode(vocabulary.encode(tokens)) == shown


def test_decode_stops_at_the_end_symbol() -> None:
    vocabulary = Vocabulary(("a", "b"))
    assert vocabulary.decode([2, 1, 3, vocabulary.end_id, 2, 0]) == ["a", "UNK", "b"]


@given(st.lists(words, min_size=1, unique=True))
def test_save_and_load(tmp_path_factory: pytest.TempPathFactory, listed: list[str]) -> None:
    path = tmp_path_factory.mktemp("vocab") / "source.vocab"
    Vocabulary(tuple(listed)).save(path)
    assert Vocabulary.parse(path.read_bytes(), path).tokens == tuple(listed)


@pytest.mark.parametrize(("content", "message"), DAMAGED)
def test_damaged_vocabularies_are_an_error_with_the_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "source.vocab"
    path.write_bytes(content)
    with pytest.raises(UserError, match=re.escape(str(path)) + ".*" + re.escape(message)):
        Vocabulary.parse(content, path)


def test_a_reservoir_sample_has_all_of_a_short_stream_and_is_bounded() -> None:
    assert reservoir_sample(range(5), 10, seed=1) == [0, 1, 2, 3, 4]
    sample = reservoir_sample(range(1000), 10, seed=1)
    assert len(set(sample)) == 10
    assert (
        sample
        == reservoir_sample(range(1000), 10, seed=1)
        != reservoir_sample(range(1000), 10, seed=2)
    )


def test_a_reservoir_sample_is_uniform() -> None:
    drawn = Counter(item for seed in range(2000) for item in reservoir_sample(range(20), 5, seed))
    # 500 expected of each, standard deviation 19
    assert all(400 < drawn[item] < 600 for item in range(20))


SENTENCES = ["the small cat sat on a mat", "", "a cat and the small dogs ran", "mats and cats"] * 20


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sentencepiece_is_deterministic_and_keeps_to_its_size(tmp_path: Path, kind: str) -> None:
    paths = [tmp_path / "one.spm", tmp_path / "two.spm"]
    for path in paths:
        train_sentencepiece(SENTENCES, path, 30, "bpe" if kind == "bpe" else "unigram")
    assert paths[0].read_bytes() == paths[1].read_bytes()
    pieces = SentencePieceTokenizer(paths[0]).subwords()
    assert len(Vocabulary(tuple(pieces))) <= 30 + 1
    assert not {"<unk>", "<s>", "</s>"} & set(pieces)
    assert len(set(pieces)) == len(pieces)


def test_sentencepiece_of_a_small_corpus_may_be_smaller_than_asked(tmp_path: Path) -> None:
    train_sentencepiece(SENTENCES, tmp_path / "large.spm", 30_000)
    assert 20 < len(SentencePieceTokenizer(tmp_path / "large.spm").subwords()) < 1000


IMPOSSIBLE = [(SENTENCES, "smaller than"), ([""], "of empty lines"), ([], "of empty lines")]


@pytest.mark.parametrize(("sentences", "message"), IMPOSSIBLE)
def test_training_sentencepiece_on_unsuitable_text_is_an_error(
    tmp_path: Path, sentences: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=f"size 5 can be made .*{message}"):
        train_sentencepiece(sentences, tmp_path / "none.spm", 5)
    assert not (tmp_path / "none.spm").exists()
