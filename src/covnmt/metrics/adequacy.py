"""Source words left out or said twice (paper, section 5.2 and Table 2).

Two kinds of figures, never to be mixed. *Exact* ones need a reference that is the only right
translation and its gold alignment, as the embedded language pair has. *Proxies* work on any text
and only hint at the truth: REP and DROP after Malaviya, Ferreira and Martins (2018), repeated
n-grams, and source words with little attention.

All figures are percentages over the whole corpus, so long sentences weigh more.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from covnmt.base.arrays import FloatArray
from covnmt.metrics.alignment import GoldAlignment, Links
from covnmt.metrics.bleu import count_ngrams

# A source word that receives less attention than this in total counts as hardly looked at.
LOW_ATTENTION = 0.2

# The weights of REP: repeated bigrams, and the same word twice in a row.
REPEATED_BIGRAM, REPEATED_WORD = 1, 2


@dataclass(frozen=True)
class SourceWordErrors:
    """What became of the words of one source sentence, by their position."""

    total: int
    omitted: frozenset[int]
    repeated: frozenset[int]


def source_word_errors(
    hypothesis: Sequence[str], reference: Sequence[str], gold: GoldAlignment, source_length: int
) -> SourceWordErrors:
    """Exact: which source words the output leaves out or says twice.

    Output words are matched one to one with equal reference words: along a longest common
    subsequence first, then what remains from left to right. A source word is *left out* if any
    target word surely linked to it stays unmatched. Output words of a type the reference has, but
    beyond the count it has there, are *said twice*: they go to the source words surely linked to
    that type, one each in source order. A word the reference does not have is a wrong word: no
    repetition, though the word that should stand there is left out.
    """
    unmatched_reference, unmatched_output = unmatched_positions(hypothesis, reference)
    return SourceWordErrors(
        total=source_length,
        omitted=frozenset(j for j, i in gold.sure if i in unmatched_reference),
        repeated=_repeated_positions(
            (hypothesis[k] for k in unmatched_output), reference, gold.sure
        ),
    )


def unmatched_positions(
    hypothesis: Sequence[str], reference: Sequence[str]
) -> tuple[set[int], list[int]]:
    """Positions in the reference and in the output that the matching leaves over."""
    pairs = longest_common_subsequence(hypothesis, reference)
    output = sorted(set(range(len(hypothesis))) - {k for k, _ in pairs})
    missing = sorted(set(range(len(reference))) - {i for _, i in pairs})
    surplus = []
    for k in output:
        match = next((i for i in missing if reference[i] == hypothesis[k]), None)
        if match is None:
            surplus.append(k)
        else:
            missing.remove(match)
    return set(missing), surplus


def longest_common_subsequence(
    first: Sequence[str], second: Sequence[str]
) -> list[tuple[int, int]]:
    """Index pairs of a longest common subsequence, as early as possible in `first`."""
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
    twice: set[int] = set()
    for word, count in Counter(surplus).items():
        origins = sorted({j for j, i in sure if reference[i] == word})
        twice.update(origins[:count])
    return frozenset(twice)


def omission_rate(sentences: Sequence[SourceWordErrors]) -> float:
    """Percentage of source words left out."""
    return _percent(
        sum(len(words.omitted) for words in sentences), sum(words.total for words in sentences)
    )


def repetition_rate(sentences: Sequence[SourceWordErrors]) -> float:
    """Percentage of source words said twice."""
    return _percent(
        sum(len(words.repeated) for words in sentences), sum(words.total for words in sentences)
    )


def rep_score(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> float:
    """Proxy for over-translation: REP of Malaviya et al. (2018), per 100 reference words.

    Counts bigrams that occur at least twice in the output, as far as they exceed the reference,
    and twice as heavily words repeated at once, as far as they exceed the reference.
    """
    total = sum(_repetitions(h, r) for h, r in zip(hypotheses, references, strict=True))
    return _percent(total, sum(map(len, references)))


def _repetitions(hypothesis: Sequence[str], reference: Sequence[str]) -> int:
    allowed = count_ngrams(reference, [2])
    score = 0
    for (first, second), count in count_ngrams(hypothesis, [2]).items():
        beyond = max(0, count - allowed[first, second])
        if count >= 2:
            score += REPEATED_BIGRAM * beyond
        if first == second:
            score += REPEATED_WORD * beyond
    return score


def drop_score(hypothesis_links: Sequence[Links], reference_links: Sequence[Links]) -> float:
    """Proxy for under-translation: DROP of Malaviya et al. (2018).

    Of the source words linked to the reference, the percentage without a link to the output.
    """
    dropped = aligned = 0
    for with_output, with_reference in zip(hypothesis_links, reference_links, strict=True):
        source = {j for j, _ in with_reference}
        aligned += len(source)
        dropped += len(source - {j for j, _ in with_output})
    return _percent(dropped, aligned)


def repeated_ngram_rate(hypotheses: Sequence[Sequence[str]], order: int = 4) -> float:
    """Proxy for over-translation: percentage of output n-grams seen before in their sentence."""
    counts = [count_ngrams(words, [order]) for words in hypotheses]
    total = sum(count.total() for count in counts)
    return _percent(total - sum(map(len, counts)), total)


def low_attention_rate(attention: Sequence[FloatArray]) -> float:
    """Proxy for under-translation: percentage of source words that are hardly looked at.

    `attention` holds one soft matrix [I, J] per sentence, of the output with its source.
    """
    received = [matrix.sum(axis=0) for matrix in attention]  # each [J]
    low = sum(int(np.count_nonzero(weights < LOW_ATTENTION)) for weights in received)
    return _percent(low, sum(len(weights) for weights in received))


def _percent(part: float, whole: float) -> float:
    return 100.0 * part / whole if whole else 0.0
