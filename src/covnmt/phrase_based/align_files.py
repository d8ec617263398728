"""Word alignment of two text files (`covnmt words align`), a baseline aligner for AER and DROP.

Words stand between spaces. The aligner learns from the lines that it links and, if a prepared
corpus is given, from its training pairs too. Words outside its vocabulary get ids of their own.
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

# a sentence and its translation, split into words
TokenizedPair = tuple[Sequence[str], Sequence[str]]


def align_files(
    source: Path,
    target: Path,
    corpus: Corpus | None,
    settings: AlignerSettings,
    corpus_pairs: int = 0,
    processes: int = 1,
) -> list[Links]:
    """Align two files line by line; a line that is empty on one side has no links."""
    pairs = [(a.split(), b.split()) for a, b in read_parallel_lines(source, target)]
    if not any(a and b for a, b in pairs):
        raise UserError(f"{source} and {target}: no line has words on both sides")
    max_words = max_sentence_length(settings.kind)
    for number, (a, b) in enumerate(pairs, 1):
        if a and b and max(len(a), len(b)) > max_words:
            raise UserError(
                f"{source} and {target}, line {number}: {len(a):,} and {len(b):,} words, but "
                f"{settings.kind} takes {max_words:,} a side at most; empty the line, or split it"
            )
    return align_pairs(pairs, corpus, settings, corpus_pairs, processes)


def align_pairs(
    pairs: Sequence[TokenizedPair],
    corpus: Corpus | None,
    settings: AlignerSettings,
    corpus_pairs: int,
    processes: int,
) -> list[Links]:
    """Align tokenized pairs, learning from `corpus_pairs` pairs of a corpus too (0: from all)."""
    rows = [n for n, (source, target) in enumerate(pairs) if source and target]
    bitext = Bitext(
        assign_ids([pairs[n][0] for n in rows], vocabulary_ids(corpus, "source")),
        assign_ids([pairs[n][1] for n in rows], vocabulary_ids(corpus, "target")),
    )
    if corpus:
        bitext = bitext.followed_by(Bitext.from_split(corpus.split("train"), corpus_pairs))
    links = align_bitext(bitext, settings, processes)
    links_by_row = {row: links[k] for k, row in enumerate(rows)}
    return [links_by_row.get(n, NO_LINKS) for n in range(len(pairs))]


def vocabulary_ids(corpus: Corpus | None, side: Side) -> dict[str, int]:
    """Return the id of every word of a prepared corpus; none without a corpus."""
    if corpus is None:
        return {}
    vocabulary = corpus.codec(side).vocabulary  # its last id, the end symbol, is no word
    return dict(zip((*SPECIAL_TOKENS, *vocabulary.tokens, ""), range(len(vocabulary)), strict=True))


def assign_ids(lines: Sequence[Sequence[str]], ids: dict[str, int]) -> SentenceIds:
    """Convert words to ids; a word that is not in `ids` is added with the next free one."""
    return concatenate_sentences(
        [[ids.setdefault(word, len(ids)) for word in line] for line in lines]
    )
