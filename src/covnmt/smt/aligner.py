"""Words linked by Thot's statistical aligners, in both directions, and joined.

An aligner gives each target word one source word or none. Links of a corpus are kept flat: for
pair n they are `source[offsets[n]:offsets[n + 1]]` and `target[...]`, positions in the sentences.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from covnmt.errors import UserError
from covnmt.progress import track
from covnmt.smt.bitext import Arrays, Bitext, Integers
from covnmt.smt.settings import AlignerKind, AlignSettings, Joining

if TYPE_CHECKING:
    from thot.common import WordAlignmentMatrix

Choices = NDArray[np.int16]  # of each target word: its source word, from 1; 0 for none

EM_ITERATIONS = 5  # of every model in a chain, as is usual since GIZA
# Each model of a chain starts from what the one before it has learnt. IBM-2 is not offered: Thot
# 3.5 crashes when asked for its training links.
CHAINS: dict[AlignerKind, tuple[str, ...]] = {
    "eflomal": ("EflomalAlignmentModel",),
    "fast_align": ("FastAlignModel",),
    "ibm1": ("Ibm1AlignmentModel",),
    "hmm": ("Ibm1AlignmentModel", "HmmAlignmentModel"),
    "ibm3": ("Ibm1AlignmentModel", "HmmAlignmentModel", "Ibm3AlignmentModel"),
    "ibm4": ("Ibm1AlignmentModel", "HmmAlignmentModel", "Ibm3AlignmentModel", "Ibm4AlignmentModel"),
}


@dataclass(frozen=True)
class WordLinks:
    """Links of every pair, laid end to end."""

    source: Integers
    target: Integers
    offsets: Integers

    def __getitem__(self, n: int) -> frozenset[tuple[int, int]]:
        chosen = slice(self.offsets[n], self.offsets[n + 1])
        return frozenset(
            zip(self.source[chosen].tolist(), self.target[chosen].tolist(), strict=True)
        )

    def arrays(self) -> Arrays:
        """For a file; positions fit in 16 bits."""
        source, target = (side.astype(np.int16) for side in (self.source, self.target))
        return {"source": source, "target": target, "offsets": self.offsets}

    @classmethod
    def of(cls, arrays: Arrays) -> "WordLinks":
        """From such a file."""
        return cls(*(arrays[name].astype(np.int64) for name in ("source", "target", "offsets")))


def thot_module(name: str) -> Any:
    """One of Thot's modules; without the extra `smt` an error says how to get it."""
    import importlib

    try:
        return importlib.import_module(f"thot.{name}")
    except ModuleNotFoundError:
        raise UserError(
            "this command needs Thot: pip install 'covnmt[smt]' (or pip install sil-thot)"
        ) from None


def align_one_way(bitext: Bitext, settings: AlignSettings, what: str) -> Choices:
    """Train an aligner on the pairs and give its choice for every target word, end to end."""
    models = build_chain(settings)
    last = models[-1]
    check_lengths(bitext, last.max_sentence_length)
    for source, target in track(bitext.words(), len(bitext), f"{what}: reading", "pairs"):
        last.add_sentence_pair(source, target)
    last.emit_training_alignments = True
    for model in models:
        model.start_training()
        # eflomal plans its own number of sweeps, the fewer the larger the corpus
        sweeps = getattr(model, "scheduled_iterations", EM_ITERATIONS)
        for _ in track(range(sweeps), sweeps, f"{what}: {settings.kind}", "sweeps"):
            model.train()
        model.end_training()
    choices = np.zeros(len(bitext.target.ids), dtype=np.int16)
    for n, (begin, end) in enumerate(pairwise(bitext.target.offsets)):
        choices[begin:end] = last.get_training_alignment(n)[1].to_list()
    return choices


def build_chain(settings: AlignSettings) -> list[Any]:
    """The models that are trained one after the other."""
    alignment = thot_module("alignment")
    models: list[Any] = []
    for name in CHAINS[settings.kind]:
        models.append(getattr(alignment, name)(*models[-1:]))
    if settings.kind == "eflomal":
        models[0].seed, models[0].num_samplers = settings.seed, settings.samplers
        models[0].deterministic = True  # or the chains would race for the random numbers
    return models


def check_lengths(bitext: Bitext, limit: int) -> None:
    """Thot skips empty and very long pairs in silence; we say which."""
    lengths = np.stack([bitext.source.lengths(), bitext.target.lengths()])  # [2, pairs]
    wrong = np.flatnonzero((lengths.min(axis=0) == 0) | (lengths.max(axis=0) > limit))
    if len(wrong):
        n = int(wrong[0])
        source, target = lengths[:, n].tolist()
        raise UserError(
            f"pair {n + 1} has {source} and {target} words; an aligner takes 1 to {limit} a side: "
            f"remove it ({len(wrong)} such pairs in all)"
        )


def join(forward: Choices, backward: Choices, bitext: Bitext, how: Joining) -> WordLinks:
    """Both directions as one set of links."""
    matrix = thot_module("common").WordAlignmentMatrix
    rows, columns, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [0]
    places = zip(pairwise(bitext.source.offsets), pairwise(bitext.target.offsets), strict=True)
    for (a, b), (c, d) in track(places, len(bitext), "joining links", "pairs"):
        one, other = matrix(int(b - a), int(d - c)), matrix(int(d - c), int(b - a))
        one.put_list(forward[c:d].tolist())
        other.put_list(backward[a:b].tolist())
        other.transpose()
        j, i = np.nonzero(MERGE[how](one, other).to_numpy())
        rows.append(j)
        columns.append(i)
        counts.append(len(j))
    return WordLinks(np.concatenate(rows), np.concatenate(columns), np.cumsum(counts))


Merge = Callable[["WordAlignmentMatrix", "WordAlignmentMatrix"], "WordAlignmentMatrix"]
MERGE: dict[Joining, Merge] = {
    "grow-diag-final-and": lambda one, other: one.grow_diag_final_and(other),
    "grow-diag-final": lambda one, other: one.grow_diag_final(other),
    "intersection": lambda one, other: one.intersect(other),
    "union": lambda one, other: one.union(other),
    "forward": lambda one, other: one,
    "backward": lambda one, other: other,
}


def align_words(bitext: Bitext, settings: AlignSettings) -> WordLinks:
    """Links of the pairs by an aligner trained on these very pairs, both ways."""
    forward = align_one_way(bitext, settings, "forward")
    backward = align_one_way(bitext.turned(), settings, "backward")
    return join(forward, backward, bitext, settings.joining)
