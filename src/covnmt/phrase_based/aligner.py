"""Word alignment with Thot's statistical aligners, symmetrized over both directions.

An aligner links each target word to one source word or to none. Several chains of eflomal, which
differ in their random seeds, are trained independently and vote.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covnmt.base.arrays import AnyArray, IntArray
from covnmt.base.console import track
from covnmt.base.errors import UserError, install_command
from covnmt.base.processes import map_in_order
from covnmt.phrase_based.bitext import ArrayFile, Bitext
from covnmt.phrase_based.settings import AlignerKind, AlignerSettings, AlignerSymmetrization

if TYPE_CHECKING:
    from thot.common import WordAlignmentMatrix

# for each target word of a corpus the position of its source word from 1, or 0 for none
SourcePositions = NDArray[np.int16]

EM_ITERATIONS = 5  # for each model, as GIZA has it
# The models of an aligner: each starts from the parameters of the one before it. IBM-2 is not
# offered, because Thot 3.5 crashes when asked for its training links.
ALIGNER_MODELS: dict[AlignerKind, tuple[str, ...]] = {
    "eflomal": ("EflomalAlignmentModel",),
    "fast_align": ("FastAlignModel",),
    "ibm1": ("Ibm1AlignmentModel",),
    "hmm": ("Ibm1AlignmentModel", "HmmAlignmentModel"),
    "ibm3": ("Ibm1AlignmentModel", "HmmAlignmentModel", "Ibm3AlignmentModel"),
    "ibm4": ("Ibm1AlignmentModel", "HmmAlignmentModel", "Ibm3AlignmentModel", "Ibm4AlignmentModel"),
}


@dataclass(frozen=True)
class WordLinks(ArrayFile):
    """Links of a corpus, concatenated: those of pair n are `offsets[n]:offsets[n + 1]`.

    Source and target are positions in the sentences.
    """

    source: AnyArray  # int16, as in the file
    target: AnyArray
    offsets: IntArray

    def __getitem__(self, n: int) -> frozenset[tuple[int, int]]:
        rows = slice(self.offsets[n], self.offsets[n + 1])
        return frozenset(zip(self.source[rows].tolist(), self.target[rows].tolist(), strict=True))


def thot_module(name: str) -> Any:
    """Import a module of Thot; without the extra `smt`, raise an error that says how to get it."""
    import importlib

    try:
        return importlib.import_module(f"thot.{name}")
    except ModuleNotFoundError:
        raise UserError(
            f"this command needs Thot: {install_command('smt')} (or pip install sil-thot)"
        ) from None


class AlignerChain(NamedTuple):
    """One training of an aligner in one direction."""

    backward: bool  # links source words to target words
    number: int  # is added to the seed

    def __str__(self) -> str:
        return f"{'backward' if self.backward else 'forward'}-{self.number + 1}"


def list_chains(settings: AlignerSettings) -> list[AlignerChain]:
    """List the chains of both directions; only eflomal is random, so only it has several."""
    numbers = range(settings.samplers if settings.kind == "eflomal" else 1)
    return [AlignerChain(backward, number) for backward in (False, True) for number in numbers]


def train_chain(bitext: Bitext, settings: AlignerSettings, chain: AlignerChain) -> SourcePositions:
    """Train on the pairs, and return the links of every target word, concatenated."""
    if chain.backward:
        bitext = bitext.swapped()
    check_lengths(bitext, max_sentence_length(settings.kind))
    models = build_models(settings.kind, settings.seed + chain.number)
    last = models[-1]
    for source, target in track(bitext.token_pairs(), len(bitext), f"{chain}: reading", "pairs"):
        last.add_sentence_pair(source, target)
    last.emit_training_alignments = True
    for model in models:
        model.start_training()
        # eflomal chooses its number of sweeps: fewer for a larger corpus
        sweeps = getattr(model, "scheduled_iterations", EM_ITERATIONS)
        for _ in track(range(sweeps), sweeps, f"{chain}: {settings.kind}", "sweeps"):
            model.train()
        model.end_training()
    positions = np.zeros(len(bitext.target.ids), dtype=np.int16)
    for n, (begin, end) in enumerate(pairwise(bitext.target.offsets)):
        positions[begin:end] = last.get_training_alignment(n)[1].to_list()
    return positions


def build_models(kind: AlignerKind, seed: int) -> list[Any]:
    """Create the models of an aligner, to be trained in this order."""
    alignment = thot_module("alignment")
    models: list[Any] = []
    for name in ALIGNER_MODELS[kind]:
        models.append(getattr(alignment, name)(*models[-1:]))
    if kind == "eflomal":
        models[0].seed, models[0].num_samplers = seed, 1
        models[0].deterministic = True
    return models


def max_sentence_length(kind: AlignerKind) -> int:
    """Return the number of words that an aligner accepts on a side."""
    return int(build_models(kind, 0)[-1].max_sentence_length)


def majority_vote(positions: Sequence[SourcePositions]) -> SourcePositions:
    """Take the link that most chains chose; where they all differ, the first chain's."""
    stacked = np.stack(positions)  # [chains, words]
    agree = (stacked[:, None] == stacked).sum(axis=1)
    return np.asarray(np.take_along_axis(stacked, agree.argmax(axis=0)[None], axis=0)[0])


def check_lengths(bitext: Bitext, limit: int) -> None:
    """Refuse empty and very long pairs, which Thot would skip silently."""
    lengths = np.stack([bitext.source.lengths(), bitext.target.lengths()])  # [2, pairs]
    refused = np.count_nonzero((lengths.min(axis=0) == 0) | (lengths.max(axis=0) > limit))
    if refused:
        raise UserError(
            f"this aligner takes 1 to {limit} words a side, and {refused:,} of {len(bitext):,} "
            f"training pairs are empty or longer: prepare the data with --max-length {limit}"
        )


def combine_chains(
    chains: Mapping[AlignerChain, SourcePositions], bitext: Bitext, how: AlignerSymmetrization
) -> WordLinks:
    """Let the chains of each direction vote, and symmetrize both directions."""
    forward, backward = (
        majority_vote([chains[chain] for chain in sorted(chains) if chain.backward == backward])
        for backward in (False, True)
    )
    return symmetrize_bitext(forward, backward, bitext, how)


def symmetrize_bitext(
    forward: SourcePositions, backward: SourcePositions, bitext: Bitext, how: AlignerSymmetrization
) -> WordLinks:
    """Merge the links of both directions by a symmetrization heuristic."""
    matrix = thot_module("common").WordAlignmentMatrix
    source, target, counts = [np.zeros(0, np.int16)], [np.zeros(0, np.int16)], [0]
    spans = zip(pairwise(bitext.source.offsets), pairwise(bitext.target.offsets), strict=True)
    for (a, b), (c, d) in track(spans, len(bitext), "symmetrizing", "pairs"):
        ahead, back = matrix(int(b - a), int(d - c)), matrix(int(d - c), int(b - a))
        ahead.put_list(forward[c:d].tolist())
        back.put_list(backward[a:b].tolist())
        back.transpose()
        j, i = np.nonzero(HEURISTICS[how](ahead, back).to_numpy())
        source.append(j.astype(np.int16))
        target.append(i.astype(np.int16))
        counts.append(len(j))
    return WordLinks(np.concatenate(source), np.concatenate(target), np.cumsum(counts))


Heuristic = Callable[["WordAlignmentMatrix", "WordAlignmentMatrix"], "WordAlignmentMatrix"]
HEURISTICS: dict[AlignerSymmetrization, Heuristic] = {
    "grow-diag-final-and": lambda forward, backward: forward.grow_diag_final_and(backward),
    "grow-diag-final": lambda forward, backward: forward.grow_diag_final(backward),
    "intersection": lambda forward, backward: forward.intersect(backward),
    "union": lambda forward, backward: forward.union(backward),
    "forward": lambda forward, backward: forward,
    "backward": lambda forward, backward: backward,
}


def align_bitext(bitext: Bitext, settings: AlignerSettings, processes: int = 1) -> WordLinks:
    """Align pairs with an aligner trained on these very pairs."""
    chains = list_chains(settings)
    positions = map_in_order(partial(train_chain, bitext, settings), chains, processes)
    return combine_chains(dict(zip(chains, positions, strict=True)), bitext, settings.joining)
