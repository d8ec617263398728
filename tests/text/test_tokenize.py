"""Tokenizers: cleaning, splitting, joining, and tokens without white space."""

import subprocess
import sys
from pathlib import Path
from typing import Literal, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from covnmt.base.errors import UserError
from covnmt.text.codec import Codec
from covnmt.text.tokenize import (
    SPACE_SYMBOL,
    SentencePieceTokenizer,
    TokenizerSettings,
    build_tokenizer,
    clean_line,
    spell_byte_tokens,
    subword_settings,
)
from covnmt.text.vocabulary import Vocabulary, train_sentencepiece

Kind = Literal["moses", "jieba", "characters", "whitespace"]

CLEAN = [
    ("as it is", "as it is"),
    ("  two  spaces\tand a tab ", "two spaces and a tab"),
    ("ideographic\u3000and no-break\u00a0space", "ideographic and no-break space"),
    ("line\u2028separator and next\x85line", "line separator and next line"),
    ("bell\x07 nul \x00 end", "bell nul end"),
    ("\ufeffmarked", "marked"),
    ("e\u0301 is not composed", "e\u0301 is not composed"),
    ("\x00 \x07", ""),
    ("", ""),
]

# Text as typed or as split in a corpus -> cleaned with nfkc and unspaced.
PLAIN = [
    ("動物 園 は 2001 年 に 開い た 。", "動物園は2001年に開いた。"),
    ("（ 2001 年 ）", "(2001年)"),
    ("ＡＢＣ １２３ と ｶﾅ", "ABC 123とカナ"),
    ("『 READ OR DIE -』 の 作者", "『READ OR DIE-』の作者"),
    ("第 5,000 号， 及 Serial No. 7", "第5,000号,及Serial No.7"),
    ("空白の\u3000ない文", "空白のない文"),
    ("\u200b本法\u00ad所稱\u200b主管\u2060機關\u200e", "本法所稱主管機關"),
    ("祇\U000e0100園祭\ufe0f No. \u200b 7 a \u200d b", "祇園祭No.7 a b"),
]

# Text as typed -> cleaned for every scheme except whitespace.
TYPED = [
    ("e\u0301tude", "étude"),
    ("क़लम ড়", "क\u093cलम ড\u09bc"),
    ("か\u3099 \ufa19", "が \ufa19"),  # in a name it is no 神
    ("Ar\u00adbeits\u200bamt", "Arbeitsamt"),
    ("\u200fשלום\u200f, \u2067abc\u2069\u061c", "שלום, abc"),
    ("می\u200cخواهم क्\u200dष ❤\ufe0f", "می\u200cخواهم क्\u200dष ❤\ufe0f"),
]

# Characters that NFKC would change wrongly.
KEPT = ["น้ำทำ", "ນ້ຳ ໝາ", "ㅋㅋㅋ ㅠㅠ"]

# traditional characters -> simplified; simplified and Japanese ones stay
SIMPLIFIED = [
    ("申請人應於三十日內補正。", "申请人应于三十日内补正。"),
    ("主管機關", "主管机关"),
    ("乾燥設備及其後之維護", "干燥设备及其后之维护"),
    ("申请人应于三十日内补正。", "申请人应于三十日内补正。"),
    ("No. 7, 1868", "No. 7, 1868"),
    ("", ""),
]

SPLIT: list[tuple[Kind, str, str, list[str]]] = [
    ("whitespace", "en", "don't  split, me", ["don't", "split,", "me"]),
    ("characters", "en", "ab c", ["a", "b", SPACE_SYMBOL, "c"]),
    ("characters", "th", "น้ำ ที่", ["น้", "ำ", SPACE_SYMBOL, "ที่"]),
    ("characters", "hi", "क्या हिन्दी", ["क्", "या", SPACE_SYMBOL, "हि", "न्", "दी"]),
    ("characters", "en", "\u0301a", ["\u0301", "a"]),
    ("moses", "en", "It's 5,000 & <more>.", ["It", "'s", "5,000", "&", "<", "more", ">", "."]),
    ("moses", "fr", "l'ami", ["l'", "ami"]),
    ("moses", "en", "Mr. Low left.", ["Mr.", "Low", "left", "."]),
    ("jieba", "zh", "我们 2016年 love it", ["我们", "2016", "年", "love", "it"]),
]

ROUND_TRIP: list[tuple[Kind, str, str]] = [
    ("whitespace", "en", "already split , text ."),
    ("characters", "ja", "空白 も 残る。"),
    ("moses", "en", 'He paid $5,000 (in cash), didn\'t he? "Yes," she said.'),
    ("moses", "en", "Less than < and & stay as they are."),
    ("moses", "de", "Das Haus, das z.B. rot ist, kostet 3,5 Mio."),
    ("moses", "fr", "L'ami d'Anne n'est pas là."),
    ("jieba", "zh", "我们在2016年10月发布了新产品。"),
    ("jieba", "zh", "他说very good job就走了"),
    ("jieba", "zh", "共有12,000元和3.14%，naïve"),
    ("jieba", "zh", "C++ Java都可以"),
]

# Without U+2581, which replaces a space.
lines = st.text(
    st.characters(exclude_characters=SPACE_SYMBOL, exclude_categories=["Cs"]), max_size=30
)


@pytest.mark.parametrize(("text", "expected"), CLEAN)
def test_control_characters_and_white_space_are_cleaned(text: str, expected: str) -> None:
    assert clean_line(text) == expected


def cleaning_tokenizer(settings: TokenizerSettings, spm_path: Path | None = None) -> Codec:
    return Codec(settings, build_tokenizer(settings, spm_path), Vocabulary(()))


@given(lines)
def test_cleaning_twice_changes_nothing_more(line: str) -> None:
    assert clean_line(clean_line(line)) == clean_line(line)


@pytest.mark.parametrize(("text", "expected"), PLAIN)
def test_untokenized_text_is_cleaned(text: str, expected: str) -> None:
    settings = TokenizerSettings(kind="characters", nfkc=True, unspaced=True)
    assert clean_line(text, settings) == expected
    tokenizer = cleaning_tokenizer(settings)
    assert tokenizer.detokenize(tokenizer.tokenize(text)) == expected
    assert tokenizer.tokenize(expected) == tokenizer.tokenize(text)


@pytest.mark.parametrize(("text", "expected"), TYPED)
def test_equivalent_characters_are_normalized_to_one_form(text: str, expected: str) -> None:
    for kind in get_args(Kind):
        settings = TokenizerSettings(kind=kind)
        assert clean_line(text, settings) == (text if kind == "whitespace" else expected)
        assert clean_line(clean_line(text, settings), settings) == clean_line(text, settings)


@pytest.mark.parametrize("text", KEPT)
def test_thai_lao_and_korean_letters_are_not_taken_apart(text: str) -> None:
    assert clean_line(text + " Ａ", subword_settings("th")) == text + " A"


@pytest.mark.parametrize(("text", "expected"), SIMPLIFIED)
def test_traditional_characters_become_simplified(text: str, expected: str) -> None:
    settings = TokenizerSettings(kind="characters", simplified=True)
    assert clean_line(text, settings) == expected
    assert clean_line(text) == text


@pytest.mark.parametrize(("kind", "language", "line", "tokens"), SPLIT)
def test_each_scheme_splits_lines(kind: Kind, language: str, line: str, tokens: list[str]) -> None:
    settings = TokenizerSettings(kind=kind, language=language)
    assert cleaning_tokenizer(settings).tokenize(line) == tokens


@pytest.mark.parametrize(("kind", "language", "line"), ROUND_TRIP)
def test_each_scheme_joins_tokens_to_the_same_line(kind: Kind, language: str, line: str) -> None:
    tokenizer = cleaning_tokenizer(TokenizerSettings(kind=kind, language=language))
    assert tokenizer.detokenize(tokenizer.tokenize(line)) == line


@pytest.mark.parametrize("kind", ["characters", "whitespace"])
@given(line=lines)
def test_lossless_schemes_restore_any_line(kind: Kind, line: str) -> None:
    settings = TokenizerSettings(kind=kind)
    tokenizer = cleaning_tokenizer(settings)
    assert tokenizer.detokenize(tokenizer.tokenize(line)) == clean_line(line, settings)


@pytest.mark.parametrize("kind", ["moses", "jieba", "characters", "whitespace"])
def test_tokens_have_no_white_space(kind: Kind) -> None:
    tokenizer = cleaning_tokenizer(TokenizerSettings(kind=kind))

    @given(lines)
    def check(line: str) -> None:
        tokens = tokenizer.tokenize(line)
        assert " ".join(tokens).split() == tokens

    check()


@pytest.mark.parametrize("kind", ["moses", "jieba", "characters", "whitespace"])
def test_an_empty_line_has_no_tokens(kind: Kind) -> None:
    tokenizer = cleaning_tokenizer(TokenizerSettings(kind=kind))
    assert tokenizer.tokenize(" ") == []
    assert tokenizer.detokenize([]) == ""


def test_lowercasing() -> None:
    tokenizer = cleaning_tokenizer(TokenizerSettings(kind="whitespace", lowercase=True))
    assert tokenizer.tokenize("Ein ÄPFEL WEIẞ") == ["ein", "äpfel", "weiß"]


@pytest.mark.parametrize("language", ["az", "tr"])
def test_turkish_capitals_are_lowercased_with_or_without_dot(language: str) -> None:
    tokenizer = cleaning_tokenizer(TokenizerSettings(language=language, lowercase=True))
    assert " ".join(tokenizer.tokenize("IŞIK İyi I\u0307ç ılık in")) == "ışık iyi iç ılık in"


@pytest.fixture(scope="module")
def subwords(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spm") / "source.spm"
    train_sentencepiece(["the small cat sat", "a cat and a small dog"] * 30, path, size=40)
    return path


def test_sentencepiece_restores_the_line(subwords: Path) -> None:
    tokenizer = cleaning_tokenizer(TokenizerSettings(kind="sentencepiece"), subwords)
    for line in ("the dog sat", "  a   small \x07cat", "unknown Ω letters", ""):
        tokens = tokenizer.tokenize(line)
        assert " ".join(tokens).split() == tokens
        assert tokenizer.detokenize(tokens) == clean_line(line)


@pytest.fixture(scope="module")
def open_subwords(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spm") / "target.spm"
    lines = ["the small cat of 1984 sat", "a cat and a small dog"] * 30
    train_sentencepiece(lines, path, size=300, open_vocabulary=True)
    return path


@given(line=lines)
def test_an_open_vocabulary_has_no_unknown_characters(open_subwords: Path, line: str) -> None:
    tokenizer = SentencePieceTokenizer(open_subwords)
    plain = clean_line(line)
    tokens = tokenizer.tokenize(plain)
    assert set(tokens) <= set(tokenizer.subwords())
    assert tokenizer.detokenize(tokens) == plain


def test_an_open_vocabulary_splits_digits_and_unknown_characters_into_bytes(
    open_subwords: Path,
) -> None:
    tokenizer = SentencePieceTokenizer(open_subwords)
    assert {"1", "9", "8", "4"} <= set(tokenizer.tokenize("cat 1984"))
    assert tokenizer.tokenize("猫")[-3:] == ["<0xE7>", "<0x8C>", "<0xAB>"]
    assert tokenizer.detokenize(["▁cat", "<0xE7>", "<0x8C>", "▁dog"]) == "cat\ufffd dog"
    assert tokenizer.detokenize(["▁a", "<0x0A>", "b", "<0x20>", "c"]) == "abc"


def test_a_missing_or_damaged_sentencepiece_model_is_an_error(tmp_path: Path) -> None:
    settings = TokenizerSettings(kind="sentencepiece")
    with pytest.raises(ValueError, match="trained model"):
        build_tokenizer(settings)
    with pytest.raises(UserError, match="no such file"):
        build_tokenizer(settings, tmp_path / "none.spm")
    (tmp_path / "bad.spm").write_bytes(b"not a model")
    with pytest.raises(UserError, match="not a sentencepiece model"):
        build_tokenizer(settings, tmp_path / "bad.spm")


@pytest.mark.parametrize("bad", [{"kind": "mosses"}, {"colour": "red"}, {"language": "English"}])
def test_unknown_tokenizer_settings_are_refused(bad: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        TokenizerSettings.model_validate(bad)


def test_heavy_libraries_are_imported_only_when_used() -> None:
    code = (
        "import sys; from covnmt.text.tokenize import *;"
        "build_tokenizer(TokenizerSettings(kind='whitespace'));"
        "print(*{'opencc', 'sacremoses', 'rjieba', 'sentencepiece'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# Tokens -> displayed tokens; bytes of invisible characters stay.
SPELT = [
    ("", ""),
    ("▁ <0xE9> <0xA9> <0xAB> 木 神社", "▁ 驫₁ 驫₂ 驫₃ 木 神社"),
    ("<0xE5> <0xA0> <0x83> <0xE6> <0xB3> <0xB0>", "堃₁ 堃₂ 堃₃ 泰₁ 泰₂ 泰₃"),
    ("<0x24> 5 <0xC3> <0xBC> <0xF0> <0x9F> <0x98> <0x80>", "$ 5 ü₁ ü₂ 😀₁ 😀₂ 😀₃ 😀₄"),
    ("<0x0A> <0x20> <0x7F> <0xE9> <0xA9> a <0xAB>", "<0x0A> <0x20> <0x7F> <0xE9> <0xA9> a <0xAB>"),
]


@pytest.mark.parametrize(("tokens", "shown"), SPELT)
def test_byte_tokens_are_shown_as_their_character(tokens: str, shown: str) -> None:
    assert spell_byte_tokens(tokens.split()) == shown.split()
