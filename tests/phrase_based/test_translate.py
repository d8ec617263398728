"""Translations: phrases cover each source word once, and links stay inside of them."""

import multiprocessing
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from covnmt.base.errors import UserError
from covnmt.phrase_based.decode import open_decoder
from covnmt.phrase_based.lexicon import LinkCounts
from covnmt.phrase_based.model import LANGUAGE_MODEL_DIRECTORY, PhraseBasedModel
from covnmt.phrase_based.nbest import PhraseHypothesis, PhraseSpan
from covnmt.phrase_based.settings import StackSearchSettings
from covnmt.phrase_based.stack import FEATURES, INITIAL_WEIGHTS
from covnmt.phrase_based.translate import (
    MAX_CHUNK_TOKENS,
    hypothesis_tokens,
    link_words,
    load_feature_weights,
    split_long_sentence,
    translate_phrase_based,
)
from covnmt.text.vocabulary import UNK_ID, Vocabulary

WORDS = Vocabulary(("one", "two", "three"))  # ids 2, 3, 4
SEARCH = StackSearchSettings(reorder=3)


def dev_lines(model: PhraseBasedModel, number: int) -> list[str]:
    return (model.directory / "dev.source.txt").read_text("utf-8").splitlines()[:number]


def test_copied_words_are_source_tokens() -> None:
    phrases = (PhraseSpan(1, 3, 0, 2), PhraseSpan(0, 1, 2, 3))
    translation = PhraseHypothesis((4, 2, UNK_ID), phrases, ())
    assert hypothesis_tokens(translation, ["else", "two", "one"], WORDS) == ["three", "one", "else"]


def test_every_source_word_is_translated_once(tiny_smt: PhraseBasedModel) -> None:
    source = tiny_smt.codec("source")
    words = [source.vocabulary.encode(source.tokenize(line)) for line in dev_lines(tiny_smt, 5)]
    with open_decoder(tiny_smt, words, SEARCH) as decoder:
        lists = list(decoder.nbest_lists([*words, []], INITIAL_WEIGHTS, 20, "x"))
    assert decoder.phrase_pairs > 0
    assert decoder.cpu_seconds > 0
    assert lists.pop() == []
    for sentence, hypotheses in zip(words, lists, strict=True):
        assert 1 < len(hypotheses) <= 20
        scores = [float(np.dot(INITIAL_WEIGHTS, h.features)) for h in hypotheses]
        assert scores == pytest.approx(sorted(scores, reverse=True))
        for translation in hypotheses:
            covered = sorted(j for p in translation.phrases for j in range(p.source, p.source_end))
            assert covered == list(range(len(sentence)))
            target_positions = [
                i for p in translation.phrases for i in range(p.target, p.target_end)
            ]
            assert target_positions == list(range(len(translation.target_ids)))
            assert len(translation.features) == len(FEATURES)


def test_translations_do_not_depend_on_the_number_of_processes(tiny_smt: PhraseBasedModel) -> None:
    lines = dev_lines(tiny_smt, 4)
    one = list(translate_phrase_based(tiny_smt, lines, SEARCH))
    two = list(translate_phrase_based(tiny_smt, lines, SEARCH.model_copy(update={"processes": 2})))
    assert one == two


def test_translations_are_complete_though_workers_die(tiny_smt: PhraseBasedModel) -> None:
    vocabulary, weights = tiny_smt.codec("source").vocabulary, load_feature_weights(tiny_smt)
    ids = [vocabulary.encode(line.split()) for line in dev_lines(tiny_smt, 8)]

    def decode(processes: int) -> Iterator[list[PhraseHypothesis]]:
        settings = SEARCH.model_copy(update={"processes": processes})
        with open_decoder(tiny_smt, ids, settings) as decoder:
            yield from decoder.nbest_lists(ids, weights, 3, "translating")

    results = decode(2)
    first = next(results)
    for process in multiprocessing.active_children():
        process.kill()
    assert [first, *results] == list(decode(1))


@pytest.mark.parametrize("processes", [1, 2])
def test_damaged_language_model_is_named(
    processes: int, tiny_smt: PhraseBasedModel, tmp_path: Path
) -> None:
    shutil.copytree(tiny_smt.directory, tmp_path / "model")
    (tmp_path / "model" / LANGUAGE_MODEL_DIRECTORY / "keys.npy").write_bytes(b"")
    model = PhraseBasedModel.open(tmp_path / "model")
    with pytest.raises(UserError, match=r"keys\.npy: "):
        list(translate_phrase_based(model, ["a"], StackSearchSettings(processes=processes)))


def test_changed_vocabularies_are_refused(tiny_smt: PhraseBasedModel, tmp_path: Path) -> None:
    shutil.copytree(tiny_smt.directory, tmp_path / "model")
    path = tmp_path / "model" / "target.vocab"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(UserError, match=r"target\.vocab: "):
        list(translate_phrase_based(PhraseBasedModel.open(tmp_path / "model"), ["a"], SEARCH))


def test_unknown_words_are_copied_and_linked(tiny_smt: PhraseBasedModel) -> None:
    line = dev_lines(tiny_smt, 1)[0]
    [translation] = translate_phrase_based(tiny_smt, [f"{line} |||"], SEARCH)
    assert "|||" in translation.tokens
    j, i = len(translation.source_tokens) - 1, translation.tokens.index("|||")
    assert (j, i) in translation.links
    assert [link for link in translation.links if link[0] == j] == [(j, i)]


def test_empty_lines_stay_empty_and_long_ones_are_split(tiny_smt: PhraseBasedModel) -> None:
    line = dev_lines(tiny_smt, 1)[0]
    long = " ".join([line] * (MAX_CHUNK_TOKENS // len(line.split()) + 1))
    empty, translation = translate_phrase_based(
        tiny_smt, ["", long], StackSearchSettings(reorder=0, stack=2)
    )
    assert (empty.text, empty.tokens, empty.links) == ("", [], frozenset())
    assert translation.source_tokens == long.split()
    assert max(j for j, _ in translation.links) > MAX_CHUNK_TOKENS
    assert max(i for _, i in translation.links) < len(translation.tokens)


@pytest.mark.parametrize(
    ("length", "chunk_lengths"),
    [(0, [0]), (1, [1]), (100, [100]), (101, [50, 51]), (250, [83, 83, 84])],
)
def test_long_sentences_are_split_evenly(length: int, chunk_lengths: list[int]) -> None:
    tokens = [str(n) for n in range(length)]
    translation = split_long_sentence(tokens)
    assert [len(chunk) for chunk in translation] == chunk_lengths
    assert [token for chunk in translation for token in chunk] == tokens


def test_words_are_linked_inside_their_phrase() -> None:
    # 2 gives 2 always, 3 gives 3 mostly and 2 sometimes, 4 gives nothing
    source, target, count = np.array([2, 3, 3]), np.array([2, 2, 3]), np.array([5, 1, 9])
    lexicon = LinkCounts(source, target, count, np.array([WORDS.end_id + 1, 9]))
    phrases = [PhraseSpan(1, 3, 0, 2), PhraseSpan(0, 1, 2, 4), PhraseSpan(3, 4, 4, 5)]
    translation = link_words(phrases, [4, 3, 2, UNK_ID], [3, 2, 7, 8, UNK_ID], lexicon)
    # 7 and 8 are unknown to the lexicon, but their phrase has a single source word
    assert translation == {(1, 0), (2, 1), (0, 2), (0, 3), (3, 4)}
    assert link_words([PhraseSpan(0, 2, 0, 1)], [2, 3], [8], lexicon) == frozenset()


def test_json_has_a_hard_alignment_and_its_coverage(tiny_smt: PhraseBasedModel) -> None:
    [translation] = translate_phrase_based(tiny_smt, dev_lines(tiny_smt, 1), SEARCH)
    record = translation.to_json()
    assert np.array(record["alignment"]).shape == (
        len(translation.tokens),
        len(translation.source_tokens),
    )
    assert sum(record["coverage"]) == len(translation.links)
    assert record["text"] == " ".join(record["tokens"])


def test_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^{tmp_path}: .*covnmt smt train"):
        PhraseBasedModel.open(tmp_path)


def test_weights_before_tuning_are_the_initial_ones(tiny_smt: PhraseBasedModel) -> None:
    assert load_feature_weights(tiny_smt).tolist() == INITIAL_WEIGHTS.tolist()
