"""Translating lines: what comes out for each, and whether its account of itself is true.

Most tests use untrained models with large weights: every part of the model matters in them, and
what they say is as good as any other sentence for checking the account.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covnmt import translate as translate_module
from covnmt.align import Aligner
from covnmt.config import SYSTEMS, Config, CoverageConfig, DecodeConfig
from covnmt.data import collate
from covnmt.errors import UserError
from covnmt.files import read_json, read_lines, write_json, write_lines
from covnmt.model.seq2seq import Seq2Seq
from covnmt.text.codec import Codec, fingerprint
from covnmt.text.vocab import UNK
from covnmt.translate import (
    BREAKS,
    Translation,
    Translator,
    change_decoding,
    formatted,
    read_dictionary,
    replace_unknown,
    split_tokens,
)

# tokens, limit, pieces
SPLITS = [
    ("", 3, []),
    ("a b c", 3, ["a b c"]),
    ("a b c d", 3, ["a b c", "d"]),
    ("a , b c", 3, ["a ,", "b c"]),
    ("a , b , c d", 4, ["a , b ,", "c d"]),
    ("a b , c d", 2, ["a b", ",", "c d"]),
    ("so: on and on", 3, ["so:", "on and on"]),
    ("好 。 很 好", 3, ["好 。", "很 好"]),
    ("a b", 1, ["a", "b"]),
]

# target words, where they look, dictionary, result
REPLACEMENTS = [
    ("x UNK", [[0.9, 0.1], [0.2, 0.7]], {}, "x b"),
    ("x UNK", [[0.9, 0.1], [0.2, 0.7]], {"b": "y"}, "x y"),
    ("x UNK", [[0.9, 0.1], [0.2, 0.7]], {"a": "y"}, "x b"),
    ("UNK UNK", [[0.6, 0.3], [0.5, 0.4]], {"a": "z"}, "z z"),
    ("x y", [[0.9, 0.1], [0.2, 0.7]], {"a": "z", "b": "z"}, "x y"),
    ("", np.zeros((0, 2)), {}, ""),
]

# lines of a dictionary, and what is wrong with them
BAD_DICTIONARIES = [
    (["a\tb", "c d"], "line 2"),
    (["\tb"], "line 1"),
    (["a\t"], "line 1"),
    (["a\tb", ""], "line 2"),
]

Make = Callable[..., Translator]


@pytest.fixture(scope="session")
def lines(tiny_text: Path) -> list[str]:
    return list(read_lines(tiny_text / "test.src"))


@pytest.fixture(scope="session")
def trained(tiny_model: Path) -> Translator:
    return Translator.load(tiny_model, device="cpu")


@pytest.fixture(scope="session")
def make(tiny_config: Config, tiny_corpus: Path) -> Make:
    """Untrained models of these kinds of coverage, one or an ensemble."""
    source, target = Codec.load(tiny_corpus, "source"), Codec.load(tiny_corpus, "target")

    def make(*coverages: CoverageConfig) -> Translator:
        models = []
        for seed, coverage in enumerate(coverages):
            torch.manual_seed(seed)
            config = tiny_config.model.model_copy(update={"coverage": coverage})
            model = Seq2Seq(config, len(source.vocabulary), len(target.vocabulary))
            for parameter in model.parameters():
                torch.nn.init.normal_(parameter, std=0.5)
            with torch.no_grad():
                # the end is always about as likely as the best word, else it talks for ever
                model.readout.W_2[-1] = 0
                model.readout.b[-1] = 8
            models.append(model.eval())
        decode = tiny_config.decode.model_copy(update={"retry": False})
        return Translator(models, source, target, decode)

    return make


def change(translator: Translator, **changes: object) -> DecodeConfig:
    return change_decoding(translator.decode, changes)


def texts(translations: list[Translation]) -> list[str]:
    return [translation.text for translation in translations]


def assert_same(one: list[Translation], other: list[Translation]) -> None:
    assert [t.tokens for t in one] == [t.tokens for t in other]
    for a, b in zip(one, other, strict=True):
        assert a.score == pytest.approx(b.score, abs=1e-3)
        np.testing.assert_allclose(a.alignment, b.alignment, atol=1e-4)
        np.testing.assert_allclose(a.coverage, b.coverage, atol=1e-4)
        assert_same(list(a.alternatives), list(b.alternatives))


def is_finished(translation: Translation) -> bool:
    """Whether the end symbol was said before the steps ran out."""
    return len(translation.tokens) < 3 * (len(translation.source_tokens) + 1)


def network(translator: Translator) -> Seq2Seq:
    [model] = translator.models
    assert isinstance(model, Seq2Seq)
    return model


@torch.inference_mode()
def forced_coverage(translator: Translator, translation: Translation) -> torch.Tensor:
    """The coverage vectors of the model itself [J, d], after it was made to say the translation."""
    model = network(translator)
    source = translator.source.encode(translation.source_tokens)
    target = translator.target.encode(translation.tokens)
    ends = (translator.source.vocabulary.end, translator.target.vocabulary.end)
    batch = collate([(source, target)], *ends)
    memory = model.encode(batch.source, batch.source_mask)
    y = torch.nn.functional.pad(model.target(batch.target[:, :-1]), (0, 0, 1, 0))
    return model.decoder.unroll(memory, y).C[0, : len(source)]


@torch.inference_mode()
def greedy_words(translator: Translator, line: str) -> list[int]:
    """Always the best word that is allowed, one sentence at a time."""
    model = network(translator)
    ids = [*translator.source.encode(line.split()), translator.source.vocabulary.end]
    end = translator.target.vocabulary.end
    memory = model.encode(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.bool))
    state, said = model.decoder.start(memory), list[int]()
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


@pytest.mark.parametrize(("text", "limit", "pieces"), SPLITS)
def test_split(text: str, limit: int, pieces: list[str]) -> None:
    assert [" ".join(piece) for piece in split_tokens(tuple(text.split()), limit)] == pieces


@given(st.lists(st.sampled_from(["a", "b", ",", "c.", "。"])), st.integers(1, 6))
def test_split_loses_nothing(tokens: list[str], limit: int) -> None:
    pieces = split_tokens(tuple(tokens), limit)
    assert [token for piece in pieces for token in piece] == tokens
    assert all(1 <= len(piece) <= limit for piece in pieces)
    for piece in pieces[:-1]:
        assert piece[-1][-1] in BREAKS or not any(token[-1] in BREAKS for token in piece)


@pytest.mark.parametrize(("said", "looks", "dictionary", "result"), REPLACEMENTS)
def test_unknown_words_are_replaced(
    said: str, looks: list[list[float]], dictionary: dict[str, str], result: str
) -> None:
    tokens = said.split()
    words = [UNK if token == "UNK" else 5 for token in tokens]
    alignment = np.array(looks, dtype=np.float32)
    assert " ".join(replace_unknown(tokens, words, ["a", "b"], alignment, dictionary)) == result


def test_dictionary_keeps_the_first_entry(tmp_path: Path) -> None:
    write_lines(tmp_path / "d", ["a\tb", "a\tc", "d\te f"])
    assert read_dictionary(tmp_path / "d") == {"a": "b", "d": "e f"}


@pytest.mark.parametrize(("rows", "place"), BAD_DICTIONARIES)
def test_bad_dictionary(rows: list[str], place: str, tmp_path: Path) -> None:
    write_lines(tmp_path / "d", rows)
    with pytest.raises(UserError, match=f"d, {place}: write a source word, a tab"):
        read_dictionary(tmp_path / "d")


def test_options_are_checked() -> None:
    assert change_decoding(DecodeConfig(), {"beam": 3, "nbest": None}).beam == 3
    with pytest.raises(UserError, match="nbest = 5 is more than beam = 3"):
        change_decoding(DecodeConfig(), {"beam": 3, "nbest": 5})


def test_order_is_kept(trained: Translator, lines: list[str]) -> None:
    """Lines are sorted by length inside; each still gets its own translation."""
    together = trained.translate(lines)
    assert [t.source for t in together] == lines
    assert_same(together, [trained.translate([line])[0] for line in lines])


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_batch_size_changes_nothing(trained: Translator, lines: list[str], batch_size: int) -> None:
    changed = change(trained, batch_size=batch_size)
    assert_same(trained.translate(lines), trained.translate(lines, changed))


@pytest.mark.parametrize("empty", ["", " ", "\t \u3000", "\x00"])
def test_empty_lines_stay_empty(trained: Translator, lines: list[str], empty: str) -> None:
    found = trained.translate([empty, lines[0], empty, lines[1], empty])
    assert texts(found)[1::2] == texts(trained.translate(lines[:2]))
    for translation in found[::2]:
        assert translation.source == empty
        assert (translation.text, translation.tokens, translation.score) == ("", (), 0.0)
        assert translation.alignment.shape == (0, 0)
        assert translation.coverage.shape == (0,)


def test_nothing_in_nothing_out(trained: Translator) -> None:
    assert trained.translate([]) == []


def test_overlong_lines_are_cut(
    trained: Translator, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    short = change(trained, max_source=3)
    found = trained.translate(["", lines[0]], short)[1]
    assert "line 2: " in (warning := capsys.readouterr().err)
    assert "only the first 3 are translated (--overlong split" in warning
    assert len(warning.splitlines()) == 1
    assert found.source == lines[0]
    assert_same([found], trained.translate([" ".join(lines[0].split()[:3])]))
    assert capsys.readouterr().err == ""


def test_overlong_lines_are_split(
    trained: Translator, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The pieces are translated alone, and no word of one looks at another."""
    first, second, third = (" ".join(line.split()[:4]) for line in lines[:3])
    long, limit = f"{first} , {second} , {third}", change(trained, max_source=6)
    [whole] = trained.translate([long], limit, overlong="split")
    parts = trained.translate([f"{first} ,", f"{second} ,", third])
    assert capsys.readouterr().err == ""
    assert whole.source == long
    assert whole.source_tokens == tuple(long.split())
    assert whole.tokens == tuple(token for part in parts for token in part.tokens)
    assert whole.score == pytest.approx(sum(part.score for part in parts), abs=1e-3)
    i = j = 0
    outside = whole.alignment.copy()
    for part in parts:
        rows, columns = part.alignment.shape
        block = whole.alignment[i : i + rows, j : j + columns]
        np.testing.assert_allclose(block, part.alignment, atol=1e-4)
        np.testing.assert_allclose(whole.coverage[j : j + columns], part.coverage, atol=1e-4)
        outside[i : i + rows, j : j + columns] = 0
        i, j = i + rows, j + columns
    assert (i, j) == whole.alignment.shape
    assert not outside.any()


def test_only_a_window_is_read_ahead(
    trained: Translator, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So memory does not grow with the input."""
    monkeypatch.setattr(translate_module, "WINDOW", 2)
    read = 0

    def many() -> Iterator[str]:
        nonlocal read
        for number in range(200):
            read += 1
            yield lines[number % 4]

    found = list(islice(trained.stream(many(), change(trained, batch_size=3)), 13))
    assert read == 18
    assert [t.source for t in found] == [lines[number % 4] for number in range(13)]


@pytest.mark.parametrize("system", SYSTEMS)
def test_account_is_that_of_the_model(system: str, make: Make, lines: list[str]) -> None:
    """Score, alignment and fertility are what forced decoding of the same words gives."""
    translator = make(SYSTEMS[system])
    aligner = Aligner(translator.models[0], translator.source, translator.target)
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


@pytest.mark.parametrize("system", SYSTEMS)
def test_alignment_rows_are_shares(system: str, make: Make, lines: list[str]) -> None:
    for translation in make(SYSTEMS[system]).translate(lines):
        I, J = len(translation.tokens), len(translation.source_tokens)
        assert translation.alignment.shape == (I, J)
        assert (translation.alignment >= 0).all()
        assert (translation.alignment.sum(axis=1) <= 1 + 1e-5).all()
        assert translation.coverage.shape == (J,)


@pytest.mark.parametrize("kind", ["linguistic", "fertility"])
def test_coverage_is_that_of_the_model(kind: str, make: Make, lines: list[str]) -> None:
    translator = make(SYSTEMS[kind])
    for translation in filter(is_finished, translator.translate(lines)):
        C = forced_coverage(translator, translation).squeeze(-1).numpy()
        np.testing.assert_allclose(translation.coverage, C, atol=1e-4)


def test_coverage_is_received_attention_over_fertility(make: Make, lines: list[str]) -> None:
    """The end symbol looks too, so the words' own rows give at most the coverage."""
    for translation in make(SYSTEMS["fertility"]).translate(lines):
        assert translation.fertility is not None
        received = translation.coverage * translation.fertility
        by_words = translation.alignment.sum(axis=0)
        assert (received >= by_words - 1e-4).all()
        assert (received - by_words).sum() <= 1 + 1e-4


@pytest.mark.parametrize("system", SYSTEMS)
def test_beam_of_one_is_greedy(system: str, make: Make, lines: list[str]) -> None:
    translator = make(SYSTEMS[system])
    decode = change(translator, beam=1)
    for translation in translator.translate(lines[:8], decode):
        words = greedy_words(translator, translation.source)
        assert translation.tokens == tuple(translator.target.decode(words))


def test_nbest(trained: Translator, lines: list[str]) -> None:
    """The list is sorted, has no doubles, and begins with what comes without it."""
    decode = change(trained, nbest=3)
    for best, plain in zip(trained.translate(lines, decode), trained.translate(lines), strict=True):
        every = (best, *best.alternatives)
        assert 1 <= len(every) <= 3
        assert best.tokens == plain.tokens
        assert [t.score for t in every] == sorted((t.score for t in every), reverse=True)
        assert len({t.tokens for t in every}) == len(every)
        assert all(not t.alternatives for t in best.alternatives)


def test_ensemble_of_a_model_with_itself(tiny_model: Path, lines: list[str]) -> None:
    twice = Translator.load(tiny_model, str(tiny_model), device="cpu")
    assert len(twice.models) == 2
    assert_same(twice.translate(lines), Translator.load(tiny_model).translate(lines))


def test_ensemble_has_no_order_and_is_no_member(make: Make, lines: list[str]) -> None:
    both = make(SYSTEMS["gru10"], SYSTEMS["fertility"])
    members = [Translator([model], both.source, both.target, both.decode) for model in both.models]
    turned = Translator(both.models[::-1], both.source, both.target, both.decode)
    found = both.translate(lines)
    assert_same(found, turned.translate(lines))
    assert all(texts(found) != texts(member.translate(lines)) for member in members)


def test_fertility_of_ensembles(make: Make, lines: list[str]) -> None:
    """The mean, where all predict one."""
    fertility = SYSTEMS["fertility"]
    assert make(fertility, SYSTEMS["gru1"]).translate(lines[:1])[0].fertility is None
    both = make(fertility, fertility)
    one, other, mean = (
        Translator(models, both.source, both.target, both.decode).translate(lines[:1])[0].fertility
        for models in (both.models[:1], both.models[1:], both.models)
    )
    assert one is not None
    assert other is not None
    assert mean is not None
    np.testing.assert_allclose(mean, (one + other) / 2, atol=1e-5)


def test_ensemble_of_other_vocabularies(tiny_model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_model, other)
    words = list(read_lines(other / "target.vocab"))
    write_lines(other / "target.vocab", words[::-1])
    write_json(
        other / "config.json",
        {**read_json(other / "config.json"), "fingerprint": fingerprint(other)},
    )
    with pytest.raises(UserError, match=r"other: other vocabularies than .*tiny"):
        Translator.load(tiny_model, other)


@pytest.fixture(scope="session")
def ignorant(make: Make) -> Translator:
    """A translator that would rather say UNK than anything else."""
    translator = make(SYSTEMS["gru10"])
    with torch.no_grad():
        network(translator).readout.b[UNK] += 20
    return translator


def test_unk_is_said(ignorant: Translator, lines: list[str]) -> None:
    for translation in ignorant.translate(lines):
        assert set(translation.tokens) == {"UNK"}


def test_unk_can_be_forbidden(ignorant: Translator, lines: list[str]) -> None:
    decode = change(ignorant, forbid_unk=True)
    found = ignorant.translate(lines, decode)
    assert not any("UNK" in t.tokens for t in found)
    assert all(t.tokens for t in found)


def test_unk_can_be_replaced(ignorant: Translator, lines: list[str]) -> None:
    """By the source word it looks at most, or by what the dictionary says of that."""
    decode = change(ignorant, replace_unk=True)
    [plain] = ignorant.translate(lines[:1], decode)
    looked_at = tuple(plain.source_tokens[j] for j in plain.alignment.argmax(axis=1))
    assert plain.tokens == looked_at
    entries = {looked_at[0]: "word"}
    models, sides = ignorant.models, (ignorant.source, ignorant.target)
    [found] = Translator(models, *sides, decode, entries).translate(lines[:1])
    assert found.tokens == tuple(entries.get(word, word) for word in looked_at)
    assert found.text == " ".join(found.tokens)


def test_json(trained: Translator, lines: list[str]) -> None:
    """Plain values under the documented keys; numbers to four places."""
    for translation in trained.translate([*lines, ""]):
        form = translation.to_json()
        assert json.loads(json.dumps(form)) == form
        keys = "source source_tokens text tokens score alignment coverage fertility"
        assert list(form) == keys.split()
        assert tuple(form["tokens"]) == translation.tokens
        assert tuple(form["source_tokens"]) == translation.source_tokens
        assert isinstance(form["score"], float)
        assert [len(row) for row in form["alignment"]] == [len(form["source_tokens"])] * len(
            form["tokens"]
        )
        matrix = np.array(form["alignment"]).reshape(translation.alignment.shape)
        np.testing.assert_allclose(matrix, translation.alignment, atol=5.1e-5)
        np.testing.assert_allclose(form["coverage"], translation.coverage, atol=5.1e-5)
        assert form["fertility"] is None or len(form["fertility"]) == len(form["source_tokens"])


def test_json_of_nbest(trained: Translator, lines: list[str]) -> None:
    line = f"  {lines[0]} "  # as it is, whatever the tokenizer makes of it
    [best] = trained.translate([line], change(trained, nbest=2))
    assert best.to_json()["nbest"] == [best.alternatives[0].to_json()]
    assert best.source == best.alternatives[0].source == line


def test_output_lines(trained: Translator, lines: list[str]) -> None:
    found = trained.translate(["", lines[0]], change(trained, nbest=2))
    assert list(formatted(found, as_json=False, nbest=1)) == texts(found)
    assert [json.loads(row) for row in formatted(found, as_json=True, nbest=1)] == [
        t.to_json() for t in found
    ]
    listed = [row.split(" ||| ") for row in formatted(found, as_json=False, nbest=2)]
    assert [row[:2] for row in listed] == [
        ["0", ""],
        ["1", found[1].text],
        ["1", found[1].alternatives[0].text],
    ]
    assert float(listed[1][2]) >= float(listed[2][2])


def watched(
    translator: Translator,
    lines: list[str],
    decode: DecodeConfig,
    overlong: Literal["cut", "split"],
) -> tuple[list[Translation], dict[int, list[tuple[str, ...]]]]:
    told: dict[int, list[tuple[str, ...]]] = {}

    def watch(line: int, tokens: tuple[str, ...]) -> None:
        told.setdefault(line, []).append(tokens)

    return translator.translate(lines, decode, overlong, watch), told


def test_watched_greedy_translations_grow_word_by_word(
    trained: Translator, lines: list[str]
) -> None:
    decode = change(trained, beam=1, retry=False, batch_size=3)
    found, told = watched(trained, ["", *lines], decode, "cut")
    assert sorted(told) == list(range(1, len(lines) + 1))
    for number, steps in told.items():
        tokens = found[number].tokens
        assert steps[: len(tokens)] == [tokens[:i] for i in range(1, len(tokens) + 1)]
        assert steps[-1] == tokens


def test_watched_line_in_several_pieces(trained: Translator, lines: list[str]) -> None:
    decode = change(trained, beam=1, retry=False, max_source=3)
    [found], told = watched(trained, [lines[0]], decode, "split")
    assert told[0][-1] == found.tokens
    assert len(found.source_tokens) > 3
