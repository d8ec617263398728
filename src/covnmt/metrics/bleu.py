"""Compute BLEU as in the paper (section 5.1), and sacreBLEU's BLEU, chrF and TER.

The paper scores with NIST's mteval-v11b: letters A to Z lower-cased, western tokenization (what
sacreBLEU calls 13a), matches clipped to the largest count in any one reference, brevity against
the *shortest* reference, no smoothing. sacreBLEU takes the closest reference instead, so with
several references the two differ.

BLEU needs ten integers per sentence, its *statistics*: output length, reference length, matched
1- to 4-grams, output 1- to 4-grams. Corpus BLEU is a function of their sum, so significance tests
can swap or resample sentences cheaply.
"""

import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from covnmt import __version__
from covnmt.base.arrays import DoubleArray, IntArray
from covnmt.base.errors import UserError

PAPER_BLEU = "BLEU (paper)"  # the name of its score
MAX_ORDER = 4
OUTPUT_LENGTH, REFERENCE_LENGTH = 0, 1
MATCHED_NGRAMS, OUTPUT_NGRAMS = slice(2, 2 + MAX_ORDER), slice(2 + MAX_ORDER, 2 + 2 * MAX_ORDER)

ASCII_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


@dataclass(frozen=True)
class Score:
    """A metric's value with a signature that names every choice needed to reproduce it.

    Scores and rates run from 0 to 100; TER can exceed 100.
    """

    name: str
    value: float
    signature: str
    details: Mapping[str, float] = field(default_factory=dict)


def bleu_statistics(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], tokenize: str = "13a"
) -> IntArray:
    """Return the statistics of every sentence [N, 10], lower-cased as in the paper.

    `references` holds one list of sentences per reference set.
    """
    tokenizer = sacre_bleu_metric(tokenize).tokenizer

    def tokens(line: str) -> list[str]:
        # lower-case last, as mteval does, so that "&QUOT;" is not taken for a quotation mark
        return cast(str, tokenizer(line.rstrip())).translate(ASCII_LOWER).split()

    rows = [
        sentence_bleu_statistics(tokens(hypothesis), [tokens(line) for line in lines])
        for hypothesis, *lines in zip(hypotheses, *references, strict=True)
    ]
    return np.array(rows, dtype=np.int64).reshape(len(rows), 2 + 2 * MAX_ORDER)  # [N, 10]


def sentence_bleu_statistics(
    hypothesis: Sequence[str], references: Sequence[Sequence[str]]
) -> list[int]:
    """Return the ten counts of one tokenized sentence."""
    allowed: Counter[tuple[str, ...]] = Counter()
    for reference in references:
        allowed |= count_ngrams(reference)
    matched, total = [0] * MAX_ORDER, [0] * MAX_ORDER
    for ngram, count in count_ngrams(hypothesis).items():
        total[len(ngram) - 1] += count
        matched[len(ngram) - 1] += min(count, allowed[ngram])
    return [len(hypothesis), min(map(len, references)), *matched, *total]


def count_ngrams(
    tokens: Sequence[str], orders: Sequence[int] = range(1, MAX_ORDER + 1)
) -> Counter[tuple[str, ...]]:
    """Count the n-grams of a sentence, for all n in `orders`."""
    return Counter(
        tuple(tokens[start : start + n]) for n in orders for start in range(len(tokens) - n + 1)
    )


def bleu_from_totals(totals: NDArray[Any]) -> DoubleArray:
    """Return BLEU, 0 to 100, of summed statistics [..., 10]; 0 where some order has no match."""
    totals = np.asarray(totals, dtype=np.float64)
    matched, total = totals[..., MATCHED_NGRAMS], totals[..., OUTPUT_NGRAMS]
    matches = matched.min(axis=-1) > 0
    precisions = np.divide(matched, total, out=np.ones_like(matched), where=matches[..., None])
    return np.where(
        matches, 100 * np.exp(np.log(precisions).mean(axis=-1)) * brevity_penalty(totals), 0.0
    )


def brevity_penalty(totals: NDArray[Any]) -> DoubleArray:
    """Return exp(1 - reference / output), at most 1, for summed statistics [..., 10]."""
    output, reference = totals[..., OUTPUT_LENGTH], totals[..., REFERENCE_LENGTH]
    ratio = np.divide(reference, output, out=np.full(output.shape, np.inf), where=output > 0)
    return np.where(reference > 0, np.exp(np.minimum(0.0, 1.0 - ratio)), 1.0)


def sentence_bleu(statistics: IntArray) -> DoubleArray:
    """Return the BLEU of each sentence [N] from statistics [N, 10], smoothed by adding one."""
    smoothed = statistics.astype(np.float64)
    for ngrams in (MATCHED_NGRAMS, OUTPUT_NGRAMS):
        smoothed[:, ngrams][:, 1:] += 1
    return bleu_from_totals(smoothed)


def paper_bleu(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], tokenize: str = "13a"
) -> Score:
    """Score a corpus with the paper's BLEU."""
    return paper_bleu_from_statistics(
        bleu_statistics(hypotheses, references, tokenize), len(references), tokenize
    )


def paper_bleu_from_statistics(statistics: IntArray, reference_sets: int, tokenize: str) -> Score:
    """Score a corpus with the paper's BLEU from statistics [N, 10]."""
    totals = statistics.sum(axis=0)
    matched, total = totals[MATCHED_NGRAMS], totals[OUTPUT_NGRAMS]
    reference = int(totals[REFERENCE_LENGTH])
    details = {
        "brevity_penalty": float(brevity_penalty(totals)),
        "length_ratio": int(totals[OUTPUT_LENGTH]) / reference if reference else 0.0,
    } | {
        f"precision_{n}": 100.0 * int(hits) / int(count) if count else 0.0
        for n, hits, count in zip(range(1, MAX_ORDER + 1), matched, total, strict=True)
    }
    signature = (
        f"nrefs:{reference_sets}|case:lc|eff:no|tok:{tokenize}|smooth:none|len:shortest|"
        f"version:covnmt-{__version__}"
    )
    return Score(PAPER_BLEU, float(bleu_from_totals(totals)), signature, details)


def sacre_bleu(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], tokenize: str = "13a"
) -> Score:
    """Score a corpus with sacreBLEU's BLEU: cased, closest reference length, smoothed."""
    metric = sacre_bleu_metric(tokenize)
    result = metric.corpus_score(hypotheses, references)
    details = {"brevity_penalty": result.bp, "length_ratio": result.ratio} | {
        f"precision_{n}": value for n, value in enumerate(result.precisions, 1)
    }
    return Score("BLEU", result.score, str(metric.get_signature()), details)


def chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """Score a corpus with sacreBLEU's chrF2."""
    metric = CHRF()
    result = metric.corpus_score(hypotheses, references)
    return Score("chrF", float(result.score), str(metric.get_signature()))


def ter(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    map_lines: Callable[..., Iterable[tuple[float, float]]] = map,
) -> Score:
    """Score a corpus with sacreBLEU's TER; lower is better.

    TER takes a second for 20 long lines: `map_lines(function, lines)` may use several processes.
    """
    lines = zip(hypotheses, *references, strict=True)
    counts = np.array(list(map_lines(count_ter_edits, lines))).reshape(-1, 2)
    edits, reference_length = counts.sum(axis=0)
    rate = edits / reference_length if reference_length else float(edits > 0)
    metric = TER()
    metric.num_refs = len(references)  # the signature needs it; corpus_score would set it
    return Score("TER", 100 * float(rate), str(metric.get_signature()))


def count_ter_edits(line: tuple[str, ...]) -> tuple[float, float]:
    """Return the edits and the mean reference length of a hypothesis and its references."""
    hypothesis, *references = line
    score = TER().sentence_score(hypothesis, references)
    return score.num_edits, score.ref_length


def sacre_bleu_metric(tokenize: str) -> BLEU:
    """Return sacreBLEU's BLEU; raise if it does not have the tokenizer."""
    if tokenize not in BLEU.TOKENIZERS:
        choices = ", ".join(sorted(BLEU.TOKENIZERS))
        raise UserError(f"sacreBLEU has no tokenizer {tokenize!r}; choose from {choices}")
    try:
        return BLEU(tokenize=tokenize, force=True)  # force: no warning about tokenized input
    except (ImportError, RuntimeError, OSError) as error:  # sacreBLEU downloads some tokenizers
        raise UserError(
            f"tokenizer {tokenize!r} needs more than is installed: {str(error).strip()}"
        ) from None
