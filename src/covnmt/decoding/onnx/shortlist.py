"""Which target words a sentence can need: a short list for the output layer, from alignments.

The output layer is the largest product of a step, and of its 30,000 words a sentence needs few.
The list of a sentence has the most frequent target words, and for each source word those of the
others that it was most often linked to; sentences of a batch share theirs. Probabilities are then
over the list alone.
"""

from collections import Counter, defaultdict
from collections.abc import Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from covnmt.base.arrays import IntArray
from covnmt.base.console import track
from covnmt.base.errors import UserError
from covnmt.base.files import read_json, read_parallel_lines, write_json
from covnmt.metrics.alignment import parse_links
from covnmt.text.codec import Codec
from covnmt.text.vocabulary import UNK_ID

MAX_FREQUENT = 500  # target words that every list has
MAX_PARTNERS = 20  # further target words of each source word


@dataclass(frozen=True)
class Shortlist:
    """By number: target words that every list has, and the partners of every source word."""

    always: list[int]
    partners: dict[int, list[int]]

    def of(self, words: IntArray) -> IntArray:
        """The list for these source words, in ascending order."""
        linked = [t for s in np.unique(words).tolist() for t in self.partners.get(s, [])]
        return np.unique(np.array([*self.always, *linked], dtype=np.int64))

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        write_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> "Shortlist":
        """Read what `save` wrote."""
        tree: Any = read_json(path)
        try:
            partners = {int(s): [int(t) for t in each] for s, each in tree["partners"].items()}
            return cls([int(t) for t in tree["always"]], partners)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UserError(f"{path}: not a short list; export the model anew") from None


class AlignedText(NamedTuple):
    """Parallel files: two texts and the links between the model's own tokens of them."""

    source: Path
    target: Path
    links: Path


def build_shortlist(text: AlignedText, codecs: tuple[Codec, Codec]) -> Shortlist:
    """The short list that these links give."""
    said: Counter[int] = Counter()
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    rows = track(read_parallel_lines(*text), None, "counting links", "pairs")
    for number, (left, right, line) in enumerate(rows, 1):
        s_ids, t_ids = (
            codec.encode(codec.tokenize(each))
            for codec, each in zip(codecs, (left, right), strict=True)
        )
        said.update(t_ids)
        try:
            for s, t in parse_links(line).sure:
                counts[s_ids[s]][t_ids[t]] += 1
        except (UserError, IndexError) as error:
            reason = error if isinstance(error, UserError) else "a link to a word that is not there"
            raise UserError(
                f"{text.links}, line {number}: {reason}; "
                "make the links with `covnmt align` and this model"
            ) from None
    if not counts:
        raise UserError(f"{text.links}: no links in it; make them with `covnmt align`")
    always = {UNK_ID, codecs[1].vocabulary.end_id, *(t for t, _ in said.most_common(MAX_FREQUENT))}
    return Shortlist(sorted(always), {s: most_linked(counts[s], always) for s in sorted(counts)})


def most_linked(counts: Counter[int], besides: Set[int]) -> list[int]:
    """The words counted most often, other than these."""
    return sorted(counts.keys() - besides, key=lambda t: (-counts[t], t))[:MAX_PARTNERS]
