"""What became of every word: source words left out, and words said twice, with the reason.

The attention only hints at the truth, so a remark says what was seen, not what is the case.
`alignment` is [I, J]; a source word's attention is the sum of its column.
"""

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any, Literal

from covnmt.inference.translate import Translation
from covnmt.metrics.adequacy import LOW_ATTENTION
from covnmt.text.tokenize import SPACE_SYMBOL, spell_byte_tokens

# More than a word's due: attention over its fertility or, where that is unknown, attention.
MUCH_OF_FERTILITY, MUCH_ATTENTION = 1.75, 4.0
# A repeated target word is remarked on where both copies look at one source word this much.
CLEARLY = 0.4


@dataclass(frozen=True)
class Remark:
    """Something a reader should look at."""

    side: Literal["source", "target"]
    position: int
    kind: Literal["left out", "too much", "said twice"]
    reason: str

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def find_remarks(translation: Translation) -> list[Remark]:
    """All remarks on one sentence, source words first."""
    return [*_source_remarks(translation), *_repetitions(translation)]


def _source_remarks(translation: Translation) -> list[Remark]:
    found, fertility = [], translation.fertility
    received = translation.alignment.sum(axis=0)  # [J]
    much = MUCH_ATTENTION if fertility is None else MUCH_OF_FERTILITY
    for j, (attention, coverage) in enumerate(zip(received, translation.coverage, strict=True)):
        if attention < LOW_ATTENTION:
            reason = f"attention {attention:.2f} in all: the translation hardly looked at it"
            found.append(Remark("source", j, "left out", reason))
        elif coverage > much:
            expected = "" if fertility is None else f", {fertility[j]:.2f} expected"
            reason = f"attention {attention:.2f} in all{expected}: more than its share"
            found.append(Remark("source", j, "too much", reason))
    return found


def _repetitions(translation: Translation) -> list[Remark]:
    """Target words said again while looking at the same source word."""
    found = []
    earlier: dict[tuple[str, int], list[int]] = defaultdict(list)
    origins = [
        token.strip(SPACE_SYMBOL) or "␣" for token in spell_byte_tokens(translation.source_tokens)
    ]
    for i, (token, row) in enumerate(zip(translation.tokens, translation.alignment, strict=True)):
        j = int(row.argmax())  # what has a translation has source words
        if row[j] < CLEARLY:
            continue
        if before := earlier[token, j]:
            reason = f"word {before[-1] + 1} is the same and comes from “{origins[j]}” too"
            found.append(Remark("target", i, "said twice", reason))
        earlier[token, j].append(i)
    return found
