"""The commands that make text ready: which files they take, and as what."""

from pathlib import Path

import pytest

from covnmt.base.files import write_lines
from covnmt.text.codec import SIDES, Codec
from tests.conftest import Run


def test_several_training_files(run: Run, tiny_text: Path, tmp_path: Path) -> None:
    sources = f"{tiny_text / 'train.src'},{tiny_text / 'dev.src'}"
    targets = f"{tiny_text / 'train.tgt'},{tiny_text / 'dev.tgt'}"
    assert "320 of 320 pairs" in run("prepare", tmp_path / "data", "--train", sources, targets).out


def test_plain_text(run: Run, tmp_path: Path) -> None:
    write_lines(tmp_path / "a.ja", ["（ 猫 ） ABC def"] * 20)
    write_lines(tmp_path / "a.en", ["The Cat"] * 20)
    files = ("--train", tmp_path / "a.ja", tmp_path / "a.en", "--plain")
    languages = ("--source-language", "ja", "--target-language", "en")
    sizes = ("--source-vocab", 290, "--target-vocab", 290)
    run("prepare", tmp_path / "data", *files, *languages, *sizes)
    source, target = (Codec.load(tmp_path / "data", side) for side in SIDES)
    assert source.detokenize(source.tokenize("（ 猫 ） ABC def")) == "(猫)ABC def"
    assert target.detokenize(target.tokenize("The 犬")) == "The 犬"


@pytest.mark.parametrize(("code", "meant"), [("pt-BR", "pt"), ("ZH_TW", "zh"), ("fil", "fil")])
def test_a_language_of_some_country(
    run: Run, tiny_text: Path, tmp_path: Path, code: str, meant: str
) -> None:
    train = ("--train", tiny_text / "train.src", tiny_text / "train.tgt")
    run("prepare", tmp_path / "data", *train, "--source-language", code)
    assert Codec.load(tmp_path / "data", "source").settings.language == meant


def test_what_is_no_code_of_a_language(run: Run, tiny_text: Path, tmp_path: Path) -> None:
    train = ("--train", tiny_text / "train.src", tiny_text / "train.tgt")
    done = run("prepare", tmp_path / "data", *train, "--target-language", "German", code=2)
    assert "German" in done.err
    assert "--target-language" in done.err


@pytest.mark.parametrize(("code", "told"), [("th", True), ("tr", False)])
def test_words_that_no_spaces_part_are_told(
    run: Run, tiny_text: Path, tmp_path: Path, code: str, told: bool
) -> None:
    train = ("--train", tiny_text / "train.src", tiny_text / "train.tgt")
    done = run("prepare", tmp_path / "data", *train, "--source-language", code)
    assert ("try --plain" in done.err) == told


def test_traditional_characters_become_simplified(run: Run, tmp_path: Path) -> None:
    """In Chinese only: the other side keeps what it has."""
    write_lines(tmp_path / "a.zh", ["主管機關 應 公告"] * 20)
    write_lines(tmp_path / "a.ja", ["主管機關 が 公告"] * 20)
    files = ("--train", tmp_path / "a.zh", tmp_path / "a.ja", "--simplify")
    languages = ("--source-language", "zh", "--target-language", "ja")
    kinds = ("--source-tokenizer", "whitespace", "--target-tokenizer", "whitespace")
    run("prepare", tmp_path / "data", *files, *languages, *kinds)
    source, target = (Codec.load(tmp_path / "data", side) for side in SIDES)
    assert source.tokenize("主管機關 應") == source.tokenize("主管机关 应") == ["主管机关", "应"]
    assert target.tokenize("主管機關") == ["主管機關"]
    assert "主管机关" in source.vocabulary.tokens


def test_numbers_become_chinese_characters(run: Run, tmp_path: Path) -> None:
    """In Chinese only."""
    write_lines(tmp_path / "a.zh", ["第 12 条"] * 20)
    write_lines(tmp_path / "a.en", ["Article 12"] * 20)
    files = ("--train", tmp_path / "a.zh", tmp_path / "a.en", "--numerals")
    languages = ("--source-language", "zh", "--target-language", "en")
    run("prepare", tmp_path / "data", *files, *languages, "--source-tokenizer", "whitespace")
    source, target = (Codec.load(tmp_path / "data", side) for side in SIDES)
    assert source.tokenize("第 12 条") == ["第", "十二", "条"]
    assert {"十二", "12"} & set(source.vocabulary.tokens) == {"十二"}
    assert target.tokenize("Article 12") == ["Article", "12"]


def test_names_with_commas_are_files_if_they_exist(
    run: Run, tiny_text: Path, tmp_path: Path
) -> None:
    source, target = tmp_path / "a,b.src", tiny_text / "train.tgt"
    source.write_bytes((tiny_text / "train.src").read_bytes())
    assert "300 of 300" in run("prepare", tmp_path / "d", "--train", source, target).out
    done = run("prepare", tmp_path / "e", "--train", "a,b", target, code=2)
    assert "2 source files but 1 target files (commas separate the names" in done.err


def test_unpack_is_refused_where_nothing_is_unpacked(run: Run, tmp_path: Path) -> None:
    places = ("--work", tmp_path / "work", "--results", tmp_path / "results")
    for option in ("--list", "--page"):
        done = run("reproduce", "embedded", "--unpack", "nosuch", option, *places, code=2)
        assert "give --unpack without them" in done.err
    assert not list(tmp_path.iterdir())
