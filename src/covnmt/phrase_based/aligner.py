"""Words linked by Thot's statistical aligners, in both directions, and joined.

An aligner gives each target word one source word or none. Several chains of eflomal, which differ
in their random numbers, are trained apart and vote. Links of a corpus are kept flat: for
pair n they are `source[offsets[n]:offsets[n + 1]]` and `target[...]`, positions in the sentences.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covnmt.base.arrays import IntArray
from covnmt.base.console import track
from covnmt.base.errors import UserError, install_command
from covnmt.base.processes import map_in_order
from covnmt.phrase_based.bitext import Arrays, Bitext
from covnmt.phrase_based.settings import AlignerKind, AlignerSettings, Symmetrization

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

    source: IntArray
    target: IntArray
    offsets: IntArray

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
            f"this command needs Thot: {install_command('smt')} (or pip install sil-thot)"
        ) from None


class AlignerChain(NamedTuple):
    """One training of an aligner, and what it is called."""

    turned: bool  # target to source
    number: int  # adds to the seed

    def __str__(self) -> str:
        return f"{'backward' if self.turned else 'forward'}-{self.number + 1}"


def list_chains(settings: AlignerSettings) -> list[AlignerChain]:
    """Those of both directions; only eflomal draws random numbers, so only it has several."""
    each = range(settings.samplers if settings.kind == "eflomal" else 1)
    return [AlignerChain(turned, number) for turned in (False, True) for number in each]


def train_chain(bitext: Bitext, settings: AlignerSettings, chain: AlignerChain) -> Choices:
    """Train on the pairs, and give the choice for every target word, end to end."""
    if chain.turned:
        bitext = bitext.turned()
    check_lengths(bitext, max_sentence_length(settings.kind))
    models = build_models(settings.kind, settings.seed + chain.number)
    last = models[-1]
    for source, target in track(bitext.words(), len(bitext), f"{chain}: reading", "pairs"):
        last.add_sentence_pair(source, target)
    last.emit_training_alignments = True
    for model in models:
        model.start_training()
        # eflomal plans its own number of sweeps, the fewer the larger the corpus
        sweeps = getattr(model, "scheduled_iterations", EM_ITERATIONS)
        for _ in track(range(sweeps), sweeps, f"{chain}: {settings.kind}", "sweeps"):
            model.train()
        model.end_training()
    choices = np.zeros(len(bitext.target.ids), dtype=np.int16)
    for n, (begin, end) in enumerate(pairwise(bitext.target.offsets)):
        choices[begin:end] = last.get_training_alignment(n)[1].to_list()
    return choices


def build_models(kind: AlignerKind, seed: int) -> list[Any]:
    """The models that are trained one after the other."""
    alignment = thot_module("alignment")
    models: list[Any] = []
    for name in CHAINS[kind]:
        models.append(getattr(alignment, name)(*models[-1:]))
    if kind == "eflomal":
        models[0].seed, models[0].num_samplers = seed, 1
        models[0].deterministic = True
    return models


def max_sentence_length(kind: AlignerKind) -> int:
    """Words of a sentence that an aligner can take at most."""
    return int(build_models(kind, 0)[-1].max_sentence_length)


def majority_vote(choices: Sequence[Choices]) -> Choices:
    """What most chains chose; where they all differ, the first one's choice."""
    stacked = np.stack(choices)  # [chains, words]
    agree = (stacked[:, None] == stacked).sum(axis=1)
    return np.asarray(np.take_along_axis(stacked, agree.argmax(axis=0)[None], axis=0)[0])


def check_lengths(bitext: Bitext, limit: int) -> None:
    """Thot skips empty and very long pairs in silence; we refuse them."""
    lengths = np.stack([bitext.source.lengths(), bitext.target.lengths()])  # [2, pairs]
    wrong = np.count_nonzero((lengths.min(axis=0) == 0) | (lengths.max(axis=0) > limit))
    if wrong:
        raise UserError(
            f"this aligner takes 1 to {limit} words a side, and of {len(bitext):,} pairs to learn "
            f"from {wrong:,} have none or more: prepare the data with --max-length {limit}"
        )


def combine_chains(
    found: Mapping[AlignerChain, Choices], bitext: Bitext, how: Symmetrization
) -> WordLinks:
    """All chains of both directions as one set of links."""
    forward, backward = (
        majority_vote([found[chain] for chain in sorted(found) if chain.turned == turned])
        for turned in (False, True)
    )
    return symmetrize_bitext(forward, backward, bitext, how)


def symmetrize_bitext(
    forward: Choices, backward: Choices, bitext: Bitext, how: Symmetrization
) -> WordLinks:
    """Both directions as one set of links."""
    matrix = thot_module("common").WordAlignmentMatrix
    rows, columns, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [0]
    places = zip(pairwise(bitext.source.offsets), pairwise(bitext.target.offsets), strict=True)
    for (a, b), (c, d) in track(places, len(bitext), "joining links", "pairs"):
        one, other = matrix(int(b - a), int(d - c)), matrix(int(d - c), int(b - a))
        one.put_list(forward[c:d].tolist())
        other.put_list(backward[a:b].tolist())
        other.transpose()
        j, i = np.nonzero(SYMMETRIZATION[how](one, other).to_numpy())
        rows.append(j)
        columns.append(i)
        counts.append(len(j))
    return WordLinks(np.concatenate(rows), np.concatenate(columns), np.cumsum(counts))


Merge = Callable[["WordAlignmentMatrix", "WordAlignmentMatrix"], "WordAlignmentMatrix"]
SYMMETRIZATION: dict[Symmetrization, Merge] = {
    "grow-diag-final-and": lambda one, other: one.grow_diag_final_and(other),
    "grow-diag-final": lambda one, other: one.grow_diag_final(other),
    "intersection": lambda one, other: one.intersect(other),
    "union": lambda one, other: one.union(other),
    "forward": lambda one, other: one,
    "backward": lambda one, other: other,
}


def align_bitext(bitext: Bitext, settings: AlignerSettings, processes: int = 1) -> WordLinks:
    """Links of the pairs by an aligner trained on these very pairs, both ways."""
    every = list_chains(settings)
    found = map_in_order(partial(train_chain, bitext, settings), every, processes)
    return combine_chains(dict(zip(every, found, strict=True)), bitext, settings.joining)
