"""BLEU as the paper counts it (section 5.1), and sacreBLEU's BLEU, chrF and TER beside it.

The paper scores with NIST's mteval-v11b: letters A to Z lower-cased, western tokenisation (what
sacreBLEU calls 13a), matches clipped to the largest count in any one reference, brevity against
the *shortest* reference, no smoothing. sacreBLEU takes the closest reference instead, so with
several references the two differ.

Everything rests on ten whole numbers per sentence: output length, reference length, matched
1- to 4-grams, output 1- to 4-grams. Corpus BLEU is a function of their sum, which makes tests that
swap or resample sentences cheap.
"""

import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from covnmt import __version__
from covnmt.base.arrays import DoubleArray, IntArray
from covnmt.base.console import track
from covnmt.base.errors import UserError
from covnmt.base.processes import Chunk, map_chunks

MAX_ORDER = 4
OUTPUT_LENGTH, REFERENCE_LENGTH = 0, 1
MATCHED_NGRAMS, OUTPUT_NGRAMS = slice(2, 2 + MAX_ORDER), slice(2 + MAX_ORDER, 2 + 2 * MAX_ORDER)

TER_LINES = 100  # in one go; fewer are not worth a process

ASCII_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


@dataclass(frozen=True)
class Score:
    """One figure and what is needed to get it again.

    Scores and rates run from 0 to 100 (TER can exceed it); `signature` names every choice made.
    """

    name: str
    value: float
    signature: str
    details: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def bleu_statistics(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], tokenize: str = "13a"
) -> IntArray:
    """Ten counts per sentence; `references` is one list of sentences per set of references."""
    tokenizer = _sacre_bleu(tokenize).tokenizer

    def words(line: str) -> list[str]:
        # lower-cased last, as mteval does, so that "&QUOT;" stays what it is
        return cast(str, tokenizer(line.rstrip())).translate(ASCII_LOWER).split()

    rows = [
        sentence_bleu_statistics(words(hypothesis), [words(line) for line in lines])
        for hypothesis, *lines in zip(hypotheses, *references, strict=True)
    ]
    return np.array(rows, dtype=np.int64).reshape(len(rows), 2 + 2 * MAX_ORDER)  # [N, 10]


def sentence_bleu_statistics(
    hypothesis: Sequence[str], references: Sequence[Sequence[str]]
) -> list[int]:
    """The ten counts of one tokenised sentence."""
    allowed: Counter[tuple[str, ...]] = Counter()
    for reference in references:
        allowed |= count_ngrams(reference)
    matched, total = [0] * MAX_ORDER, [0] * MAX_ORDER
    for ngram, count in count_ngrams(hypothesis).items():
        total[len(ngram) - 1] += count
        matched[len(ngram) - 1] += min(count, allowed[ngram])
    return [len(hypothesis), min(map(len, references)), *matched, *total]


def count_ngrams(
    words: Sequence[str], orders: Sequence[int] = range(1, MAX_ORDER + 1)
) -> Counter[tuple[str, ...]]:
    """How often each run of n words occurs, for all n in `orders`."""
    return Counter(
        tuple(words[start : start + n]) for n in orders for start in range(len(words) - n + 1)
    )


def corpus_bleu(totals: NDArray[Any]) -> DoubleArray:
    """BLEU from 0 to 100 of summed statistics [..., 10]; 0 where some order has no match."""
    totals = np.asarray(totals, dtype=np.float64)
    matched, total = totals[..., MATCHED_NGRAMS], totals[..., OUTPUT_NGRAMS]
    some = matched.min(axis=-1) > 0
    precisions = np.divide(matched, total, out=np.ones_like(matched), where=some[..., None])
    return np.where(
        some, 100 * np.exp(np.log(precisions).mean(axis=-1)) * brevity_penalty(totals), 0.0
    )


def brevity_penalty(totals: NDArray[Any]) -> DoubleArray:
    """The penalty for output shorter than the reference: exp(1 - reference / output), at most 1."""
    output, reference = totals[..., OUTPUT_LENGTH], totals[..., REFERENCE_LENGTH]
    ratio = np.divide(reference, output, out=np.full(output.shape, np.inf), where=output > 0)
    return np.where(reference > 0, np.exp(np.minimum(0.0, 1.0 - ratio)), 1.0)


def paper_bleu(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], tokenize: str = "13a"
) -> Score:
    """The paper's BLEU of a corpus."""
    return paper_bleu_from_statistics(
        bleu_statistics(hypotheses, references, tokenize), len(references), tokenize
    )


def paper_bleu_from_statistics(rows: IntArray, reference_sets: int, tokenize: str) -> Score:
    """The same from counts already made."""
    totals = rows.sum(axis=0)
    signature = (
        f"nrefs:{reference_sets}|case:lc|eff:no|tok:{tokenize}|smooth:none|len:shortest|"
        f"version:covnmt-{__version__}"
    )
    return Score("BLEU (paper)", float(corpus_bleu(totals)), signature, _bleu_details(totals))


def sacre_bleu(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], tokenize: str = "13a"
) -> Score:
    """sacreBLEU's BLEU with its own signature: cased, closest reference length, smoothed."""
    metric = _sacre_bleu(tokenize)
    result = metric.corpus_score(hypotheses, references)
    details = {"brevity_penalty": result.bp, "length_ratio": result.ratio} | {
        f"precision_{n}": value for n, value in enumerate(result.precisions, 1)
    }
    return Score("BLEU", result.score, str(metric.get_signature()), details)


def chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """sacreBLEU's chrF2: character n-grams, recall counted twice."""
    metric = CHRF()
    result = metric.corpus_score(hypotheses, references)
    return Score("chrF", float(result.score), str(metric.get_signature()))


def ter(hypotheses: Sequence[str], references: Sequence[Sequence[str]], workers: int = 1) -> Score:
    """sacreBLEU's TER: edits, with moves of blocks, per reference word; lower is better.

    It is slow (20 long lines a second), so many lines are shared out among `workers` processes.
    """
    rows = zip(hypotheses, *references, strict=True)
    counts = map_chunks(_edits, rows, TER_LINES, workers)
    edits, words = np.array(list(track(counts, len(hypotheses), "TER"))).reshape(-1, 2).sum(axis=0)
    rate = edits / words if words else float(edits > 0)
    metric = TER()
    metric.num_refs = len(references)  # as it notes when it scores a corpus itself
    return Score("TER", 100 * float(rate), str(metric.get_signature()))


def _edits(piece: Chunk[tuple[str, ...]]) -> list[tuple[float, float]]:
    """Edits and reference words of each line, which is followed by its references."""
    scores = [TER().sentence_score(output, references) for output, *references in piece.lines]
    return [(score.num_edits, score.ref_length) for score in scores]


def _sacre_bleu(tokenize: str) -> BLEU:
    """sacreBLEU's metric; `force` only silences its warning about tokenised input."""
    if tokenize not in BLEU.TOKENIZERS:
        known = ", ".join(sorted(BLEU.TOKENIZERS))
        raise UserError(f"tokenisation {tokenize!r} is not known to sacreBLEU; choose from {known}")
    try:
        return BLEU(tokenize=tokenize, force=True)
    except (ImportError, RuntimeError, OSError) as error:  # some are fetched from the network
        raise UserError(
            f"tokenisation {tokenize!r} needs more than is installed: {str(error).strip()}"
        ) from None


def _bleu_details(totals: IntArray) -> dict[str, float]:
    matched, total = totals[MATCHED_NGRAMS], totals[OUTPUT_NGRAMS]
    reference = int(totals[REFERENCE_LENGTH])
    return {
        "brevity_penalty": float(brevity_penalty(totals)),
        "length_ratio": int(totals[OUTPUT_LENGTH]) / reference if reference else 0.0,
    } | {
        f"precision_{n}": 100.0 * int(hit) / int(of) if of else 0.0
        for n, hit, of in zip(range(1, MAX_ORDER + 1), matched, total, strict=True)
    }
