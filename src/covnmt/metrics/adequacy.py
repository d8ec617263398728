"""Measure under-translation and over-translation (paper, section 5.2 and Table 2).

*Exact* rates need a reference that is the only right translation and its gold alignment, as the
embedded language pair has. *Proxies* work on any text and only correlate with the exact rates: REP
and DROP after Malaviya, Ferreira and Martins (2018), repeated n-grams, and source words with low
attention. All are percentages, pooled over the corpus.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from covnmt.base.arrays import FloatArray
from covnmt.metrics.alignment import GoldAlignment, Links
from covnmt.metrics.bleu import count_ngrams

# A source word that receives less attention than this in total may be untranslated.
LOW_ATTENTION = 0.2

# The weights of REP for repeated bigrams, and for the same word twice in a row.
REPEATED_BIGRAM, REPEATED_WORD = 1, 2


@dataclass(frozen=True)
class SourceWordErrors:
    """The positions of source words that a translation omits or repeats."""

    source_length: int
    omitted: frozenset[int]
    repeated: frozenset[int]


def source_word_errors(
    hypothesis: Sequence[str], reference: Sequence[str], gold: GoldAlignment, source_length: int
) -> SourceWordErrors:
    """Find exactly which source words the output omits or repeats.

    Output words are matched one to one with equal reference words: along a longest common
    subsequence first, then what remains from left to right. A source word is *omitted* if any
    target word surely linked to it stays unmatched. Output words beyond their count in the
    reference *repeat* the source words surely linked to that word, one each in source order. A
    word that is not in the reference repeats nothing.
    """
    unmatched_reference, unmatched_output = unmatched_positions(hypothesis, reference)
    return SourceWordErrors(
        source_length=source_length,
        omitted=frozenset(j for j, i in gold.sure if i in unmatched_reference),
        repeated=_repeated_positions(
            (hypothesis[k] for k in unmatched_output), reference, gold.sure
        ),
    )


def unmatched_positions(
    hypothesis: Sequence[str], reference: Sequence[str]
) -> tuple[set[int], list[int]]:
    """Return the positions in the reference and in the output that stay unmatched."""
    pairs = longest_common_subsequence(hypothesis, reference)
    remaining = sorted(set(range(len(hypothesis))) - {k for k, _ in pairs})
    unmatched_reference = sorted(set(range(len(reference))) - {i for _, i in pairs})
    unmatched_output = []
    for k in remaining:
        match = next((i for i in unmatched_reference if reference[i] == hypothesis[k]), None)
        if match is None:
            unmatched_output.append(k)
        else:
            unmatched_reference.remove(match)
    return set(unmatched_reference), unmatched_output


def longest_common_subsequence(
    first: Sequence[str], second: Sequence[str]
) -> list[tuple[int, int]]:
    """Return index pairs of a longest common subsequence, as early as possible in `first`."""
    # lengths[a][b]: longest common subsequence of first[a:] and second[b:]
    lengths = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for a in reversed(range(len(first))):
        row, below = lengths[a], lengths[a + 1]
        for b in reversed(range(len(second))):
            row[b] = below[b + 1] + 1 if first[a] == second[b] else max(below[b], row[b + 1])
    pairs = []
    a = b = 0
    while a < len(first) and b < len(second):
        if first[a] == second[b]:
            pairs.append((a, b))
            a, b = a + 1, b + 1
        elif lengths[a][b + 1] == lengths[a][b]:
            b += 1
        else:
            a += 1
    return pairs


def _repeated_positions(
    surplus: Iterable[str], reference: Sequence[str], sure: Links
) -> frozenset[int]:
    repeated: set[int] = set()
    for word, count in Counter(surplus).items():
        positions = sorted({j for j, i in sure if reference[i] == word})
        repeated.update(positions[:count])
    return frozenset(repeated)


def omission_rate(sentences: Sequence[SourceWordErrors]) -> float:
    """Return the percentage of source words that are omitted."""
    omitted = sum(len(errors.omitted) for errors in sentences)
    return _percent(omitted, sum(errors.source_length for errors in sentences))


def repetition_rate(sentences: Sequence[SourceWordErrors]) -> float:
    """Return the percentage of source words that are repeated."""
    repeated = sum(len(errors.repeated) for errors in sentences)
    return _percent(repeated, sum(errors.source_length for errors in sentences))


def rep_score(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> float:
    """Compute REP of Malaviya et al. (2018), a proxy for over-translation, per 100 reference words.

    Of what exceeds the reference, bigrams that occur at least twice in the output count 1, and
    words that follow themselves count 2.
    """
    total = sum(count_repetitions(h, r) for h, r in zip(hypotheses, references, strict=True))
    return _percent(total, sum(map(len, references)))


def count_repetitions(hypothesis: Sequence[str], reference: Sequence[str]) -> int:
    """Count what a sentence repeats beyond its reference, weighted as in REP."""
    allowed = count_ngrams(reference, [2])
    score = 0
    for (first, second), count in count_ngrams(hypothesis, [2]).items():
        excess = max(0, count - allowed[first, second])
        if count >= 2:
            score += REPEATED_BIGRAM * excess
        if first == second:
            score += REPEATED_WORD * excess
    return score


def drop_score(hypothesis_links: Sequence[Links], reference_links: Sequence[Links]) -> float:
    """Compute DROP of Malaviya et al. (2018), a proxy for under-translation.

    It is the percentage of source words linked to the reference that have no link to the output.
    """
    dropped = aligned = 0
    for to_output, to_reference in zip(hypothesis_links, reference_links, strict=True):
        linked = {j for j, _ in to_reference}
        aligned += len(linked)
        dropped += len(linked - {j for j, _ in to_output})
    return _percent(dropped, aligned)


def repeated_ngram_rate(hypotheses: Sequence[Sequence[str]], order: int = 4) -> float:
    """Compute the percentage of n-grams that occurred before in their sentence (a proxy)."""
    counts = [count_ngrams(words, [order]) for words in hypotheses]
    total = sum(count.total() for count in counts)
    return _percent(total - sum(map(len, counts)), total)


def low_attention_rate(attention: Sequence[FloatArray]) -> float:
    """Compute the percentage of source words with low attention, a proxy for under-translation.

    `attention` holds one soft matrix [I, J] per sentence, of the output with its source.
    """
    received = [matrix.sum(axis=0) for matrix in attention]  # each [J]
    low = sum(int(np.count_nonzero(weights < LOW_ATTENTION)) for weights in received)
    return _percent(low, sum(len(weights) for weights in received))


def _percent(numerator: float, denominator: float) -> float:
    return 100.0 * numerator / denominator if denominator else 0.0
