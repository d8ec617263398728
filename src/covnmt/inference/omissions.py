"""What did a translation leave out? Source words that it does not depend on, though it should.

A translation of a source word becomes less probable when the word is taken out of the source. One
that leaves the word out does not: it rather becomes more probable (contrastive conditioning,
Vamvas and Sennrich 2022). Words that carry little, such as particles, make no difference in either
case, so a word counts only if the model's own translation would be much less probable without it.
Attention does not tell: while a translation is force-decoded, omitted words get attention too.

Where one of several sentences is left out, taking out one more of its words changes little. So
sentences are taken out first, one after the other, and then the words of those that remain.

Letters: K units of a line. A unit is a word or a number, of one or several tokens, or a sentence.
"""

import json
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, chain, groupby, islice, pairwise
from typing import Any, NamedTuple

import numpy as np

from covnmt.base.arrays import DoubleArray
from covnmt.data.padding import map_in_batches, pad_ids
from covnmt.decoding.engines import Engine
from covnmt.inference.translate import Translation, join_translations
from covnmt.text.characters import is_grapheme_extension
from covnmt.text.codec import Codec
from covnmt.text.sentences import split_into_sentences
from covnmt.text.tokenize import SPACE_SYMBOL, UNSPACED_LANGUAGES, is_continuation_byte

UnitScores = dict[range, float]  # in nats, by the tokens of a unit
TranslateSentences = Callable[[Sequence[str], int], Sequence[Translation]]  # with max_source

BATCH_SIZE = 64
# Target positions in a batch: the probabilities of the whole vocabulary are kept at each of them.
MAX_TARGET_POSITIONS = 2000
WINDOW_PAIRS = 16  # pairs at a time; each of them is many sentences to decode
# In nats: what the model's own translation must lose without a word for that word to count, and
# what the given translation must gain without it.
MIN_NEED = 2.0
MIN_GAIN = 1.0
# A whole sentence needs to gain this much less: without one that was translated, tens are lost.
SENTENCE_MARGIN = 1.0
# A sentence that gains this much is removed on trial: other omissions may still hide its gain.
MIN_TRIAL_GAIN = -1.0
# Tokens per side that can be checked: time grows with their third power, here to some seconds.
MAX_TOKENS = 100


@dataclass(frozen=True)
class Omission:
    """Consecutive source words, or a whole sentence, that a translation probably leaves out."""

    text: str
    start: int  # first token
    end: int  # after the last token
    gain: float  # in nats, of the translation without the sentence, or without its best word


@dataclass(frozen=True, eq=False)
class OmissionReport:
    """One translation, compared with its source."""

    source_tokens: tuple[str, ...]
    units: list[range]  # tokens of each word, or of each sentence that is left out as a whole
    model_translation: str
    need: DoubleArray  # [K] what the model's translation loses without each unit, in nats
    gain: DoubleArray  # [K] what the given translation gains
    omissions: tuple[Omission, ...]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; gains are rounded to four decimal places."""
        return {
            "source_tokens": list(self.source_tokens),
            "own": self.model_translation,
            "left_out": [asdict(row) | {"gain": round(row.gain, 4)} for row in self.omissions],
        }


@dataclass(frozen=True)
class SkippedPair:
    """A pair that is too long to check."""

    tokens: int  # of the longer side

    def to_json(self) -> dict[str, Any]:
        """Return JSON values that cannot be mistaken for a report without omissions."""
        return {"skipped": f"{self.tokens} tokens"}


@dataclass(frozen=True)
class SourceUnits:
    """A source line, and what can be taken out of it: sentences, and words and numbers in them."""

    line: str
    sentence_texts: tuple[str, ...]
    tokens: tuple[str, ...]
    ids: list[int]
    sentences: list[range]  # tokens of each sentence
    units: list[range]  # tokens of each word or number

    @classmethod
    def from_line(cls, line: str, codec: Codec) -> "SourceUnits":
        """Split a line into sentences, and each sentence as the model reads it."""
        texts = split_into_sentences(line).sentences
        tokenized = [_tokens_after(before, text, codec) for before, text in pairwise(["", *texts])]
        tokens = tuple(chain.from_iterable(tokenized))
        ends = accumulate(map(len, tokenized), initial=0)
        sentences = [range(*pair) for pair in pairwise(ends)]
        units = [
            range(sentence.start + unit.start, sentence.start + unit.stop)
            for sentence, sentence_tokens in zip(sentences, tokenized, strict=True)
            for unit in find_units(sentence_tokens, codec)
        ]
        return cls(line, texts, tokens, codec.vocabulary.encode(tokens), sentences, units)

    def units_in(self, sentence: range) -> list[range]:
        """Return the units of a sentence."""
        return [unit for unit in self.units if unit.start in sentence]

    def units_without(self, sentences: Iterable[range]) -> list[range]:
        """Return the units that remain when these sentences are taken out."""
        removed = set(chain.from_iterable(sentences))
        return [unit for unit in self.units if unit.start not in removed]

    def highest(self, scores: UnitScores, tokens: range) -> float:
        """Return the highest score of the units among these tokens."""
        return max(scores[unit] for unit in self.units_in(tokens))

    def other_sentences(self, sentence: range) -> list[range]:
        """Return all sentences but this one."""
        return [other for other in self.sentences if other != sentence]


def _tokens_after(before: str, text: str, codec: Codec) -> list[str]:
    """Tokenize a sentence as it reads after another one.

    By itself it would begin with the space that sentencepiece puts before a line. In a language
    without spaces no line has one inside, and models hardly heed what stands after one.
    """
    if before and codec.settings.unspaced:
        prefix, both = codec.tokenize(before), codec.tokenize(before + text)
        if both[: len(prefix)] == prefix:
            return both[len(prefix) :]
    return codec.tokenize(text)


def find_units(tokens: Sequence[str], codec: Codec) -> list[range]:
    """Return words and numbers as ranges of tokens, without punctuation.

    Subwords form words where spaces separate them. Elsewhere each is a unit of its own, together
    with the marks on its last letter; so is a character that is spelled as bytes.
    """
    starts = [j for j, pair in enumerate(pairwise(tokens), 1) if _starts_unit(*pair, codec)]
    ranges = [range(*pair) for pair in pairwise([0, *starts, len(tokens)])]
    return [
        unit
        for unit in ranges
        if any(letter.isalnum() for letter in codec.detokenize(tokens[unit.start : unit.stop]))
    ]


def _starts_unit(before: str, token: str, codec: Codec) -> bool:
    """Tell whether a unit begins between these two tokens."""
    if codec.settings.kind != "sentencepiece":
        return True
    if codec.settings.unspaced or codec.settings.language in UNSPACED_LANGUAGES:
        number = before[-1].isdecimal() and token[0].isdecimal()
        return not (number or is_continuation_byte(token) or is_grapheme_extension(token[0]))
    return token.startswith(SPACE_SYMBOL)


class Ablation(NamedTuple):
    """A target to score with parts of the source taken out: some at once, others one at a time."""

    source: SourceUnits
    removed: Sequence[range]
    candidates: Sequence[range]  # to remove as well, one at a time
    target: Sequence[int]

    def variants(self) -> Iterator[Sequence[int]]:
        """Yield the source without `removed`, then also without each of the candidates."""
        yield self._without(*self.removed)
        for candidate in self.candidates:
            yield self._without(*self.removed, candidate)

    def _without(self, *ranges: range) -> Sequence[int]:
        removed = set(chain.from_iterable(ranges))
        return [token_id for j, token_id in enumerate(self.source.ids) if j not in removed]


class OmissionChecker:
    """Finds omissions in translations by any system, with a model that can score them."""

    def __init__(
        self, engine: Engine, source: Codec, target: Codec, translate: TranslateSentences
    ) -> None:
        self.engine, self.source, self.target, self.translate = engine, source, target, translate

    def reports(
        self, pairs: Iterable[tuple[str, str]], min_gain: float = MIN_GAIN
    ) -> Iterator[OmissionReport]:
        """Yield a report for every pair of source and translation, a window of pairs at a time."""
        remaining = iter(pairs)
        while window := list(islice(remaining, WINDOW_PAIRS)):
            sources = [SourceUnits.from_line(line, self.source) for line, _ in window]
            translations = self._translate(sources)
            needs = self._needs(sources, translations)
            targets = [self._target_ids(line) for _, line in window]
            rows = zip(sources, needs, targets, strict=True)
            sentences = [self._omitted_sentences(*row, min_gain) for row in rows]
            words = self._word_gains(sources, needs, targets, sentences)
            for row in zip(sources, translations, needs, sentences, words, strict=True):
                yield self._report(*row, min_gain)

    def short_reports(
        self, pairs: Iterable[tuple[str, str]], min_gain: float, max_tokens: int
    ) -> Iterator[OmissionReport | SkippedPair]:
        """Yield reports like `reports`, but skip pairs with a side of more than `max_tokens`."""
        remaining = iter(pairs)
        while window := list(islice(remaining, WINDOW_PAIRS)):
            sizes = [
                max(len(self.source.tokenize(source)), len(self.target.tokenize(target)))
                for source, target in window
            ]
            short = [pair for pair, size in zip(window, sizes, strict=True) if size <= max_tokens]
            reports = self.reports(short, min_gain)
            for size in sizes:
                yield next(reports) if size <= max_tokens else SkippedPair(size)

    def _target_ids(self, line: str) -> Sequence[int]:
        return self.target.vocabulary.encode(self.target.tokenize(line))

    def _translate(self, sources: Sequence[SourceUnits]) -> list[list[Translation]]:
        """Translate every sentence by itself, however long it is."""
        texts = [text for source in sources for text in source.sentence_texts]
        longest = max(1, *(len(source.ids) for source in sources))
        translations = iter(self.translate(texts, longest))
        return [list(islice(translations, len(source.sentences))) for source in sources]

    def _needs(
        self, sources: Sequence[SourceUnits], translations: Sequence[Sequence[Translation]]
    ) -> list[UnitScores]:
        """Return what the model's own translation of a sentence loses without each of its words."""
        ablations = [
            Ablation(
                source,
                source.other_sentences(sentence),
                source.units_in(sentence),
                self._target_ids(translation.text),
            )
            for source, of_sentences in zip(sources, translations, strict=True)
            for sentence, translation in zip(source.sentences, of_sentences, strict=True)
        ]
        losses = zip(ablations, self._losses(ablations), strict=True)
        return [
            {
                unit: loss
                for ablation, row in islice(losses, len(source.sentences))
                for unit, loss in zip(ablation.candidates, row.tolist(), strict=True)
            }
            for source in sources
        ]

    def _omitted_sentences(
        self, source: SourceUnits, need: UnitScores, target: Sequence[int], min_gain: float
    ) -> UnitScores:
        """Return omitted sentences, and what the target gains without each, given the others gone.

        Of two that are alike either can be taken out, but not both; so it is done one after the
        other, the one with the highest gain first. One remains if the target says anything: its
        words are looked at.
        """
        needs = {s: source.highest(need, s) for s in source.sentences if source.units_in(s)}
        remaining = [sentence for sentence, highest in needs.items() if highest >= MIN_NEED]
        if not target and len(remaining) > 1:
            return {s: needs[s] for s in remaining if needs[s] >= min_gain}
        removed: list[range] = []
        while len(remaining) > 1:
            [losses] = self._losses([Ablation(source, removed, remaining, target)])
            best = int(losses.argmin())
            if -losses[best] < MIN_TRIAL_GAIN:
                break
            removed.append(remaining.pop(best))
        ablations = [
            Ablation(source, [other for other in removed if other != sentence], [sentence], target)
            for sentence in removed
        ]
        gains = [-float(loss) for [loss] in self._losses(ablations)]
        enough = min_gain - SENTENCE_MARGIN
        return {s: gain for s, gain in zip(removed, gains, strict=True) if gain >= enough}

    def _word_gains(
        self,
        sources: Sequence[SourceUnits],
        needs: Sequence[UnitScores],
        targets: Sequence[Sequence[int]],
        sentences: Sequence[UnitScores],
    ) -> list[UnitScores]:
        """Return gains without each word of the remaining sentences; the needs for no target."""
        ablations = [
            Ablation(source, list(omitted), source.units_without(omitted), target)
            for source, omitted, target in zip(sources, sentences, targets, strict=True)
        ]
        return [
            {
                unit: -loss if ablation.target else need[unit]
                for unit, loss in zip(ablation.candidates, losses.tolist(), strict=True)
            }
            for ablation, losses, need in zip(
                ablations, self._losses(ablations), needs, strict=True
            )
        ]

    def _losses(self, ablations: Sequence[Ablation]) -> list[DoubleArray]:
        """Return log P(y | x) - log P(y | x without u) for all candidates u of each ablation."""
        rows = [(x, ablation.target) for ablation in ablations for x in ablation.variants()]
        sizes = [1 + len(ablation.candidates) for ablation in ablations]
        ends = np.cumsum(sizes, dtype=np.int64)
        scores = np.split(self._log_probs(rows), ends[:-1]) if ablations else []
        return [row[0] - row[1:] for row in scores]

    def _log_probs(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> DoubleArray:
        """Return log P(y | x) of all rows (x, y), decoded in batches of similar length."""

        def score(chosen: list[int]) -> list[float]:
            x = pad_ids([rows[k][0] for k in chosen], self.source.vocabulary.end_id)
            y = pad_ids([rows[k][1] for k in chosen], self.target.vocabulary.end_id)
            log_probs: list[float] = self.engine.force_decode(x, y).log_probs.tolist()
            return log_probs

        longest = max((len(y) for _, y in rows), default=0)
        size = max(1, min(BATCH_SIZE, MAX_TARGET_POSITIONS // (1 + longest)))
        return np.array(map_in_batches(score, [len(x) + len(y) for x, y in rows], size))

    def _report(
        self,
        source: SourceUnits,
        translations: Sequence[Translation],
        need: UnitScores,
        sentences: UnitScores,
        words: UnitScores,
        min_gain: float,
    ) -> OmissionReport:
        """Report on a line: its omitted sentences, and the words of the others."""
        gain = sentences | words
        units = sorted(gain, key=lambda unit: unit.start)
        omitted = {
            unit
            for unit in units
            if unit in sentences or (need[unit] >= MIN_NEED and gain[unit] >= min_gain)
        }
        return OmissionReport(
            source_tokens=source.tokens,
            units=units,
            model_translation=join_translations(source.line, translations, self.target).text,
            need=np.array([source.highest(need, unit) for unit in units]),
            gain=np.array([gain[unit] for unit in units]),
            omissions=tuple(self._merge_neighbors(source, units, omitted, gain)),
        )

    def _merge_neighbors(
        self, source: SourceUnits, units: Sequence[range], omitted: set[range], gain: UnitScores
    ) -> Iterator[Omission]:
        """Yield omitted neighbors of one sentence as one omission."""
        starts = [sentence.start for sentence in source.sentences]
        keys = {unit: (unit in omitted, bisect(starts, unit.start)) for unit in units}
        for (is_omitted, _), group in groupby(units, keys.__getitem__):
            if is_omitted:
                neighbors = list(group)
                start, end = neighbors[0].start, neighbors[-1].stop
                text = self.source.detokenize(source.tokens[start:end])
                yield Omission(text, start, end, max(gain[unit] for unit in neighbors))


def format_reports(reports: Iterable[OmissionReport | SkippedPair], as_json: bool) -> Iterator[str]:
    """Yield output lines: as JSON one per pair, otherwise only for pairs with omissions."""
    for number, report in enumerate(reports, 1):
        if as_json:
            yield json.dumps(report.to_json(), ensure_ascii=False)
        elif isinstance(report, OmissionReport) and report.omissions:
            omissions = (f"{omission.text} ({omission.gain:.1f})" for omission in report.omissions)
            yield "\t".join([str(number), *omissions])
