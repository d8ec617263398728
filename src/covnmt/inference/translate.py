"""The translation of a line: what it holds, how it is put together, how it is printed.

A line is translated in segments: as a whole, sentence by sentence, or in pieces if it is too long.
Letters: J source and I target tokens.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from covnmt.base.arrays import FloatArray
from covnmt.base.config import DecodeConfig, validate_settings
from covnmt.base.errors import UserError
from covnmt.base.files import read_lines
from covnmt.decoding.backtrace import Hypothesis
from covnmt.decoding.engines import StepCallback
from covnmt.text.codec import Codec
from covnmt.text.tokenize import clean_line
from covnmt.text.vocabulary import UNK_ID

if TYPE_CHECKING:
    from covnmt.inference.omissions import Omission

# Called after a decoding step with the index of a line and the tokens of its translation so far.
LineCallback = Callable[[int, tuple[str, ...]], None]

# A line that is too long is split after one of these where it has some.
BREAK_CHARACTERS = frozenset(".!?;:,。！？；：，、،؛؟۔।॥")


@dataclass(frozen=True, eq=False)
class Translation:
    """One line, its translation, and what the model attended to."""

    source: str
    source_tokens: tuple[str, ...]
    text: str
    tokens: tuple[str, ...]
    score: float  # after penalties
    blocks: tuple[FloatArray, ...]  # the alignment of each segment
    coverage: FloatArray  # [J] total attention received, divided by the fertility if there is one
    fertility: FloatArray | None  # [J] target tokens expected, where the model predicts them
    alternatives: tuple["Translation", ...] = ()  # the rest of the n-best list
    omissions: "tuple[Omission, ...] | None" = None  # if it was checked
    may_repeat: frozenset[int] = frozenset()  # if it was checked: tokens that may stand twice
    unusual: bool = False  # the source is unlike what the model was trained on
    finished: bool = True  # False: the search gave up before the sentence ended
    log_prob: float = 0.0  # before penalties

    @property
    def alignment(self) -> FloatArray:
        """Attention of every target token [I, J] without end symbols; zero between segments.

        Built on demand: for a line of many segments it is far larger than their blocks.
        """
        if len(self.blocks) == 1:
            return self.blocks[0]
        matrix = np.zeros((len(self.tokens), len(self.source_tokens)), dtype=np.float32)
        i = j = 0
        for block in self.blocks:
            rows, columns = block.shape
            matrix[i : i + rows, j : j + columns] = block
            i, j = i + rows, j + columns
        return matrix

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; numbers are rounded to four decimal places."""
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
            **({} if self.finished else {"finished": False}),
            **({"unusual": True} if self.unusual else {}),
            **({"nbest": [a.to_json() for a in self.alternatives]} if self.alternatives else {}),
        }

    def _repr_html_(self) -> str:
        """Show the attention in a notebook: a row per target token, dark where it is high."""

        def cell(weight: float) -> str:
            color = f"rgba(0, 114, 178, {weight:.2f})"
            return f'<td style="background: {color}" title="{weight:.2f}"></td>'

        head = "".join(f"<th>{escape(token)}</th>" for token in self.source_tokens)
        rows = "".join(
            f"<tr><th>{escape(token)}</th>{''.join(map(cell, weights.tolist()))}</tr>"
            for token, weights in zip(self.tokens, self.alignment, strict=True)
        )
        return f"<p>{escape(self.text)}</p><table><tr><th></th>{head}</tr>{rows}</table>"


def rounded_list(values: FloatArray) -> Any:
    """Return nested lists of numbers, rounded to four decimal places."""
    return np.round(values.astype(np.float64), 4).tolist()


def make_translation(
    source: tuple[str, ...],
    hypotheses: Sequence[Hypothesis],
    fertility: FloatArray | None,
    target: Codec,
    dictionary: dict[str, str] | None,
) -> Translation:
    """Make a translation of one segment from its n-best hypotheses.

    Unknown tokens are replaced if there is a dictionary, even an empty one.
    """
    J = len(source)
    expected = None if fertility is None else fertility[:J]
    nbest = []
    for hypothesis in hypotheses:
        attention = hypothesis.attention.astype(np.float32, copy=False)
        alignment = attention[: len(hypothesis.token_ids), :J]
        tokens = tuple(target.vocabulary.decode(hypothesis.token_ids))
        if dictionary is not None:
            tokens = replace_unknown(tokens, hypothesis.token_ids, source, alignment, dictionary)
        received = attention[:, :J].sum(axis=0)
        nbest.append(
            Translation(
                source="",  # `join_translations` knows the line
                source_tokens=source,
                text=target.detokenize(tokens),
                tokens=tokens,
                score=hypothesis.score,
                blocks=(alignment,),
                coverage=received if expected is None else received / expected,
                fertility=expected,
                finished=hypothesis.finished,
                log_prob=hypothesis.log_prob,
            )
        )
    return replace(nbest[0], alternatives=tuple(nbest[1:]))


@dataclass(frozen=True)
class LineProgress:
    """Reports the progress of whole lines while a search reports that of their segments."""

    on_step: LineCallback
    lines: Sequence[int]  # the index of the line of every segment, ascending
    target: Codec
    tokens: dict[int, tuple[str, ...]] = field(default_factory=dict)  # so far, of every segment

    def callback(self, segments: Sequence[int]) -> StepCallback:
        """Return the callback for a search over these segments."""

        def report(row: int, token_ids: tuple[int, ...]) -> None:
            self.tokens[segments[row]] = tuple(self.target.vocabulary.decode(token_ids))
            line = self.lines[segments[row]]
            siblings = range(bisect_left(self.lines, line), bisect_right(self.lines, line))
            self.on_step(line, tuple(chain(*(self.tokens.get(k, ()) for k in siblings))))

        return report


def replace_unknown(
    tokens: Sequence[str],
    token_ids: Sequence[int],
    source: Sequence[str],
    alignment: FloatArray,
    dictionary: dict[str, str],
) -> tuple[str, ...]:
    """Replace UNK by the source token with the most attention, or its entry in the dictionary."""
    aligned = [source[j] for j in alignment.argmax(axis=1)] if len(token_ids) else []
    return tuple(
        dictionary.get(source_token, source_token) if token_id == UNK_ID else token
        for token, token_id, source_token in zip(tokens, token_ids, aligned, strict=True)
    )


def split_tokens(tokens: tuple[str, ...], limit: int) -> list[tuple[str, ...]]:
    """Split into segments of at most `limit` tokens, after punctuation where there is some."""
    segments = []
    while len(tokens) > limit:
        breaks = [k for k in range(1, limit + 1) if tokens[k - 1][-1:] in BREAK_CHARACTERS]
        end = breaks[-1] if breaks else limit
        segments.append(tokens[:end])
        tokens = tokens[end:]
    return [*segments, tokens] if tokens else segments


def join_translations(line: str, segments: Sequence[Translation], target: Codec) -> Translation:
    """Join the translations of a line's segments, and their n-best lists if they have some.

    The joined list is as long as the longest of them, and holds the best combinations.
    """
    if len(segments) == 1:
        alternatives = (replace(other, source=line) for other in segments[0].alternatives)
        return replace(segments[0], source=line, alternatives=tuple(alternatives))
    size = max((1 + len(segment.alternatives) for segment in segments), default=1)
    combinations: list[tuple[Translation, ...]] = [()]
    for segment in segments:
        extended = [
            (*combination, translation)
            for combination in combinations
            for translation in (segment, *segment.alternatives)
        ]
        combinations = sorted(extended, key=lambda c: -sum(segment.score for segment in c))[:size]
    best, *others = [_concatenate(line, combination, target) for combination in combinations]
    return replace(best, alternatives=tuple(others))


def _concatenate(line: str, segments: Sequence[Translation], target: Codec) -> Translation:
    tokens = tuple(token for segment in segments for token in segment.tokens)
    fertilities = [s.fertility for s in segments if s.fertility is not None]
    empty = np.zeros(0, dtype=np.float32)
    return Translation(
        source=line,
        source_tokens=tuple(token for segment in segments for token in segment.source_tokens),
        text=target.detokenize(tokens) if segments else clean_line(line),
        tokens=tokens,
        score=sum((segment.score for segment in segments), 0.0),
        blocks=tuple(block for segment in segments for block in segment.blocks),
        coverage=np.concatenate([empty, *(segment.coverage for segment in segments)]),
        fertility=np.concatenate(fertilities) if fertilities else None,
        finished=all(segment.finished for segment in segments),
        log_prob=sum((segment.log_prob for segment in segments), 0.0),
    )


def override_decoding(decode: DecodeConfig, options: dict[str, Any]) -> DecodeConfig:
    """Replace the settings for which `options` has a value other than None, and validate them."""
    changes = {name: value for name, value in options.items() if value is not None}
    return validate_settings(DecodeConfig, {**decode.model_dump(), **changes})


def format_translations(
    translations: Iterable[Translation], as_json: bool, nbest: int
) -> Iterator[str]:
    """Yield output lines: plain text, n-best lists in Moses format, or JSON."""
    for index, translation in enumerate(translations):
        if as_json:
            yield json.dumps(translation.to_json(), ensure_ascii=False)
        elif nbest == 1:
            yield translation.text
        else:
            for hypothesis in (translation, *translation.alternatives):
                yield f"{index} ||| {hypothesis.text} ||| {hypothesis.score:.4f}"


def read_dictionary(path: Path) -> dict[str, str]:
    """Read lines of a source token, a tab, a target token; the first entry of a token counts."""
    entries: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), 1):
        source, tab, target = line.partition("\t")
        if not tab or not source or not target:
            raise UserError(f"{path}, line {number}: write a source word, a tab, a target word")
        entries.setdefault(source, target)
    return entries
