"""Word alignment by forced decoding: where a model attends while it produces a translation.

Each pair gets a soft matrix [I, J]: attention of every target word over the source words, without
the end symbols and not renormalized (paper, section 5.3; docs/paper-to-code.md, section 4). Gold
alignments count words as their files split them, and a model may read words as several subwords:
attention is then summed over the subwords of a source word, and averaged over those of a target
word.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path

from covnmt.base.arrays import FloatArray
from covnmt.base.errors import UserError
from covnmt.inference.forced_decoding import ForcedDecoder, ForcedPair
from covnmt.metrics.alignment import fold_subwords
from covnmt.text.codec import Codec
from covnmt.text.vocabulary import UNK_ID

WINDOW_PAIRS = 3200  # pairs are sorted by length within this many


class EmptySideError(UserError):
    """A pair that has nothing to align on one side; `index` counts pairs from 0."""

    reason = "one side is empty, there is nothing to align; leave it out"

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index

    def __str__(self) -> str:
        return f"pair {self.index + 1}: {self.reason}"

    def in_files(self, source: Path, target: Path) -> UserError:
        """Return the same error with the files and the line that the pair came from."""
        return UserError(f"{source} and {target}, line {self.index + 1}: {self.reason}")


@dataclass(frozen=True, eq=False)
class Alignment:
    """One pair, word by word."""

    source_tokens: tuple[str, ...]
    target_tokens: tuple[str, ...]
    matrix: FloatArray  # [I, J]
    log_prob: float  # of the target, end symbol included
    fertility: FloatArray | None  # [J]


@dataclass(frozen=True)
class SubwordSentence:
    """The words of one side, and the subwords that the model reads for them."""

    words: tuple[str, ...]
    ids: tuple[int, ...]  # of the subwords
    owners: tuple[int, ...]  # the index of the word that each subword belongs to

    @classmethod
    def from_text(cls, line: str, codec: Codec) -> "SubwordSentence":
        """Take every token of the model's tokenizer as a word."""
        words = codec.tokenize(line)
        return cls(tuple(words), tuple(codec.vocabulary.encode(words)), tuple(range(len(words))))

    @classmethod
    def from_words(cls, line: str, codec: Codec) -> "SubwordSentence":
        """Take the words between spaces; one without any subword becomes UNK."""
        words = line.split()
        subwords = [codec.encode(word) or [UNK_ID] for word in words]
        owners = [index for index, ids in enumerate(subwords) for _ in ids]
        return cls(tuple(words), tuple(chain(*subwords)), tuple(owners))


SubwordPair = tuple[SubwordSentence, SubwordSentence]


def force_align(
    decoder: ForcedDecoder, pairs: Iterable[tuple[str, str]], tokenized: bool, first: int = 0
) -> Iterator[Alignment]:
    """Align pairs of lines in order, a window of pairs at a time.

    `tokenized` takes the words between spaces instead of the model's tokens; `first` is the index
    of the first pair, for errors.
    """
    segment = SubwordSentence.from_words if tokenized else SubwordSentence.from_text

    def read_pair(index: int, pair: tuple[str, str]) -> SubwordPair:
        sides = segment(pair[0], decoder.source), segment(pair[1], decoder.target)
        if not all(side.words for side in sides):
            raise EmptySideError(index)
        return sides

    rows = (read_pair(index, pair) for index, pair in enumerate(pairs, first))
    while window := list(islice(rows, WINDOW_PAIRS)):
        yield from decoder.map_decoded(
            partial(_fold_pair, window), [(source.ids, target.ids) for source, target in window]
        )


def _fold_pair(window: Sequence[SubwordPair], index: int, forced: ForcedPair) -> Alignment:
    """Fold attention over subwords into words; drop end symbols."""
    source, target = window[index]
    matrix = fold_subwords(forced.alpha[:-1, :-1], source.owners, target.owners)
    fertility = forced.fertility
    if fertility is not None:
        [fertility] = fold_subwords(fertility[None, :-1], source.owners, [0])
    return Alignment(source.words, target.words, matrix, forced.log_prob, fertility)
