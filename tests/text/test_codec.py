"""Codecs: files, copies, and fingerprints."""

from pathlib import Path

import pytest

from covnmt.base.errors import UserError
from covnmt.text.codec import Codec, Side, copy_codecs, vocabulary_fingerprint
from covnmt.text.tokenize import SentencePieceTokenizer, TokenizerSettings, build_tokenizer
from covnmt.text.vocabulary import Vocabulary, train_sentencepiece

LINE = "the small cat sat"


def words(*listed: str) -> Codec:
    settings = TokenizerSettings(kind="whitespace", lowercase=True)
    return Codec(settings, build_tokenizer(settings), Vocabulary(listed))


def subwords(directory: Path) -> Codec:
    settings = TokenizerSettings(kind="sentencepiece")
    path = directory / "any.spm"
    train_sentencepiece([LINE, "a cat and a small dog"] * 20, path, 30)
    vocabulary = Vocabulary(tuple(SentencePieceTokenizer(path).subwords()))
    return Codec(settings, build_tokenizer(settings, path), vocabulary, path)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Save a codec with words on the source side and subwords on the target side."""
    path = tmp_path / "data"
    words("the", "small", "cat").save(path, "source")
    subwords(tmp_path).save(path, "target")
    return path


def test_text_becomes_ids_and_the_same_text_again() -> None:
    codec = words("cat", "the")
    assert codec.tokenize("The CAT sat") == ["the", "cat", "sat"]
    assert codec.vocabulary.encode(["the", "cat", "sat"]) == [3, 2, 1]
    assert codec.vocabulary.decode([3, 2, 1, 4]) == ["the", "cat", "UNK"]
    assert codec.detokenize(["the", "cat"]) == "the cat"


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_saved_codec_loads_again(directory: Path, tmp_path: Path, side: Side) -> None:
    original = words("the", "small", "cat") if side == "source" else subwords(tmp_path)
    loaded = Codec.load(directory, side)
    assert loaded.settings == original.settings
    assert loaded.vocabulary == original.vocabulary
    assert loaded.tokenize(LINE) == original.tokenize(LINE)


def test_subwords_are_joined_to_the_same_line(directory: Path) -> None:
    codec = Codec.load(directory, "target")
    ids = codec.vocabulary.encode(codec.tokenize(LINE))
    assert 1 not in ids
    assert codec.detokenize(codec.vocabulary.decode([*ids, codec.vocabulary.end_id])) == LINE


def test_copied_codecs_are_complete(directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    copy_codecs(directory, copy)
    assert sorted(path.name for path in copy.iterdir()) == [
        "source.json",
        "source.vocab",
        "target.json",
        "target.spm",
        "target.vocab",
    ]
    assert vocabulary_fingerprint(copy) == vocabulary_fingerprint(directory)
    assert Codec.load(copy, "target").tokenize(LINE) == Codec.load(directory, "target").tokenize(
        LINE
    )


def test_saving_over_itself_keeps_the_model(directory: Path) -> None:
    before = vocabulary_fingerprint(directory)
    Codec.load(directory, "target").save(directory, "target")
    assert vocabulary_fingerprint(directory) == before


def test_the_fingerprint_depends_on_every_file(directory: Path) -> None:
    seen = {vocabulary_fingerprint(directory)}
    Vocabulary(("the", "small", "dog")).save(directory / "source.vocab")
    seen.add(vocabulary_fingerprint(directory))
    words("the", "small", "dog").save(directory, "target")
    seen.add(vocabulary_fingerprint(directory))
    words("the", "small").save(directory, "target")
    seen.add(vocabulary_fingerprint(directory))
    (directory / "source.json").write_text('{"kind": "whitespace"}')
    seen.add(vocabulary_fingerprint(directory))
    assert len(seen) == 5


@pytest.mark.parametrize("missing", ["source.json", "source.vocab", "target.spm"])
def test_missing_files_are_an_error_that_names_them(
    directory: Path, tmp_path: Path, missing: str
) -> None:
    (directory / missing).unlink()
    with pytest.raises(UserError, match=missing):
        Codec.load(directory, "target" if missing.startswith("target") else "source")
    with pytest.raises(UserError, match=missing):
        vocabulary_fingerprint(directory)
    with pytest.raises(UserError, match=missing):
        copy_codecs(directory, tmp_path / "copy")


@pytest.mark.parametrize("content", ['{"kind": "none"}', '{"type": "moses"}', "[1]", "{", "null"])
def test_damaged_settings_are_an_error_that_names_the_file(directory: Path, content: str) -> None:
    (directory / "source.json").write_text(content)
    with pytest.raises(UserError, match=r"source\.json"):
        Codec.load(directory, "source")
