"""What did a translation leave out? Source words that it does not depend on, though it should.

A translation that says a source word becomes less probable when the word is taken out of the
source; one that leaves it out does not, it rather becomes more probable (contrastive conditioning,
Vamvas and Sennrich 2022). Words that carry little, such as particles, are missed in neither case:
so only those count without which the model's own translation would be much less probable. It is
not what the attention says: forced to speak, it looks at left-out words too.

Letters: K units of a source sentence, each a word or a number of one or several tokens.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covnmt.engine import processes
from covnmt.pool import Piece, by_pieces
from covnmt.progress import tell
from covnmt.text.codec import Codec
from covnmt.text.padding import batches, pad
from covnmt.text.tokenize import SPACE, is_inner_byte
from covnmt.translate import Translator

Floats = NDArray[np.float64]
Ids = Sequence[int]

BATCH = 64
WORDS = 2000  # of the targets of a batch: a long one needs room for all words at each of its places
WINDOW = 16  # pairs at a time; each is many sentences to decode
NEEDED = 2.0  # what the model's own translation loses without a word that counts, in nats
LEAST = 1.0  # what the given one gains without it
# Tokens of a side that can be checked: time grows with their third power, here to some seconds.
CHECKED = 100


@dataclass(frozen=True)
class LeftOut:
    """Source words in a row that a translation probably leaves out."""

    text: str
    start: int  # the first of its tokens
    end: int  # and the one after the last
    gain: float  # in nats: what the translation gains without the most telling of its words


@dataclass(frozen=True, eq=False)
class Check:
    """One translation, held against its source."""

    source_tokens: tuple[str, ...]
    units: list[range]  # of these
    own: str  # the translation that the model would give
    need: Floats  # [K] what that loses without each unit, in nats
    gain: Floats  # [K] what the given one gains
    left_out: tuple[LeftOut, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        rows = [asdict(each) | {"gain": round(each.gain, 4)} for each in self.left_out]
        return {"source_tokens": list(self.source_tokens), "own": self.own, "left_out": rows}


@dataclass(frozen=True)
class Skipped:
    """A pair with a side that is too long to check."""

    tokens: int  # of that side

    def to_json(self) -> dict[str, Any]:
        """As plain values; nobody can take it for a translation that leaves nothing out."""
        return {"skipped": f"{self.tokens} tokens"}


@dataclass(frozen=True)
class Source:
    """A sentence, and what can be taken out of it."""

    tokens: tuple[str, ...]
    ids: list[int]
    units: list[range]

    @classmethod
    def of(cls, line: str, codec: Codec) -> "Source":
        """As the model reads it."""
        tokens = tuple(codec.tokenize(line))
        return cls(tokens, codec.encode(tokens), find_units(tokens, codec))

    def variants(self) -> Iterator[Ids]:
        """As it is, and without each of its units."""
        yield self.ids
        for unit in self.units:
            yield self.ids[: unit.start] + self.ids[unit.stop :]


class Checker:
    """A model that reads translations, whoever made them."""

    def __init__(self, translator: Translator) -> None:
        self.translator = translator
        self.source, self.target = translator.source, translator.target

    @classmethod
    def load(cls, directory: Path | str, device: str = "auto", threads: int = 0) -> "Checker":
        """Open a model directory, or by name one that comes along."""
        return cls(Translator.load(directory, device=device, threads=threads))

    def check(self, pairs: Iterable[tuple[str, str]], least: float = LEAST) -> list[Check]:
        """Check every pair of source and translation; words count from a gain of `least`.

        An empty translation leaves out all that is needed.
        """
        return list(self.stream(pairs, least))

    def stream(self, pairs: Iterable[tuple[str, str]], least: float = LEAST) -> Iterator[Check]:
        """The same, in order, a window of pairs at a time."""
        rest = iter(pairs)
        while window := list(islice(rest, WINDOW)):
            sources = [Source.of(line, self.source) for line, _ in window]
            own = self._translate([line for line, _ in window], sources)
            needs = self._losses(sources, [self._ids(text) for text in own])
            given = [self._ids(line) for _, line in window]
            losses = self._losses(sources, given)
            rows = zip(needs, losses, given, strict=True)
            gains = [-loss if y else need for need, loss, y in rows]
            for source, text, need, gain in zip(sources, own, needs, gains, strict=True):
                out = (need >= NEEDED) & (gain >= least)
                found = tuple(self._together(source, out, gain))
                yield Check(source.tokens, source.units, text, need, gain, found)

    def stream_short(
        self,
        pairs: Iterable[tuple[str, str]],
        least: float,
        longest: int,
        where: str,
        first: int = 0,
    ) -> Iterator[Check | Skipped]:
        """The same, but for pairs with a side of more than `longest` tokens, which are told.

        `where` is what a message calls a pair, before its number; `first` were before these.
        """
        numbered = enumerate(pairs, first + 1)
        while window := list(islice(numbered, WINDOW)):
            sizes = [self._tokens(*pair) for _, pair in window]
            rows = list(zip(window, sizes, strict=True))
            done = iter(self.check([pair for (_, pair), size in rows if size <= longest], least))
            for (number, _), size in rows:
                if size <= longest:
                    yield next(done)
                    continue
                told = f"{size} tokens, not checked; a side may have {longest}: split it, or say"
                tell(f"{where} {number}: {told} --max-tokens {size}", style="yellow")
                yield Skipped(size)

    def _tokens(self, source: str, target: str) -> int:
        """Of the longer side."""
        return max(len(self.source.tokenize(source)), len(self.target.tokenize(target)))

    def _ids(self, line: str) -> Ids:
        return self.target.encode(self.target.tokenize(line))

    def _translate(self, lines: Sequence[str], sources: Sequence[Source]) -> list[str]:
        """Whole, however long they are, and each sentence of them."""
        longest = max(1, *(len(source.ids) for source in sources))
        decode = self.translator.decode.model_copy(update={"max_source": longest})
        made = self.translator.translate(lines, decode, sentences=True)
        return [each.text for each in made]

    def _losses(self, sources: Sequence[Source], targets: Sequence[Ids]) -> list[Floats]:
        """log P(y | x) less log P(y | x without a unit) for all units [K] of each source."""
        pairs = zip(sources, targets, strict=True)
        log_probs = self._log_probs([(x, y) for source, y in pairs for x in source.variants()])
        ends = np.cumsum([1 + len(source.units) for source in sources])
        return [part[0] - part[1:] for part in np.split(log_probs, ends[:-1])]

    def _log_probs(self, rows: Sequence[tuple[Ids, Ids]]) -> Floats:
        """log P(y | x) of all rows (x, y), decoded in batches of similar length."""
        found = np.zeros(len(rows))
        longest = max((len(y) for _, y in rows), default=0)
        size = max(1, min(BATCH, WORDS // (1 + longest)))
        for chosen in batches([len(x) + len(y) for x, y in rows], size):
            x = pad([rows[k][0] for k in chosen], self.source.vocabulary.end)
            y = pad([rows[k][1] for k in chosen], self.target.vocabulary.end)
            found[chosen] = self.translator.engine.force(x, y).log_probs
        return found

    def _together(self, source: Source, out: NDArray[np.bool_], gain: Floats) -> Iterator[LeftOut]:
        """Neighbours that are left out, as one."""
        for left_out, numbers in groupby(range(len(out)), key=out.__getitem__):
            if left_out:
                run = list(numbers)
                start, end = source.units[run[0]].start, source.units[run[-1]].stop
                text = self.source.detokenize(source.tokens[start:end])
                yield LeftOut(text, start, end, float(gain[run].max()))


def check_text(
    model: Path,
    pairs: Iterable[tuple[str, str]],
    least: float,
    device: str,
    threads: int,
    longest: int = CHECKED,
    where: str = "pair",
) -> Iterator[Check | Skipped]:
    """Checks of all pairs, in order; those of an exported model by a process per thread."""
    _open.cache_clear()
    workers = processes(model, threads)
    if workers == 1:
        return _open(model, device, threads).stream_short(pairs, least, longest, where)
    check = partial(_check_piece, model, device, least, longest, where)
    return by_pieces(check, pairs, WINDOW, workers)


def _check_piece(
    model: Path,
    device: str,
    least: float,
    longest: int,
    where: str,
    piece: Piece[tuple[str, str]],
) -> list[Check | Skipped]:
    checker = _open(model, device, 1)
    return list(checker.stream_short(piece.lines, least, longest, where, piece.first))


@lru_cache(maxsize=1)
def _open(model: Path, device: str, threads: int) -> Checker:
    """The checker of this process; kept for one call, as the files of a model may change."""
    return Checker.load(model, device, threads)


def find_units(tokens: Sequence[str], codec: Codec) -> list[range]:
    """Words and numbers, as ranges of tokens; punctuation is none.

    Subwords make up words where the language has spaces; elsewhere each is a word of its own, and
    so is a character that is spelt in bytes.
    """
    borders = [0, *(j for j, pair in enumerate(pairwise(tokens), 1) if _parts(*pair, codec))]
    ranges = [range(*pair) for pair in pairwise([*borders, len(tokens)])]
    return [each for each in ranges if _is_word(tokens[each.start : each.stop], codec)]


def _is_word(tokens: Sequence[str], codec: Codec) -> bool:
    return any(letter.isalnum() for letter in codec.detokenize(tokens))


def _parts(before: str, token: str, codec: Codec) -> bool:
    """Whether a unit begins between these two tokens."""
    if codec.settings.kind != "sentencepiece":
        return True
    if codec.settings.unspaced:
        number = before[-1].isdecimal() and token[0].isdecimal()
        return not (number or is_inner_byte(token))
    return token.startswith(SPACE)


def formatted(checks: Iterable[Check | Skipped], as_json: bool) -> Iterator[str]:
    """Lines to print: as JSON one for each translation, else for those that leave something out."""
    for number, each in enumerate(checks, 1):
        if as_json:
            yield json.dumps(each.to_json(), ensure_ascii=False)
        elif isinstance(each, Check) and each.left_out:
            words = (f"{found.text} ({found.gain:.1f})" for found in each.left_out)
            yield "\t".join([str(number), *words])
