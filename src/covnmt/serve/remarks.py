"""Remarks on a translation: omitted source words, words with too much attention, repetitions.

Omissions come from the check that judges all translations; attention is only a hint, so the reason
of a remark says what was measured. `alignment` is [I, J]; the attention that a source token
received is the sum of its column.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from covnmt.inference.translate import Translation
from covnmt.metrics.adequacy import LOW_ATTENTION
from covnmt.text.tokenize import SPACE_SYMBOL, spell_byte_tokens

# Too much for a source token: attention over its fertility or, if that is unknown, attention.
MAX_OF_FERTILITY, MAX_ATTENTION = 1.75, 4.0
# A token is a repetition if both copies attend to one source token by at least this much.
MIN_REPEATED_ATTENTION = 0.4


@dataclass(frozen=True)
class Remark:
    """A token that may be translated badly, by its position, and why."""

    side: Literal["source", "target"]
    position: int
    kind: Literal["left out", "too much", "said twice"]
    reason: str


def max_coverage(has_fertility: bool) -> float:
    """Return the coverage above which a source token got too much attention."""
    return MAX_OF_FERTILITY if has_fertility else MAX_ATTENTION


def find_remarks(translation: Translation) -> list[Remark]:
    """Return all remarks on a sentence, source tokens first."""
    return [*_source_remarks(translation), *_repetitions(translation)]


def readable_tokens(tokens: Sequence[str]) -> list[str]:
    """Return what a reader sees as words; a token that is only a space becomes ␣."""
    return [token.replace(SPACE_SYMBOL, " ").strip() or "␣" for token in spell_byte_tokens(tokens)]


def _source_remarks(translation: Translation) -> list[Remark]:
    remarks, fertility = [], translation.fertility
    received = translation.alignment.sum(axis=0)  # [J]
    limit = max_coverage(fertility is not None)
    omitted = _omitted_tokens(translation)
    is_checked = translation.omissions is not None
    for j, (attention, coverage) in enumerate(zip(received, translation.coverage, strict=True)):
        # a longer token stands for more words
        letters = sum(map(str.isalnum, translation.source_tokens[j]))
        if j in omitted:
            remarks.append(Remark("source", j, "left out", omitted[j]))
        elif not is_checked and attention < LOW_ATTENTION:
            reason = f"attention {attention:.2f} in all: the translation hardly attended to it"
            remarks.append(Remark("source", j, "left out", reason))
        elif coverage > limit * (max(1.0, letters / 2) if fertility is None else 1.0):
            expected = "" if fertility is None else f", {fertility[j]:.2f} expected"
            reason = f"attention {attention:.2f} in all{expected}: more than its share"
            remarks.append(Remark("source", j, "too much", reason))
    return remarks


def _omitted_tokens(translation: Translation) -> dict[int, str]:
    """Return the tokens of words that the translation probably leaves out, each with the reason."""
    return {
        j: f"nothing stands for “{omission.text}”, with a probability of {omission.probability:.2f}"
        for omission in translation.omissions or ()
        for j in range(omission.start, omission.end)
        if any(map(str.isalnum, translation.source_tokens[j]))
    }


def _repetitions(translation: Translation) -> list[Remark]:
    """Remark on target tokens that repeat an earlier one while attending to the same source.

    Function words, and words that stand twice in the source too, do not count.
    """
    remarks = []
    earlier: dict[tuple[str, int], list[int]] = defaultdict(list)
    source_words = readable_tokens(translation.source_tokens)
    for i, (token, row) in enumerate(zip(translation.tokens, translation.alignment, strict=True)):
        j = int(row.argmax())  # there are source tokens if there are target tokens
        if row[j] < MIN_REPEATED_ATTENTION or i in translation.may_repeat:
            continue
        if before := earlier[token, j]:
            reason = f"word {before[-1] + 1} is the same and comes from “{source_words[j]}” too"
            remarks.append(Remark("target", i, "said twice", reason))
        earlier[token, j].append(i)
    return remarks
