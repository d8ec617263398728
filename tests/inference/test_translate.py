"""Translating lines: segments, order, n-best lists, output formats."""

import json
import tracemalloc
from itertools import islice, product
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covnmt.base.config import DecodeConfig
from covnmt.base.errors import UserError
from covnmt.base.files import write_lines
from covnmt.inference import model as model_module
from covnmt.inference.model import Model, OverlongTextError
from covnmt.inference.translate import (
    BREAK_CHARACTERS,
    Translation,
    format_translations,
    join_translations,
    override_decoding,
    read_dictionary,
    replace_unknown,
    split_tokens,
)
from covnmt.text.vocabulary import UNK_ID
from tests.inference.translations import Endless, assert_same, change, texts

# tokens, limit, segments
SPLITS = [
    ("", 3, []),
    ("a b c", 3, ["a b c"]),
    ("a b c d", 3, ["a b c", "d"]),
    ("a , b c", 3, ["a ,", "b c"]),
    ("a , b , c d", 4, ["a , b ,", "c d"]),
    ("هل ؟ نعم ، ثم", 4, ["هل ؟ نعم ،", "ثم"]),
    ("▁वह ▁गया। ▁फिर ▁आया", 3, ["▁वह ▁गया।", "▁फिर ▁आया"]),
    ("a b , c d", 2, ["a b", ",", "c d"]),
    ("so: on and on", 3, ["so:", "on and on"]),
    ("好 。 很 好", 3, ["好 。", "很 好"]),
    ("a b", 1, ["a", "b"]),
]

# target tokens, aligned source positions, dictionary, result
REPLACEMENTS = [
    ("x UNK", [[0.9, 0.1], [0.2, 0.7]], {}, "x b"),
    ("x UNK", [[0.9, 0.1], [0.2, 0.7]], {"b": "y"}, "x y"),
    ("x UNK", [[0.9, 0.1], [0.2, 0.7]], {"a": "y"}, "x b"),
    ("UNK UNK", [[0.6, 0.3], [0.5, 0.4]], {"a": "z"}, "z z"),
    ("x y", [[0.9, 0.1], [0.2, 0.7]], {"a": "z", "b": "z"}, "x y"),
    ("", np.zeros((0, 2)), {}, ""),
]

# lines of a dictionary, and the place of the error
BAD_DICTIONARIES = [
    (["a\tb", "c d"], "line 2"),
    (["\tb"], "line 1"),
    (["a\t"], "line 1"),
    (["a\tb", ""], "line 2"),
]


@pytest.mark.parametrize(("text", "limit", "pieces"), SPLITS)
def test_long_lines_are_split_after_punctuation(text: str, limit: int, pieces: list[str]) -> None:
    assert [" ".join(piece) for piece in split_tokens(tuple(text.split()), limit)] == pieces


@given(st.lists(st.sampled_from(["a", "b", ",", "c.", "。"])), st.integers(1, 6))
def test_splitting_loses_no_tokens(tokens: list[str], limit: int) -> None:
    pieces = split_tokens(tuple(tokens), limit)
    assert [token for piece in pieces for token in piece] == tokens
    assert all(1 <= len(piece) <= limit for piece in pieces)
    for piece in pieces[:-1]:
        assert piece[-1][-1] in BREAK_CHARACTERS or not any(
            token[-1] in BREAK_CHARACTERS for token in piece
        )


@pytest.mark.parametrize(("said", "looks", "dictionary", "result"), REPLACEMENTS)
def test_unk_is_replaced_by_the_aligned_word_or_its_dictionary_entry(
    said: str, looks: list[list[float]], dictionary: dict[str, str], result: str
) -> None:
    tokens = said.split()
    words = [UNK_ID if token == "UNK" else 5 for token in tokens]
    alignment = np.array(looks, dtype=np.float32)
    assert " ".join(replace_unknown(tokens, words, ["a", "b"], alignment, dictionary)) == result


def test_dictionary_keeps_the_first_entry(tmp_path: Path) -> None:
    write_lines(tmp_path / "d", ["a\tb", "a\tc", "d\te f"])
    assert read_dictionary(tmp_path / "d") == {"a": "b", "d": "e f"}


@pytest.mark.parametrize(("rows", "place"), BAD_DICTIONARIES)
def test_a_bad_dictionary_is_an_error_with_its_line(
    rows: list[str], place: str, tmp_path: Path
) -> None:
    write_lines(tmp_path / "d", rows)
    with pytest.raises(UserError, match=f"d, {place}: write a source word, a tab"):
        read_dictionary(tmp_path / "d")


def test_overridden_settings_are_validated() -> None:
    assert override_decoding(DecodeConfig(), {"beam": 3, "nbest": None}).beam == 3
    with pytest.raises(UserError, match="nbest = 5 is more than beam = 3"):
        override_decoding(DecodeConfig(), {"beam": 3, "nbest": 5})


def test_translations_are_in_the_order_of_lines(translator: Model, lines: list[str]) -> None:
    together = translator.translate(lines)
    assert [t.source for t in together] == lines
    assert_same(together, [translator.translate([line])[0] for line in lines])


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_translation_does_not_depend_on_batch_composition(
    translator: Model, lines: list[str], batch_size: int
) -> None:
    changed = change(translator, batch_size=batch_size)
    assert_same(translator.translate(lines), translator.translate(lines, changed))


@pytest.mark.parametrize("line", ["──────", "* * *", "。", "……！？", "😀"])
def test_a_line_without_words_is_copied(line: str) -> None:
    """A model would make up a sentence for it."""
    rule, said = Model.load("zh-en").translate([f" {line} ", f"{line}三十日"])
    assert (rule.source, rule.text, rule.tokens) == (f" {line} ", line, ())
    assert rule.alignment.shape == (0, 0)
    assert "30" in said.text or "thirty" in said.text


@pytest.mark.parametrize("empty", ["", " ", "\t \u3000", "\x00"])
def test_empty_lines_stay_empty(translator: Model, lines: list[str], empty: str) -> None:
    found = translator.translate([empty, lines[0], empty, lines[1], empty])
    assert texts(found)[1::2] == texts(translator.translate(lines[:2]))
    for translation in found[::2]:
        assert translation.source == empty
        assert (translation.text, translation.tokens, translation.score) == ("", (), 0.0)
        assert translation.alignment.shape == (0, 0)
        assert translation.coverage.shape == (0,)


def test_no_lines_give_no_translations(translator: Model) -> None:
    assert translator.translate([]) == []


def test_overlong_lines_are_cut(
    translator: Model, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    short = change(translator, max_source=3)
    found = translator.translate(["", lines[0]], short)[1]
    assert "line 2: " in (warning := capsys.readouterr().err)
    assert "only the first 3 are translated (--long-lines split" in warning
    assert len(warning.splitlines()) == 1
    assert found.source == lines[0]
    assert_same([found], translator.translate([" ".join(lines[0].split()[:3])]))
    assert capsys.readouterr().err == ""


def test_overlong_lines_raise_an_error_that_names_them_all(
    translator: Model, lines: list[str]
) -> None:
    long = ["a b c d", "a b c d e"]
    limit = change(translator, max_source=3)
    with pytest.raises(OverlongTextError) as error:
        translator.translate([long[0], "a b c", "", long[1]], limit, overlong="raise")
    assert error.value.texts == {0: (long[0], 4), 3: (long[1], 5)}
    assert error.value.limit == 3
    short = " ".join(lines[0].split()[:3])
    assert_same(
        translator.translate([short], limit, overlong="raise"), translator.translate([short])
    )


def test_overlong_lines_are_split(
    translator: Model, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Segments are translated separately, without attention between them."""
    first, second, third = (" ".join(line.split()[:4]) for line in lines[:3])
    long, limit = f"{first} , {second} , {third}", change(translator, max_source=6)
    [whole] = translator.translate([long], limit, overlong="split")
    parts = translator.translate([f"{first} ,", f"{second} ,", third])
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


def test_a_split_line_stores_only_the_blocks_of_its_alignment(translator: Model) -> None:
    """The whole matrix would take 1.6 GB."""
    tokens, block = ("w",) * 200, np.ones((200, 200), dtype=np.float32)
    part = Translation("", tokens, "", tokens, -1.0, (block,), block[0], None)
    tracemalloc.start()
    whole = join_translations("a line", [part] * 100, translator.target)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10**7
    assert len(whole.blocks) == 100


def test_split_sentences_are_translated_separately(
    translator: Model, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The limit applies to each sentence; the warning names the line."""
    first, second = (" ".join(line.split()[:4]) + " 。" for line in lines[:2])
    many, limit = [lines[2], f"{first} {second}", " "], change(translator, max_source=5)
    alone, whole, empty = translator.translate(many, limit, split_sentences=True)
    assert capsys.readouterr().err.count("line 1: ") == (len(lines[2].split()) > 5)
    parts = translator.translate([first, second])
    assert whole.source == many[1]
    assert whole.tokens == tuple(token for part in parts for token in part.tokens)
    assert whole.source_tokens == (*first.split(), *second.split())
    assert whole.tokens != translator.translate([many[1]])[0].tokens
    assert (empty.source, empty.text) == (" ", "")
    assert_same([alone], translator.translate([" ".join(lines[2].split()[:5])]))


def test_only_one_window_of_lines_is_read_ahead(
    translator: Model, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_module, "WINDOW_BATCHES", 2)
    many = Endless(lines[:4])
    found = list(islice(translator.translate_stream(many, change(translator, batch_size=3)), 13))
    assert many.read == 18
    assert [t.source for t in found] == [lines[number % 4] for number in range(13)]


def test_nbest_lists_are_sorted_and_distinct(translator: Model, lines: list[str]) -> None:
    """The first one is the translation without a list."""
    lists = translator.translate(lines, change(translator, nbest=3))
    for best, plain in zip(lists, translator.translate(lines), strict=True):
        every = (best, *best.alternatives)
        assert 1 <= len(every) <= 3
        assert best.tokens == plain.tokens
        assert [t.score for t in every] == sorted((t.score for t in every), reverse=True)
        assert len({t.tokens for t in every}) == len(every)
        assert all(not t.alternatives for t in best.alternatives)


def test_nbest_lists_of_sentences_are_combined(translator: Model, lines: list[str]) -> None:
    """The best sums of scores, found by trying all combinations."""
    settings = change(translator, nbest=3)
    parts = [" ".join(line.split()[:4]) + " 。" for line in lines[:2]]
    [best] = translator.translate([" ".join(parts)], settings, split_sentences=True)
    lists = [(t, *t.alternatives) for t in translator.translate(parts, settings)]
    ways = sorted(product(*lists), key=lambda way: -sum(each.score for each in way))[:3]
    every = (best, *best.alternatives)
    assert [t.tokens for t in every] == [sum((t.tokens for t in way), ()) for way in ways]
    for one, way in zip(every, ways, strict=True):
        assert one.score == pytest.approx(sum(each.score for each in way))
        assert one.source == best.source
        assert len(one.alignment) == len(one.tokens)


def test_a_string_instead_of_lines_is_refused(translator: Model) -> None:
    with pytest.raises(TypeError, match=r"\[text\]"):
        translator.translate("not its letters")


def test_json_of_a_translation(translator: Model, lines: list[str]) -> None:
    for translation in translator.translate([*lines, ""]):
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


def test_json_of_nbest(translator: Model, lines: list[str]) -> None:
    line = f"  {lines[0]} "  # kept as it is, whatever the tokenizer does
    [best] = translator.translate([line], change(translator, nbest=2))
    assert best.to_json()["nbest"] == [best.alternatives[0].to_json()]
    assert best.source == best.alternatives[0].source == line


def test_output_formats(translator: Model, lines: list[str]) -> None:
    found = translator.translate(["", lines[0]], change(translator, nbest=2))
    assert list(format_translations(found, as_json=False, nbest=1)) == texts(found)
    assert [json.loads(row) for row in format_translations(found, as_json=True, nbest=1)] == [
        t.to_json() for t in found
    ]
    listed = [row.split(" ||| ") for row in format_translations(found, as_json=False, nbest=2)]
    assert [row[:2] for row in listed] == [
        ["0", ""],
        ["1", found[1].text],
        ["1", found[1].alternatives[0].text],
    ]
    assert float(listed[1][2]) >= float(listed[2][2])


def translate_with_progress(
    translator: Model,
    lines: list[str],
    decode: DecodeConfig,
    overlong: Literal["cut", "split"],
) -> tuple[list[Translation], dict[int, list[tuple[str, ...]]]]:
    reports: dict[int, list[tuple[str, ...]]] = {}

    def watch(line: int, tokens: tuple[str, ...]) -> None:
        reports.setdefault(line, []).append(tokens)

    return translator.translate(lines, decode, overlong, watch), reports


def test_on_step_reports_greedy_translations_word_by_word(
    translator: Model, lines: list[str]
) -> None:
    decode = change(translator, beam=1, retry=False, batch_size=3)
    found, reports = translate_with_progress(translator, ["", *lines], decode, "cut")
    assert sorted(reports) == list(range(1, len(lines) + 1))
    for number, steps in reports.items():
        tokens = found[number].tokens
        assert steps[: len(tokens)] == [tokens[:i] for i in range(1, len(tokens) + 1)]
        assert steps[-1] == tokens


def test_on_step_reports_whole_lines_of_split_lines(translator: Model, lines: list[str]) -> None:
    decode = change(translator, beam=1, retry=False, max_source=3)
    [found], reports = translate_with_progress(translator, [lines[0]], decode, "split")
    assert reports[0][-1] == found.tokens
    assert len(found.source_tokens) > 3
