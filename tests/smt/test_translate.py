"""Translations: phrases cover every source word once, links stay inside them, words are copied."""

from pathlib import Path

import numpy as np
import pytest

from covnmt.errors import UserError
from covnmt.smt.bitext import source_words, target_tokens
from covnmt.smt.decode import (
    FEATURES,
    START,
    Phrase,
    Search,
    open_decoder,
    write_phrase_table,
)
from covnmt.smt.lexicon import Lexicon
from covnmt.smt.model import SmtModel
from covnmt.smt.phrases import Occurrences, Spans, Table
from covnmt.smt.settings import SearchSettings
from covnmt.smt.translate import (
    MAX_WORDS,
    WordLinker,
    load_weights,
    prepared_decoder,
    split,
    translate,
)
from covnmt.text.vocab import Vocabulary

WORDS = Vocabulary(("one", "two", "three"))  # ids 2, 3, 4
SEARCH = SearchSettings(reorder=3)


def dev_lines(model: SmtModel, number: int) -> list[str]:
    return (model.directory / "dev.source.txt").read_text("utf-8").splitlines()[:number]


def test_words_as_thot_reads_them() -> None:
    tokens = ["two", "|||", "one", "NULL"]
    named = source_words(tokens, WORDS)
    assert named == ["s3", "u1", "s2", "u3"]
    assert target_tokens(["t4", "u1", "s3", "u3"], named, tokens, WORDS) == [
        *("three", "|||", "two", "NULL")
    ]


def test_every_source_word_is_translated_once(tiny_smt: SmtModel) -> None:
    source = tiny_smt.codec("source")
    tokens = [source.tokenize(line) for line in dev_lines(tiny_smt, 5)]
    words = [source_words(each, source.vocabulary) for each in tokens]
    with prepared_decoder(tiny_smt, tokens, SEARCH) as decoder:
        lists = list(decoder.nbest([*words, []], START, 20, "x"))
    assert lists.pop() == []
    for each, hypotheses in zip(words, lists, strict=True):
        assert 1 < len(hypotheses) <= 20
        scores = [float(np.dot(START, h.features)) for h in hypotheses]
        assert scores == pytest.approx(sorted(scores, reverse=True))
        for found in hypotheses:
            covered = sorted(j for p in found.phrases for j in range(p.source, p.source_end))
            assert covered == list(range(len(each)))
            said = [i for p in found.phrases for i in range(p.target, p.target_end)]
            assert said == list(range(len(found.words)))
            assert len(found.features) == len(FEATURES)


def test_several_processes_give_the_same(tiny_smt: SmtModel) -> None:
    lines = dev_lines(tiny_smt, 4)
    one = list(translate(tiny_smt, lines, SEARCH))
    two = list(translate(tiny_smt, lines, SEARCH.model_copy(update={"processes": 2})))
    assert one == two


def test_a_process_that_dies(tmp_path: Path) -> None:
    nowhere = Search(tmp_path / "tm", tmp_path / "lm", 4, 10, SearchSettings(processes=2))
    with (
        open_decoder(nowhere) as decoder,
        pytest.raises(UserError, match="try again with fewer --processes"),
    ):
        list(decoder.nbest([["s2"]], START, 1, "x"))


def test_unknown_words_are_copied_and_linked(tiny_smt: SmtModel) -> None:
    line = dev_lines(tiny_smt, 1)[0]
    [found] = translate(tiny_smt, [f"{line} |||"], SEARCH)
    assert "|||" in found.tokens
    j, i = len(found.source_tokens) - 1, found.tokens.index("|||")
    assert (j, i) in found.links
    assert [link for link in found.links if link[0] == j] == [(j, i)]


def test_empty_and_overlong_lines(tiny_smt: SmtModel) -> None:
    line = dev_lines(tiny_smt, 1)[0]
    long = " ".join([line] * (MAX_WORDS // len(line.split()) + 1))
    empty, found = translate(tiny_smt, ["", long], SearchSettings(reorder=0, stack=1))
    assert (empty.text, empty.tokens, empty.links) == ("", [], frozenset())
    assert found.source_tokens == long.split()
    assert max(j for j, _ in found.links) > MAX_WORDS
    assert max(i for _, i in found.links) < len(found.tokens)


@pytest.mark.parametrize(
    ("length", "pieces"), [(0, [0]), (1, [1]), (100, [100]), (101, [50, 51]), (250, [83, 83, 84])]
)
def test_pieces(length: int, pieces: list[int]) -> None:
    tokens = [str(n) for n in range(length)]
    found = split(tokens)
    assert [len(piece) for piece in found] == pieces
    assert [token for piece in found for token in piece] == tokens


def test_links_inside_phrases() -> None:
    # 2 gives 2 always, 3 gives 3 mostly and 2 sometimes, 4 gives nothing
    source, target, count = np.array([2, 3, 3]), np.array([2, 2, 3]), np.array([5, 1, 9])
    lexicon = Lexicon(source, target, count, WORDS.end + 1, 9)
    linker = WordLinker(lexicon, WORDS)
    phrases = [Phrase(1, 3, 0, 2), Phrase(0, 1, 2, 4), Phrase(3, 4, 4, 5)]
    tokens = ["three", "two", "one", "else"]
    found = linker.links(phrases, tokens, ["t3", "t2", "t7", "t8", "u3"])
    # t7 and t8 are unknown to the lexicon, but their phrase has a single source word
    assert found == {(1, 0), (2, 1), (0, 2), (0, 3), (3, 4)}
    wide = [Phrase(0, 2, 0, 1)]
    assert linker.links(wide, ["one", "two"], ["t8"]) == frozenset()


def test_json_is_that_of_translate(tiny_smt: SmtModel) -> None:
    [found] = translate(tiny_smt, dev_lines(tiny_smt, 1), SEARCH)
    told = found.to_json()
    assert np.array(told["alignment"]).shape == (len(found.tokens), len(found.source_tokens))
    assert sum(told["coverage"]) == len(found.links)
    assert told["text"] == " ".join(told["tokens"])


def test_table_as_thot_reads_it(tmp_path: Path, tiny_smt: SmtModel) -> None:
    bitext = tiny_smt.bitext()
    spans = Spans(np.array([0]), np.array([2]))
    table = Table(Occurrences(spans, spans), np.array([3]), np.array([7]))
    write_phrase_table(tmp_path / "tm", bitext, table, 0.25)
    (a, b), (c, d) = bitext.target.ids[:2], bitext.source.ids[:2]
    assert (tmp_path / "tm.ttable").read_text() == f"t{a} t{b} ||| s{c} s{d} ||| 7 3\n"
    assert (tmp_path / "tm.lambda").read_text() == "0.75 0.75\n"


def test_no_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no phrase-based model; make one: covnmt smt train"):
        SmtModel.open(tmp_path)


def test_before_tuning_all_weights_are_equal(tiny_smt: SmtModel) -> None:
    assert load_weights(tiny_smt).tolist() == START.tolist()
