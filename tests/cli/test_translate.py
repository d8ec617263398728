"""`covnmt translate` with documents and terms."""

from pathlib import Path

from covnmt.base.files import write_lines
from tests.conftest import Run

HTML = "<!DOCTYPE html>\n<p>{0}<br>{1}</p><script>a < b</script>\n"


def test_a_document_keeps_its_markup(
    run: Run, tiny_model: Path, lines: list[str], tmp_path: Path
) -> None:
    source, target = tmp_path / "page.html", tmp_path / "out.html"
    source.write_text(HTML.format(*lines))
    run("translate", source, "-m", tiny_model, "--format", "html", "-o", target)
    expected = run("translate", "-m", tiny_model, stdin="\n".join(lines[:2])).out.splitlines()
    assert target.read_text() == HTML.format(*expected)


def test_terms_are_in_every_line_and_lost_ones_are_reported(
    run: Run, tiny_model: Path, lines: list[str], tmp_path: Path
) -> None:
    first, second = lines[0].split()[:2]
    write_lines(tmp_path / "terms", [f"{first}\tMY TERM", "", second])
    text = f"{lines[0]}\n\n{lines[1]}\n"
    printed = run("translate", "-m", tiny_model, "--terms", tmp_path / "terms", stdin=text)
    translated = printed.out.split("\n")
    assert [bool(line) for line in translated] == [True, False, True, False]
    assert "MY TERM" in translated[0]
    assert second in translated[0].split()
    # a model of words has no numbers for placeholders
    assert f"{first}: MY TERM was not in the translation" in printed.err


def test_bad_terms_and_options_that_exclude_each_other_are_refused(
    run: Run, tiny_model: Path, tmp_path: Path
) -> None:
    write_lines(tmp_path / "terms", ["one\tein", "two\tzwei\tdrei"])
    command = ("translate", "-m", tiny_model, "--terms", tmp_path / "terms")
    assert "terms, line 2: write a term, a tab" in run(*command, code=2).err
    write_lines(tmp_path / "terms", ["one\tein", "one\tuno"])
    assert "terms, line 2: one has another" in run(*command, code=2).err
    assert "--nbest" in run(*command, "--nbest", "2", code=2).err
    other = run("translate", "-m", tiny_model, "--format", "html", "--json", code=2)
    assert "--json" in other.err


def test_a_text_in_quotes_is_translated(run: Run, tiny_model: Path, lines: list[str]) -> None:
    expected = run("translate", "-m", tiny_model, stdin=lines[0]).out
    assert run("translate", lines[0], "-m", tiny_model).out == expected
    assert run("translate", "名前", "-m", tiny_model).out.count("\n") == 1
    marked = run("translate", f"<p>{lines[0]}</p>", "-m", tiny_model, "--format", "html").out
    assert marked == f"<p>{expected.strip()}</p>\n"


def test_a_long_path_is_a_file_and_a_long_text_is_none(
    run: Run, tiny_model: Path, lines: list[str], tmp_path: Path
) -> None:
    directory = tmp_path.joinpath(*["d" * 200] * 3)
    directory.mkdir(parents=True)
    write_lines(directory / "file", lines[:1])
    expected = run("translate", "-m", tiny_model, stdin=lines[0]).out
    assert run("translate", directory / "file", "-m", tiny_model).out == expected
    text = "a b " * 2000
    assert run("translate", text, "-m", tiny_model, "-q").out.count("\n") == 1


def test_a_missing_file_is_no_text(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    for name in ("missing", "名前.txt", tmp_path / "名前"):
        message = run("translate", name, "-m", tiny_model, code=2).err
        assert f"{name}: no such file" in message.replace("\n", "")


def test_verbose_names_the_model_and_the_time(run: Run, tiny_model: Path, lines: list[str]) -> None:
    printed = run("translate", lines[0], "-m", tiny_model, "--verbose")
    assert str(tiny_model) in printed.err.replace("\n", "")
    assert " s] done" in printed.err
    assert run("translate", lines[0], "-m", tiny_model).err == ""
