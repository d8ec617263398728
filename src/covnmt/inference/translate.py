"""Lines in, translations out, each with where its words came from and what was covered.

    translator = Translator.load(Path("runs/gru10"))
    for translation in translator.translate(["a line", "another"]):
        print(translation.text, translation.coverage)

Several model directories make an ensemble. Letters: J source and I target words of a sentence.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from covnmt.base.arrays import FloatArray
from covnmt.base.config import DecodeConfig
from covnmt.base.console import warn
from covnmt.base.errors import UserError
from covnmt.base.files import read_lines
from covnmt.base.recipe import validate_settings
from covnmt.data.padding import length_sorted_batches, pad_ids
from covnmt.decoding.backtrace import Hypothesis
from covnmt.decoding.engines import Network, build_engine, load_models
from covnmt.decoding.protocol import StepCallback as WatchWords
from covnmt.model.directory import find_model
from covnmt.text.codec import Codec, vocabulary_fingerprint
from covnmt.text.sentences import split_into_sentences
from covnmt.text.tokenize import clean_line
from covnmt.text.vocabulary import UNK_ID

# Told after every step: the number of a line, from 0, and the tokens of its translation so far.
LineCallback = Callable[[int, tuple[str, ...]], None]

# Lines are sorted by length within windows of this many batches, and given back in order.
WINDOW_BATCHES = 50
# Where a line that is too long may be split.
BREAK_CHARACTERS = frozenset(".!?;:,。！？；：，、،؛؟۔।॥")


@dataclass(frozen=True, eq=False)
class Translation:
    """One sentence, its translation, and the account of it."""

    source: str
    source_tokens: tuple[str, ...]
    text: str
    tokens: tuple[str, ...]
    score: float
    blocks: tuple[FloatArray, ...]  # the alignment of each piece that was translated by itself
    coverage: FloatArray  # [J] attention received in all, over the fertility where there is one
    fertility: FloatArray | None  # [J] target words expected, where the model predicts them
    alternatives: tuple["Translation", ...] = ()  # the rest of the n-best list

    @property
    def alignment(self) -> FloatArray:
        """[I, J] attention of every target word, end symbols left out; it stays within a piece.

        Made when asked for: of a line with many pieces it takes far more room than they do.
        """
        if len(self.blocks) == 1:
            return self.blocks[0]
        whole = np.zeros((len(self.tokens), len(self.source_tokens)), dtype=np.float32)
        i = j = 0
        for block in self.blocks:
            rows, columns = block.shape
            whole[i : i + rows, j : j + columns] = block
            i, j = i + rows, j + columns
        return whole

    def to_json(self) -> dict[str, Any]:
        """As plain values, numbers to four places."""
        fertility = None if self.fertility is None else rounded_list(self.fertility)
        return {
            "source": self.source,
            "source_tokens": list(self.source_tokens),
            "text": self.text,
            "tokens": list(self.tokens),
            "score": round(self.score, 4),
            "alignment": rounded_list(self.alignment),
            "coverage": rounded_list(self.coverage),
            "fertility": fertility,
            **({"nbest": [a.to_json() for a in self.alternatives]} if self.alternatives else {}),
        }


def rounded_list(values: FloatArray) -> Any:
    """As plain numbers, to four places."""
    return np.round(values.astype(np.float64), 4).tolist()


class Translator:
    """One model, or several, whose probabilities are averaged."""

    def __init__(
        self,
        models: Sequence[Network],
        source: Codec,
        target: Codec,
        decode: DecodeConfig,
        dictionary: dict[str, str] | None = None,
    ) -> None:
        self.models, self.source, self.target, self.decode = models, source, target, decode
        self.dictionary = dictionary or {}
        self.engine = build_engine(models, target.vocabulary.end_id)

    @classmethod
    def load(
        cls,
        directory: Path | str,
        *others: Path | str,
        device: str = "auto",
        dictionary: Path | None = None,
        threads: int = 0,
    ) -> "Translator":
        """Open a model directory, or by name one that comes along; several of one vocabulary make
        an ensemble.

        `threads` are those of the CPU; 0 is one per core, but one for an exported model.
        """
        paths = [find_model(each) for each in (directory, *others)]
        models, decode = load_models(paths, device, threads)
        for path in paths[1:]:
            if vocabulary_fingerprint(path) != vocabulary_fingerprint(paths[0]):
                raise UserError(
                    f"{path}: other vocabularies than {paths[0]}; the models of an ensemble must "
                    "be trained on one data directory"
                )
        sides = (Codec.load(paths[0], "source"), Codec.load(paths[0], "target"))
        entries = read_dictionary(dictionary) if dictionary else None
        return cls(models, *sides, decode, entries)

    def translate(
        self,
        lines: Iterable[str],
        decode: DecodeConfig | None = None,
        overlong: Literal["cut", "split"] = "cut",
        on_step: LineCallback | None = None,
        split_sentences: bool = False,
    ) -> list[Translation]:
        """Translate every line; what has neither letter nor digit stays as it is. With
        `split_sentences`, those of a line are translated one by one.

        `on_step` is told after every step of the search: the number of the line from 0, and the
        tokens of its best hypothesis so far. On a GPU one model tells only what is done, batch by
        batch.
        """
        return list(self.stream(lines, decode, overlong, on_step, split_sentences))

    def stream(
        self,
        lines: Iterable[str],
        decode: DecodeConfig | None = None,
        overlong: Literal["cut", "split"] = "cut",
        on_step: LineCallback | None = None,
        split_sentences: bool = False,
        first: int = 0,
    ) -> Iterator[Translation]:
        """The same, in order, as soon as a window of lines is done.

        `first` is the number of the first line, for messages and `on_step`.
        """
        if isinstance(lines, str):  # is iterable too, character by character
            raise TypeError("translate takes lines: give it [text] in place of text")
        decode = decode or self.decode
        numbered = enumerate(lines, first)
        while window := list(islice(numbered, WINDOW_BATCHES * decode.batch_size)):
            parts = [self._parts(line, n, decode, overlong, split_sentences) for n, line in window]
            owners = [n for (n, _), part in zip(window, parts, strict=True) for _ in part]
            told = None if on_step is None else _PartialLines(on_step, owners, self.target)
            done = iter(self._translate_tokens([p for part in parts for p in part], decode, told))
            for (_, line), part in zip(window, parts, strict=True):
                yield join_segments(line, list(islice(done, len(part))), self.target)

    def _parts(
        self,
        line: str,
        number: int,
        decode: DecodeConfig,
        overlong: Literal["cut", "split"],
        split_sentences: bool,
    ) -> list[tuple[str, ...]]:
        """The tokens to translate: none for a line without words, several for a split one."""
        texts = split_into_sentences(line).sentences if split_sentences else (line,)
        return [part for text in texts for part in self._pieces(text, number, decode, overlong)]

    def _pieces(
        self, text: str, number: int, decode: DecodeConfig, overlong: Literal["cut", "split"]
    ) -> list[tuple[str, ...]]:
        if not any(letter.isalnum() for letter in text):  # of a rule a model makes a sentence
            return []
        tokens = tuple(self.source.tokenize(text))
        if len(tokens) <= decode.max_source:
            return [tokens] if tokens else []
        if overlong == "split":
            return split_tokens(tokens, decode.max_source)
        warn(
            f"line {number + 1}: {len(tokens)} tokens, only the first {decode.max_source} are "
            "translated (--overlong split translates all; --sentences each, if these are several)",
        )
        return [tokens[: decode.max_source]]

    def _translate_tokens(
        self,
        sentences: Sequence[tuple[str, ...]],
        decode: DecodeConfig,
        told: "_PartialLines | None",
    ) -> list[Translation]:
        """Translate in batches of similar length; the result is in the order given."""
        found: dict[int, Translation] = {}
        for chosen in length_sorted_batches(
            [len(tokens) for tokens in sentences], decode.batch_size
        ):
            watch = None if told is None else told.of(chosen)
            batch = self._translate_batch([sentences[k] for k in chosen], decode, watch)
            found.update(zip(chosen, batch, strict=True))
        return [found[k] for k in range(len(sentences))]

    def _translate_batch(
        self, sentences: Sequence[tuple[str, ...]], decode: DecodeConfig, watch: WatchWords | None
    ) -> list[Translation]:
        ids = [self.source.encode(tokens) for tokens in sentences]
        found = self.engine.search(pad_ids(ids, self.source.vocabulary.end_id), decode, watch)
        fertilities = [None] * len(ids) if found.fertility is None else list(found.fertility)
        rows = zip(sentences, found.hypotheses, fertilities, strict=True)
        return [self._translation(*row, decode) for row in rows]

    def _translation(
        self,
        source: tuple[str, ...],
        hypotheses: Sequence[Hypothesis],
        fertility: FloatArray | None,
        decode: DecodeConfig,
    ) -> Translation:
        made = [self._account(source, hypothesis, fertility, decode) for hypothesis in hypotheses]
        return replace(made[0], alternatives=tuple(made[1:]))

    def _account(
        self,
        source: tuple[str, ...],
        hypothesis: Hypothesis,
        fertility: FloatArray | None,
        decode: DecodeConfig,
    ) -> Translation:
        J, words = len(source), hypothesis.token_ids
        attention = hypothesis.attention.astype(np.float32, copy=False)
        alignment = attention[: len(words), :J]
        tokens = tuple(self.target.decode(words))
        if decode.replace_unk:
            tokens = replace_unknown(tokens, words, source, alignment, self.dictionary)
        received = attention[:, :J].sum(axis=0)
        expected = None if fertility is None else fertility[:J]
        return Translation(
            source="",  # `join` knows the line
            source_tokens=source,
            text=self.target.detokenize(tokens),
            tokens=tokens,
            score=hypothesis.score,
            blocks=(alignment,),
            coverage=received if expected is None else received / expected,
            fertility=expected,
        )


@dataclass(frozen=True)
class _PartialLines:
    """Tells whoever watches lines of what the search says about sentences.

    A line that was split has several sentences; they are put together as far as they are known.
    """

    on_step: LineCallback
    owners: Sequence[int]  # the line of every sentence
    target: Codec
    said: dict[int, tuple[str, ...]] = field(default_factory=dict)  # tokens of every sentence

    def of(self, sentences: Sequence[int]) -> WatchWords:
        """For a search over these sentences."""

        def partial(place: int, words: tuple[int, ...]) -> None:
            self.said[sentences[place]] = tuple(self.target.decode(words))
            line = self.owners[sentences[place]]
            first, end = bisect_left(self.owners, line), bisect_right(self.owners, line)
            parts = (self.said.get(sentence, ()) for sentence in range(first, end))
            self.on_step(line, tuple(chain.from_iterable(parts)))

        return partial


def replace_unknown(
    tokens: Sequence[str],
    words: Sequence[int],
    source: Sequence[str],
    alignment: FloatArray,
    dictionary: dict[str, str],
) -> tuple[str, ...]:
    """Unknown words become the dictionary's entry for the word they look at most, or that word."""
    looked_at = [source[j] for j in alignment.argmax(axis=1)] if len(words) else []
    return tuple(
        dictionary.get(origin, origin) if word == UNK_ID else token
        for token, word, origin in zip(tokens, words, looked_at, strict=True)
    )


def split_tokens(tokens: tuple[str, ...], limit: int) -> list[tuple[str, ...]]:
    """Pieces of at most `limit` tokens, cut after punctuation where there is some."""
    pieces = []
    while len(tokens) > limit:
        breaks = [k for k in range(1, limit + 1) if tokens[k - 1][-1:] in BREAK_CHARACTERS]
        cut = breaks[-1] if breaks else limit
        pieces.append(tokens[:cut])
        tokens = tokens[cut:]
    return [*pieces, tokens] if tokens else pieces


def join_segments(line: str, parts: Sequence[Translation], target: Codec) -> Translation:
    """The pieces of one line as one translation, with an n-best list if they have some."""
    best, *others = [_concatenate(line, way, target) for way in _nbest_combinations(parts)]
    return replace(best, alternatives=tuple(others))


def _nbest_combinations(parts: Sequence[Translation]) -> list[tuple[Translation, ...]]:
    """The best ways to say all pieces, as many as any piece has, the best first."""
    many = max((1 + len(part.alternatives) for part in parts), default=1)
    ways: list[tuple[Translation, ...]] = [()]
    for part in parts:
        longer = [(*way, each) for way in ways for each in (part, *part.alternatives)]
        ways = sorted(longer, key=lambda way: -sum(each.score for each in way))[:many]
    return ways


def _concatenate(line: str, parts: Sequence[Translation], target: Codec) -> Translation:
    """One way to say them."""
    if len(parts) == 1:
        return replace(parts[0], source=line, alternatives=())
    tokens = tuple(token for part in parts for token in part.tokens)
    source = tuple(token for part in parts for token in part.source_tokens)
    nothing = np.zeros(0, dtype=np.float32)
    fertilities = [part.fertility for part in parts if part.fertility is not None]
    return Translation(
        source=line,
        source_tokens=source,
        text=target.detokenize(tokens) if parts else clean_line(line),
        tokens=tokens,
        score=sum((part.score for part in parts), 0.0),
        blocks=tuple(block for part in parts for block in part.blocks),
        coverage=np.concatenate([nothing, *(part.coverage for part in parts)]),
        fertility=np.concatenate(fertilities) if fertilities else None,
    )


def override_decoding(decode: DecodeConfig, options: dict[str, Any]) -> DecodeConfig:
    """The settings with those options changed that are not None; checked again."""
    changes = {name: value for name, value in options.items() if value is not None}
    return validate_settings(DecodeConfig, {**decode.model_dump(), **changes})


def format_translations(
    translations: Iterable[Translation], as_json: bool, nbest: int
) -> Iterator[str]:
    """Output lines: plain text, an n-best list as Moses writes it, or JSON."""
    for number, translation in enumerate(translations):
        if as_json:
            yield json.dumps(translation.to_json(), ensure_ascii=False)
        elif nbest == 1:
            yield translation.text
        else:
            for each in (translation, *translation.alternatives):
                yield f"{number} ||| {each.text} ||| {each.score:.4f}"


def read_dictionary(path: Path) -> dict[str, str]:
    """Source word, tab, target word; the first entry of a word counts."""
    entries: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), 1):
        source, tab, target = line.partition("\t")
        if not tab or not source or not target:
            raise UserError(f"{path}, line {number}: write a source word, a tab, a target word")
        entries.setdefault(source, target)
    return entries
