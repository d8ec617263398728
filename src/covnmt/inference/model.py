"""A model, opened once: it translates lines, aligns given translations and finds omissions in them.

    model = load("ja-en")
    [translation] = model.translate(["金閣寺は京都にある。"])
    [alignment] = model.align([("金閣寺", "Kinkaku-ji")])
    [report] = model.check([("金閣寺は京都にある。", "It is in Kyoto.")])

Several model directories with the same vocabularies make an ensemble.

How a line reaches the beam search:

    inference/parallel.py     map_lines: a chunk of lines, in this process or another one
    inference/model.py        translate_stream: a window of lines, cut into segments, in batches
    decoding/engines.py       Engine.search: a batch of segments of similar length
    decoding/beam_search.py   beam_search, which calls Scorer.step for every target position
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from covnmt.base.config import DecodeConfig
from covnmt.base.console import log_detail, warn
from covnmt.base.cpus import available_cpus
from covnmt.base.errors import UserError
from covnmt.data.padding import map_in_batches, pad_ids
from covnmt.decoding.engines import Network, build_engine, load_networks
from covnmt.decoding.onnx.format import is_exported
from covnmt.inference.align import Alignment, force_align
from covnmt.inference.calibration import Calibration
from covnmt.inference.check_settings import MAX_TOKENS, MIN_PROBABILITY
from covnmt.inference.domain import DomainMonitor
from covnmt.inference.forced_decoding import ForcedDecoder
from covnmt.inference.translate import (
    LineCallback,
    LineProgress,
    Translation,
    join_translations,
    make_translation,
    read_dictionary,
    split_tokens,
)
from covnmt.model.directory import (
    LEXICON_FILE,
    ModelDescription,
    check_vocabularies,
    find_model,
    load_config,
)
from covnmt.text.codec import Codec, CodecPair
from covnmt.text.sentences import split_into_sentences

if TYPE_CHECKING:
    from covnmt.inference.omissions import OmissionChecker, OmissionReport, SkippedPair

WINDOW_BATCHES = 50  # lines are sorted by length within this many batches
Overlong = Literal["cut", "split", "raise"]  # what to do with a line of too many tokens


class OverlongTextError(UserError):
    """Texts with more tokens than allowed; `texts` has each, and how many it has, by its index."""

    def __init__(self, texts: dict[int, tuple[str, int]], limit: int) -> None:
        index, (_, tokens) = next(iter(texts.items()))
        super().__init__(f"line {index + 1}: {tokens} tokens, more than {limit}; split it")
        self.texts, self.limit = texts, limit


@dataclass(frozen=True)
class ModelLoader:
    """Model directories whose config.json has been read, and how to open them.

    It can be sent to other processes, which then need not read config.json again.
    """

    directories: tuple[Path, ...]
    descriptions: tuple[ModelDescription, ...] = field(hash=False)
    device: str = "auto"
    threads: int = 0
    dictionary: Path | None = None

    @classmethod
    def find(
        cls,
        names: Sequence[Path | str],
        device: str = "auto",
        threads: int = 0,
        dictionary: Path | None = None,
    ) -> "ModelLoader":
        """Find model directories, or bundled models by name, and read their config.json."""
        directories = tuple(find_model(name) for name in names)
        descriptions = tuple(load_config(directory) for directory in directories)
        return cls(directories, descriptions, device, threads, dictionary)

    @property
    def decode(self) -> DecodeConfig:
        """The decoding settings of the first model, which are those of an ensemble."""
        return self.descriptions[0].config.decode

    @property
    def default_workers(self) -> int:
        """How many processes suit a long text: one per thread of an exported model, else one."""
        return (self.threads or available_cpus()) if is_exported(self.directories[0]) else 1

    @cached_property
    def calibration(self) -> Calibration | None:
        """What `check.json` of the first directory says, if there is one."""
        return Calibration.load(self.directories[0])

    def domain_monitor(self, where: str = "", unit: str = "line") -> DomainMonitor | None:
        """Return a monitor for out-of-domain lines, or None without a calibration."""
        if self.calibration is None:
            return None
        return DomainMonitor(self.calibration.domain, self.directories[0].name, where, unit)

    def load(self) -> "Model":
        """Open vocabularies and weights; raise a UserError if they do not belong together."""
        for directory in self.directories:
            log_detail(f"opening {directory}")
        codecs = [CodecPair.load(directory) for directory in self.directories]
        for directory, description, pair in zip(
            self.directories, self.descriptions, codecs, strict=True
        ):
            check_vocabularies(directory, description, pair)
            if description.fingerprint != self.descriptions[0].fingerprint:
                raise UserError(
                    f"{directory}: other vocabularies than {self.directories[0]}; the models of "
                    "an ensemble must be trained on one data directory"
                )
        networks = load_networks(self.directories, self.descriptions, self.device, self.threads)
        entries = read_dictionary(self.dictionary) if self.dictionary else None
        log_detail(f"opened {', '.join(type(network).__name__ for network in networks)}")
        return Model(networks, *codecs[0][:2], self.decode, entries, self)


class Model:
    """One network, or an ensemble whose probabilities are averaged, with its vocabularies.

    Alignments and checks use the first network of an ensemble.
    """

    def __init__(
        self,
        networks: Sequence[Network],
        source: Codec,
        target: Codec,
        decode: DecodeConfig,
        dictionary: dict[str, str] | None = None,
        loader: ModelLoader | None = None,
    ) -> None:
        self.loader = loader  # has the lexicon and the calibration of the omission check
        self.networks, self.source, self.target, self.decode = networks, source, target, decode
        self.config = networks[0].config
        self.dictionary = dictionary or {}  # for `replace_unk`: source token to target token
        self.engine = build_engine(networks, target.vocabulary.end_id)

    @classmethod
    def load(
        cls,
        name: Path | str,
        *others: Path | str,
        device: str = "auto",
        threads: int = 0,
        dictionary: Path | None = None,
    ) -> "Model":
        """Open a model directory or, by name, a bundled model; `others` make an ensemble.

        `threads` is the number of CPU threads; 0 means one per core for PyTorch, and one for an
        exported model. `dictionary` is a file of entries for `replace_unk`.
        """
        return ModelLoader.find((name, *others), device, threads, dictionary).load()

    def translate(
        self,
        lines: Iterable[str],
        decode: DecodeConfig | None = None,
        overlong: Overlong = "cut",
        on_step: LineCallback | None = None,
        split_sentences: bool = False,
    ) -> list[Translation]:
        """Translate lines; one without letters or digits stays as it is.

        `overlong` says what to do with more than `decode.max_source` tokens; with `raise`, a line
        raises an OverlongTextError before any line of its window is translated. `split_sentences`
        translates the sentences of a line separately. `on_step` is called after every decoding
        step with the index of a line and the tokens of its best hypothesis so far; on a GPU, a
        single network calls it only after every batch.
        """
        return list(self.translate_stream(lines, decode, overlong, on_step, split_sentences))

    def translate_stream(
        self,
        lines: Iterable[str],
        decode: DecodeConfig | None = None,
        overlong: Overlong = "cut",
        on_step: LineCallback | None = None,
        split_sentences: bool = False,
        first: int = 0,
    ) -> Iterator[Translation]:
        """Translate like `translate`, but yield results after every window of lines.

        `first` is the index of the first line, for warnings and `on_step`.
        """
        if isinstance(lines, str | bytes) or not isinstance(lines, Iterable):
            raise TypeError(
                f"lines must be a list of lines, not {type(lines).__name__}: pass [text]"
            )
        decode = decode or self.decode
        domain = self.calibration.domain if self.calibration else None
        numbered = enumerate(lines, first)
        while window := list(islice(numbered, WINDOW_BATCHES * decode.batch_size)):
            for number, line in window:
                require_text(line, f"line {number + 1}")
            segments = [
                (number, segment)
                for number, line in window
                for text in (split_into_sentences(line).sentences if split_sentences else [line])
                for segment in self._segments(text, number, decode.max_source, overlong)
            ]
            if overlong == "raise":
                _raise_overlong(segments, dict(window), decode.max_source)
            line_of_segment = [number for number, _ in segments]
            progress = LineProgress(on_step, line_of_segment, self.target) if on_step else None
            translations = self._translate_segments([s for _, s in segments], decode, progress)
            start = 0
            for number, line in window:
                end = bisect_right(line_of_segment, number, start)
                joined = join_translations(line, translations[start:end], self.target)
                unusual = domain is not None and domain.is_unusual(
                    joined, self.source.vocabulary, decode.length_penalty
                )
                yield replace(joined, unusual=unusual)
                start = end

    def align(self, pairs: Iterable[tuple[str, str]], tokenized: bool = False) -> list[Alignment]:
        """Align pairs of lines by forced decoding.

        `tokenized` takes the words between spaces, as gold alignments count them.
        """
        return list(self.align_stream(pairs, tokenized))

    def align_stream(
        self, pairs: Iterable[tuple[str, str]], tokenized: bool = False, first: int = 0
    ) -> Iterator[Alignment]:
        """Align like `align`, but yield results after every window of pairs.

        `first` is the index of the first pair, for errors.
        """
        pairs = require_pairs(pairs, first)
        return force_align(self.forced_decoder, pairs, tokenized, first)

    def check(
        self,
        pairs: Iterable[tuple[str, str]],
        min_probability: float = MIN_PROBABILITY,
        words: bool = False,
    ) -> "list[OmissionReport]":
        """Find sentences, clauses and phrases that given translations leave out.

        `words` looks at single words too, which takes longer and errs more often. An empty
        translation leaves out the whole line.
        """
        return list(self.checker.reports(require_pairs(pairs), min_probability, words))

    def check_stream(
        self,
        pairs: Iterable[tuple[str, str]],
        min_probability: float = MIN_PROBABILITY,
        words: bool = False,
        max_tokens: int = MAX_TOKENS,
    ) -> "Iterator[OmissionReport | SkippedPair]":
        """Check like `check`, but yield results after every window of pairs.

        A pair is skipped if a side has more than `max_tokens` tokens.
        """
        return self.checker.short_reports(require_pairs(pairs), max_tokens, min_probability, words)

    @property
    def forced_decoder(self) -> ForcedDecoder:
        """What computes attention and probabilities of given translations."""
        return ForcedDecoder(self.engine, self.source, self.target)

    @property
    def calibration(self) -> Calibration | None:
        """What `check.json` of the first directory says, if there is one."""
        return self.loader.calibration if self.loader else None

    @cached_property
    def checker(self) -> "OmissionChecker":
        """What finds omissions, with the lexicon and the calibration of the first directory."""
        # imported here: translating does without
        from covnmt.data.lexicon import Lexicon
        from covnmt.inference.omissions import OmissionChecker

        lexicon = None
        if self.loader:
            lexicon = Lexicon.load(self.loader.directories[0] / LEXICON_FILE)
        return OmissionChecker(self.forced_decoder, lexicon, self.calibration)

    def _segments(
        self, text: str, number: int, limit: int, overlong: Overlong
    ) -> list[tuple[str, ...]]:
        """Return the tokens to translate together: nothing for a text without words."""
        if not any(letter.isalnum() for letter in text):
            return []  # for a line such as ----- a model would invent a sentence
        tokens = tuple(self.source.tokenize(text))
        if len(tokens) <= limit or overlong == "raise":
            return [tokens] if tokens else []
        if overlong == "split":
            return split_tokens(tokens, limit)
        warn(
            f"line {number + 1}: {len(tokens)} tokens, only the first {limit} are translated "
            "(--long-lines split translates all)",
        )
        return [tokens[:limit]]

    def _translate_segments(
        self,
        segments: Sequence[tuple[str, ...]],
        decode: DecodeConfig,
        progress: LineProgress | None,
    ) -> list[Translation]:
        """Translate segments in batches of similar length; return them in the given order."""
        end_id = self.source.vocabulary.end_id
        dictionary = self.dictionary if decode.replace_unk else None

        def translate_batch(indices: list[int]) -> list[Translation]:
            ids = [self.source.vocabulary.encode(segments[k]) for k in indices]
            on_step = progress.callback(indices) if progress else None
            result = self.engine.search(pad_ids(ids, end_id), decode, on_step)
            fertility = [None] * len(ids) if result.fertility is None else list(result.fertility)
            rows = zip(indices, result.hypotheses, fertility, strict=True)
            return [
                make_translation(segments[k], hypotheses, expected, self.target, dictionary)
                for k, hypotheses, expected in rows
            ]

        lengths = [len(segment) for segment in segments]
        return map_in_batches(translate_batch, lengths, decode.batch_size)


def require_text(value: object, what: str) -> None:
    """Refuse what is no text, such as bytes or a missing value of a table."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is {value!r:.50}, of type {type(value).__name__}, not str")


def require_pairs(pairs: Iterable[tuple[str, str]], first: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the pairs; refuse what is not two texts."""
    if isinstance(pairs, str):
        raise TypeError("pairs must be a list of pairs (source, target), not a string")
    for number, pair in enumerate(pairs, first + 1):
        try:
            source, target = () if isinstance(pair, str) else pair
        except (TypeError, ValueError):
            raise TypeError(f"pair {number} is {pair!r:.50}, not (source, target)") from None
        require_text(source, f"the source of pair {number}")
        require_text(target, f"the target of pair {number}")
        yield source, target


def _raise_overlong(
    segments: Sequence[tuple[int, tuple[str, ...]]], lines: dict[int, str], limit: int
) -> None:
    texts = {n: (lines[n], len(tokens)) for n, tokens in segments if len(tokens) > limit}
    if texts:
        raise OverlongTextError(texts, limit)


load = Model.load
