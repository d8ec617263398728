"""Word alignment of two text files (`covnmt words align`): a reference line for AER and DROP.

Words are what stands between spaces. The aligner learns from the lines it links and, where a
prepared corpus is named, from its training pairs too; words that are not in its vocabulary keep
their identity.
"""

from collections.abc import Sequence
from pathlib import Path

from covnmt.base.errors import UserError
from covnmt.base.files import read_parallel_lines
from covnmt.data.corpus import Corpus, SentenceIds
from covnmt.metrics.alignment import NO_LINKS, Links
from covnmt.phrase_based.aligner import align_bitext, max_sentence_length
from covnmt.phrase_based.bitext import Bitext, concatenate_sentences
from covnmt.phrase_based.settings import AlignerSettings
from covnmt.text.codec import Side
from covnmt.text.vocabulary import SPECIAL_TOKENS

WordPair = tuple[Sequence[str], Sequence[str]]


def align_files(
    source: Path,
    target: Path,
    corpus: Corpus | None,
    settings: AlignerSettings,
    learn: int = 0,
    processes: int = 1,
) -> list[Links]:
    """The links of each line, (source word, target word) from 0; none where a side is empty."""
    lines = read_parallel_lines(source, target)
    pairs = [(one.split(), other.split()) for one, other in lines]
    if not any(one and other for one, other in pairs):
        raise UserError(f"{source} and {target}: no line has words on both sides")
    longest = max_sentence_length(settings.kind)
    for number, (one, other) in enumerate(pairs, 1):
        if one and other and max(len(one), len(other)) > longest:
            raise UserError(
                f"{source} and {target}, line {number}: {len(one):,} and {len(other):,} words, but "
                f"{settings.kind} takes {longest:,} a side at most; empty the line, or split it"
            )
    return align_pairs(pairs, corpus, settings, learn, processes)


def align_pairs(
    pairs: Sequence[WordPair],
    corpus: Corpus | None,
    settings: AlignerSettings,
    learn: int,
    processes: int,
) -> list[Links]:
    """The same of pairs in memory; `learn` limits the pairs of the corpus, 0 takes all."""
    full = [n for n, (source, target) in enumerate(pairs) if source and target]
    bitext = Bitext(
        assign_ids([pairs[n][0] for n in full], vocabulary_ids(corpus, "source")),
        assign_ids([pairs[n][1] for n in full], vocabulary_ids(corpus, "target")),
    )
    if corpus:
        bitext = bitext.and_then(Bitext.of(corpus.split("train"), learn))
    links = align_bitext(bitext, settings, processes)
    found = {n: links[place] for place, n in enumerate(full)}
    return [found.get(n, NO_LINKS) for n in range(len(pairs))]


def vocabulary_ids(corpus: Corpus | None, side: Side) -> dict[str, int]:
    """The ids of a prepared corpus; without one, no word has an id yet."""
    if corpus is None:
        return {}
    vocabulary = corpus.codec(side).vocabulary
    return dict(zip((*SPECIAL_TOKENS, *vocabulary.tokens, ""), range(len(vocabulary)), strict=True))


def assign_ids(lines: Sequence[Sequence[str]], known: dict[str, int]) -> SentenceIds:
    """Lines as ids; a word without one gets the next."""
    return concatenate_sentences(
        [[known.setdefault(word, len(known)) for word in line] for line in lines]
    )
