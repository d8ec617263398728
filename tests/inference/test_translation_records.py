"""Translations of every system, and of ensembles: is what they say of themselves true?

Most tests use untrained models with large weights: every part of the model matters in them, and
what they say is as good as any other sentence for checking the account.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from covnmt.base.config import PAPER_SYSTEMS, Config, CoverageConfig
from covnmt.data.batching import collate
from covnmt.inference.model import Model
from covnmt.inference.translate import Translation
from covnmt.model.seq2seq import Seq2Seq
from covnmt.text.codec import Codec
from covnmt.text.vocabulary import UNK_ID
from tests.inference.translations import assert_same, change, texts

Make = Callable[..., Model]


@pytest.fixture(scope="session")
def make(tiny_config: Config, tiny_corpus: Path) -> Make:
    """Make an untrained model of one kind of coverage, or an ensemble of several."""
    source, target = Codec.load(tiny_corpus, "source"), Codec.load(tiny_corpus, "target")

    def make(*coverages: CoverageConfig) -> Model:
        models = []
        for seed, coverage in enumerate(coverages):
            torch.manual_seed(seed)
            config = tiny_config.model.model_copy(update={"coverage": coverage})
            model = Seq2Seq(config, len(source.vocabulary), len(target.vocabulary))
            for parameter in model.parameters():
                torch.nn.init.normal_(parameter, std=0.5)
            with torch.no_grad():
                # the end is about as probable as the best token, or translations would never end
                model.readout.W_2[-1] = 0
                model.readout.b[-1] = 8
            models.append(model.eval())
        decode = tiny_config.decode.model_copy(update={"retry": False})
        return Model(models, source, target, decode)

    return make


def is_finished(translation: Translation) -> bool:
    """Tell whether the end symbol came before the steps were used up."""
    return len(translation.tokens) < 3 * (len(translation.source_tokens) + 1)


def network(translator: Model) -> Seq2Seq:
    [model] = translator.networks
    assert isinstance(model, Seq2Seq)
    return model


@torch.inference_mode()
def forced_coverage(translator: Model, translation: Translation) -> torch.Tensor:
    """Return the coverage vectors of the network [J, d] after it force-decoded the translation."""
    model = network(translator)
    source = translator.source.vocabulary.encode(translation.source_tokens)
    target = translator.target.vocabulary.encode(translation.tokens)
    ends = (translator.source.vocabulary.end_id, translator.target.vocabulary.end_id)
    batch = collate([(source, target)], *ends)
    memory = model.encode(batch.source, batch.source_mask)
    y = torch.nn.functional.pad(model.target(batch.target[:, :-1]), (0, 0, 1, 0))
    return model.decoder.decode_teacher_forced(memory, y).C[0, : len(source)]


@torch.inference_mode()
def greedy_words(translator: Model, line: str) -> list[int]:
    """Decode one sentence: always the best allowed token."""
    model = network(translator)
    ids = [*translator.source.vocabulary.encode(line.split()), translator.source.vocabulary.end_id]
    end = translator.target.vocabulary.end_id
    memory = model.encode(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.bool))
    state, said = model.decoder.initial_state(memory), list[int]()
    while len(said) < 3 * len(ids):
        log_probs, _, state = model.step(memory, state, torch.tensor(said[-1:]) if said else None)
        log_probs[0, 0] = -torch.inf
        if len(said) < len(ids) // 2:
            log_probs[0, end] = -torch.inf
        word = int(log_probs[0].argmax())
        if word == end:
            break
        said.append(word)
    return said


@pytest.mark.parametrize("system", PAPER_SYSTEMS)
def test_score_alignment_and_fertility_equal_forced_decoding(
    system: str, make: Make, lines: list[str]
) -> None:
    translator = make(PAPER_SYSTEMS[system])
    aligner = Model(translator.networks, translator.source, translator.target, translator.decode)
    lists = translator.translate(lines, change(translator, nbest=3))
    found = [each for t in lists for each in (t, *t.alternatives) if is_finished(each)]
    assert len(found) >= len(lines)
    forced = aligner.align((" ".join(t.source_tokens), " ".join(t.tokens)) for t in found)
    for translation, again in zip(found, forced, strict=True):
        assert translation.score == pytest.approx(again.log_prob, abs=1e-3)
        np.testing.assert_allclose(translation.alignment, again.matrix, atol=1e-4)
        assert (translation.fertility is None) == (system != "fertility")
        if translation.fertility is not None and again.fertility is not None:
            np.testing.assert_allclose(translation.fertility, again.fertility, atol=1e-4)


@pytest.mark.parametrize("system", PAPER_SYSTEMS)
def test_alignment_rows_sum_to_at_most_one(system: str, make: Make, lines: list[str]) -> None:
    for translation in make(PAPER_SYSTEMS[system]).translate(lines):
        I, J = len(translation.tokens), len(translation.source_tokens)
        assert translation.alignment.shape == (I, J)
        assert (translation.alignment >= 0).all()
        assert (translation.alignment.sum(axis=1) <= 1 + 1e-5).all()
        assert translation.coverage.shape == (J,)


@pytest.mark.parametrize("kind", ["linguistic", "fertility"])
def test_coverage_equals_that_of_the_model(kind: str, make: Make, lines: list[str]) -> None:
    translator = make(PAPER_SYSTEMS[kind])
    for translation in filter(is_finished, translator.translate(lines)):
        C = forced_coverage(translator, translation).squeeze(-1).numpy()
        np.testing.assert_allclose(translation.coverage, C, atol=1e-4)


def test_coverage_is_received_attention_over_fertility(make: Make, lines: list[str]) -> None:
    """The end symbol attends too, so the rows of tokens sum to at most the coverage."""
    for translation in make(PAPER_SYSTEMS["fertility"]).translate(lines):
        assert translation.fertility is not None
        received = translation.coverage * translation.fertility
        by_words = translation.alignment.sum(axis=0)
        assert (received >= by_words - 1e-4).all()
        assert (received - by_words).sum() <= 1 + 1e-4


@pytest.mark.parametrize("system", PAPER_SYSTEMS)
def test_beam_of_one_is_greedy(system: str, make: Make, lines: list[str]) -> None:
    translator = make(PAPER_SYSTEMS[system])
    decode = change(translator, beam=1)
    for translation in translator.translate(lines[:8], decode):
        words = greedy_words(translator, translation.source)
        assert translation.tokens == tuple(translator.target.vocabulary.decode(words))


def test_an_ensemble_of_one_model_twice_equals_the_model(
    tiny_model: Path, translator: Model, lines: list[str]
) -> None:
    twice = Model.load(tiny_model, str(tiny_model), device="cpu")
    assert len(twice.networks) == 2
    assert_same(twice.translate(lines), translator.translate(lines))


def test_an_ensemble_does_not_depend_on_order_and_differs_from_its_members(
    make: Make, lines: list[str]
) -> None:
    both = make(PAPER_SYSTEMS["gru10"], PAPER_SYSTEMS["fertility"])
    members = [Model([model], both.source, both.target, both.decode) for model in both.networks]
    turned = Model(both.networks[::-1], both.source, both.target, both.decode)
    found = both.translate(lines)
    assert_same(found, turned.translate(lines))
    assert all(texts(found) != texts(member.translate(lines)) for member in members)


def test_an_ensemble_has_a_fertility_only_if_all_members_have_one(
    make: Make, lines: list[str]
) -> None:
    """It is the mean of theirs."""
    fertility = PAPER_SYSTEMS["fertility"]
    assert make(fertility, PAPER_SYSTEMS["gru1"]).translate(lines[:1])[0].fertility is None
    both = make(fertility, fertility)
    one, other, mean = (
        Model(models, both.source, both.target, both.decode).translate(lines[:1])[0].fertility
        for models in (both.networks[:1], both.networks[1:], both.networks)
    )
    assert one is not None
    assert other is not None
    assert mean is not None
    np.testing.assert_allclose(mean, (one + other) / 2, atol=1e-5)


@pytest.fixture(scope="session")
def unk_model(make: Make) -> Model:
    """Make a model whose most probable token is always UNK."""
    translator = make(PAPER_SYSTEMS["gru10"])
    with torch.no_grad():
        network(translator).readout.b[UNK_ID] += 20
    return translator


def test_unknown_words_are_translated_as_unk(unk_model: Model, lines: list[str]) -> None:
    for translation in unk_model.translate(lines):
        assert set(translation.tokens) == {"UNK"}


def test_unk_can_be_forbidden(unk_model: Model, lines: list[str]) -> None:
    decode = change(unk_model, forbid_unk=True)
    found = unk_model.translate(lines, decode)
    assert not any("UNK" in t.tokens for t in found)
    assert all(t.tokens for t in found)


def test_unk_can_be_replaced(unk_model: Model, lines: list[str]) -> None:
    decode = change(unk_model, replace_unk=True)
    [plain] = unk_model.translate(lines[:1], decode)
    looked_at = tuple(plain.source_tokens[j] for j in plain.alignment.argmax(axis=1))
    assert plain.tokens == looked_at
    entries = {looked_at[0]: "word"}
    models, sides = unk_model.networks, (unk_model.source, unk_model.target)
    [found] = Model(models, *sides, decode, entries).translate(lines[:1])
    assert found.tokens == tuple(entries.get(word, word) for word in looked_at)
    assert found.text == " ".join(found.tokens)
