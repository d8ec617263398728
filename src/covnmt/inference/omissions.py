"""What did a translation leave out? Parts of the source that nothing in the translation stands for.

Sentences, clauses and phrases are looked at first, single words only on request. A lexicon says
which parts the words of the translation do not support; that is fast. Parts in doubt are removed
from the source, and the translation is scored by forced decoding: without a part that it translates
it becomes less probable, without one that it leaves out rather more (contrastive conditioning,
Vamvas and Sennrich 2022). A calibration turns both into a probability.

Where several parts are left out, removing one of them changes little. So parts are removed one
after the other, always the most probable one, and each is judged again without the others.

Pairs come from an iterator, and reports go to one: what reads and writes files is elsewhere.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice
from typing import Any, Literal, NamedTuple

import numpy as np

from covnmt.data.lexicon import QUANTUM, Lexicon
from covnmt.inference.calibration import Calibration, Logistic, log_odds, sigmoid
from covnmt.inference.check_settings import MIN_PROBABILITY
from covnmt.inference.domain import has_foreign_script
from covnmt.inference.forced_decoding import BATCH_SIZE, ForcedDecoder, ForcedPair
from covnmt.inference.omission_features import (
    FEATURES,
    MIN_USUAL,
    ForcedScores,
    LengthRatio,
    Pair,
    forced_features,
    lexical_features,
    line_features,
)
from covnmt.inference.text_units import token_text
from covnmt.inference.translate import Translation
from covnmt.text.bilingual_files import NotePosition

OmissionKind = Literal["line", "sentence", "clause", "phrase", "word"]

# Target positions in a batch: the probabilities of the whole vocabulary are kept at each of them.
MAX_TARGET_POSITIONS = 2000
WINDOW_PAIRS = 64  # pairs at a time
# Parts with at least TRIAL x the reporting threshold are removed tentatively, as others may hide
# them.
TRIAL = 0.5
# Parts with at least this share of the highest probability are nearly as probable.
NEARLY = 0.9
LINE_WEIGHT = 0.5  # of the log odds that anything is omitted from the line, in those of a part
# Below this probability by the lexicon alone nothing is decoded.
MIN_DOUBT = 0.02
# A word missing at most this share of its usual support is taken as translated.
MAX_MISSING_SHARE = 0.1
GAIN = FEATURES.index("gain")
UNCALIBRATED_WORD_GAIN = 1.0  # nats that a translation must gain without a word
UNRELATED_FEATURES = (
    "unsupported share of the source",
    "unsupported share of the target",
    "nats per target token",
    "length",
    "foreign letters",
)


class TextPair(NamedTuple):
    """A text and its translation, wherever they come from."""

    id: str  # where they come from: the number of a line, or the id of a unit
    source: str
    target: str
    place: NotePosition | None = None  # for notes, in a file that can have some


@dataclass(frozen=True)
class Omission:
    """A part of the source that a translation probably leaves out."""

    text: str  # as the source has it
    start: int  # first token
    end: int  # after the last token
    gain: float  # in nats, of the log-probability of the translation without the part
    probability: float
    kind: OmissionKind
    start_char: int  # first character of the source
    end_char: int  # after the last character


@dataclass(frozen=True, eq=False)
class OmissionReport:
    """One translation, compared with its source."""

    source_tokens: tuple[str, ...]
    omissions: tuple[Omission, ...]
    unrelated: float  # probability that it is no translation of the source at all
    unusual: bool  # the pair is unlike what the model was trained on
    words: int  # of the source
    judged: int  # of them, those that can be judged
    incomplete: float = 0.0  # probability that it leaves anything out
    # of all that was looked at, before the line was judged as a whole
    probabilities: dict[range, float] = field(default_factory=dict)
    model_translation: str | None = None
    min_probability: float = MIN_PROBABILITY  # of what is reported
    omitted: int = 0  # words of the source that are reported
    target_judged: int = 0  # words of the translation that can be judged
    unsupported: int = 0  # of them, those that no word of the source supports

    @property
    def is_unrelated(self) -> bool:
        """Whether it is probably no translation of the source at all."""
        return self.unrelated > 0 and self.unrelated >= self.min_probability

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; gains and probabilities are rounded to four decimal places."""
        return {
            "source_tokens": list(self.source_tokens),
            "own": self.model_translation,
            "left_out": [
                asdict(row) | {"gain": round(row.gain, 4), "probability": round(row.probability, 4)}
                for row in self.omissions
            ],
            "unrelated": round(self.unrelated, 4),
            "incomplete": round(self.incomplete, 4),
            "unusual": self.unusual,
            "words": self.words,
            "judged": self.judged,
        }


@dataclass(frozen=True)
class SkippedPair:
    """A pair that is too long to check."""

    tokens: int  # of the longer side

    def to_json(self) -> dict[str, Any]:
        """Return JSON values that cannot be mistaken for a report without omissions."""
        return {"skipped": f"{self.tokens} tokens"}


class CheckedPair(NamedTuple):
    """A pair and what was found in it."""

    pair: TextPair
    report: "OmissionReport | SkippedPair"


class Removal(NamedTuple):
    """A translation to score with parts of the source removed."""

    pair: Pair
    removed: tuple[range, ...] = ()

    def source_ids(self) -> Sequence[int]:
        """Return the tokens that remain."""
        removed = set(chain.from_iterable(self.removed))
        return [token for j, token in enumerate(self.pair.source.ids) if j not in removed]


Scores = dict[range, tuple[float, float]]  # probability and gain of each part


@dataclass
class _Search:
    """The parts of one pair that are removed so far, and those that may follow."""

    pair: Pair
    whole: ForcedScores
    remaining: list[range]
    removed: list[range] = field(default_factory=list)
    scores: Scores = field(default_factory=dict)
    active: bool = True
    line: float | None = None  # log odds that anything is omitted, if lines are judged

    @property
    def probabilities(self) -> dict[range, float]:
        """The probability of each part, before the line is judged."""
        return {part: p for part, (p, _) in self.scores.items()}

    def with_line(self, probability: float) -> float:
        """Return the probability of a part in view of the whole line."""
        if self.line is None:
            return probability
        own_odds = (1 - LINE_WEIGHT) * log_odds(probability)
        return float(sigmoid(own_odds + LINE_WEIGHT * self.line))

    @property
    def incomplete(self) -> float:
        """The probability that any part is omitted."""
        return self.with_line(max(self.probabilities.values(), default=0.0))

    def score(self, part: range) -> tuple[float, float]:
        """Return the probability of a part, in view of the whole line, and its gain."""
        return self.with_line(self.scores[part][0]), self.scores[part][1]

    def can_follow(self, span: range) -> bool:
        """Whether this part overlaps no removed part, and a word remains without them all."""
        removed = [*self.removed, span]
        overlaps = any(a.start < span.stop and span.start < a.stop for a in self.removed)
        left = any(not any(unit.start in gap for gap in removed) for unit in self.pair.source.units)
        return left and not overlaps


class OmissionChecker:
    """Finds omissions in translations by any system, with a model that can score them."""

    def __init__(
        self,
        decoder: ForcedDecoder,
        lexicon: Lexicon | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        self.decoder, self.source, self.target = decoder, decoder.source, decoder.target
        self.lexicon, self.calibration = lexicon, calibration
        self.ratio = LengthRatio()
        self.target_scripts: tuple[str, ...] = ()
        if calibration:
            self.target_scripts = calibration.domain.target_scripts
            self.ratio = LengthRatio(calibration.length_mean, calibration.length_deviation)

    def reports(
        self,
        pairs: Iterable[tuple[str, str]],
        min_probability: float = MIN_PROBABILITY,
        words: bool = False,
    ) -> Iterator[OmissionReport]:
        """Yield a report for every pair of source and translation, a window of pairs at a time."""
        remaining = iter(pairs)
        while window := [self.read_pair(pair) for pair in islice(remaining, WINDOW_PAIRS)]:
            yield from self._window_reports(window, min_probability, words)

    def short_reports(
        self,
        pairs: Iterable[tuple[str, str]],
        max_tokens: int,
        min_probability: float = MIN_PROBABILITY,
        words: bool = False,
    ) -> Iterator[OmissionReport | SkippedPair]:
        """Yield reports like `reports`, but skip pairs with a side of more than `max_tokens`."""
        remaining = iter(pairs)
        while lines := list(islice(remaining, WINDOW_PAIRS)):
            window = [self._read_short_pair(pair, max_tokens) for pair in lines]
            short = [pair for pair in window if isinstance(pair, Pair)]
            reports = iter(self._window_reports(short, min_probability, words))
            for pair in window:
                yield next(reports) if isinstance(pair, Pair) else pair

    def _read_short_pair(self, lines: tuple[str, str], max_tokens: int) -> Pair | SkippedPair:
        """Read a pair, or skip it; the words of a very long line are not even looked up."""
        sides = zip(lines, (self.source, self.target), strict=True)
        long_sides = [(line, codec) for line, codec in sides if len(line) > 4 * max_tokens]
        tokens = max((len(codec.tokenize(line)) for line, codec in long_sides), default=0)
        if tokens > 2 * max_tokens:
            return SkippedPair(tokens)
        pair = self.read_pair(lines)
        tokens = max(len(pair.source.ids), len(pair.target.ids))
        return pair if tokens <= max_tokens else SkippedPair(tokens)

    def may_repeat(self, translation: Translation) -> frozenset[int]:
        """Return the target tokens of which a repetition says nothing.

        These are punctuation, parts of words that stand once, function words, and words that
        stand no more often than what they translate. Without a lexicon only the first.
        """
        surface, starts, stops = token_text(translation.tokens, self.target)
        everything = range(len(translation.tokens))
        if self.lexicon is None:
            return frozenset(
                i for i in everything if not any(map(str.isalnum, translation.tokens[i]))
            )
        side = self.lexicon.target
        words = side.splitter.words(surface)
        source = [
            key for keys in self.read_pair((translation.source, "")).source.keys for key in keys
        ]
        counts = Counter(word.key for word in words)
        partners = self.lexicon.count_partners(source, [word.key for word in words])
        repeated = set[int]()
        for word, count in zip(words, partners, strict=True):
            number = side.ids.get(word.key, -1)
            is_content = number < 0 or side.mean_support[number] * QUANTUM >= MIN_USUAL
            if is_content and counts[word.key] > max(count, 1):
                repeated.update(range(starts[word.start], stops[word.end - 1]))
        return frozenset(everything) - repeated

    def read_pair(self, pair: tuple[str, str]) -> Pair:
        """Split both lines into words and look them up."""
        return Pair.from_lines(pair, self.source, self.target, self.lexicon)

    def _window_reports(
        self, pairs: Sequence[Pair], min_probability: float, words: bool
    ) -> list[OmissionReport]:
        wholes = self.score_whole_lines(pairs)
        searches = [
            _Search(pair, whole, self._doubtful_parts(pair) if pair.target.units else [])
            for pair, whole in zip(pairs, wholes, strict=True)
        ]
        self._remove_parts(searches, min_probability)
        self._judge_lines(searches)
        for search in searches:
            search.removed = [p for p in search.removed if search.score(p)[0] >= min_probability]
        rows = self.unrelated_features(pairs, wholes)
        unrelated = (
            self.calibration.unrelated.probabilities(rows)
            if self.calibration
            else np.zeros(len(pairs))
        )
        word_scores = self._word_scores(searches) if words else [{} for _ in pairs]
        return [
            self._report(search, scores, float(p), min_probability)
            for search, scores, p in zip(searches, word_scores, unrelated, strict=True)
        ]

    def candidate_parts(self, pair: Pair) -> list[range]:
        """Return sentences, clauses and the least supported phrase, if they have words."""
        parts = {*pair.source.sentences, *pair.source.clauses}
        if phrase := pair.phrase():
            parts.add(phrase)
        everything = pair.words(range(len(pair.source.ids)))

        def is_candidate(part: range) -> bool:
            words = pair.words(part)
            return words.start < words.stop and words != everything

        return sorted(
            filter(is_candidate, parts),
            key=lambda span: (span.start, -span.stop),
        )

    def _doubtful_parts(self, pair: Pair) -> list[range]:
        parts = self.candidate_parts(pair)
        if not self.calibration or not self.lexicon or not parts:
            return parts
        rows = [lexical_features(pair, span, self.ratio) for span in parts]
        probable = self.calibration.lexical.probabilities(rows) >= MIN_DOUBT
        return [span for span, is_probable in zip(parts, probable, strict=True) if is_probable]

    def _remove_parts(self, searches: Sequence[_Search], min_probability: float) -> None:
        """Remove the most probable part of each pair, as long as there is one; then judge each."""
        while active := [search for search in searches if search.active]:
            for search in active:
                search.remaining = [span for span in search.remaining if search.can_follow(span)]
            scores = self.score_parts(
                [(s.pair, s.whole, tuple(s.removed), s.remaining) for s in active],
                self.calibration.parts if self.calibration else None,
            )
            for search, found in zip(active, scores, strict=True):
                search.scores |= found
                best = _most_probable(found, search.pair)
                search.active = best is not None and found[best][0] >= TRIAL * min_probability
                if best is not None and search.active:
                    search.removed.append(best)
        several = [search for search in searches if len(search.removed) > 1]
        tasks = [
            (s.pair, s.whole, tuple(other for other in s.removed if other != span), [span])
            for s in several
            for span in s.removed
        ]
        again = iter(self.score_parts(tasks, self.calibration.parts if self.calibration else None))
        for search in several:
            for _ in search.removed:
                search.scores |= next(again)

    def _judge_lines(self, searches: Sequence[_Search]) -> None:
        """Judge whole lines; the most probable part of each may then be reported."""
        if not self.calibration or not self.calibration.lines:
            return
        rows = [self.line_features(s.pair, s.whole, s.probabilities) for s in searches]
        lines = log_odds(self.calibration.lines.probabilities(rows))
        for search, line in zip(searches, lines.tolist(), strict=True):
            search.line = line
            best = _most_probable(search.scores, search.pair)
            if best is not None and not search.removed:
                search.removed.append(best)

    def line_features(
        self, pair: Pair, whole: ForcedScores, parts: Mapping[range, float]
    ) -> list[float]:
        """Return the features of a line, given the probabilities of its parts."""
        phrase = pair.phrase()
        best = max((p for part, p in parts.items() if part != phrase), default=0.0)
        of_phrase = 0.0 if phrase is None else parts.get(phrase, 0.0)
        clause_odds, phrase_odds = log_odds([best, of_phrase]).tolist()
        return line_features(pair, whole, clause_odds, phrase_odds, self.ratio)

    def score_parts(
        self,
        tasks: Sequence[tuple[Pair, ForcedScores, tuple[range, ...], Sequence[range]]],
        logistic: Logistic | None,
        margin: float = 0.0,
    ) -> list[Scores]:
        """Return probability and gain of each part, with the removed parts of its pair removed."""
        features = self.part_features(tasks)
        rows = [row for group in features for row in group]
        if logistic:
            probabilities = logistic.probabilities(rows)
        else:  # without calibration: what gains probability
            gains = np.array([row[GAIN] for row in rows])
            probabilities = sigmoid(np.sign(gains) * np.expm1(np.abs(gains)) - margin)
        scored = iter(zip(probabilities.tolist(), rows, strict=True))
        return [
            {
                span: (p, float(np.sign(row[GAIN]) * np.expm1(abs(row[GAIN]))))
                for span, (p, row) in zip(parts, islice(scored, len(parts)), strict=True)
            }
            for _, _, _, parts in tasks
        ]

    def part_features(
        self, tasks: Sequence[tuple[Pair, ForcedScores, tuple[range, ...], Sequence[range]]]
    ) -> list[list[list[float]]]:
        """Return the features of each part, with the removed parts of its pair removed."""
        removals = []
        for pair, _, removed, parts in tasks:
            if parts and removed:
                removals.append(Removal(pair, removed))
            removals += [Removal(pair, (*removed, span)) for span in parts]
        decoded = iter(self.score_removals(removals))
        features = []
        for pair, whole, removed, parts in tasks:
            base = replace(next(decoded), received=whole.received) if parts and removed else whole
            features.append(
                [
                    [
                        *lexical_features(pair, span, self.ratio),
                        *forced_features(base, next(decoded), span),
                    ]
                    for span in parts
                ]
            )
        return features

    def _word_scores(self, searches: Sequence[_Search]) -> list[Scores]:
        """Return the scores of the words that the removed parts leave, if they are in doubt."""
        tasks = [
            (s.pair, s.whole, tuple(s.removed), self.doubtful_words(s.pair, s.removed))
            for s in searches
        ]
        logistic = self.calibration.words if self.calibration else None
        return self.score_parts(tasks, logistic, UNCALIBRATED_WORD_GAIN)

    def doubtful_words(self, pair: Pair, removed: Sequence[range] = ()) -> list[range]:
        """Return the words that the translation does not support as usual."""
        units = pair.source.units_without(removed)
        if len(pair.source.units) < 2 or not pair.target.units:
            return []
        if self.lexicon is None:
            return units
        missing, usual = pair.evidence.missing, pair.evidence.usual
        is_doubtful = {
            unit: usual[j] > 0 and missing[j] > MAX_MISSING_SHARE * usual[j]
            for j, unit in enumerate(pair.source.units)
        }
        return [unit for unit in units if is_doubtful[unit]]

    def unrelated_features(
        self, pairs: Sequence[Pair], wholes: Sequence[ForcedScores]
    ) -> list[list[float]]:
        """Return the features that separate a translation from a text that is none."""
        return [
            [
                pair.evidence.share,
                pair.target_evidence.share,
                float(np.clip(whole.mean_log_prob, -10, 0)),
                abs(self.ratio.deviations(len(pair.source.units), len(pair.target.units))),
                float(has_foreign_script(pair.target.line, self.target_scripts)),
            ]
            for pair, whole in zip(pairs, wholes, strict=True)
        ]

    def score_whole_lines(self, pairs: Sequence[Pair]) -> list[ForcedScores]:
        """Score translations of whole lines."""
        return self.score_removals([Removal(pair) for pair in pairs])

    def score_removals(self, removals: Sequence[Removal]) -> list[ForcedScores]:
        """Score translations, in batches of similar length."""
        pairs = [(removal.source_ids(), removal.pair.target.ids) for removal in removals]

        def score(index: int, forced: ForcedPair) -> ForcedScores:
            return ForcedScores(forced.token_log_probs, forced.alpha.sum(axis=0))

        longest = max((len(target) for _, target in pairs), default=0)
        size = max(1, min(BATCH_SIZE, MAX_TARGET_POSITIONS // (1 + longest)))
        return self.decoder.map_decoded(score, pairs, size)

    def _report(
        self, search: _Search, words: Scores, unrelated: float, min_probability: float
    ) -> OmissionReport:
        pair = search.pair
        source, has_words = pair.source, bool(pair.source.units)
        omissions: list[Omission] = []
        is_empty = has_words and not pair.target.units
        unrelated = 1.0 if is_empty or pair.is_copy else unrelated
        # Below MIN_PROBABILITY that a pair is unrelated can be one finding beside its parts.
        is_unrelated = has_words and unrelated >= max(min_probability, MIN_PROBABILITY)
        if is_empty:
            omissions.append(self._omission(pair, range(len(source.ids)), (1.0, 0.0), "line"))
        elif not is_unrelated:
            omissions += [
                self._omission(pair, span, max(map(search.score, members)), _kind(span, pair))
                for span, members in _runs(search.removed, pair, gap=False)
            ]
            is_found = {span for span, (p, _) in words.items() if p >= min_probability}
            omissions += [
                self._omission(pair, span, max(words[p] for p in members), "word")
                for span, members in _runs(is_found, pair, gap=True)
            ]
        omitted = [pair.words(range(row.start, row.end)) for row in omissions]
        word_scores = [p for p, _ in words.values()]
        statistics = self.calibration.domain if self.calibration else None
        nats = search.whole.mean_log_prob
        return OmissionReport(
            source_tokens=source.tokens,
            omissions=tuple(sorted(omissions, key=lambda omission: omission.start)),
            unrelated=unrelated if has_words else 0.0,
            incomplete=_any_of([unrelated, search.incomplete, *word_scores]) if has_words else 0.0,
            unusual=statistics is not None
            and has_words
            and (
                nats < statistics.min_given_log_prob
                or statistics.has_rare_tokens(source.tokens, self.source.vocabulary)
            ),
            words=len(source.units),
            judged=pair.evidence.judged if self.lexicon else len(source.units),
            probabilities={p: score[0] for p, score in (search.scores | words).items()},
            min_probability=min_probability,
            omitted=len(source.units) if is_unrelated else sum(w.stop - w.start for w in omitted),
            target_judged=pair.target_evidence.judged,
            unsupported=pair.target_evidence.unsupported,
        )

    def _omission(
        self, pair: Pair, span: range, score: tuple[float, float], kind: OmissionKind
    ) -> Omission:
        start, end = pair.source.characters(span)
        text = pair.source.line[start:end]
        return Omission(text, span.start, span.stop, score[1], score[0], kind, start, end)


def _any_of(probabilities: Sequence[float]) -> float:
    """Return the probability that any of several independent things is the case."""
    return 1 - float(np.prod([1 - p for p in probabilities]))


def _most_probable(scores: Scores, pair: Pair) -> range | None:
    """Return the longest of the parts that are nearly as probable as the most probable one.

    Sentences and clauses go before phrases, which may end in the middle of another clause.
    """
    highest = max((p for p, _ in scores.values()), default=0.0)
    near = (span for span, (p, _) in scores.items() if p >= NEARLY * highest)
    return max(near, key=lambda span: (_kind(span, pair) != "phrase", len(span)), default=None)


def _kind(span: range, pair: Pair) -> OmissionKind:
    if span in pair.source.sentences:
        return "sentence"
    return "clause" if span in pair.source.clauses else "phrase"


def _runs(parts: Iterable[range], pair: Pair, gap: bool) -> Iterator[tuple[range, list[range]]]:
    """Join parts of one sentence between which there is no word and, without `gap`, no token."""
    run: list[range] = []
    for span in sorted(parts, key=lambda span: span.start):
        if run:
            between = range(run[-1].stop, span.start)
            words = pair.words(between)
            together = any(run[0].start in s and span.start in s for s in pair.source.sentences)
            if not together or words.start < words.stop or (between and not gap):
                yield range(run[0].start, run[-1].stop), run
                run = []
        run.append(span)
    if run:
        yield range(run[0].start, run[-1].stop), run
