"""Omissions, found with a stand-in model that translates word by word."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from covnmt.base.config import DecodeConfig
from covnmt.data.padding import PaddedIds
from covnmt.decoding.engines import (
    CoverageAblation,
    ForcedDecoding,
    SearchResult,
    StepCallback,
    do_nothing,
)
from covnmt.inference import omissions, translate
from covnmt.inference.model import Model, Overlong
from covnmt.inference.omission_features import Pair
from covnmt.inference.omissions import OmissionChecker
from covnmt.inference.translate import Translation
from covnmt.text.codec import Codec
from covnmt.text.tokenize import TokenizerSettings, WhitespaceTokenizer
from covnmt.text.vocabulary import Vocabulary

# Source, a translation, and the words that it omits.
CASES = [
    ("a wa b c .", "A B C", []),
    ("a wa b c .", "A C", ["b"]),
    ("a wa b c .", "C", ["a", "b"]),
    ("a b c d", "A D", ["b c"]),
    ("a b a c", "A C", ["b"]),
    ("d wa", "D", []),
    ("a wa b", "", ["a wa b"]),
    ("", "A", []),
    (".", "", []),
]

# Lines with several sentences: omitted sentences and words, and their gains.
SENTENCES = [
    ("a b 。 c d 。", "A B C D", []),
    ("a b 。 c d 。", "A B", [("c d 。", 6.0)]),
    ("a b 。 c d 。", "A C D", [("b", 3.0)]),
    ("a 。 b 。 c 。", "B", [("a 。", 3.0), ("c 。", 3.0)]),
    ("a b 。 c d 。", "D", [("a b 。", 6.0), ("c", 3.0)]),  # neighbors in different sentences
    ("a b 。 c d 。", "A D", [("b", 3.0), ("c", 3.0)]),  # as above
    ("a 。 x 。", "A", [("x 。", 5.0)]),
    ("a b 。 c d 。", "", [("a b 。 c d 。", 0.0)]),
]

# Clauses end at commas.
CLAUSES = [
    ("a b , c d", "A B", [("c d", "clause")]),
    ("a b , c d", "A B C D", []),
    ("a b , c , d", "A B", [("c , d", "clause")]),  # one word is no clause
    ("a b , c d , b a 。 b 。", "B", [("a b , c d , b a 。", "sentence")]),
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
        log_probs = np.array(rows, np.float32)
        by_token = np.zeros(target.ids.shape, np.float32)
        by_token[:, 0] = log_probs
        alpha = np.zeros((*target.ids.shape, source.ids.shape[1]), np.float32)
        return ForcedDecoding(alpha, log_probs, None, by_token)

    def search(
        self, source: PaddedIds, decode: DecodeConfig, watch: StepCallback | None
    ) -> SearchResult:
        raise AssertionError("the stand-in translates")

    def ablate_coverage(self, source: PaddedIds, target: PaddedIds) -> CoverageAblation:
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
        self.loader = None

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
    [found] = checker.check([(source, target)], words=True)
    assert [each.text for each in found.omissions] == left_out
    for each in found.omissions:
        assert " ".join(found.source_tokens[each.start : each.end]) == each.text
        assert source[each.start_char : each.end_char] == each.text
        assert each.probability > 0.5
    assert found.words == found.judged


@pytest.mark.parametrize(("source", "target", "left_out"), SENTENCES)
def test_omitted_sentences_are_found_as_a_whole(
    checker: Model, source: str, target: str, left_out: list[tuple[str, float]]
) -> None:
    [found] = checker.check([(source, target)], words=True)
    assert [(each.text, round(each.gain, 3)) for each in found.omissions] == left_out
    assert list(found.source_tokens) == source.split()
    for each in found.omissions:
        assert " ".join(found.source_tokens[each.start : each.end]) == each.text
        assert source[each.start_char : each.end_char] == each.text


@pytest.mark.parametrize(("source", "target", "left_out"), CLAUSES)
def test_omitted_clauses_are_found(
    checker: Model, source: str, target: str, left_out: list[tuple[str, str]]
) -> None:
    [found] = checker.check([(source, target)])
    assert [(each.text, each.kind) for each in found.omissions] == left_out


def test_single_words_are_reported_on_request_only(checker: Model) -> None:
    assert not checker.check([("a b c d", "A B D")])[0].omissions
    [omission] = checker.check([("a b c d", "A B D")], words=True)[0].omissions
    assert (omission.text, omission.kind) == ("c", "word")


def test_only_one_of_two_identical_sentences_is_omitted() -> None:
    [found] = StandIn(CountingWords()).check([("a b 。 a b 。 c 。", "A B C")])
    [omission] = found.omissions
    assert (omission.text, round(omission.gain, 3)) == ("a b 。", 6.0)


def test_omitted_sentences_that_hide_each_other_are_both_found() -> None:
    """The gain of each is measured with the others removed."""
    [found] = StandIn(HidingOmissions()).check([("a 。 b 。 c 。", "A")])
    assert [(each.text, round(each.gain, 3)) for each in found.omissions] == [
        ("b 。", 3.0),
        ("c 。", 3.0),
    ]


def test_less_probable_findings_are_left_out(checker: Model) -> None:
    """Without calibration the probability of a gain of 3 nats is 0.88 for words."""
    assert checker.check([("a b", "A")], 0.87, words=True)[0].omissions
    assert not checker.check([("a b", "A")], 0.89, words=True)[0].omissions
    assert checker.check([("a b 。 c d 。", "A B")], 0.99)[0].omissions
    assert not checker.check([("a b 。 c d 。", "A B")], 0.999)[0].omissions


def test_a_sentence_takes_one_decoding_and_one_more_per_word_or_part() -> None:
    class Counting(WordByWord):
        rows = 0

        def force_decode(self, source: PaddedIds, target: PaddedIds) -> ForcedDecoding:
            self.rows += len(source.ids)
            return super().force_decode(source, target)

    for words, expected in ((False, 1), (True, 1 + 4)):
        engine = Counting()
        StandIn(engine).check([("a wa b c .", "A C")], words=words)
        assert engine.rows == expected


def test_checks_do_not_depend_on_batches_and_windows(
    checker: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [(source, target) for source, target, *_ in [*CASES, *SENTENCES, *CLAUSES]]
    alone = [checker.check([pair], words=True)[0].to_json() for pair in pairs]
    monkeypatch.setattr(omissions, "BATCH_SIZE", 3)
    monkeypatch.setattr(omissions, "WINDOW_PAIRS", 4)
    monkeypatch.setattr(omissions, "MAX_TARGET_POSITIONS", 5)
    assert [each.to_json() for each in checker.check(iter(pairs), words=True)] == alone


def test_words_of_a_pair_that_is_far_too_long_are_not_looked_up(
    checker: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking them up takes time and memory that grow with the square of the length."""
    read_pair, read = OmissionChecker.read_pair, list[tuple[str, str]]()

    def note(self: OmissionChecker, pair: tuple[str, str]) -> Pair:
        read.append(pair)
        return read_pair(self, pair)

    monkeypatch.setattr(OmissionChecker, "read_pair", note)
    pairs = [("a " * 500, "A"), ("a b", "A"), ("a", "A " * 500)]
    found = [each.to_json() for each in checker.check_stream(pairs, max_tokens=3)]
    assert [row.get("skipped") for row in found] == ["500 tokens", None, "500 tokens"]
    assert read == pairs[1:2]


def test_a_pair_with_a_long_side_is_skipped_and_the_others_are_checked(
    checker: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(omissions, "WINDOW_PAIRS", 2)
    pairs = [("a b", "A"), ("a b c d", "A"), ("a", "A A A A"), ("", ""), ("a b c", "A B")]
    found = [each.to_json() for each in checker.check_stream(pairs, words=True, max_tokens=3)]
    assert [row.get("skipped") for row in found] == [None, "4 tokens", "4 tokens", None, None]
    assert [[part["text"] for part in row.get("left_out", [])] for row in found] == [
        ["b"],
        [],
        [],
        [],
        ["c"],
    ]
