"""Sentences and words of a line, as ranges of tokens."""

import pytest

from covnmt.inference.text_units import TextUnits, find_clauses, find_units
from covnmt.model.directory import find_model
from covnmt.text.codec import Codec
from covnmt.text.moses import MosesTokenizer
from covnmt.text.tokenize import Tokenizer, TokenizerSettings, WhitespaceTokenizer
from covnmt.text.vocabulary import Vocabulary

# Tokenizer settings, tokens, and the units that they form.
UNITS = [
    ({"kind": "whitespace"}, "18 68 , a", ["18", "68", "a"]),
    ({"kind": "sentencepiece"}, "▁He ▁was ▁bor n ▁in ▁1 8 68 .", "▁He ▁was ▁born ▁in ▁1868."),
    ({"kind": "sentencepiece", "unspaced": True}, "▁ 京都 で 1 8 68 年に 。", "京都 で 1868 年に"),
    ({"kind": "sentencepiece", "unspaced": True}, "", ""),
    (
        {"kind": "sentencepiece", "language": "th"},
        "▁แม วด \u0e37\u0e48 มน ้ำ ▁ใน 1 9 98",
        "▁แม วด\u0e37\u0e48 มน้ำ ▁ใน 1998",
    ),
]

NO_WORDS = Vocabulary(())


@pytest.mark.parametrize(("settings", "tokens", "words"), UNITS)
def test_units_are_words_and_numbers(
    settings: dict[str, str], tokens: str, words: str | list[str]
) -> None:
    tokenizer: Tokenizer = WhitespaceTokenizer()
    codec = Codec(TokenizerSettings.model_validate(settings), tokenizer, NO_WORDS)
    row = tokens.split()
    units = ["".join(row[unit.start : unit.stop]) for unit in find_units(row, codec)]
    assert units == (words.split() if isinstance(words, str) else words)


def test_a_character_spelled_in_bytes_is_a_unit_unless_punctuation() -> None:
    codec = Codec.load(find_model("ja-en"), "source")
    tokens = codec.tokenize("驫木神社◎鼉太鼓")
    assert "<0xE9>" in tokens
    units = [codec.detokenize(tokens[unit.start : unit.stop]) for unit in find_units(tokens, codec)]
    assert units == ["驫", "木", "神社", "鼉", "太鼓"]


def test_sentences_are_ranges_of_the_tokens_of_a_line() -> None:
    codec = Codec(TokenizerSettings(), MosesTokenizer("en"), NO_WORDS)
    line = TextUnits.from_line("The dog barks. ... It is late.", codec)
    assert line.tokens == ("The", "dog", "barks", ".", "...", "It", "is", "late", ".")
    assert line.sentences == [range(4), range(4, 5), range(5, 9)]
    last = [range(5, 6), range(6, 7), range(7, 8)]
    assert line.units_without(line.sentences[:1]) == last


@pytest.mark.parametrize("model", ["ja-en", "zh-en"])
def test_unspaced_sentences_are_tokenized_as_in_the_line(model: str) -> None:
    """A sentence by itself would begin with a space symbol and be read differently."""
    codec = Codec.load(find_model(model), "source")
    text = "彼は寺で学んだ。しかし「月」を得た。其他有关事项。"
    line = TextUnits.from_line(text, codec)
    assert list(line.tokens) == codec.tokenize(text)
    assert [codec.detokenize(line.tokens[each.start : each.stop]) for each in line.sentences] == [
        f"{sentence}。" for sentence in text.split("。")[:-1]
    ]


@pytest.mark.parametrize(("unspaced", "tokens"), [(True, "▁今。明。"), (False, "▁今。▁明。")])
def test_spaced_sentences_begin_with_a_space_symbol(unspaced: bool, tokens: str) -> None:
    class Subwords(WhitespaceTokenizer):
        def tokenize(self, line: str) -> list[str]:
            return list(f"▁{line}")

    settings = TokenizerSettings(kind="sentencepiece", unspaced=unspaced)
    assert TextUnits.from_line("今。 明。", Codec(settings, Subwords(), NO_WORDS)).tokens == tuple(
        tokens
    )


def test_a_subword_across_a_sentence_end_changes_no_tokens() -> None:
    class Greedy(WhitespaceTokenizer):
        def tokenize(self, line: str) -> list[str]:
            return list(line.replace("。「", "@"))

    settings = TokenizerSettings(kind="characters", unspaced=True)
    line = TextUnits.from_line("あ。「い」。", Codec(settings, Greedy(), NO_WORDS))
    assert line.tokens == tuple("あ。「い」。")


# Tokens, each a word or a mark, and the clauses that they form.
CLAUSES = [
    ("he came , she went home .", ["he came ,", "she went home ."]),
    ("it has 1,000 members in all", ["it has 1,000 members in all"]),
    ("it has 1 , 000 members in all", ["it has 1 , 000 members in all"]),
    ("at home 10:30 we ate: they slept", ["at home 10:30 we ate:", "they slept"]),
    ("江戸 で 生まれ 、 京都 で 死んだ", ["江戸 で 生まれ 、", "京都 で 死んだ"]),
    ("古い 寺 は 、 山 に ある", ["古い 寺 は 、", "山 に ある"]),
    ("古い 寺 、 新しい 神社 と 庭", ["古い 寺 、 新しい 神社 と 庭"]),
    ("赤い カメラ と 、 青い 本", ["赤い カメラ と 、 青い 本"]),
    ("寺 や 庭 など 、 古い もの", ["寺 や 庭 など 、 古い もの"]),
    ("各 机关 、 学校 、 公司 及 团体", ["各 机关 、 学校 、 公司 及 团体"]),
    ("他 来 了 ， 她 走 了", ["他 来 了 ，", "她 走 了"]),
]


@pytest.mark.parametrize(("text", "clauses"), CLAUSES)
def test_clauses_end_at_commas_but_not_between_items_of_a_list(
    text: str, clauses: list[str]
) -> None:
    tokens = text.split()
    units = [range(k, k + 1) for k, token in enumerate(tokens) if token.isalnum()]
    found = [" ".join(tokens[part.start : part.stop]) for part in find_clauses(tokens, units)]
    assert found == clauses


# Lines as they are given, and the words that are marked in them.
RAW_LINES = [
    ("zh-en", "前項　規定，自２０２０年 １月１日施行。", ["２０２０年 １月１日", "施行"]),
    ("zh-en", "圖書館應保存閱覽紀錄。", ["圖書館", "閱覽紀錄"]),
    ("ja-en", "驫木神社は ①、 鼉太鼓を ｹﾞｲｼｬが", ["驫木神社", "鼉太鼓", "ｹﾞｲｼｬ"]),
]


@pytest.mark.parametrize(("model", "line", "words"), RAW_LINES)
def test_units_are_characters_of_the_line_as_it_was_given(
    model: str, line: str, words: list[str]
) -> None:
    units = TextUnits.from_line(line, Codec.load(find_model(model), "source"))
    spans = [units.characters(range(j, j + 1)) for j in range(len(units.tokens))]
    for word in words:
        start = line.index(word)
        tokens = [
            j for j, (first, last) in enumerate(spans) if first < start + len(word) and start < last
        ]
        first, last = units.characters(range(tokens[0], tokens[-1] + 1))
        assert word in line[first:last]
        assert last - first <= len(word) + 4  # a token may be longer
    assert units.characters(range(len(units.tokens))) == (0, len(line))
