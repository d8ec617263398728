"""Which target tokens a sentence can need: a shortlist for the output layer, from alignments.

The output layer is the largest product of a step, and of its 30,000 tokens a sentence needs few.
The shortlist of a sentence has the most frequent target tokens, and for each source token those of
the others that it was aligned to most often; sentences of a batch share theirs. Probabilities are
then over the shortlist alone.
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

MAX_FREQUENT = 500  # target tokens that every shortlist has
MAX_PARTNERS = 20  # further target tokens of each source token


@dataclass(frozen=True)
class Shortlist:
    """Ids of target tokens that every shortlist has, and the partners of every source id."""

    always: list[int]
    partners: dict[int, list[int]]

    def for_source(self, source_ids: IntArray) -> IntArray:
        """Return the shortlist for these source ids, in ascending order."""
        partners = [t for s in np.unique(source_ids).tolist() for t in self.partners.get(s, [])]
        return np.unique(np.array([*self.always, *partners], dtype=np.int64))

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        write_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path, vocabulary_size: int) -> "Shortlist":
        """Read what `save` wrote, of a target vocabulary of this size."""
        tree: Any = read_json(path)
        try:
            partners = {int(s): [int(t) for t in ids] for s, ids in tree["partners"].items()}
            always = [int(t) for t in tree["always"]]
            lists = [always, *filter(None, partners.values())]
            if min(map(min, lists)) < 0 or max(map(max, lists)) >= vocabulary_size:
                raise ValueError("an id that no token has")
            return cls(always, partners)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise UserError(f"{path}: not a shortlist; export the model anew") from None


class ShortlistText(NamedTuple):
    """Files of parallel text, and the links between the model's own tokens of each pair."""

    source: Path
    target: Path
    links: Path


def build_shortlist(text: ShortlistText, codecs: tuple[Codec, Codec]) -> Shortlist:
    """Build the shortlist that these links give."""
    target_counts: Counter[int] = Counter()
    link_counts: dict[int, Counter[int]] = defaultdict(Counter)
    rows = track(read_parallel_lines(*text), None, "counting links", "pairs")
    for number, (source, target, line) in enumerate(rows, 1):
        source_ids, target_ids = (
            codec.encode(side) for codec, side in zip(codecs, (source, target), strict=True)
        )
        target_counts.update(target_ids)
        try:
            for s, t in parse_links(line).sure:
                link_counts[source_ids[s]][target_ids[t]] += 1
        except (UserError, IndexError) as error:
            reason = error if isinstance(error, UserError) else "a link to a token beyond the end"
            raise UserError(
                f"{text.links}, line {number}: {reason}; "
                "make the links with `covnmt align` and this model"
            ) from None
    if not link_counts:
        raise UserError(f"{text.links}: no links in it; make them with `covnmt align`")
    frequent = (t for t, _ in target_counts.most_common(MAX_FREQUENT))
    always = {UNK_ID, codecs[1].vocabulary.end_id, *frequent}
    partners = {s: most_linked(link_counts[s], always) for s in sorted(link_counts)}
    return Shortlist(sorted(always), partners)


def most_linked(counts: Counter[int], excluded: Set[int]) -> list[int]:
    """Return the ids counted most often, other than the excluded ones."""
    return sorted(counts.keys() - excluded, key=lambda t: (-counts[t], t))[:MAX_PARTNERS]
