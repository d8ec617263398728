"""A lexicon of word translations: IBM model 1 in both directions (Brown et al., 1993).

It scores how well the words of one side support a word of the other: max_e log t(z | e) / p(z), the
mutual information of z with its best partner. That needs no network and no decoding, and holds in
text that a translation model has never seen. Words are the same to it if their first letters are.

Letters: z a source and e a target word; K pairs of words that occur together.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covnmt.base.arrays import ARRAY_FILE_ERRORS, DoubleArray, FloatArray, IntArray
from covnmt.base.console import track
from covnmt.base.errors import UserError
from covnmt.base.files import read_bytes, write_bytes
from covnmt.text.codec import SIDES, Side

STEM_LETTERS = 6  # of a word in an alphabet: a stemmer that needs to know no language
MAX_WORDS = 20_000  # of each side
MIN_COUNT = 3  # of a word
MAX_ENTRIES = 330_000
MAX_LENGTH = 50  # words; longer sentences say little about single words
ITERATIONS = 5
CHUNK_PAIRS = 20_000
QUANTUM = 1 / 20  # of stored logarithms, in nats
MAX_LOG = 255 * QUANTUM
MAX_DISTANCE = 2  # of words that one word of the other side may support
MIN_SUPPORT = 1.0  # entries with less are left out
MAX_PIECE = 4  # characters of a word that no spaces separate; longer ones are phrases
# runs of letters and digits, of katakana, or of other letters
_RUN = re.compile(r"[A-Za-z0-9]+|[ァ-ヺー]+|[^\W_A-Za-z0-9ァ-ヺー]+")
_WHOLE_RUN = re.compile(r"[A-Za-z0-9ァ-ヺー]+")  # is one word

# the arrays of a side, with their names in a file, which begin with the side
SIDE_ARRAYS = {"words": "words", "spm": "spm", "mean_support": "usual", "surprisal": "rarity"}
PAIR_ARRAYS = ("offsets", "partners", "source_support", "target_support")

Bytes = NDArray[np.uint8]


class Word(NamedTuple):
    """A word of a line: what the lexicon calls it, and its characters."""

    key: str
    start: int
    end: int


class WordSplitter:
    """Splits a line into words, without punctuation; with a sentencepiece model if `spm` is one."""

    def __init__(self, spm: bytes = b"") -> None:
        self._model: Any = None
        if spm:
            import sentencepiece

            self._model = sentencepiece.SentencePieceProcessor(model_proto=spm)

    def words(self, line: str) -> list[Word]:
        """Return the words in order."""
        return list(self._words(line))

    def _words(self, line: str) -> Iterator[Word]:
        for run in _RUN.finditer(line):
            start = run.start()
            pieces = [run[0]]
            if self._model is not None and not _WHOLE_RUN.fullmatch(run[0]):
                pieces = self._model.encode(run[0], out_type=str)
            for piece in pieces:
                key = piece.lower()[:STEM_LETTERS] if piece[0].isalpha() else piece
                yield Word(key, start, start + len(piece))
                start += len(piece)


def train_splitter(lines: Iterable[str]) -> bytes:
    """Train the sentencepiece model that finds words where no spaces separate them."""
    import sentencepiece

    stream = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(
            run[0]
            for line in lines
            for run in _RUN.finditer(line)
            if not _WHOLE_RUN.fullmatch(run[0])
        ),
        model_writer=stream,
        model_type="unigram",
        vocab_size=MAX_WORDS,
        max_sentencepiece_length=MAX_PIECE,
        hard_vocab_limit=False,
        character_coverage=0.9995,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        input_sentence_size=400_000,
        shuffle_input_sentence=False,
        num_threads=1,
        minloglevel=2,
    )
    return stream.getvalue()


@dataclass(frozen=True, eq=False)
class LexiconSide:
    """The words of one side, and what is usual for each; logarithms are in `QUANTUM`s."""

    words: Bytes  # UTF-8, one word a line, most frequent first
    spm: Bytes  # a sentencepiece model; empty where spaces separate words
    mean_support: Bytes  # [words] of the word in the training text
    surprisal: Bytes  # [words] -log p of the word

    @cached_property
    def splitter(self) -> WordSplitter:
        """What finds the words of a line."""
        return WordSplitter(self.spm.tobytes())

    @cached_property
    def ids(self) -> dict[str, int]:
        """Ids of the words."""
        words = self.words.tobytes().decode().split("\n")
        return {word: number for number, word in enumerate(words)}

    def log_probability(self, text: str) -> float:
        """Return the log-probability of the words of a text by their frequency on this side."""
        numbers = [self.ids.get(word.key) for word in self.splitter.words(text)]
        return -sum(MAX_LOG if k is None else float(self.surprisal[k]) * QUANTUM for k in numbers)

    def arrays(self, side: Side) -> dict[str, Bytes]:
        """Name what is stored."""
        return {f"{side}_{key}": getattr(self, name) for name, key in SIDE_ARRAYS.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], side: Side) -> "LexiconSide":
        """Read what is stored."""
        return cls(**{name: arrays[f"{side}_{key}"] for name, key in SIDE_ARRAYS.items()})


class WordSupport(NamedTuple):
    """How well the other side supports each word of a line, in nats; nan if it is unknown."""

    support: DoubleArray  # [words] of the line
    mean_support: DoubleArray  # in the training text
    surprisal: DoubleArray  # -log p of the word


@dataclass(frozen=True, eq=False)
class Lexicon:
    """Pairs of words, sorted by source and then target, with their mutual information."""

    source: LexiconSide
    target: LexiconSide
    offsets: IntArray  # [source words + 1] of the pairs
    partners: NDArray[np.uint16]  # [K] target words
    source_support: Bytes  # [K] log t(z | e) / p(z)
    target_support: Bytes  # [K] log t(e | z) / p(e)

    @classmethod
    def load(cls, path: Path) -> "Lexicon | None":
        """Read a lexicon, if there is one."""
        if not path.exists():
            return None
        try:
            with np.load(BytesIO(read_bytes(path)), allow_pickle=False) as file:
                source, target = (LexiconSide.from_arrays(file, side) for side in SIDES)
                return cls(source, target, *(file[name] for name in PAIR_ARRAYS))
        except ARRAY_FILE_ERRORS as error:
            raise UserError(
                f"{path}: damaged ({error}); restore it from a copy, or make it again with "
                "`covnmt calibrate`"
            ) from None

    def save(self, path: Path) -> None:
        """Write the lexicon."""
        arrays: dict[str, Any] = {name: getattr(self, name) for name in PAIR_ARRAYS}
        arrays |= self.source.arrays("source") | self.target.arrays("target")
        stream = BytesIO()
        np.savez_compressed(stream, **arrays)
        write_bytes(path, stream.getvalue())

    def handicap(self, text: str, side: Side) -> float:
        """Return by how many nats the words of a text are likelier on the other side, or 0."""
        own, other = (self.source, self.target) if side == "source" else (self.target, self.source)
        return max(0.0, other.log_probability(text) - own.log_probability(text))

    @cached_property
    def _keys(self) -> IntArray:
        """Sorted pair keys, plus a sentinel."""
        size = len(self.target.mean_support)
        rows = np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))
        return np.append(rows * size + self.partners, np.iinfo(np.int64).max)

    @cached_property
    def _supports(self) -> tuple[DoubleArray, DoubleArray]:
        rows = (self.source_support, self.target_support)
        first, second = (np.append(row * QUANTUM, 0.0) for row in rows)
        return first, second

    def score_support(
        self, source: Sequence[str], target: Sequence[str]
    ) -> tuple[WordSupport, WordSupport]:
        """Return the support of the words of either side, given as keys, by those of the other.

        A word supports one word of the other side, the best pairs first (competitive linking,
        Melamed 2000), and those beside it, which may be parts of the same expression. So a word
        that stands twice needs two translations, unless it is doubled (妹妹, sister). A word
        that stands on the other side as it is has all the support it can have.
        """
        z, e, by_target, by_source = self._look_up(source, target)
        same = np.array([[key == other for other in target] for key in source], dtype=bool)
        same = same.reshape(len(source), len(target))
        return (
            _linked(self.source, z, by_target, same),
            _linked(self.target, e, by_source.T, same.T),
        )

    def own_support(self, source: Sequence[str]) -> tuple[DoubleArray, DoubleArray]:
        """Return the usual support of source words, and that by the same word of the other side.

        The first is much more than the second where a word is usually translated, not copied. It
        is 0 for unknown words.
        """
        z, _, by_target, _ = self._look_up(source, source)
        return np.where(z < 0, 0.0, self.source.mean_support[z] * QUANTUM), np.diag(by_target)

    def count_partners(self, source: Sequence[str], target: Sequence[str]) -> list[int]:
        """Count for each target word the source words, with repetitions, that it may translate.

        A partner gives it at least half of its usual support.
        """
        _, e, _, by_source = self._look_up(source, target)
        usual = np.where(e < 0, MAX_LOG, self.target.mean_support[e] * QUANTUM)
        same = [source.count(key) for key in target]
        partners = (by_source >= np.maximum(usual / 2, MIN_SUPPORT)).sum(axis=0)
        return [max(pair) for pair in zip(same, partners.tolist(), strict=True)]

    def _look_up(
        self, source: Sequence[str], target: Sequence[str]
    ) -> tuple[IntArray, IntArray, DoubleArray, DoubleArray]:
        """Return the ids of the words of both sides, and their supports [J, I] of each other."""
        z, e = (
            np.array([side.ids.get(key, -1) for key in keys], dtype=np.int64)
            for side, keys in ((self.source, source), (self.target, target))
        )
        wanted = np.where(
            (z[:, None] >= 0) & (e >= 0), z[:, None] * len(self.target.mean_support) + e, -1
        )  # [J, I]
        rows = np.searchsorted(self._keys, wanted)
        rows = np.where(self._keys[rows] == wanted, rows, len(self._keys) - 1)
        by_target, by_source = (values[rows] for values in self._supports)
        return z, e, by_target, by_source


def _linked(
    side: LexiconSide, ids: IntArray, pairs: DoubleArray, same: NDArray[np.bool_]
) -> WordSupport:
    """Return the support of words by the best of their `pairs` [words, others] that are free."""
    unknown = ids < 0
    support, is_literal = np.zeros(len(ids)), np.zeros(len(ids), dtype=bool)
    scores = np.where(same, 2 * MAX_LOG, pairs)
    words, others = np.nonzero(scores)
    order = np.argsort(-scores[words, others], kind="stable")
    supported: dict[int, list[int]] = defaultdict(list)  # by each of the others
    for word, other in zip(words[order].tolist(), others[order].tolist(), strict=True):
        if not support[word] and all(
            _may_share(ids, word, neighbor) for neighbor in supported[other]
        ):
            support[word] = scores[word, other]
            is_literal[word] = same[word, other]
            supported[other].append(word)
    mean_support, surprisal = (
        np.where(unknown, np.nan, values[ids] * QUANTUM)
        for values in (side.mean_support, side.surprisal)
    )
    full = np.where(unknown, MAX_LOG, np.maximum(mean_support, pairs.max(axis=1, initial=0.0)))
    return WordSupport(
        np.where(is_literal, full, np.where(unknown, np.nan, support)),
        np.where(is_literal & unknown, full, mean_support),
        np.where(unknown, MAX_LOG, surprisal),
    )


def _may_share(ids: IntArray, word: int, neighbor: int) -> bool:
    """Tell whether two words of a line may have one translation: they are close, or doubled."""
    distance = abs(word - neighbor)
    return distance == 1 or (distance <= MAX_DISTANCE and bool(ids[word] != ids[neighbor]))


@dataclass(frozen=True)
class _Chunk:
    """Sentence pairs as cells: all pairs of their words, by source word; word 0 is NULL."""

    rows: NDArray[np.int32]  # [cells] the pair of words of each cell
    J: IntArray  # words of each sentence
    I: IntArray

    def groups(self) -> tuple[IntArray, IntArray]:
        """Number the source and the target word of each cell within the chunk."""
        cells = self.J * self.I
        pair = np.repeat(np.arange(len(cells)), cells)
        within = np.arange(len(self.rows)) - (np.cumsum(cells) - cells)[pair]
        j = within // self.I[pair] + (np.cumsum(self.J) - self.J)[pair]
        i = within % self.I[pair] + (np.cumsum(self.I) - self.I)[pair]
        return j, i


@dataclass(frozen=True, eq=False)
class _SideCounts:
    """The words of one side of the training text; word 0 is NULL."""

    spm: bytes  # see `LexiconSide`
    words: list[str]  # most frequent first, without NULL
    counts: IntArray  # [words] lines with the word
    ids: list[list[int]]  # of each line, NULL first

    @property
    def size(self) -> int:
        """The number of words with NULL."""
        return 1 + len(self.words)

    @cached_property
    def surprisal(self) -> DoubleArray:
        """-log p of each word; 0 for NULL."""
        return np.append(0.0, np.log(self.counts.sum() / self.counts))


def train_lexicon(
    pairs: Sequence[tuple[str, str]], unspaced: tuple[bool, bool] = (False, False)
) -> Lexicon:
    """Train a lexicon on pairs of lines, cleaned as the model reads them.

    `unspaced` says on which sides no spaces separate words.
    """
    sides = [
        _count_words([pair[n] for pair in pairs], is_unspaced)
        for n, is_unspaced in enumerate(unspaced)
    ]
    source, target = sides
    both = zip(source.ids, target.ids, strict=True)
    short = [pair for pair in both if max(map(len, pair)) <= MAX_LENGTH]
    keys, chunks = _cells(short, target.size)
    z, e = keys // target.size, keys % target.size
    t_z, t_e = _estimate(z, e, (source.size, target.size), chunks)
    supports = [np.log(np.maximum(t_z, 1e-9)) + source.surprisal[z]]
    supports.append(np.log(np.maximum(t_e, 1e-9)) + target.surprisal[e])
    useful = (z > 0) & (e > 0) & (np.maximum(*supports) >= MIN_SUPPORT)
    best = np.where(useful, np.maximum(t_z, t_e), 0)
    limit = np.sort(best)[-MAX_ENTRIES] if len(best) > MAX_ENTRIES else 0.0
    kept = useful & (best >= limit) & (best > 0)
    stored = [np.append(_quantize(np.where(kept, values, 0)), np.uint8(0)) for values in supports]
    first, second = (
        LexiconSide(
            np.frombuffer("\n".join(side.words).encode(), np.uint8),
            np.frombuffer(side.spm, np.uint8),
            _quantize(_mean_support(stored[n], chunks, n, ids, side.size)[1:] * QUANTUM),
            _quantize(side.surprisal[1:]),
        )
        for n, (side, ids) in enumerate(zip(sides, zip(*short, strict=True), strict=True))
    )
    offsets = np.searchsorted(z[kept], np.arange(1, source.size + 1))
    partners = (e[kept] - 1).astype(np.uint16)
    by_target, by_source = (row[:-1][kept] for row in stored)
    return Lexicon(first, second, offsets, partners, by_target, by_source)


def _count_words(lines: Sequence[str], is_unspaced: bool) -> _SideCounts:
    spm = train_splitter(lines) if is_unspaced else b""
    splitter, occurrences, words_of_line = WordSplitter(spm), Counter[str](), []
    for line in track(lines, len(lines), "splitting into words", "pairs"):
        words_of_line.append({word.key for word in splitter.words(line)})
        occurrences.update(sorted(words_of_line[-1]))  # the same order in every process
    words = [w for w, n in occurrences.most_common(MAX_WORDS) if n >= MIN_COUNT]
    numbers = {word: k for k, word in enumerate(words, 1)}
    ids = [[0, *sorted(numbers[key] for key in row & numbers.keys())] for row in words_of_line]
    return _SideCounts(spm, words, np.array([occurrences[word] for word in words], np.int64), ids)


def _quantize(values: DoubleArray) -> Bytes:
    return np.clip(np.rint(values / QUANTUM), 0, 255).astype(np.uint8)


def _cells(
    pairs: Sequence[tuple[list[int], list[int]]], size: int
) -> tuple[IntArray, list[_Chunk]]:
    """Return the pairs of words that occur together more than once, and all cells as their rows.

    Cells of other pairs have the row after the last.
    """
    parts = []
    for start in range(0, len(pairs), CHUNK_PAIRS):
        rows = [(np.array(z), np.array(e)) for z, e in pairs[start : start + CHUNK_PAIRS]]
        cells = np.concatenate([(z[:, None] * size + e).ravel() for z, e in rows])
        J, I = (np.array([len(row[n]) for row in rows]) for n in (0, 1))
        parts.append((*np.unique(cells, return_inverse=True, return_counts=True), J, I))
    keys, inverse = np.unique(np.concatenate([keys for keys, *_ in parts]), return_inverse=True)
    kept = np.bincount(inverse, np.concatenate([counts for _, _, counts, *_ in parts])) >= 2
    row_of_key = np.where(kept, np.cumsum(kept) - 1, kept.sum()).astype(np.int32)
    ends = np.cumsum([len(keys) for keys, *_ in parts])
    chunks = [
        _Chunk(row_of_key[rows][cells], J, I)
        for rows, (_, cells, _, J, I) in zip(np.split(inverse, ends[:-1]), parts, strict=True)
    ]
    return keys[kept], chunks


def _estimate(
    z: IntArray, e: IntArray, sizes: tuple[int, int], chunks: Sequence[_Chunk]
) -> tuple[FloatArray, FloatArray]:
    """Return t(z | e) and t(e | z) of the pairs of words, by expectation maximization."""
    K = len(z)
    t = [np.append(np.ones(K, np.float32), np.float32(0)) for _ in range(2)]
    for _ in track(range(ITERATIONS), ITERATIONS, "estimating the lexicon", "rounds"):
        expected = [np.zeros(K + 1), np.zeros(K + 1)]
        for chunk in chunks:
            for n, group in enumerate(chunk.groups()):
                p = t[n][chunk.rows]
                p = p / np.maximum(np.bincount(group, p), 1e-12)[group]
                expected[n] += np.bincount(chunk.rows, p, minlength=K + 1)
        for n, given, size in ((0, e, sizes[1]), (1, z, sizes[0])):
            totals = np.bincount(given, expected[n][:K], minlength=size)
            t[n][:K] = expected[n][:K] / np.maximum(totals[given], 1e-12)
    return t[0][:K], t[1][:K]


def _mean_support(
    stored: Bytes, chunks: Sequence[_Chunk], side: int, ids: Sequence[list[int]], size: int
) -> DoubleArray:
    """Return the mean of the best support of every word, over the sentences that have it."""
    best = []
    for chunk in chunks:
        group = chunk.groups()[side]
        values = np.zeros(int((chunk.J, chunk.I)[side].sum()), np.uint8)
        np.maximum.at(values, group, stored[chunk.rows])
        best.append(values)
    words = np.concatenate([np.array(row) for row in ids])
    sums = np.bincount(words, np.concatenate(best), minlength=size)
    return np.asarray(sums / np.maximum(np.bincount(words, minlength=size), 1))
