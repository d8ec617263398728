"""The commands, in this process: what they print, what they write, how they exit.

`tests/system` runs whole commands in processes of their own, with good and with bad input.
"""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from rich.console import Console

from covnmt import __version__
from covnmt.base import console as progress
from covnmt.base.config import PAPER_SYSTEMS, describe_keys
from covnmt.base.files import read_lines, read_parallel_lines, write_lines
from covnmt.base.recipe import (
    bundled_recipes,
    find_recipe,
    format_recipe,
    load_recipe,
)
from covnmt.cli import app as main
from covnmt.cli import options
from covnmt.data.corpus import Corpus
from covnmt.evaluation.alignment_files import load_matrices
from covnmt.inference import align, check_settings, forced_decoding, info
from covnmt.inference.check_files import CheckInput
from covnmt.inference.check_output import format_pairs
from covnmt.inference.model import Model
from covnmt.inference.omissions import CheckedPair
from covnmt.metrics.alignment import format_links, links_from_attention
from covnmt.model.checkpoint import load_tensors
from tests.conftest import Run, RunCli
from tests.paper.worked_example import ADDED, TOTAL

# options of `translate`, and the settings they make
OPTIONS: dict[str, dict[str, Any]] = {
    "": {},
    "--beam 1": {"beam": 1},
    "--beam 4 --nbest 2 --length-penalty 1": {"beam": 4, "nbest": 2, "length_penalty": 1.0},
    "--no-length-rules --coverage-penalty 0.2": {"length_rules": False, "coverage_penalty": 0.2},
    "--forbid-unk --batch-size 3": {"forbid_unk": True, "batch_size": 3},
    "--replace-unk": {"replace_unk": True},
}


def leaves(command: Any, name: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The names of all commands, those of groups too."""
    inside = getattr(command, "commands", {})
    return [name] + [leaf for key in inside for leaf in leaves(inside[key], (*name, key))]


@pytest.mark.parametrize("command", leaves(typer.main.get_command(main.app)), ids=" ".join)
def test_help(run: Run, command: tuple[str, ...]) -> None:
    shown = run(*command, "--help").out
    assert "Usage: covnmt" in shown
    assert "--help" in shown


def test_options_show_the_defaults_of_what_they_call(run: Run) -> None:
    shown = " ".join(re.sub("[│╭╮╰╯─]", " ", run("check", "--help").out).split())
    for name, default in (
        ("--max-tokens", check_settings.MAX_TOKENS),
        ("--min-probability", check_settings.MIN_PROBABILITY),
    ):
        [about] = re.findall(rf"{name} (.*?)\[default: ([\d.]+)\]", shown)
        assert str(default) == about[1]
        assert str(default) not in about[0]


def test_a_stop_before_a_command_begins(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(typer.main, "get_command", stopped)
    assert run("info", "paper/gru10", code=130).err == ""


def test_an_import_error_of_our_own_is_no_missing_package(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(info, "model_info", lambda *_: exec("from torch import nothing"))
    with pytest.raises(ImportError, match="nothing"):
        run("info", "paper/gru10")


def test_version(run: Run) -> None:
    assert run("--version").out == f"covnmt {__version__}\n"


def test_recipe_list_has_a_description_of_every_recipe(run: Run) -> None:
    head, *rows = [line.split("\t") for line in run("recipe", "list").out.splitlines()]
    assert head == ["recipe", "what"]
    assert [name for name, what in rows if not what] == []
    assert {name for name, _ in rows} == {n for n in bundled_recipes() if "/common" not in n}
    assert "d = 10" in dict(rows)["paper/gru10"]


def test_recipe_keys(run: Run) -> None:
    """Elsewhere than on a terminal tables are tab-separated, so that other programs can read."""
    head, *rows = [line.split("\t") for line in run("recipe", "keys").out.splitlines()]
    assert head == ["key", "choices", "default", "meaning"]
    assert rows == [list(row) for row in describe_keys()]


def test_recipe_show(run: Run) -> None:
    command = ("recipe", "show", "paper/gru10", "model.hidden=512", "decode.beam=3")
    config = load_recipe(find_recipe("paper/gru10"), ["model.hidden=512", "decode.beam=3"])
    shown = json.loads(run(*command, "--json").out)
    assert shown == config.model_dump(mode="json")
    assert shown["model"]["hidden"] == 512
    assert run(*command).out.splitlines() == format_recipe(config).splitlines()


def test_tables_on_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are never cut, however narrow it is, and brackets are no markup."""
    terminal = io.StringIO()
    console = Console(file=terminal, force_terminal=True, width=60, markup=False)
    monkeypatch.setattr(options, "stdout_console", console)
    run("corpus", "list")
    assert "news-commentary" in terminal.getvalue()
    options.print_table(("a", "b"), [("[bold]", "[red]text[/red]")])
    assert "[bold]" in terminal.getvalue()
    assert "[red]text[/red]" in terminal.getvalue()


def test_corpus_list(run: Run) -> None:
    head, *rows = [line.split("\t") for line in run("corpus", "list").out.splitlines()]
    assert head == ["name", "languages", "what", "license", "address"]
    assert {len(row) for row in rows} == {5}
    assert "kftt" in [row[0] for row in rows]
    assert all(row[4].startswith("http") for row in rows)


@pytest.mark.parametrize("system", PAPER_SYSTEMS)
def test_info_of_recipes(run: Run, system: str) -> None:
    """The exact counts of the paper's systems."""
    found = json.loads(run("info", f"paper/{system}", "--json").out)
    blocks = dict(found["parameters"])
    assert blocks.pop("total") == TOTAL + ADDED[system] == sum(blocks.values())
    assert blocks["coverage"] == ADDED[system]
    assert found["words"] == {"source": 30_001, "target": 30_001}
    assert found["settings"] == load_recipe(find_recipe(f"paper/{system}")).model_dump(mode="json")


def test_info_in_words(run: Run) -> None:
    rows = [line.split("\t") for line in run("info", "paper/gru10").out.splitlines()]
    assert ["total", "84,449,431"] in rows
    assert ["model.coverage.size", "10"] in rows
    assert ["words.source", "30,001"] in rows


def test_info_of_other_vocabularies(run: Run) -> None:
    found = json.loads(run("info", "paper/baseline", "--json", "--words", 30_000).out)
    assert found["parameters"]["total"] == 84_347_240


def test_info_of_a_recipe_with_its_data(run: Run, tiny_corpus: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f"[data]\ndirectory = {json.dumps(str(tiny_corpus))}\n")
    found = json.loads(run("info", recipe, "--json").out)
    assert found["words"] == Corpus.open(tiny_corpus).report.vocabulary_sizes


def test_info_of_a_model(run: Run, tiny_model: Path) -> None:
    found = json.loads(run("info", tiny_model, "--json").out)
    weights, _ = load_tensors(tiny_model / "model.safetensors")
    assert found["parameters"]["total"] == sum(weight.numel() for weight in weights.values())
    assert found["settings"]["model"]["coverage"]["kind"] == "fertility"


def test_translate_from_everywhere(
    run: Run, tiny_model: Path, source: Path, tmp_path: Path
) -> None:
    """A file, a dash, a pipe; to the screen or a file: always the same lines."""
    text = source.read_text("utf-8")
    plain = run("translate", source, "--model", tiny_model)
    assert len(plain.out.splitlines()) == 20
    assert plain.err == ""
    assert run("translate", "--model", tiny_model, stdin=text).out == plain.out
    assert run("translate", "-", "-m", tiny_model, stdin=text).out == plain.out
    assert run("translate", source, "-m", tiny_model, "-o", tmp_path / "new" / "out").out == ""
    assert (tmp_path / "new" / "out").read_text("utf-8") == plain.out


def test_a_long_file_shows_its_progress(
    run: Run, tiny_model: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where the translations are seen as they come, nor where a pipe may pause."""
    screen = io.StringIO()
    monkeypatch.setattr(
        progress, "stderr_console", Console(file=screen, force_terminal=True, width=100)
    )
    command, into = ("translate", "--model", tiny_model), ("--output", tmp_path / "out")
    run(*command, source)
    run(*command, *into, stdin=source.read_text("utf-8"))
    assert screen.getvalue() == ""
    run(*command, source, *into)
    assert "translating" in screen.getvalue()


def test_translate_keeps_empty_lines(run: Run, tiny_model: Path, source: Path) -> None:
    first, second = list(read_lines(source))[:2]
    lines = run("translate", "--model", tiny_model, stdin=f"\n{first}\n \n{second}").out.split("\n")
    assert [bool(line) for line in lines] == [False, True, False, True, False]
    assert run("translate", "--model", tiny_model, stdin="").out == ""


@pytest.mark.parametrize("options", OPTIONS)
def test_translate_equals_python(run: Run, tiny_model: Path, source: Path, options: str) -> None:
    translator = Model.load(tiny_model)
    decode = translator.decode.model_copy(update=OPTIONS[options])
    found = run("translate", source, "--model", tiny_model, "--json", *options.split()).out
    expected = translator.translate(read_lines(source), decode)
    assert [json.loads(line) for line in found.splitlines()] == [t.to_json() for t in expected]


def test_translate_in_its_own_process(run_cli: RunCli, tiny_model: Path, source: Path) -> None:
    done = run_cli("translate", "--model", tiny_model, "--json", stdin=source.read_bytes())
    assert (done.returncode, done.stderr) == (0, "")
    expected = [t.to_json() for t in Model.load(tiny_model).translate(read_lines(source))]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [t["tokens"] for t in found] == [t["tokens"] for t in expected]
    for one, other in zip(found, expected, strict=True):
        assert one["score"] == pytest.approx(other["score"], abs=1e-3)
        np.testing.assert_allclose(one["alignment"], other["alignment"], atol=2e-4)


def test_translate_nbest(run: Run, tiny_model: Path, source: Path) -> None:
    found = run("translate", source, "--model", tiny_model, "--nbest", 2).out
    rows = [line.split(" ||| ") for line in found.splitlines()]
    assert [int(row[0]) for row in rows] == [k // 2 for k in range(40)]
    assert {len(row) for row in rows} == {3}


def test_translate_overlong_lines(run: Run, tiny_model: Path, source: Path) -> None:
    cut = run("translate", source, "--model", tiny_model, "--max-source", 3)
    assert cut.err.startswith("line 1: ")
    assert len(cut.err.splitlines()) == 20
    split = run("translate", source, "-m", tiny_model, "--max-source", 3, "--long-lines", "split")
    assert split.err == ""
    assert len(split.out) > len(cut.out)
    assert len(split.out.splitlines()) == len(cut.out.splitlines()) == 20


def test_translate_the_sentences_of_a_line(run: Run, tiny_model: Path, source: Path) -> None:
    first, second, *_ = read_lines(source)
    text = f"{first} 。 {second} 。\n"
    apart = run("translate", "--model", tiny_model, stdin=text.replace("。 ", "。\n")).out
    joined = run("translate", "--model", tiny_model, stdin=text).out
    assert joined.splitlines() == [" ".join(apart.splitlines())]
    assert run("translate", "--model", tiny_model, "--sentences", stdin=text).out == joined
    as_one = run("translate", "--model", tiny_model, "--no-split-sentences", stdin=text).out
    assert as_one != joined


def test_translate_with_a_dictionary(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    """All source words have an entry, so no UNK is left."""
    write_lines(tmp_path / "dictionary", ["new\tneu", "words\tWorte"])
    options = ["--replace-unk", "--dictionary", tmp_path / "dictionary"]
    found = run("translate", "--model", tiny_model, *options, stdin="new words\n").out.split()
    assert found
    assert not {"UNK", "new", "words"} & set(found)


def test_align(run: Run, tiny_model: Path, tiny_text: Path, tmp_path: Path) -> None:
    files = (tiny_text / "test.src", tiny_text / "test.tgt")
    pairs = [(s, t) for s, t in read_parallel_lines(*files)]
    expected = [found.matrix for found in Model.load(tiny_model).align(pairs)]
    links = run("align", *files, "--model", tiny_model).out.splitlines()
    assert links == [format_links(links_from_attention(matrix)) for matrix in expected]
    made = run(
        "align", *files, "-m", tiny_model, "-o", tmp_path / "links", "--matrices", tmp_path / "npz"
    )
    assert made.out == ""
    assert list(read_lines(tmp_path / "links")) == links
    for found, matrix in zip(load_matrices(tmp_path / "npz"), expected, strict=True):
        np.testing.assert_array_equal(found, matrix)


def test_align_by_threshold(run: Run, tiny_model: Path, tiny_text: Path) -> None:
    files = (tiny_text / "test.src", tiny_text / "test.tgt")
    options = ("--model", tiny_model, "--link-method", "threshold", "--threshold")
    every = run("align", *files, *options, 0, "--tokenized").out.splitlines()
    lengths = [len(s.split()) * len(t.split()) for s, t in read_parallel_lines(*files)]
    assert [len(line.split()) for line in every] == lengths
    assert run("align", *files, *options, 1.1).out == "\n" * 20


def test_links_are_printed_as_they_are_found(
    run: Run, tiny_model: Path, tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long text is not held in memory: what lies before a bad line is out when it is met."""
    monkeypatch.setattr(forced_decoding, "BATCH_SIZE", 1)
    monkeypatch.setattr(align, "WINDOW_PAIRS", 2)
    *lines, _ = read_lines(tiny_text / "test.tgt")
    write_lines(tmp_path / "gap", [*lines, ""])
    files = (tiny_text / "test.src", tmp_path / "gap")
    done = run("align", *files, "--model", tiny_model, code=2)
    assert len(done.out.splitlines()) == len(lines) - 1  # the last window has one more
    assert "one side is empty" in done.err


def test_check(run: Run, tiny_model: Path, tiny_text: Path, tmp_path: Path) -> None:
    files = tiny_text / "test.src", tiny_text / "test.tgt"
    pairs, model = list(CheckInput(*files).pairs()), Model.load(tiny_model)
    texts = [(pair.source, pair.target) for pair in pairs]
    highest = [max(each.probabilities.values()) for each in model.check(texts, words=True)]
    limit = sorted(highest)[len(pairs) // 2]  # the tiny model is sure of nothing
    options = ["check", *files, "-m", tiny_model, "--words", "--min-probability", limit]
    expected = model.check(texts, limit, words=True)
    assert 0 < sum(bool(each.omissions) for each in expected) < len(expected)
    done = run(*options)
    checked = [CheckedPair(*row) for row in zip(pairs, expected, strict=True)]
    assert done.out.splitlines() == list(format_pairs(checked, as_json=False))
    marked = sum(bool(each.omissions) for each in expected)
    assert f"{len(pairs)} pairs checked, {marked} marked" in done.err
    page = tmp_path / "page.html"
    run(*options, "--json", "-o", tmp_path / "json", "--report", page, "--exit-code", code=1)
    rows = [json.loads(line) for line in read_lines(tmp_path / "json")]
    assert [len(row["left_out"]) for row in rows] == [len(each.omissions) for each in expected]
    assert page.read_text("utf-8").count("<article>") == marked


def test_check_finds_nothing_in_pairs_that_are_too_long(
    run: Run, tiny_model: Path, tiny_text: Path
) -> None:
    files = tiny_text / "test.src", tiny_text / "test.tgt"
    options = ("--model", tiny_model, "--max-tokens", 1, "--exit-code")
    few = run("check", *files, *options, code=3)
    assert few.out == ""
    shown = " ".join(few.err.split())
    assert f"{files[0]} and {files[1]}, line 20: " in shown
    assert "0 pairs checked, 0 marked; 20 too long, not checked" in shown
    assert "no word could be judged" in shown


def test_check_counts_the_lines_of_both_files_first(
    run: Run, tiny_model: Path, tiny_text: Path, tmp_path: Path
) -> None:
    write_lines(tmp_path / "short", ["a", "b"])
    done = run("check", tiny_text / "test.src", tmp_path / "short", "-m", tiny_model, code=2)
    assert done.out == ""
    assert "test.src has 20 lines but" in done.err
    assert "short has 2: line n of one" in " ".join(done.err.split())


def test_check_reads_one_file_of_both_sides_and_copies_it_with_notes(
    run: Run, tiny_model: Path, tiny_text: Path, tmp_path: Path
) -> None:
    sides = [list(read_lines(tiny_text / name))[:4] for name in ("test.src", "test.tgt")]
    rows = list(zip(*sides, strict=True))
    write_lines(tmp_path / "pairs.tsv", ["\t".join(row) for row in rows])
    unit = '<trans-unit id="u{}"><source>{}</source><target>{}</target></trans-unit>'
    units = [unit.format(number, *row) for number, row in enumerate(rows, 1)]
    units.append('<trans-unit id="u5"><source>new</source></trans-unit>')
    write_lines(tmp_path / "pairs.xlf", ['<xliff version="1.2">', *units, "</xliff>"])
    for name, side in zip(("s", "t"), sides, strict=True):
        write_lines(tmp_path / name, side)
    options = ("-m", tiny_model, "--words", "--min-probability", 0.01)
    expected = run("check", tmp_path / "s", tmp_path / "t", *options).out
    assert expected
    assert run("check", tmp_path / "pairs.tsv", *options).out == expected
    copy = tmp_path / "copy.xlf"
    done = run("check", tmp_path / "pairs.xlf", *options, "--annotated", copy)
    assert done.out == re.sub("^", "u", expected, flags=re.MULTILINE).removesuffix("u")
    assert "1 not translated yet, not checked" in " ".join(done.err.split())
    notes = re.findall(r'<note from="covnmt">(.*?)</note>', copy.read_text("utf-8"))
    assert len(notes) == len(expected.splitlines())
    assert notes[0].split()[0] == "OMISSION"
    for wrong in (
        ("pairs.tsv", "--annotated", copy),
        ("s",),
        ("s", tmp_path / "t", "--format", "po"),
        ("pairs.xlf", "--format", "tmx"),
    ):
        run("check", tmp_path / wrong[0], *wrong[1:], *options, code=2)


def test_tune(run: Run, tiny_model: Path, tiny_text: Path, tmp_path: Path) -> None:
    """What is kept is what `translate` does from then on."""
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    files = tiny_text / "test.src", tiny_text / "test.tgt"
    tried = ("--length-penalty", 1, "--length-penalty", 0.5, "--beam", 4, "--tokenize", "char")
    shown = run("tune", *files, "--model", model, *tried)
    head, *rows = [line.split("\t") for line in shown.out.splitlines()]
    assert head == ["length penalty", "coverage penalty", "BLEU", "length", ""]
    assert [row[:2] for row in rows] == [["0.5", "0"], ["1", "0"]]
    [best] = [row[0] for row in rows if row[-1] == "best"]
    assert f"covnmt translate --length-penalty {best}" in shown.err
    assert Model.load(model).decode == Model.load(tiny_model).decode
    told = json.loads(run("tune", *files, "-m", model, *tried, "--json", "--write").out)
    assert [f"{each['bleu']:.2f}" for each in told["trials"]] == [row[2] for row in rows]
    assert told["best"]["length_penalty"] == float(best)
    kept = run("translate", files[0], "--model", model).out
    given = ("--beam", 4, "--length-penalty", best)
    assert kept == run("translate", files[0], "--model", tiny_model, *given).out


def test_tune_an_ensemble(run: Run, tiny_model: Path, tiny_text: Path) -> None:
    files = tiny_text / "test.src", tiny_text / "test.tgt"
    command = ("tune", *files, "--tokenize", "char", "--model", tiny_model)
    assert run(*command, "--model", tiny_model).out == run(*command).out


def test_output_is_utf8_in_any_locale() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "covnmt",
            "recipe",
            "show",
            "demo/gru10",
            "data.directory=données",
            "--json",
        ],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout.decode("utf-8"))["data"]["directory"] == "données"
