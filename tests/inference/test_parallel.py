"""Many files: their translations, and resuming after failures; one file in several processes."""

import gzip
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from covnmt.base import processes
from covnmt.base.config import DecodeConfig
from covnmt.base.errors import UserError
from covnmt.base.files import atomic_write, read_lines, write_json
from covnmt.base.processes import WorkerRank
from covnmt.decoding.onnx.export import export_model
from covnmt.inference import parallel as module
from covnmt.inference.model import Model, ModelLoader
from covnmt.inference.parallel import (
    SETTINGS_FILE,
    TranslationJob,
    plan_shards,
    translate_files,
    translate_input,
)
from covnmt.text.codec import copy_codecs
from tests.conftest import RunCli


@pytest.fixture(scope="module")
def shards(tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six files: one is empty, one has empty lines, one is compressed."""
    directory = tmp_path_factory.mktemp("shards")
    lines = (tiny_text / "train.src").read_text("utf-8").splitlines()
    for number in range(4):
        part = lines[30 * number : 30 * number + 20 + number]
        (directory / f"{number}.txt").write_text("".join(f"{line}\n" for line in part), "utf-8")
    (directory / "4.txt").write_text("")
    with gzip.open(directory / "5.txt.gz", "wt") as stream:
        stream.write("\n".join(["", lines[0], "", "", lines[1]]) + "\n")
    (directory / ".hidden").write_text("not one of them\n")
    return directory


@pytest.fixture(scope="module")
def job(tiny_model: Path) -> TranslationJob:
    loader = ModelLoader.find([tiny_model], device="cpu", threads=1)
    return TranslationJob(loader, loader.decode.model_copy(update={"beam": 2}))


@pytest.fixture(scope="module")
def expected(job: TranslationJob, shards: Path) -> dict[str, list[str]]:
    """Translate each file by itself in this process."""
    translator = job.loader.load()
    texts = {path.name: path.read_text("utf-8") for path in shards.glob("?.txt")}
    texts["5.txt"] = gzip.decompress((shards / "5.txt.gz").read_bytes()).decode()
    return {
        name: [done.text for done in translator.translate(text.splitlines(), job.decode)]
        for name, text in texts.items()
    }


def test_every_worker_gets_a_gpu_and_its_share_of_threads(
    job: TranslationJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, int]] = []

    def load(loader: ModelLoader) -> None:
        opened.append((loader.device, loader.threads))

    monkeypatch.setattr(ModelLoader, "load", load)
    monkeypatch.setattr(module, "count_gpus", lambda loader: 2)
    for number in range(3):
        monkeypatch.setattr(processes, "_worker_rank", WorkerRank(number, 3))
        module.open_in_worker.__wrapped__(replace(job.loader, threads=7))
    assert opened == [("cuda:0", 2), ("cuda:1", 2), ("cuda:0", 2)]


def results(directory: Path) -> dict[str, list[str]]:
    """Return the lines of every file that is not hidden."""
    return {
        path.name: path.read_text("utf-8").split("\n")[:-1]
        for path in sorted(directory.iterdir())
        if not path.name.startswith(".")
    }


def test_shards_are_translated_line_by_line_in_order(
    job: TranslationJob, shards: Path, expected: dict[str, list[str]], tmp_path: Path
) -> None:
    done = translate_files(job, [shards], tmp_path, 1)
    assert results(tmp_path) == expected
    lines = sum(map(len, expected.values()))
    assert (done.files, done.lines, done.skipped) == (6, lines, 0)


def test_finished_shards_are_not_translated_again(
    job: TranslationJob, shards: Path, expected: dict[str, list[str]], tmp_path: Path
) -> None:
    translate_files(job, [shards / "0.txt", shards / "5.txt.gz"], tmp_path, 1)
    (tmp_path / "0.txt").write_text("mine\n")
    done = translate_files(job, [shards], tmp_path, 1)
    assert (done.files, done.skipped) == (4, 2)
    assert str(done).endswith("4 files, 66 lines; 2 were there already")
    assert results(tmp_path) == expected | {"0.txt": ["mine"]}


def test_an_output_directory_of_other_settings_is_refused(
    job: TranslationJob, shards: Path, tmp_path: Path
) -> None:
    translate_files(job, [shards / "4.txt"], tmp_path, 1)
    other = replace(job, overlong="split")
    with pytest.raises(UserError, match=r"made with other settings \(overlong: 'cut' before"):
        translate_files(other, [shards], tmp_path, 1)
    (tmp_path / SETTINGS_FILE).write_text("[]")
    with pytest.raises(UserError, match="other settings"):
        translate_files(job, [shards], tmp_path, 1)


def test_settings_of_a_call_without_results_are_replaced(
    job: TranslationJob, shards: Path, tmp_path: Path
) -> None:
    stopped = replace(job, overlong="split")
    write_json(tmp_path / SETTINGS_FILE, stopped.identity())
    (tmp_path / ".0.txt.half.tmp").write_text("what it had begun")
    assert translate_files(job, [shards / "5.txt.gz"], tmp_path, 1).files == 1
    with pytest.raises(UserError, match=r"other settings \(overlong\b"):
        translate_files(stopped, [shards], tmp_path, 1)


def test_temporary_files_of_killed_workers_are_removed_at_the_end(
    job: TranslationJob, shards: Path, tmp_path: Path
) -> None:
    for name in (".0.txt.1a2b.tmp", ".5.txt.covnmt.tmp", ".mine.tmp"):
        (tmp_path / name).write_text("half a line")
    with atomic_write(tmp_path / "4.txt") as stream:  # another process is at work on it
        translate_files(job, [shards / "0.txt", shards / "5.txt.gz"], tmp_path, 1)
        assert {path.name for path in tmp_path.glob(".*.tmp")} == {
            ".4.txt.covnmt.tmp",
            ".mine.tmp",
        }
        stream.write(b"its result")
    assert (tmp_path / "4.txt").read_bytes() == b"its result"


@pytest.mark.parametrize(
    "name", ["model.safetensors", "step.onnx", "shortlist.json", "source.vocab", "dictionary"]
)
def test_identity_changes_with_weights_vocabularies_and_dictionary(
    name: str, tiny_model: Path, tmp_path: Path
) -> None:
    copy_codecs(tiny_model, tmp_path)
    (tmp_path / "dictionary").write_text("a\tb\n")
    loader = ModelLoader((tmp_path,), (), dictionary=tmp_path / "dictionary")
    job = TranslationJob(loader, DecodeConfig())
    known = []
    for content in ("one", "another"):
        (tmp_path / name).write_text(content)
        known.append(job.identity())
    assert known[0] != known[1]


def test_nbest_of_shards_requires_json(job: TranslationJob, shards: Path, tmp_path: Path) -> None:
    several = replace(job, decode=job.decode.model_copy(update={"nbest": 2}))
    with pytest.raises(UserError, match="with --nbest add --json"):
        translate_files(several, [shards], tmp_path, 1)
    as_json = replace(several, as_json=True)
    assert translate_files(as_json, [shards / "5.txt.gz"], tmp_path, 1).lines == 5
    assert len(results(tmp_path)["5.txt"]) == 5


def test_shards_keep_their_file_names(tmp_path: Path) -> None:
    inputs, other, out = tmp_path / "in", tmp_path / "other", tmp_path / "out"
    for path in (inputs / "a", inputs / "b.xz", other / "c", other / "a"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    found = plan_shards([inputs, other / "c"], out)
    assert [(shard.source.name, shard.target) for shard in found] == [
        ("a", out / "a"),
        ("b.xz", out / "b"),
        ("c", out / "c"),
    ]
    with pytest.raises(UserError, match="would both go to"):
        plan_shards([inputs, other], out)
    with pytest.raises(UserError, match="would replace it"):
        plan_shards([other], other)
    with pytest.raises(UserError, match="no such file or directory"):
        plan_shards([tmp_path / "none"], out)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no files"):
        plan_shards([tmp_path / "empty"], out)


def test_translate_command_with_shards(
    shards: Path, expected: dict[str, list[str]], tiny_model: Path, tmp_path: Path, run_cli: RunCli
) -> None:
    words = (
        "translate",
        "--model",
        tiny_model,
        "--beam",
        2,
        "--device",
        "cpu",
        "--output-dir",
        tmp_path,
    )
    incomplete = run_cli(*words)
    assert incomplete.returncode == 2
    assert "give both" in incomplete.stderr
    done = run_cli(*words, "--shards", shards / "0.txt", "--shards", shards / "1.txt")
    assert done.returncode == 0, done.stderr
    assert "2 files, 41 lines" in done.stderr
    assert results(tmp_path) == {name: expected[name] for name in ("0.txt", "1.txt")}


KILLED_SCRIPT = """
import os, signal, sys
from pathlib import Path
from covnmt.inference import parallel as shards
plain = shards.translate_shard

def dying(job, shard):
    mark = Path(sys.argv[3]) / shard.source.name
    if shard.source.name == "2.txt" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(job, shard)

shards.translate_shard = dying
if __name__ == "__main__":
    model, inputs, _, out = map(Path, sys.argv[1:5])
    loader = shards.ModelLoader.find([model], device="cpu", threads=1)
    job = shards.TranslationJob(loader, loader.decode.model_copy(update={"beam": 2}))
    print(shards.translate_files(job, [inputs], out, int(sys.argv[5])))
"""


def translate_and_kill(
    job: TranslationJob, shards: Path, here: Path, workers: int
) -> subprocess.CompletedProcess[str]:
    """Translate into `out` with workers of which the first to open 2.txt is killed."""
    (here / "script.py").write_text(KILLED_SCRIPT)
    (here / "marks").mkdir()
    paths = [here / "script.py", job.loader.directories[0], shards, here / "marks", here / "out"]
    command = [sys.executable, *map(str, paths), str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (here / "marks" / "2.txt").exists()
    return done


@pytest.mark.slow
def test_shards_of_a_killed_worker_are_translated_by_another(
    job: TranslationJob, shards: Path, expected: dict[str, list[str]], tmp_path: Path
) -> None:
    done = translate_and_kill(job, shards, tmp_path, workers=2)
    assert done.returncode == 0, done.stderr
    assert "6 files, 91 lines" in done.stdout
    assert results(tmp_path / "out") == expected


@pytest.mark.slow
def test_translation_of_shards_resumes_after_a_kill(
    job: TranslationJob,
    shards: Path,
    expected: dict[str, list[str]],
    tmp_path: Path,
    run_cli: RunCli,
) -> None:
    assert translate_and_kill(job, shards, tmp_path, workers=1).returncode == -signal.SIGKILL
    out = tmp_path / "out"
    assert results(out) == {"3.txt": expected["3.txt"]}  # the largest comes first
    words = (
        "translate",
        "--model",
        job.loader.directories[0],
        "--beam",
        2,
        "--device",
        "cpu",
        "--workers",
        1,
        "--no-split-sentences",
    )
    done = run_cli(*words, "--shards", shards, "--output-dir", out)
    assert "5 files, 68 lines; 1 were there already" in done.stderr
    assert results(out) == expected


@pytest.fixture(scope="module")
def exported(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("onnx")
    export_model(tiny_model, directory, "fp32")
    return directory


def text_job(model: Path, **changes: int) -> TranslationJob:
    loader = ModelLoader.find([model])
    update = {"beam": 2, "batch_size": 3} | changes
    return TranslationJob(loader, loader.decode.model_copy(update=update))


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_file_is_translated_in_order_by_several_processes(
    workers: int, exported: Path, tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_BATCHES", 2)
    monkeypatch.setattr("covnmt.inference.parallel.available_cpus", lambda: 2)
    lines = ["", *read_lines(tiny_text / "test.src")]
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    job = text_job(exported)
    found = list(translate_input(job, tmp_path / "text", workers))
    wanted = Model.load(exported).translate(lines, job.decode)
    assert [t.source for t in found] == lines
    assert [t.tokens for t in found] == [t.tokens for t in wanted]


def test_every_call_opens_the_model_anew(exported: Path, tiny_text: Path, tmp_path: Path) -> None:
    """It may have been trained further, or replaced, in the same directory."""
    model, text = tmp_path / "model", tiny_text / "test.src"
    shutil.copytree(exported, model)
    job = text_job(model)
    assert len(list(translate_input(job, text, 1))) == 20
    translate_files(job, [text], tmp_path / "before", 1)
    next(model.glob("*.onnx")).unlink()
    with pytest.raises(UserError, match="model"):
        translate_files(job, [text], tmp_path / "after", 1)
    with pytest.raises(UserError, match="model"):
        list(translate_input(job, text, 1))


def test_an_empty_file_has_no_translations(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "text").touch()
    assert list(translate_input(text_job(exported), tmp_path / "text", 2)) == []


def test_standard_input_is_translated_in_one_process(
    exported: Path, tiny_text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covnmt.base.processes._start_executor", None)
    with (tiny_text / "test.src").open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert len(list(translate_input(text_job(exported), Path("-"), 0))) == 20


def test_warnings_of_workers_give_line_numbers_of_the_file(
    exported: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(module, "CHUNK_BATCHES", 1)
    (tmp_path / "text").write_text("\na b\na b\na b\na b c d e\n")
    list(translate_input(text_job(exported, batch_size=2, max_source=4), tmp_path / "text", 2))
    assert "line 5: 5 tokens" in capfd.readouterr().err


def test_an_error_in_a_worker_is_raised_in_the_parent(
    exported: Path, tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_BATCHES", 1)
    job = text_job(exported)
    job = replace(job, loader=replace(job.loader, dictionary=tmp_path / "none.tsv"))
    with pytest.raises(UserError, match=r"none\.tsv: no such file"):
        list(translate_input(job, tiny_text / "test.src", 2))
