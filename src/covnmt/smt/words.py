"""Word alignment of two text files (`covnmt words align`): a reference line for AER and DROP.

Words are what stands between spaces. The aligner learns from the lines it links and, where a
prepared corpus is named, from its training pairs too; words that are not in its vocabulary keep
their identity.
"""

from collections.abc import Sequence
from pathlib import Path

from covnmt.errors import UserError
from covnmt.files import read_parallel
from covnmt.metrics.alignment import Links
from covnmt.smt.aligner import align_words
from covnmt.smt.bitext import Bitext, lay_out
from covnmt.smt.settings import AlignSettings
from covnmt.text.codec import Side
from covnmt.text.corpus import Corpus, Sentences
from covnmt.text.vocab import NAMES


def align_files(
    source: Path, target: Path, corpus: Corpus | None, settings: AlignSettings
) -> list[Links]:
    """The links of each line, (source word, target word) from 0."""
    pairs = read_words(source, target)
    bitext = Bitext(
        numbered([words for words, _ in pairs], known_words(corpus, "source")),
        numbered([words for _, words in pairs], known_words(corpus, "target")),
    )
    if corpus:
        bitext = bitext.and_then(Bitext.of(corpus.split("train")))
    links = align_words(bitext, settings)
    return [links[n] for n in range(len(pairs))]


def read_words(source: Path, target: Path) -> list[tuple[list[str], list[str]]]:
    """Both files, line by line; an empty line is an error."""
    pairs = []
    for number, (one, other) in enumerate(read_parallel(source, target), 1):
        pairs.append((one.split(), other.split()))
        for path, words in zip((source, target), pairs[-1], strict=True):
            if not words:
                raise UserError(
                    f"{path}, line {number}: empty, there is nothing to align; "
                    "remove the line from both files"
                )
    if not pairs:
        raise UserError(f"{source}: holds no lines")
    return pairs


def known_words(corpus: Corpus | None, side: Side) -> dict[str, int]:
    """The ids of a prepared corpus; without one, no word has an id yet."""
    if corpus is None:
        return {}
    vocabulary = corpus.codec(side).vocabulary
    return dict(zip((*NAMES, *vocabulary.words, ""), range(len(vocabulary)), strict=True))


def numbered(lines: Sequence[Sequence[str]], known: dict[str, int]) -> Sentences:
    """Lines as ids; a word without one gets the next."""
    return lay_out([[known.setdefault(word, len(known)) for word in line] for line in lines])
