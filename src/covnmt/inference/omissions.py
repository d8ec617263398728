"""What did a translation leave out? Source words that it does not depend on, though it should.

A translation that says a source word becomes less probable when the word is taken out of the
source; one that leaves it out does not, it rather becomes more probable (contrastive conditioning,
Vamvas and Sennrich 2022). Words that carry little, such as particles, are missed in neither case:
so only those count without which the model's own translation would be much less probable. It is
not what the attention says: forced to speak, it looks at left-out words too.

Where a whole sentence of several is left out, to take one more word out of it changes little. So
sentences are taken out first, one after the other, and words of those that stay.

Letters: K units of a line, each a word or a number of one or several tokens, or a whole sentence.
"""

import json
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from covnmt.base.arrays import DoubleArray
from covnmt.base.console import warn
from covnmt.base.processes import Chunk, map_chunks
from covnmt.data.padding import length_sorted_batches, pad_ids
from covnmt.decoding.engines import default_processes
from covnmt.inference.translate import Translation, Translator, join_segments
from covnmt.inference.units import SourceUnits, UnitScores

Ids = Sequence[int]

BATCH = 64
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
    """Source words in a row, or a whole sentence, that a translation probably leaves out."""

    text: str
    start: int  # the first of its tokens
    end: int  # and the one after the last
    # in nats: what the translation gains without the most telling of its words, or the sentence
    gain: float


@dataclass(frozen=True, eq=False)
class OmissionReport:
    """One translation, held against its source."""

    source_tokens: tuple[str, ...]
    units: list[range]  # of these: words, but for a sentence that is left out as a whole
    model_translation: str  # the translation that the model would give
    need: (
        DoubleArray  # [K] what that loses without each unit (of a sentence: a word of it), in nats
    )
    gain: DoubleArray  # [K] what the given one gains
    omissions: tuple[Omission, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        rows = [asdict(each) | {"gain": round(each.gain, 4)} for each in self.omissions]
        return {
            "source_tokens": list(self.source_tokens),
            "own": self.model_translation,
            "left_out": rows,
        }


@dataclass(frozen=True)
class SkippedPair:
    """A pair with a side that is too long to check."""

    tokens: int  # of that side

    def to_json(self) -> dict[str, Any]:
        """As plain values; nobody can take it for a translation that leaves nothing out."""
        return {"skipped": f"{self.tokens} tokens"}


class Ablation(NamedTuple):
    """A line that lacks some parts already, and what else to take out of it, one at a time."""

    source: SourceUnits
    gone: Sequence[range]
    parts: Sequence[range]
    target: Ids  # to be scored

    def variants(self) -> Iterator[Ids]:
        """As it is, and without each of the parts."""
        yield self._without(*self.gone)
        for part in self.parts:
            yield self._without(*self.gone, part)

    def _without(self, *gone: range) -> Ids:
        places = set(chain.from_iterable(gone))
        return [word for j, word in enumerate(self.source.ids) if j not in places]


class OmissionChecker:
    """A model that reads translations, whoever made them."""

    def __init__(self, translator: Translator) -> None:
        self.translator = translator
        self.source, self.target = translator.source, translator.target

    @classmethod
    def load(
        cls, directory: Path | str, device: str = "auto", threads: int = 0
    ) -> "OmissionChecker":
        """Open a model directory, or by name one that comes along."""
        return cls(Translator.load(directory, device=device, threads=threads))

    def check(
        self, pairs: Iterable[tuple[str, str]], min_gain: float = MIN_GAIN
    ) -> list[OmissionReport]:
        """Check every pair of source and translation; words count from a gain of `min_gain`.

        An empty translation leaves out all that is needed.
        """
        return list(self.stream(pairs, min_gain))

    def stream(
        self, pairs: Iterable[tuple[str, str]], min_gain: float = MIN_GAIN
    ) -> Iterator[OmissionReport]:
        """The same, in order, a window of pairs at a time."""
        rest = iter(pairs)
        while window := list(islice(rest, WINDOW_PAIRS)):
            sources = [SourceUnits.of(line, self.source) for line, _ in window]
            own = self._translate(sources)
            needs = self._needs(sources, own)
            given = [self._ids(line) for _, line in window]
            rows = zip(sources, needs, given, strict=True)
            gone = [self._sentences_left_out(*row, min_gain) for row in rows]
            gains = self._gains(sources, needs, given, gone)
            for row in zip(sources, own, needs, gone, gains, strict=True):
                yield self._judge(*row, min_gain)

    def stream_short(
        self,
        pairs: Iterable[tuple[str, str]],
        min_gain: float,
        longest: int,
        where: str,
        first: int = 0,
    ) -> Iterator[OmissionReport | SkippedPair]:
        """The same, but for pairs with a side of more than `longest` tokens, which are told.

        `where` is what a message calls a pair, before its number; `first` were before these.
        """
        numbered = enumerate(pairs, first + 1)
        while window := list(islice(numbered, WINDOW_PAIRS)):
            sizes = [self._tokens(*pair) for _, pair in window]
            rows = list(zip(window, sizes, strict=True))
            done = iter(self.check([pair for (_, pair), size in rows if size <= longest], min_gain))
            for (number, _), size in rows:
                if size <= longest:
                    yield next(done)
                    continue
                told = f"{size} tokens, not checked; a side may have {longest}: split it, or say"
                warn(f"{where} {number}: {told} --max-tokens {size}")
                yield SkippedPair(size)

    def _tokens(self, source: str, target: str) -> int:
        """Of the longer side."""
        return max(len(self.source.tokenize(source)), len(self.target.tokenize(target)))

    def _ids(self, line: str) -> Ids:
        return self.target.encode(self.target.tokenize(line))

    def _translate(self, sources: Sequence[SourceUnits]) -> list[list[Translation]]:
        """Every sentence by itself, whole, however long it is."""
        texts = [text for source in sources for text in source.texts]
        longest = max(1, *(len(source.ids) for source in sources))
        decode = self.translator.decode.model_copy(update={"max_source": longest})
        made = iter(self.translator.translate(texts, decode))
        return [list(islice(made, len(source.texts))) for source in sources]

    def _needs(
        self, sources: Sequence[SourceUnits], own: Sequence[Sequence[Translation]]
    ) -> list[UnitScores]:
        """What the model's own translation of a sentence loses without each of its words."""
        trials = [
            Ablation(source, source.others(sentence), source.words(sentence), self._ids(each.text))
            for source, made in zip(sources, own, strict=True)
            for sentence, each in zip(source.sentences, made, strict=True)
        ]
        found = zip(trials, self._losses(trials), strict=True)
        rows = (zip(trial.parts, losses.tolist(), strict=True) for trial, losses in found)
        return [dict(chain.from_iterable(islice(rows, len(made)))) for made in own]

    def _sentences_left_out(
        self, source: SourceUnits, need: UnitScores, target: Ids, min_gain: float
    ) -> UnitScores:
        """Those to take out, and what the translation gains without each once the others are out.

        Where two are alike, either can be taken out, but not both: so it is one after the other,
        always the best. One stays, if the translation says anything: its words are looked at.
        """
        tops = {each: source.most(need, each) for each in source.sentences if source.words(each)}
        rest = [sentence for sentence, top in tops.items() if top >= MIN_NEED]
        if not target and len(rest) > 1:
            return {sentence: tops[sentence] for sentence in rest if tops[sentence] >= min_gain}
        gone: list[range] = []
        while len(rest) > 1:
            [losses] = self._losses([Ablation(source, gone, rest, target)])
            best = int(losses.argmin())
            if -losses[best] < MIN_TRIAL_GAIN:
                break
            gone.append(rest.pop(best))
        trials = [
            Ablation(source, [other for other in gone if other != each], [each], target)
            for each in gone
        ]
        gains = [-float(loss) for [loss] in self._losses(trials)]
        return {
            each: gain
            for each, gain in zip(gone, gains, strict=True)
            if gain >= min_gain - SENTENCE_MARGIN
        }

    def _gains(
        self,
        sources: Sequence[SourceUnits],
        needs: Sequence[UnitScores],
        given: Sequence[Ids],
        gone: Sequence[UnitScores],
    ) -> list[UnitScores]:
        """Without each word of the sentences that stay; nothing given gains all that is needed."""
        trials = [
            Ablation(source, list(sentences), source.words_without(sentences), target)
            for source, sentences, target in zip(sources, gone, given, strict=True)
        ]
        rows = zip(trials, self._losses(trials), needs, strict=True)
        return [
            {
                word: -loss if trial.target else need[word]
                for word, loss in zip(trial.parts, losses.tolist(), strict=True)
            }
            for trial, losses, need in rows
        ]

    def _losses(self, trials: Sequence[Ablation]) -> list[DoubleArray]:
        """log P(y | x) less log P(y | x without a part) for all parts of each trial."""
        rows = [(x, trial.target) for trial in trials for x in trial.variants()]
        ends = np.cumsum([1 + len(trial.parts) for trial in trials], dtype=np.int64)
        parts = np.split(self._log_probs(rows), ends[:-1]) if trials else []
        return [part[0] - part[1:] for part in parts]

    def _log_probs(self, rows: Sequence[tuple[Ids, Ids]]) -> DoubleArray:
        """log P(y | x) of all rows (x, y), decoded in batches of similar length."""
        found = np.zeros(len(rows))
        longest = max((len(y) for _, y in rows), default=0)
        size = max(1, min(BATCH, MAX_TARGET_POSITIONS // (1 + longest)))
        for chosen in length_sorted_batches([len(x) + len(y) for x, y in rows], size):
            x = pad_ids([rows[k][0] for k in chosen], self.source.vocabulary.end_id)
            y = pad_ids([rows[k][1] for k in chosen], self.target.vocabulary.end_id)
            found[chosen] = self.translator.engine.force_decode(x, y).log_probs
        return found

    def _judge(
        self,
        source: SourceUnits,
        own: Sequence[Translation],
        need: UnitScores,
        sentences: UnitScores,
        words: UnitScores,
        min_gain: float,
    ) -> OmissionReport:
        """All that was found about a line: sentences that are left out, and words of the others."""
        gain = sentences | words
        units = sorted(gain, key=lambda unit: unit.start)
        out = {
            unit
            for unit in units
            if unit in sentences or (need[unit] >= MIN_NEED and gain[unit] >= min_gain)
        }
        return OmissionReport(
            source_tokens=source.tokens,
            units=units,
            model_translation=join_segments(source.line, own, self.target).text,
            need=np.array([source.most(need, unit) for unit in units]),
            gain=np.array([gain[unit] for unit in units]),
            omissions=tuple(self._together(source, units, out, gain)),
        )

    def _together(
        self, source: SourceUnits, units: Sequence[range], out: set[range], gain: UnitScores
    ) -> Iterator[Omission]:
        """Neighbours in a sentence that are left out, as one."""
        starts = [sentence.start for sentence in source.sentences]
        keys = {unit: (unit in out, bisect(starts, unit.start)) for unit in units}
        for (left_out, _), run in groupby(units, keys.__getitem__):
            if left_out:
                found = list(run)
                start, end = found[0].start, found[-1].stop
                text = self.source.detokenize(source.tokens[start:end])
                yield Omission(text, start, end, max(gain[unit] for unit in found))


def check_text(
    model: Path,
    pairs: Iterable[tuple[str, str]],
    min_gain: float,
    device: str,
    threads: int,
    longest: int = MAX_TOKENS,
    where: str = "pair",
) -> Iterator[OmissionReport | SkippedPair]:
    """Checks of all pairs, in order; those of an exported model by a process per thread."""
    _open.cache_clear()
    workers = default_processes(model, threads)
    if workers == 1:
        return _open(model, device, threads).stream_short(pairs, min_gain, longest, where)
    check = partial(_check_piece, model, device, min_gain, longest, where)
    return map_chunks(check, pairs, WINDOW_PAIRS, workers)


def _check_piece(
    model: Path,
    device: str,
    min_gain: float,
    longest: int,
    where: str,
    piece: Chunk[tuple[str, str]],
) -> list[OmissionReport | SkippedPair]:
    checker = _open(model, device, 1)
    return list(checker.stream_short(piece.lines, min_gain, longest, where, piece.first))


@lru_cache(maxsize=1)
def _open(model: Path, device: str, threads: int) -> OmissionChecker:
    """The checker of this process; kept for one call, as the files of a model may change."""
    return OmissionChecker.load(model, device, threads)


def format_reports(checks: Iterable[OmissionReport | SkippedPair], as_json: bool) -> Iterator[str]:
    """Lines to print: as JSON one for each translation, else for those that leave something out."""
    for number, each in enumerate(checks, 1):
        if as_json:
            yield json.dumps(each.to_json(), ensure_ascii=False)
        elif isinstance(each, OmissionReport) and each.omissions:
            words = (f"{found.text} ({found.gain:.1f})" for found in each.omissions)
            yield "\t".join([str(number), *words])
