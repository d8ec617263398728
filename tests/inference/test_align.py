"""Forced decoding, compared with stepping the model through each target one token at a time."""

from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from covnmt.base.config import PAPER_SYSTEMS, Config, CoverageConfig, DecodeConfig
from covnmt.base.errors import UserError
from covnmt.base.files import read_lines, read_parallel_lines, write_lines
from covnmt.inference import align as align_module
from covnmt.inference import forced_decoding
from covnmt.inference.align import Alignment
from covnmt.inference.model import Model, ModelLoader
from covnmt.inference.parallel import align_parallel_files
from covnmt.metrics.alignment import format_links, links_from_attention, parse_links
from covnmt.model.seq2seq import Seq2Seq
from covnmt.text.codec import Codec
from covnmt.text.tokenize import TokenizerSettings, build_tokenizer
from covnmt.text.vocabulary import Vocabulary, train_sentencepiece
from tests.inference.translations import Endless

Pair = tuple[str, str]
Make = Callable[[CoverageConfig], Model]

# pairs that cannot be aligned, and the number of the bad one
HALF_EMPTY: list[tuple[list[Pair], int]] = [
    ([("", "a")], 1),
    ([("a", " ")], 1),
    ([("a", "b"), ("a", "b"), ("\x00", "b")], 3),
]


@pytest.fixture(scope="session")
def pairs(tiny_text: Path) -> list[Pair]:
    return [(s, t) for s, t in read_parallel_lines(tiny_text / "test.src", tiny_text / "test.tgt")]


@pytest.fixture(scope="session")
def make(tiny_config: Config, tiny_corpus: Path) -> Make:
    """Make an untrained model with weights so large that every input matters."""
    source, target = Codec.load(tiny_corpus, "source"), Codec.load(tiny_corpus, "target")

    def make(coverage: CoverageConfig) -> Model:
        torch.manual_seed(0)
        config = tiny_config.model.model_copy(update={"coverage": coverage})
        model = Seq2Seq(config, len(source.vocabulary), len(target.vocabulary))
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        return Model([model.eval()], source, target, DecodeConfig())

    return make


@torch.inference_mode()
def decode_by_hand(aligner: Model, source: str, target: str) -> tuple[NDArray[np.float32], float]:
    """Return attention and log-probability of one target, step by step and without a batch."""
    ids = [*aligner.source.vocabulary.encode(source.split()), aligner.source.vocabulary.end_id]
    words = [*aligner.target.vocabulary.encode(target.split()), aligner.target.vocabulary.end_id]
    [model] = aligner.networks
    assert isinstance(model, Seq2Seq)
    memory = model.encode(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.bool))
    state, last = model.decoder.initial_state(memory), None
    rows, total = [], 0.0
    for word in words:
        log_probs, alpha, state = model.step(memory, state, last)
        rows.append(alpha[0].numpy())
        total += log_probs[0, word].item()
        last = torch.tensor([word])
    return np.stack(rows)[:-1, :-1], total


def assert_same(one: Alignment, other: Alignment) -> None:
    assert one.source_tokens == other.source_tokens
    assert one.target_tokens == other.target_tokens
    np.testing.assert_allclose(one.matrix, other.matrix, atol=1e-5)
    assert one.log_prob == pytest.approx(other.log_prob, abs=1e-3)


@pytest.mark.parametrize("system", PAPER_SYSTEMS)
def test_forced_decoding_equals_stepping_the_model_by_hand(
    system: str, make: Make, pairs: list[Pair]
) -> None:
    aligner = make(PAPER_SYSTEMS[system])
    for (source, target), found in zip(pairs, aligner.align(pairs), strict=True):
        matrix, log_prob = decode_by_hand(aligner, source, target)
        assert found.source_tokens == tuple(source.split())
        assert found.target_tokens == tuple(target.split())
        assert found.matrix.dtype == np.float32
        np.testing.assert_allclose(found.matrix, matrix, atol=1e-5)
        assert found.log_prob == pytest.approx(log_prob, abs=1e-3)


def test_attention_rows_sum_to_at_most_one(make: Make, pairs: list[Pair]) -> None:
    for found in make(PAPER_SYSTEMS["gru10"]).align(pairs):
        assert found.matrix.shape == (len(found.target_tokens), len(found.source_tokens))
        assert (found.matrix >= 0).all()
        assert (found.matrix.sum(axis=1) <= 1 + 1e-5).all()


@pytest.mark.parametrize("system", PAPER_SYSTEMS)
def test_only_fertility_models_return_a_fertility(
    system: str, make: Make, pairs: list[Pair]
) -> None:
    """It is a number per source word between 0 and N = 2."""
    for found in make(PAPER_SYSTEMS[system]).align(pairs[:3]):
        assert (found.fertility is None) == (system != "fertility")
        if found.fertility is not None:
            assert found.fertility.shape == (len(found.source_tokens),)
            assert ((found.fertility > 0) & (found.fertility < 2)).all()


def test_alignment_does_not_depend_on_batches_and_windows(
    make: Make, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    aligner = make(PAPER_SYSTEMS["fertility"])
    alone = [aligner.align([pair])[0] for pair in pairs]
    together = aligner.align(pairs)
    monkeypatch.setattr(forced_decoding, "BATCH_SIZE", 3)
    monkeypatch.setattr(align_module, "WINDOW_PAIRS", 6)
    in_parts = aligner.align(pairs)
    for one, two, three in zip(alone, together, in_parts, strict=True):
        assert_same(one, two)
        assert_same(one, three)


def test_only_one_window_of_pairs_is_read_ahead(
    make: Make, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(align_module, "WINDOW_PAIRS", 6)
    many = Endless(pairs[:5])
    found = list(islice(make(PAPER_SYSTEMS["baseline"]).align_stream(many), 8))
    assert many.read == 12
    assert found[7].source_tokens == tuple(pairs[2][0].split())


def with_finer_tokenizers(aligner: Model, kind: str, text: Path, directory: Path) -> Model:
    """Return the same model with tokenizers that split words further."""
    settings = TokenizerSettings.model_validate({"kind": kind})
    path = directory / "pieces.spm"
    if kind == "sentencepiece":
        train_sentencepiece(read_lines(text / "train.src"), path, size=40)
    tokenizer = build_tokenizer(settings, path)
    some = [piece for line in read_lines(text / "dev.src") for piece in tokenizer.tokenize(line)]
    # as many rows as the model has, some of them in use
    words = list(dict.fromkeys(some))[:10]
    words += [f"<{k}>" for k in range(len(aligner.source.vocabulary) - 3 - len(words))]
    source = Codec(settings, tokenizer, Vocabulary(tuple(words)))
    target = Codec(settings, tokenizer, aligner.target.vocabulary)
    return Model(aligner.networks, source, target, DecodeConfig())


def fold_entry_by_entry(
    matrix: NDArray[np.float32], source: list[int], target: list[int]
) -> list[list[float]]:
    """Fold a matrix over subwords into one over words of these many subwords, entry by entry."""
    rows = []
    for i, height in enumerate(target):
        row = []
        for j, width in enumerate(source):
            entries = [
                float(matrix[sum(target[:i]) + y, sum(source[:j]) + x])
                for y in range(height)
                for x in range(width)
            ]
            row.append(sum(entries) / height)
        rows.append(row)
    return rows


@pytest.mark.parametrize("kind", ["whitespace", "characters", "sentencepiece", "moses"])
def test_tokenized_alignment_keeps_the_words_between_spaces(
    kind: str, make: Make, pairs: list[Pair], tiny_text: Path, tmp_path: Path
) -> None:
    aligner = with_finer_tokenizers(make(PAPER_SYSTEMS["fertility"]), kind, tiny_text, tmp_path)
    given = [*pairs[:4], ("one, two's", "three (four) \x00")]
    finest = 0
    for (source, target), found in zip(given, aligner.align(given, tokenized=True), strict=True):
        assert found.source_tokens == tuple(source.split())
        assert found.target_tokens == tuple(target.split())
        pieces = [
            [codec.tokenize(word) or ["<nothing>"] for word in line.split()]
            for line, codec in ((source, aligner.source), (target, aligner.target))
        ]
        sizes = [[len(word) for word in side] for side in pieces]
        finest = max(finest, *chain(*sizes))
        matrix, log_prob = decode_by_hand(aligner, *(" ".join(chain(*side)) for side in pieces))
        np.testing.assert_allclose(found.matrix, fold_entry_by_entry(matrix, *sizes), atol=1e-5)
        assert found.log_prob == pytest.approx(log_prob, abs=1e-3)
        assert found.fertility is not None
        assert found.fertility.shape == (len(source.split()),)
        assert (found.fertility < 2 * np.array(sizes[0])).all()
    assert (finest > 1) == (kind != "whitespace")


def test_tokenized_words_are_lowercased_like_training_text(make: Make) -> None:
    plain = make(PAPER_SYSTEMS["baseline"])
    settings = TokenizerSettings(kind="whitespace", lowercase=True)
    lower = Codec(settings, build_tokenizer(settings), plain.source.vocabulary)
    word = plain.source.vocabulary.tokens[0]
    aligner = Model(plain.networks, lower, plain.target, DecodeConfig())
    [found] = aligner.align([(word.upper(), "a")], tokenized=True)
    [expected] = plain.align([(word, "a")])
    assert found.source_tokens == (word.upper(),)
    assert found.log_prob == pytest.approx(expected.log_prob)


def test_a_reversed_translation_scores_lower_than_the_true_one(
    tiny_model: Path, pairs: list[Pair]
) -> None:
    aligner = Model.load(tiny_model, device="cpu")
    turned = [(source, " ".join(target.split()[::-1])) for source, target in pairs]
    true, false = aligner.align(pairs), aligner.align(turned)
    better = sum(a.log_prob > b.log_prob for a, b in zip(true, false, strict=True))
    assert better >= 0.9 * len(pairs)


@pytest.mark.parametrize(("rows", "number"), HALF_EMPTY)
def test_an_empty_side_is_an_error_with_the_number_of_the_pair(
    make: Make, rows: list[Pair], number: int
) -> None:
    aligner = make(PAPER_SYSTEMS["baseline"])
    with pytest.raises(UserError, match=f"^pair {number}: one side is empty"):
        aligner.align(rows)


def test_no_pairs_give_no_alignments(make: Make) -> None:
    assert make(PAPER_SYSTEMS["baseline"]).align([]) == []


def test_argmax_links_are_the_largest_weights_of_the_matrix(make: Make, pairs: list[Pair]) -> None:
    for found in make(PAPER_SYSTEMS["tanh1"]).align(pairs[:5]):
        links = parse_links(format_links(links_from_attention(found.matrix))).sure
        assert links == {(int(row.argmax()), i) for i, row in enumerate(found.matrix)}


def test_an_error_names_the_files_and_the_line(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(align_module, "WINDOW_PAIRS", 2)
    source, target = tmp_path / "s", tmp_path / "t"
    write_lines(source, ["a"] * 5)
    write_lines(target, ["b", "b", "b", "", "b"])
    with pytest.raises(UserError, match=r"/s and .*/t, line 4: one side is empty"):
        list(align_parallel_files(ModelLoader.find([tiny_model]), source, target, tokenized=False))
