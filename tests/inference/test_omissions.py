"""Omissions, found with a stand-in model that translates word by word."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from covnmt.base.config import DecodeConfig
from covnmt.data.padding import PaddedIds
from covnmt.decoding.engines import (
    AttentionTwice,
    ForcedDecoding,
    SearchResult,
    StepCallback,
    do_nothing,
)
from covnmt.inference import omissions, translate
from covnmt.inference.model import Model, Overlong
from covnmt.inference.omissions import format_reports
from covnmt.inference.translate import Translation
from covnmt.text.codec import Codec
from covnmt.text.tokenize import TokenizerSettings, WhitespaceTokenizer
from covnmt.text.vocabulary import Vocabulary

# Source, a translation, and its omissions; `wa` and `.` are never translated.
CASES = [
    ("a wa b c .", "A B C", []),
    ("a wa b c .", "A C", ["b"]),
    ("a wa b c .", "C", ["a", "b"]),
    ("a b c d", "A D", ["b c"]),
    ("a b a c", "A C", ["b"]),
    ("d wa", "D", []),
    ("a wa b", "", ["a", "b"]),
    ("", "A", []),
    ("wa .", "", []),
    ("a x", "A", []),  # the model itself omits it, and scores better without it
]

# Lines with several sentences: omissions and their gains.
SENTENCES = [
    ("a b 。 c d 。", "A B C D", []),
    ("a b 。 c d 。", "A B", [("c d 。", 6.0)]),
    ("a b 。 c d 。", "A C D", [("b", 3.0)]),
    ("a 。 b 。 c 。", "B", [("a 。", 3.0), ("c 。", 3.0)]),
    ("a b 。 c d 。", "D", [("a b 。", 6.0), ("c", 3.0)]),  # neighbors in different sentences
    ("a b 。 c d 。", "A D", [("b", 3.0), ("c", 3.0)]),  # as above
    ("wa 。 a b 。 。 c 。", "A", [("b", 3.0), ("c 。", 3.0)]),
    ("a 。 x 。", "A", []),
    ("a b 。 c d 。", "", [("a b 。", 8.0), ("c d 。", 8.0)]),
    ("wa 。 a b 。", "", [("a b", 8.0)]),
    ("wa 。 。", "", []),
]

SOURCE, TARGET = Vocabulary(("a", "b", "c", "d", "x", "wa", ".")), Vocabulary(tuple("ABCD"))
[IMPROBABLE] = SOURCE.encode(["x"])
TRANSLATED = {SOURCE.encode([word.lower()])[0]: TARGET.encode([word])[0] for word in "ABCD"}


class WordByWord:
    """Scores targets: each word costs little, an unfounded or a missing one costs much.

    The source word `x` makes every target less probable.
    """

    device = "cpu"
    before_step = staticmethod(do_nothing)

    def force_decode(self, source: PaddedIds, target: PaddedIds) -> ForcedDecoding:
        assert len(target.ids) == 1 or target.ids.size <= omissions.MAX_TARGET_POSITIONS
        rows = [
            self.log_prob(x[: int(J) - 1].tolist(), y[: int(I) - 1].tolist())
            for x, J, y, I in zip(
                source.ids, source.mask.sum(1), target.ids, target.mask.sum(1), strict=True
            )
        ]
        return ForcedDecoding(
            np.zeros((len(rows), 1, 1), np.float32), np.array(rows, np.float32), None
        )

    def search(
        self, source: PaddedIds, decode: DecodeConfig, watch: StepCallback | None
    ) -> SearchResult:
        raise AssertionError("the stand-in translates")

    def attend_twice(self, source: PaddedIds, target: PaddedIds) -> AttentionTwice:
        raise AssertionError("nobody asks for attention")

    def log_prob(self, x: Sequence[int], y: Sequence[int]) -> float:
        meant = [TRANSLATED[word] for word in x if word in TRANSLATED]
        unfounded = sum(word not in meant for word in y)
        missing = sum(word not in y for word in meant)
        return -0.1 * len(y) - 8.0 * unfounded - 3.0 * missing - 5.0 * x.count(IMPROBABLE)


class CountingWords(WordByWord):
    """Also counts how often a word is translated."""

    def log_prob(self, x: Sequence[int], y: Sequence[int]) -> float:
        meant = Counter(TRANSLATED[word] for word in x if word in TRANSLATED)
        said = Counter(y)
        return -8.0 * (said - meant).total() - 3.0 * (meant - said).total()


class HidingOmissions(WordByWord):
    """Penalizes the first missing word more than the second one."""

    def log_prob(self, x: Sequence[int], y: Sequence[int]) -> float:
        meant = [TRANSLATED[word] for word in x if word in TRANSLATED]
        missing = sum(word not in y for word in meant)
        unfounded = sum(word not in meant for word in y)
        return -8.0 * unfounded - {0: 0.0, 1: 3.0, 2: 2.5}.get(missing, 9.0)


class StandIn(Model):
    """Translates word by word, and scores with the stand-in engine."""

    def __init__(self, engine: WordByWord | None = None) -> None:
        settings, plain = TokenizerSettings(kind="whitespace"), WhitespaceTokenizer()
        self.source, self.target = Codec(settings, plain, SOURCE), Codec(settings, plain, TARGET)
        self.decode, self.engine = DecodeConfig(), engine or WordByWord()

    def translate(
        self,
        lines: Iterable[str],
        decode: DecodeConfig | None = None,
        overlong: Overlong = "cut",
        on_step: translate.LineCallback | None = None,
        split_sentences: bool = False,
    ) -> list[Translation]:
        known = [
            [TRANSLATED[w] for w in SOURCE.encode(line.split()) if w in TRANSLATED]
            for line in lines
        ]
        texts = [" ".join(TARGET.decode(words)) for words in known]
        nothing = np.zeros(0, np.float32)
        return [
            Translation("", (), text, tuple(text.split()), 0.0, (), nothing, None) for text in texts
        ]


@pytest.fixture
def checker() -> Model:
    return StandIn()


@pytest.mark.parametrize(("source", "target", "left_out"), CASES)
def test_omitted_words_are_found(
    checker: Model, source: str, target: str, left_out: list[str]
) -> None:
    [found] = checker.check([(source, target)])
    assert [each.text for each in found.omissions] == left_out
    for each in found.omissions:
        assert " ".join(found.source_tokens[each.start : each.end]) == each.text
        assert each.gain == pytest.approx(3.0 if target else 8.0)


@pytest.mark.parametrize(("source", "target", "left_out"), SENTENCES)
def test_omitted_sentences_are_found_as_a_whole(
    checker: Model, source: str, target: str, left_out: list[tuple[str, float]]
) -> None:
    [found] = checker.check([(source, target)])
    assert [(each.text, round(each.gain, 3)) for each in found.omissions] == left_out
    assert list(found.source_tokens) == source.split()
    for each in found.omissions:
        assert " ".join(found.source_tokens[each.start : each.end]) == each.text
    assert len(found.units) == len(found.need) == len(found.gain)


def test_only_one_of_two_identical_sentences_is_omitted() -> None:
    [found] = StandIn(CountingWords()).check([("a b 。 a b 。 c 。", "A B C")])
    assert [(each.text, each.gain) for each in found.omissions] == [("a b 。", 6.0)]


def test_omitted_sentences_that_hide_each_other_are_both_found() -> None:
    """The gain of each is measured with the others removed."""
    [found] = StandIn(HidingOmissions()).check([("a 。 b 。 c 。", "A")])
    assert [(each.text, each.gain) for each in found.omissions] == [("b 。", 3.0), ("c 。", 3.0)]


def test_min_gain_applies_to_sentences(checker: Model) -> None:
    pair = ("a b 。 c d 。", "A B")
    assert checker.check([pair], min_gain=6.9)[0].omissions
    assert not checker.check([pair], min_gain=7.1)[0].omissions
    assert not checker.check([("a b 。 c d 。", "")], min_gain=8.1)[0].omissions


def test_one_sentence_takes_two_decodings_per_word() -> None:
    class Counting(WordByWord):
        rows = 0

        def force_decode(self, source: PaddedIds, target: PaddedIds) -> ForcedDecoding:
            self.rows += len(source.ids)
            return super().force_decode(source, target)

    engine = Counting()
    StandIn(engine).check([("a wa b c .", "A C")])
    assert engine.rows == 2 * (1 + 4)


def test_checks_do_not_depend_on_batches_and_windows(
    checker: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [(source, target) for source, target, *_ in [*CASES, *SENTENCES]]
    alone = [checker.check([pair])[0].to_json() for pair in pairs]
    monkeypatch.setattr(omissions, "BATCH_SIZE", 3)
    monkeypatch.setattr(omissions, "WINDOW_PAIRS", 4)
    monkeypatch.setattr(omissions, "MAX_TARGET_POSITIONS", 5)
    assert [each.to_json() for each in checker.check(iter(pairs))] == alone


def test_min_gain_applies_to_words(checker: Model) -> None:
    assert checker.check([("a b", "A")], min_gain=2.9)[0].omissions
    assert not checker.check([("a b", "A")], min_gain=3.1)[0].omissions


def test_formatted_reports(checker: Model) -> None:
    found = checker.check([("a b", "A B"), ("a b c d", "B"), ("a b", "A")])
    assert list(format_reports(found, as_json=False)) == ["2\ta (3.0)\tc d (3.0)", "3\tb (3.0)"]
    rows = [json.loads(line) for line in format_reports(found, as_json=True)]
    assert [len(row["left_out"]) for row in rows] == [0, 2, 1]
    assert rows[1]["own"] == "A B C D"
    assert rows[1]["left_out"][1] == {"text": "c d", "start": 2, "end": 4, "gain": 3.0}


def test_a_pair_with_a_long_side_is_skipped_and_the_others_are_checked(
    checker: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(omissions, "WINDOW_PAIRS", 2)
    pairs = [("a b", "A"), ("a b c d", "A"), ("a", "A A A A"), ("", ""), ("a b c", "A B")]
    found = list(checker.check_stream(pairs, 1.0, max_tokens=3))
    assert list(format_reports(found, as_json=False)) == ["1\tb (3.0)", "5\tc (3.0)"]
    rows = [json.loads(line) for line in format_reports(found, as_json=True)]
    assert [row.get("skipped") for row in rows] == [None, "4 tokens", "4 tokens", None, None]


def test_the_model_translation_contains_every_sentence_of_a_line() -> None:
    """A model omits much of long lines, and could not miss what it omits itself."""
    checker = Model.load("ja-en")
    sentences = ["清水寺は東山にある。", "本尊は千手観音である。", "彼は寺で茶の湯を学んだ。"]
    [found] = checker.check([("".join(sentences), "Kiyomizu-dera is in Higashiyama.")])
    translations = [translation.text for translation in checker.translate(sentences)]
    assert found.model_translation == " ".join(translations)
    assert [left_out.text for left_out in found.omissions] == sentences[1:]
