"""Several processes translate what one would, in the same order."""

from pathlib import Path

import pytest

from covnmt import workers
from covnmt.config import DecodeConfig
from covnmt.errors import UserError
from covnmt.export import export_model
from covnmt.files import read_lines
from covnmt.translate import Translator
from covnmt.workers import Work, translate_in_processes


@pytest.fixture(scope="module")
def exported(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("onnx")
    export_model(tiny_model, directory, "fp32")
    return directory


@pytest.fixture
def lines(tiny_text: Path) -> list[str]:
    return ["", *read_lines(tiny_text / "test.src")]


@pytest.mark.parametrize("processes", [1, 2])
def test_same_as_one(
    processes: int, exported: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "BATCHES", 2)
    decode = DecodeConfig(beam=3, batch_size=3)
    work = Work((exported,), None, decode, "cut")
    found = list(translate_in_processes(work, lines, processes))
    wanted = Translator.load(exported).translate(lines, decode)
    assert [t.source for t in found] == lines
    assert [t.tokens for t in found] == [t.tokens for t in wanted]


def test_warnings_count_the_lines_of_the_file(
    exported: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(workers, "BATCHES", 1)
    short = ["", "a b", "a b", "a b c d e"]
    work = Work((exported,), None, DecodeConfig(beam=1, batch_size=2, max_source=4), "cut")
    list(translate_in_processes(work, short, 1))
    assert "line 4: 5 tokens" in capfd.readouterr().err


def test_trouble_in_a_process_is_told(
    exported: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(workers, "BATCHES", 1)
    work = Work((exported,), tmp_path / "none.tsv", DecodeConfig(batch_size=2), "cut")
    with pytest.raises(UserError, match=r"none\.tsv: no such file"):
        list(translate_in_processes(work, lines, 1))


def test_nothing_in_nothing_out(exported: Path) -> None:
    assert list(translate_in_processes(Work((exported,), None, DecodeConfig(), "cut"), [], 2)) == []
