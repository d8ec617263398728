"""The commands that judge translations: what they print, and what they write."""

import json
from pathlib import Path

import pytest

from covnmt import __version__
from covnmt.base.files import read_lines, write_lines
from covnmt.inference.model import Model
from tests.conftest import Run, RunCli


def test_tables_in_a_pipe(run_cli: RunCli, source: Path) -> None:
    """Signatures and names are as they are, and whole: neither brackets nor colons are markup."""
    name = f"[/red] :smile: {'a long name ' * 9}"
    shown = run_cli("evaluate", source, "-r", source, "--no-ter").stdout
    assert f"|len:shortest|version:covnmt-{__version__}" in shown
    compared = run_cli("compare", f"{name}={source}", f"b={source}", "-r", source, "--no-ter")
    assert compared.returncode == 0, compared.stderr
    assert compared.stdout.count(name.strip()) == 3  # in both tables, and under one


def test_figures_alone(run: Run, source: Path) -> None:
    """A dash prints nothing but JSON, for other programs."""
    shown = run("evaluate", source, "-r", source, "--no-ter", "--json").out
    assert json.loads(shown)["sentences"] == 20


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_translations_are_evaluated_from_a_pipe(
    run: Run, tiny_model: Path, source: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    made, score = tmp_path / "made", ("--reference", source, "--json")
    piped = run("translate", source, "--model", tiny_model, *options).out
    made.write_text(piped)
    assert run("evaluate", "-", *score, stdin=piped).out == run("evaluate", made, *score).out
    run("compare", "a=-", f"b={made}", *score, stdin=piped)


def test_report_counts_as_compare_does(run: Run, source: Path, tmp_path: Path) -> None:
    """Also where words stand without spaces, and TER is not waited for."""
    lines = [line.replace(" ", "") for line in read_lines(source)]
    text, other = tmp_path / "text", tmp_path / "other"
    write_lines(text, lines)
    write_lines(other, [f"{line}ro" for line in lines])
    given = (f"a={text}", f"b={other}", "-r", text, "-s", source, "--tokenize", "char", "--no-ter")
    run("report", tmp_path / "report", *given, "--maps", 0)
    figures = json.loads((tmp_path / "report" / "scores.json").read_text("utf-8"))
    assert figures == json.loads(run("compare", *given, "--json").out)
    names = {score["name"]: score["signature"] for score in figures["systems"]["b"]["translation"]}
    assert "tok:char" in names["BLEU (paper)"]
    assert "TER" not in names


def test_sheets_know_the_words_of_text_without_spaces(run: Run, tmp_path: Path) -> None:
    """They are those of the system, though an empty line has none."""
    rows = [
        {"text": "a temple", "source_tokens": ["寺", "です"]},
        {"text": "", "source_tokens": []},
    ]
    write_lines(tmp_path / "source", ["寺です", ""])
    write_lines(tmp_path / "out.jsonl", map(json.dumps, rows))
    given = ("-s", tmp_path / "source", "-n", 1)
    run("rate", "make", tmp_path / "sheets", tmp_path / "out.jsonl", *given)
    assert "1:寺 2:です" in (tmp_path / "sheets" / "ratings.csv").read_text("utf-8")


def test_score_prints_the_log_probability_of_each_pair(
    run: Run, tiny_model: Path, tiny_text: Path
) -> None:
    files = tiny_text / "test.src", tiny_text / "test.tgt"
    pairs = list(zip(*map(read_lines, files), strict=True))
    expected = Model.load(tiny_model).align(pairs)
    shown = run("score", *files, "-m", tiny_model)
    assert [float(line) for line in shown.out.splitlines()] == pytest.approx(
        [pair.log_prob for pair in expected], abs=1e-3
    )
    per_token = run("score", *files, "-m", tiny_model, "--per-token").out.splitlines()
    first = expected[0]
    mean = first.log_prob / (len(first.target_tokens) + 1)
    assert float(per_token[0]) == pytest.approx(mean, abs=1e-3)
    assert "perplexity per token" in shown.err


@pytest.mark.parametrize("option", ["--quiet", "-q"])
def test_quiet_prints_results_and_errors_only(
    option: str, run: Run, tiny_model: Path, tiny_text: Path
) -> None:
    files = tiny_text / "test.src", tiny_text / "test.tgt"
    quiet = run("score", *files, "-m", tiny_model, option)
    assert len(quiet.out.splitlines()) == 20
    assert quiet.err == ""
    assert run(option, "score", *files, "-m", tiny_model) == quiet
    assert "no such file" in run("score", "nowhere", files[1], "-m", tiny_model, option, code=2).err
    assert run("score", *files, "-m", tiny_model).err  # only that one command is quiet
