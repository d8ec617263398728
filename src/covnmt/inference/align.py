"""Forced decoding: where does a trained model look while it is made to say a given translation?

Gives one soft matrix [I, J] per pair: attention of every target word over the source words,
without the end symbols and not renormalised (paper, section 5.3; SPEC 4). Gold alignments count
words as their own files split them, and a model may read these in smaller pieces: attention is
then summed over the pieces of a source word and averaged over those of a target word.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path

from covnmt.base.arrays import FloatArray
from covnmt.base.errors import UserError
from covnmt.base.processes import Chunk, map_chunks
from covnmt.data.padding import length_sorted_batches, pad_ids
from covnmt.decoding.engines import Network, build_engine, default_processes, load_models
from covnmt.metrics.alignment import fold_subwords
from covnmt.model.directory import find_model
from covnmt.text.codec import Codec
from covnmt.text.vocabulary import UNK_ID

BATCH = 64
WINDOW = 50  # batches, to sort pairs by length
CHUNK_BATCHES = 4  # batches, where several processes share the work


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
    """The words of one side, and the pieces of them that the model reads."""

    words: tuple[str, ...]
    ids: tuple[int, ...]  # of the pieces
    owners: tuple[int, ...]  # the number of the word that each piece belongs to

    @classmethod
    def of_text(cls, line: str, codec: Codec) -> "SubwordSentence":
        """Words as the model's tokenizer finds them: each is one piece."""
        words = codec.tokenize(line)
        return cls(tuple(words), tuple(codec.encode(words)), tuple(range(len(words))))

    @classmethod
    def of_words(cls, words: Sequence[str], codec: Codec) -> "SubwordSentence":
        """Words as given; each has at least one piece, unknown if the tokenizer finds none."""
        pieces = [codec.encode(codec.tokenize(word)) or [UNK_ID] for word in words]
        owners = [number for number, found in enumerate(pieces) for _ in found]
        return cls(tuple(words), tuple(chain(*pieces)), tuple(owners))


Pair = tuple[SubwordSentence, SubwordSentence]


class Aligner:
    """A model that aligns what it is given."""

    def __init__(self, model: Network, source: Codec, target: Codec) -> None:
        self.model, self.source, self.target = model, source, target
        self.engine = build_engine([model], target.vocabulary.end_id)

    @classmethod
    def load(cls, directory: Path | str, device: str = "auto", threads: int = 0) -> "Aligner":
        """Open a model directory, or by name one that comes along."""
        path = find_model(directory)
        [model], _ = load_models([path], device, threads)
        return cls(model, Codec.load(path, "source"), Codec.load(path, "target"))

    def align(
        self, pairs: Iterable[tuple[str, str]], tokenized: bool = False, where: str = "pair"
    ) -> list[Alignment]:
        """Align pairs of lines; `tokenized` takes the words between spaces, as gold files do.

        `where` is what a message calls a pair, before its number.
        """
        return list(self.stream(pairs, tokenized, where))

    def stream(
        self,
        pairs: Iterable[tuple[str, str]],
        tokenized: bool = False,
        where: str = "pair",
        first: int = 0,
    ) -> Iterator[Alignment]:
        """The same, in order, a window of pairs at a time.

        `first` is how many pairs were before these; messages count them too.
        """
        numbered = enumerate(pairs, first + 1)
        rows = (self._pair(f"{where} {number}", *pair, tokenized) for number, pair in numbered)
        while window := list(islice(rows, WINDOW * BATCH)):
            pieces = [len(source.ids) + len(target.ids) for source, target in window]
            found: dict[int, Alignment] = {}
            for chosen in length_sorted_batches(pieces, BATCH):
                batch = self._align_batch([window[k] for k in chosen])
                found.update(zip(chosen, batch, strict=True))
            yield from (found[k] for k in range(len(window)))

    def _pair(self, name: str, source: str, target: str, tokenized: bool) -> Pair:
        if tokenized:
            pair = (
                SubwordSentence.of_words(source.split(), self.source),
                SubwordSentence.of_words(target.split(), self.target),
            )
        else:
            pair = (
                SubwordSentence.of_text(source, self.source),
                SubwordSentence.of_text(target, self.target),
            )
        if not all(side.words for side in pair):
            raise UserError(f"{name}: one side is empty, there is nothing to align; leave it out")
        return pair

    def _align_batch(self, pairs: Sequence[Pair]) -> list[Alignment]:
        source = pad_ids([source.ids for source, _ in pairs], self.source.vocabulary.end_id)
        target = pad_ids([target.ids for _, target in pairs], self.target.vocabulary.end_id)
        alpha, log_probs, fertility = self.engine.force_decode(source, target)
        expected = [None] * len(pairs) if fertility is None else list(fertility)
        rows = zip(pairs, alpha, log_probs.tolist(), expected, strict=True)
        return [_over_words(*pair, *rest) for pair, *rest in rows]


def align_text(
    model: Path,
    pairs: Iterable[tuple[str, str]],
    tokenized: bool,
    where: str,
    device: str,
    threads: int,
) -> Iterator[Alignment]:
    """Alignments of all pairs, in order; those of an exported model by a process per thread."""
    _open.cache_clear()
    workers = default_processes(model, threads)
    if workers == 1:
        return _open(model, device, threads).stream(pairs, tokenized, where)
    align = partial(_align_piece, model, device, tokenized, where)
    return map_chunks(align, pairs, CHUNK_BATCHES * BATCH, workers)


def _align_piece(
    model: Path, device: str, tokenized: bool, where: str, piece: Chunk[tuple[str, str]]
) -> list[Alignment]:
    return list(_open(model, device, 1).stream(piece.lines, tokenized, where, piece.first))


@lru_cache(maxsize=1)
def _open(model: Path, device: str, threads: int) -> Aligner:
    """The aligner of this process; kept for one call, as the files of a model may change."""
    return Aligner.load(model, device, threads)


def _over_words(
    source: SubwordSentence,
    target: SubwordSentence,
    alpha: FloatArray,
    log_prob: float,
    fertility: FloatArray | None,
) -> Alignment:
    """What was found over pieces, end symbols and padding, told over words."""
    I, J = len(target.ids), len(source.ids)
    matrix = fold_subwords(alpha[:I, :J], source.owners, target.owners)
    if fertility is not None:
        [fertility] = fold_subwords(fertility[None, :J], source.owners, [0])
    return Alignment(source.words, target.words, matrix, log_prob, fertility)
