"""Translations: phrases cover every source word once, links stay inside them, words are copied."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from covnmt.base.errors import UserError
from covnmt.phrase_based.decode import Search, open_decoder
from covnmt.phrase_based.features import FEATURES, START
from covnmt.phrase_based.lexicon import Lexicon
from covnmt.phrase_based.model import LANGUAGE_MODEL, SmtModel
from covnmt.phrase_based.nbest import Hypothesis, Phrase
from covnmt.phrase_based.settings import SearchSettings
from covnmt.phrase_based.translate import (
    MAX_WORDS,
    WordLinker,
    load_weights,
    prepared_decoder,
    split,
    spoken,
    translate,
)
from covnmt.text.vocabulary import UNK, Vocabulary

WORDS = Vocabulary(("one", "two", "three"))  # ids 2, 3, 4
SEARCH = SearchSettings(reorder=3)


def dev_lines(model: SmtModel, number: int) -> list[str]:
    return (model.directory / "dev.source.txt").read_text("utf-8").splitlines()[:number]


def test_copied_words_are_source_tokens() -> None:
    phrases = (Phrase(1, 3, 0, 2), Phrase(0, 1, 2, 3))
    found = Hypothesis((4, 2, UNK), phrases, ())
    assert spoken(found, ["else", "two", "one"], WORDS) == ["three", "one", "else"]


def test_every_source_word_is_translated_once(tiny_smt: SmtModel) -> None:
    source = tiny_smt.codec("source")
    tokens = [source.tokenize(line) for line in dev_lines(tiny_smt, 5)]
    words = [source.vocabulary.encode(each) for each in tokens]
    with prepared_decoder(tiny_smt, tokens, SEARCH) as (decoder, pairs):
        lists = list(decoder.nbest([*words, []], START, 20, "x"))
    assert pairs > 0
    assert decoder.cpu_seconds > 0
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


def test_a_process_that_dies(tiny_smt: SmtModel, tmp_path: Path) -> None:
    model = tiny_smt.directory / LANGUAGE_MODEL
    nowhere = Search(tmp_path / "table.npz", model, 4, SearchSettings(processes=2))
    with (
        open_decoder(nowhere) as decoder,
        pytest.raises(UserError, match="try again with fewer --processes"),
    ):
        list(decoder.nbest([[2]], START, 1, "x"))


@pytest.mark.parametrize("processes", [1, 2])
def test_a_damaged_language_model_is_named(
    processes: int, tiny_smt: SmtModel, tmp_path: Path
) -> None:
    shutil.copytree(tiny_smt.directory, tmp_path / "model")
    (tmp_path / "model" / LANGUAGE_MODEL / "keys.npy").write_bytes(b"")
    model = SmtModel.open(tmp_path / "model")
    with pytest.raises(UserError, match=r"keys.npy: cannot be read"):
        list(translate(model, ["a"], SearchSettings(processes=processes)))


def test_other_vocabularies_are_refused(tiny_smt: SmtModel, tmp_path: Path) -> None:
    shutil.copytree(tiny_smt.directory, tmp_path / "model")
    path = tmp_path / "model" / "target.vocab"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(UserError, match=r"target.vocab: has \d+ rows in place of"):
        list(translate(SmtModel.open(tmp_path / "model"), ["a"], SEARCH))


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
    empty, found = translate(tiny_smt, ["", long], SearchSettings(reorder=0, stack=2))
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
    linker = WordLinker(Lexicon(source, target, count, WORDS.end + 1, 9))
    phrases = [Phrase(1, 3, 0, 2), Phrase(0, 1, 2, 4), Phrase(3, 4, 4, 5)]
    found = linker.links(phrases, [4, 3, 2, UNK], [3, 2, 7, 8, UNK])
    # 7 and 8 are unknown to the lexicon, but their phrase has a single source word
    assert found == {(1, 0), (2, 1), (0, 2), (0, 3), (3, 4)}
    assert linker.links([Phrase(0, 2, 0, 1)], [2, 3], [8]) == frozenset()


def test_json_is_that_of_translate(tiny_smt: SmtModel) -> None:
    [found] = translate(tiny_smt, dev_lines(tiny_smt, 1), SEARCH)
    told = found.to_json()
    assert np.array(told["alignment"]).shape == (len(found.tokens), len(found.source_tokens))
    assert sum(told["coverage"]) == len(found.links)
    assert told["text"] == " ".join(told["tokens"])


def test_no_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no phrase-based model; make one: covnmt smt train"):
        SmtModel.open(tmp_path)


def test_before_tuning_weights_are_the_usual_ones(tiny_smt: SmtModel) -> None:
    assert load_weights(tiny_smt).tolist() == START.tolist()
