"""Word alignment of files: links by line, learning from a corpus, errors that name the line."""

from pathlib import Path

import pytest

from covnmt.base.errors import UserError
from covnmt.data.corpus import Corpus
from covnmt.evaluation.alignment_files import read_links
from covnmt.metrics.alignment import aer
from covnmt.phrase_based.align_files import align_files, assign_ids, vocabulary_ids
from covnmt.phrase_based.settings import AlignerSettings

SETTINGS = AlignerSettings(samplers=1)


def test_alignment_is_better_with_a_corpus_to_learn_from(
    tiny_text: Path, tiny_corpus: Path
) -> None:
    """The files have 20 pairs, the corpus 300 more."""
    gold = read_links(tiny_text / "test.align")
    files = tiny_text / "test.src", tiny_text / "test.tgt"
    alone = aer(align_files(*files, None, SETTINGS), gold)
    helped = aer(align_files(*files, Corpus.open(tiny_corpus), SETTINGS), gold)
    assert helped < alone
    assert helped < 0.25


def test_words_outside_the_vocabulary_keep_their_identity(tiny_corpus: Path) -> None:
    corpus = Corpus.open(tiny_corpus)
    vocabulary = corpus.codec("source").vocabulary
    known_word = vocabulary.tokens[0]
    rows = assign_ids([[known_word, "new", "newer", "new"]], vocabulary_ids(corpus, "source"))
    assert rows.ids[0] == vocabulary.encode([known_word])[0]
    assert rows.ids[1] == rows.ids[3] == len(vocabulary)
    assert rows.ids[2] == len(vocabulary) + 1


def test_empty_lines_have_no_links(tiny_text: Path, tmp_path: Path) -> None:
    files = []
    for ending in ("src", "tgt"):
        lines = (tiny_text / f"test.{ending}").read_text().splitlines()
        lines[1 if ending == "src" else 3] = ""
        files.append(tmp_path / ending)
        files[-1].write_text("\n".join(lines) + "\n")
    links_by_line = align_files(files[0], files[1], None, SETTINGS)
    assert [n for n, links in enumerate(links_by_line) if not links] == [1, 3]
    assert len(links_by_line) == 20


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("a\nb\n", "x\n", r"b.txt ends after line 1"),
        (
            "\na\n" + "b " * 1025,
            "\nx\ny",
            r"a.txt and .*b.txt, line 3: 1,025 and 1 words, but eflo",
        ),
        ("", "", r"a.txt and .*b.txt: no line has words on both sides"),
        ("a\n\n", "\nx\n", r"a.txt and .*b.txt: no line has words on both sides"),
    ],
)
def test_bad_files_are_refused_with_their_line(
    tmp_path: Path, source: str, target: str, message: str
) -> None:
    one, other = tmp_path / "a.txt", tmp_path / "b.txt"
    one.write_text(source)
    other.write_text(target)
    with pytest.raises(UserError, match=message):
        align_files(one, other, None, SETTINGS)
