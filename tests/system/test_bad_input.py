"""Bad input to every command: exit code 2, a message that says where and what to do, nothing lost.

Each case begins in a directory of its own with good text (`s` and `t`, 20 lines), a trained model
(`model`) and the data it was trained on (`data`), does some damage, and gives one command. All run
through `covnmt.cli.main` here; some again in processes of their own, as a person would.
"""

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from covnmt import cli
from covnmt.checkpoint import save_tensors
from covnmt.config import Config, flatten
from covnmt.directory import find_model
from covnmt.text.codec import fingerprint
from covnmt.text.corpus import Corpus
from covnmt.text.prepare import prepare
from tests.conftest import RunCli

Damage = Callable[[Path], object]


def put(name: str, content: str | bytes) -> Damage:
    """Write a file."""
    data = content.encode() if isinstance(content, str) else content
    return lambda desk: (desk / name).write_bytes(data)


def change(name: str, edit: Callable[[bytes], bytes]) -> Damage:
    """Change a file."""
    return lambda desk: (desk / name).write_bytes(edit((desk / name).read_bytes()))


def remove(name: str) -> Damage:
    """Delete a file."""
    return lambda desk: (desk / name).unlink()


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def without_last_line(content: bytes) -> bytes:
    return b"".join(content.splitlines(keepends=True)[:-1])


def backwards(content: bytes) -> bytes:
    return b"".join(content.splitlines(keepends=True)[::-1])


def set_key(key: str, value: object) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps({**json.loads(content), key: value}).encode()


def other_weights(desk: Path) -> None:
    save_tensors(desk / "model" / "model.safetensors", {"foreign": torch.zeros(3)}, {})


def other_data(desk: Path) -> None:
    """The same text prepared in another way, under the name of the old data."""
    settings = Corpus.open(desk / "data").report.settings
    prepare(settings.model_copy(update={"seed": 5}), desk / "data", overwrite=True)


def data_without_dev(desk: Path) -> None:
    settings = Corpus.open(desk / "data").report.settings
    prepare(settings.model_copy(update={"dev": None}), desk / "data", overwrite=True)


def other_vocabulary(desk: Path) -> None:
    shutil.copytree(desk / "model", desk / "other")
    change("other/target.vocab", backwards)(desk)
    change("other/config.json", set_key("fingerprint", fingerprint(desk / "other")))(desk)


def exported_model(desk: Path) -> None:
    shutil.copytree(find_model("ja-en"), desk / "exported")


def nothing(desk: Path) -> None:
    pass


@dataclass(frozen=True)
class Case:
    """A command that cannot work, and what it should say."""

    command: str
    says: tuple[str, ...]
    damage: Damage = nothing
    stdin: bytes = b"x\n"
    alone: bool = False  # again in a process of its own


TRAIN = "train demo/gru10 --run new data.directory=data"
TRANSLATE = "translate s --model model"
TUNE = "tune s t --model model"
ALIGN = "align s t --model model"
PREPARE = "prepare new --train"
CUT_OFF = gzip.compress(b"a b c\n" * 20)[:-4]

CASES = {
    # prepare
    "files of different lengths": Case(
        f"{PREPARE} s short",
        ("short ends after line 2 but s goes on", "the same number of lines"),
        put("short", "x\ny\n"),
        alone=True,
    ),
    "the source is the shorter": Case(
        f"{PREPARE} short t", ("short ends after line 2 but t goes on",), put("short", "x\ny\n")
    ),
    "dev files of different lengths": Case(
        f"{PREPARE} s t --dev s short", ("short ends after line 1",), put("short", "x\n")
    ),
    "training text is not UTF-8": Case(
        f"{PREPARE} latin t",
        ("latin, line 3: not UTF-8", "convert the file first", "iconv"),
        put("latin", b"a\nb\nna\xefve\n" + b"c\n" * 17),
    ),
    "training text is UTF-16": Case(
        f"{PREPARE} wide t", ("wide, line 1: not UTF-8",), put("wide", "a\nb\n".encode("utf-16"))
    ),
    "training text is empty": Case(
        f"{PREPARE} empty empty",
        ("empty and empty are empty", "a sentence on each line"),
        put("empty", ""),
    ),
    "training text is nothing but blank lines": Case(
        f"{PREPARE} blank blank", ("no training pair is left", "empty"), put("blank", "\n \n\n")
    ),
    "training text is missing": Case(f"{PREPARE} s nowhere", ("nowhere: ", "No such file")),
    "training text is a directory": Case(f"{PREPARE} model t", ("model: ", "Is a directory")),
    "training text is a truncated .gz": Case(
        f"{PREPARE} s.gz t", ("s.gz", "cannot be read"), put("s.gz", CUT_OFF), alone=True
    ),
    "training text is no .gz at all": Case(
        f"{PREPARE} s.gz t", ("s.gz", "cannot be read"), put("s.gz", "plain\n")
    ),
    "training text is a truncated .xz": Case(
        f"{PREPARE} s.xz t", ("s.xz", "cannot be read"), put("s.xz", b"\xfd7zXZ\x00\x00")
    ),
    "no sentence is short enough": Case(
        f"{PREPARE} s t --max-length 1", ("no training pair is left", "20 too long", "max_length")
    ),
    "more source than target files": Case(
        f"{PREPARE} s,s t", ("--train: 2 source files but 1 target files",)
    ),
    "a comma too many": Case(f"{PREPARE} s, t,", ("--train: a file name is missing",)),
    "a pipe, though the text is read twice": Case(
        f"{PREPARE} pipe t",
        ("pipe: a pipe, which can be read only once", "write it to a file"),
        lambda desk: os.mkfifo(desk / "pipe"),
    ),
    "plain text of a language not told": Case(
        f"{PREPARE} s t --plain --source-language ja", ("--plain needs both", "--target-language")
    ),
    "plain text in words": Case(
        f"{PREPARE} s t --plain --source-language ja --target-language en --source-tokenizer jieba",
        ("--plain makes subwords",),
    ),
    "a vocabulary too small": Case(f"{PREPARE} s t --source-vocab 2", ("--source-vocab",)),
    "a language that is no code": Case(
        f"{PREPARE} s t --source-language english", ("language: ", "not 'english'")
    ),
    "data made with other settings": Case(
        "prepare data --train s t --max-length 70",
        ("data: already holds a corpus", "max_length", "directory, or say --overwrite"),
    ),
    "prepare into a file": Case("prepare s --train s t", ("s: cannot be written",)),
    "prepare over the text that is read": Case(
        "prepare data --train s t --dev data/dev.target.txt data/dev.source.txt --overwrite",
        ("data/dev.source.txt: the output would replace what is read",),
    ),
    "export a model into itself": Case(
        "export model --output model",
        ("model: holds a model that would never be read again", "choose another directory"),
        remove("model/last.safetensors"),
    ),
    "prepare into a model": Case(
        "prepare model --train s t --overwrite",
        ("model: holds a model, with its vocabularies", "another directory"),
    ),
    "prepare into text that was fetched": Case(
        "prepare . --train s t",
        (".: holds text that `covnmt corpus get` brought", "needs another directory"),
        put("corpus.json", '{"corpus": "kftt"}'),
    ),
    "subwords of nothing but blank lines": Case(
        f"{PREPARE} blank blank --source-tokenizer sentencepiece",
        ("size 30000 can be made of empty lines",),
        put("blank", "\n \n\n"),
    ),
    # recipes and train
    "an unknown key": Case(
        "train r.toml",
        ("r.toml, line 2: unknown key model.hiden", "did you mean model.hidden?"),
        put("r.toml", "[model]\nhiden = 64\n"),
        alone=True,
    ),
    "an unknown group": Case(
        "recipe show r.toml", ("r.toml", "unknown key modle"), put("r.toml", "[modle]\nhidden=2\n")
    ),
    "an impossible value": Case(
        "recipe show r.toml",
        ("r.toml", "hidden = 7 must be even"),
        put("r.toml", "[model]\nhidden = 7\n"),
    ),
    "a value of the wrong kind": Case(
        "recipe show r.toml",
        ("r.toml, line 3: train.updates: ", "not 'many'"),
        put("r.toml", "# mine\n[train]\nupdates = 'many'\n"),
    ),
    "an unknown key on the command line": Case(
        f"{TRAIN} train.sead=2", ("unknown key train.sead; did you mean train.seed?",)
    ),
    "an impossible value on the command line": Case(
        f"{TRAIN} model.coverage.kind=magic", ("model.coverage.kind: ", "not 'magic'")
    ),
    "values that do not go together": Case(
        "recipe show demo/gru10 model.hidden=7", ("gru10.toml model.hidden=7: model: hidden = 7",)
    ),
    "an override without a value": Case(f"{TRAIN} train.seed", ("'train.seed'", "key=value")),
    "a recipe that is no TOML": Case(
        "train r.toml", ("r.toml: not valid TOML", "line 1"), put("r.toml", "model: hidden\n")
    ),
    "a recipe that extends itself": Case(
        "train r.toml", ("r.toml: extends ", "itself"), put("r.toml", "extends = 'r.toml'\n")
    ),
    "a recipe that does not exist": Case(
        "train paper/gru11", ("paper/gru11: no such recipe", "covnmt recipe list")
    ),
    "a recipe that is a directory": Case("train model", ("model: ", "recipe")),
    "a data directory that is none": Case(
        f"{TRAIN[:-4]}model", ("model: holds no prepared corpus", "covnmt prepare"), alone=True
    ),
    "a data directory that does not exist": Case(
        f"{TRAIN[:-4]}nowhere", ("nowhere: holds no prepared corpus", "covnmt prepare")
    ),
    "a report of the data that is damaged": Case(
        TRAIN, ("data/corpus.json: not valid JSON",), change("data/corpus.json", half)
    ),
    "a vocabulary that does not fit the data": Case(
        TRAIN,
        ("data: the vocabularies are not those of its ids", "covnmt prepare"),
        change("data/source.vocab", backwards),
    ),
    "truncated ids": Case(
        TRAIN,
        ("data/train.source.ids: has ", "covnmt prepare"),
        change("data/train.source.ids", half),
    ),
    "truncated offsets": Case(
        TRAIN,
        ("data/train.target.offsets.npy: ", "covnmt prepare"),
        change("data/train.target.offsets.npy", half),
    ),
    "a run with other settings": Case(
        "train demo/gru10 --run model data.directory=data",
        ("model holds a run with other settings", "model.hidden: 12 before, 128 now"),
    ),
    "a run on other data": Case(
        "train {tiny} --run model",
        ("model/last.safetensors: saved while training on other data than data", "name the data"),
        other_data,
    ),
    "a truncated save": Case(
        "train {tiny} --run model",
        ("model/last.safetensors: damaged",),
        change("model/last.safetensors", half),
    ),
    "data without a dev set": Case(
        f"{TRAIN} train.updates=1", ("data: was prepared without dev files",), data_without_dev
    ),
    "train into a file": Case(
        "train demo/gru10 --run s data.directory=data",
        ("s: cannot be written (File exists); choose another directory",),
    ),
    "train into a model that is no run": Case(
        "train {tiny} --run model",
        ("model: holds a model without last.safetensors", "choose another directory"),
        remove("model/last.safetensors"),
    ),
    "train into an exported model": Case(
        "train {tiny} --run exported",
        ("exported: holds an exported model", "choose another directory"),
        exported_model,
    ),
    "train on a device there is none of": Case(
        f"{TRAIN} --device gpu", ("'gpu': no such device", "auto, cpu or cuda")
    ),
    "train on a device that covnmt does not know": Case(
        f"{TRAIN} --device mps", ("'mps': no such device", "auto, cpu or cuda")
    ),
    # translate
    "no model": Case("translate s", ("--model DIR",), alone=True),
    "a model directory that is none": Case(
        "translate s --model data", ("data: not a model directory", "covnmt train"), alone=True
    ),
    "a model directory that does not exist": Case(
        "translate s --model nowhere", ("nowhere: not a model directory",)
    ),
    "a model directory that is a file": Case(
        "translate s --model t", ("t: not a model directory",)
    ),
    "truncated weights": Case(
        TRANSLATE,
        ("model/model.safetensors: damaged", "restore it from a copy"),
        change("model/model.safetensors", half),
        alone=True,
    ),
    "weights of zero bytes": Case(
        TRANSLATE, ("model/model.safetensors: damaged",), put("model/model.safetensors", "")
    ),
    "weights that are text": Case(
        TRANSLATE, ("model/model.safetensors: damaged",), put("model/model.safetensors", "x" * 99)
    ),
    "weights of another model": Case(
        TRANSLATE, ("model/model.safetensors: these weights are of another model",), other_weights
    ),
    "no weights": Case(
        TRANSLATE,
        ("model/model.safetensors: no such file", "covnmt train"),
        remove("model/model.safetensors"),
    ),
    "truncated settings": Case(
        TRANSLATE,
        ("model/config.json: not valid JSON", "restore it from a copy"),
        change("model/config.json", half),
    ),
    "foreign settings": Case(
        TRANSLATE,
        ("model/config.json: not made by `covnmt train`",),
        put("model/config.json", "{}"),
    ),
    "foreign settings of another shape": Case(
        TRANSLATE, ("model/config.json: not made by",), put("model/config.json", "[1, 2]")
    ),
    "settings of the future": Case(
        TRANSLATE,
        ("model/config.json: made by a newer covnmt", "upgrade"),
        change("model/config.json", set_key("format", 99)),
    ),
    "settings with an unknown key": Case(
        TRANSLATE,
        ("model/config.json: unknown key colour",),
        change("model/config.json", set_key("colour", "red")),
    ),
    "settings without vocabulary sizes": Case(
        TRANSLATE, ("model/config.json",), change("model/config.json", set_key("words", {}))
    ),
    "settings with impossible vocabulary sizes": Case(
        TRANSLATE,
        ("model/config.json: damaged: words",),
        change("model/config.json", set_key("words", {"source": -3, "target": 9})),
    ),
    "a vocabulary that does not fit the model": Case(
        TRANSLATE,
        ("model: its vocabularies or tokenizers are not those", "from the data directory"),
        change("model/target.vocab", without_last_line),
        alone=True,
    ),
    "a vocabulary in another order": Case(
        TRANSLATE,
        ("model: its vocabularies or tokenizers are not those",),
        change("model/source.vocab", backwards),
    ),
    "another tokenizer": Case(
        TRANSLATE,
        ("model: its vocabularies or tokenizers are not those",),
        change("model/source.json", set_key("lowercase", True)),
    ),
    "a damaged vocabulary": Case(
        TRANSLATE,
        ("model: its vocabularies or tokenizers are not those",),
        put("model/source.vocab", "a b\n"),
    ),
    "a missing vocabulary": Case(
        TRANSLATE,
        ("model/source.vocab: cannot be read (No such file", "from the data directory"),
        remove("model/source.vocab"),
    ),
    "a missing tokenizer": Case(
        TRANSLATE,
        ("model/target.json: no such file", "from the data directory"),
        remove("model/target.json"),
    ),
    "an ensemble of other vocabularies": Case(
        f"{TRANSLATE} --model other", ("other: other vocabularies than model",), other_vocabulary
    ),
    "input that is not UTF-8": Case(
        "translate --model model",
        ("standard input, line 2: not UTF-8", "iconv"),
        stdin=b"x\n\xff\n",
        alone=True,
    ),
    "an input file that is not UTF-8": Case(
        "translate latin --model model",
        ("latin, line 1: not UTF-8 (byte 1", "iconv"),
        put("latin", b"x\xe9\n"),
    ),
    "input that is missing": Case("translate nowhere --model model", ("nowhere: no such file",)),
    "input that is a directory": Case("translate data --model model", ("data: cannot be read",)),
    "input that is a truncated .gz": Case(
        "translate s.gz --model model --beam 1", ("s.gz, after line ",), put("s.gz", CUT_OFF)
    ),
    "output below a file": Case(f"{TRANSLATE} -o t/out", ("t/out: cannot be written",)),
    "output that is a directory": Case(
        f"{TRANSLATE} -o data", ("--output", "'data' is a directory")
    ),
    "more translations than the beam is wide": Case(
        f"{TRANSLATE} --nbest 5 --beam 2", ("nbest = 5 is more than beam = 2",)
    ),
    "a beam that no machine can hold": Case(
        f"{TRANSLATE} --beam 100000", ("beam: ", "less than or equal to 1000")
    ),
    "penalties of several models to be kept": Case(
        f"{TUNE} --model model --write", ("tune --write takes one model",)
    ),
    "penalties to be kept by a model that comes along": Case(
        "tune s t --model ja-en --write", ("ja-en comes along", "copy", "leave --write out")
    ),
    "penalties for a beam of one": Case(f"{TUNE} --beam 1", ("a beam of 1", "--beam")),
    "a dev set of different lengths": Case(
        "tune s short --model model", ("short ends after line 1",), put("short", "x\n")
    ),
    "an empty dev set": Case(
        "tune none none --model model", ("none and none are empty",), put("none", "")
    ),
    "references of another text": Case(
        "tune s other --model model --write --beam 2",
        ("BLEU is 0 whatever is tried", "is it the translation of the source?"),
        put("other", "no word of it\n" * 20),
    ),
    "a penalty to try that is negative": Case(
        f"{TUNE} --length-penalty -1", ("length_penalty: ", "greater than or equal to 0")
    ),
    "a length penalty beyond all numbers": Case(
        f"{TRANSLATE} --length-penalty 1e308", ("length_penalty: ", "less than or equal to 10")
    ),
    "a coverage penalty beyond all numbers": Case(
        f"{TRANSLATE} --coverage-penalty 1e308", ("coverage_penalty: ", "less than or equal to")
    ),
    "a network wider than any number": Case(
        f"{TRAIN} model.hidden=1000000000000000000000000000", ("model.hidden", "less than or equal")
    ),
    "more batches an update than can be counted": Case(
        f"{TRAIN} train.accumulate=99999999999999999999", ("train.accumulate", "less than or equal")
    ),
    "a Ray cluster without shards": Case(f"{TRANSLATE} --ray auto", ("--ray", "--shards")),
    "a file beside shards": Case(
        f"{TRANSLATE} --shards t --out new", ("--shards and --out take the place of a file",)
    ),
    "a Ray cluster that is not there": Case(
        "translate --model model --shards s --out new --ray localhost:1",
        ("localhost:1: no Ray cluster answers there", "ray start --head"),
    ),
    "a Ray cluster for a single file": Case(
        f"{TRANSLATE} --ray auto", ("--ray is for many files: name them with --shards",)
    ),
    "a beam of 0": Case(f"{TRANSLATE} --beam 0", ("beam: ", "greater than 0")),
    "an option that does not exist": Case(f"{TRANSLATE} --beem 2", ("--beem",)),
    "fewer than no threads": Case(f"{TRANSLATE} --threads -1", ("--threads",)),
    "a dictionary without columns": Case(
        f"{TRANSLATE} --replace-unk --dictionary s", ("s, line 1: ", "a tab")
    ),
    "a dictionary that is not used": Case(
        f"{TRANSLATE} --dictionary d", ("--dictionary", "--replace-unk"), put("d", "a\tb\n")
    ),
    # align, average, info, and the rest
    "align without a model": Case("align s t", ("--model DIR",)),
    "align with several models": Case(f"{ALIGN} --model model", ("align takes one model",)),
    "align files of different lengths": Case(
        "align s short --model model", ("short ends after line 1 but s goes on",), put("short", "x")
    ),
    "check with several models": Case(
        "check s t --model model --model model", ("check takes one model",)
    ),
    "check files of different lengths": Case(
        "check s short --model model", ("short ends after line 1 but s goes on",), put("short", "x")
    ),
    "align an empty line": Case(
        "align s gap --model model",
        ("s and gap, line 2: one side is empty",),
        put("gap", "x\n\n" + "x\n" * 18),
        alone=True,
    ),
    "matrices below a file": Case(f"{ALIGN} --matrices t/m.npz", ("t/m.npz: cannot be written",)),
    "average more than was kept": Case(
        "average model new --last 9", ("model: 2 kept weights, not 9", "train.keep=9")
    ),
    "average into a run": Case(
        "average model model --last 1", ("model: holds a run", "choose another directory")
    ),
    "average into an exported model": Case(
        "average model exported --last 1",
        ("exported: holds an exported model", "choose another directory"),
        exported_model,
    ),
    "export what is exported": Case("export ja-en", ("is exported already", "`covnmt train` made")),
    "export into a run": Case(
        "export model -o model", ("model: holds a run", "choose another directory")
    ),
    "average no weights": Case("average model new --last 0", ("--last",)),
    "average what is no run": Case("average data new", ("data: 0 kept weights", "train.keep")),
    "info about nothing": Case("info nowhere", ("nowhere: no such recipe", "recipe list")),
    "info about a directory that is no model": Case("info data", ("data: not a model directory",)),
    "a model too large for any memory": Case(
        f"{TRAIN} model.hidden=1000000000", ("not enough memory", "a smaller model")
    ),
    "matrices of a system that is not there": Case(
        "compare a=s b=t --reference t --forced c=m.npz",
        ("--forced c: is not among the systems: a, b",),
    ),
    "a system without a name": Case("compare =s b=s -r t", ("'=s'", "write NAME=FILE")),
    "a system whose name is no text": Case("compare \udcff=s b=s -r t", ("udcff", "not UTF-8")),
    "a title that is no text": Case("report p a=s b=s -r t -s s --title \udcff", ("not UTF-8",)),
    "a system without a file": Case("compare a= b=s -r t", ("'a='", "write NAME=FILE")),
    "fewer than no heat maps": Case("report new a=s -r t -s s --maps -1", ("--maps",)),
    "a report below a file": Case(
        "report t/new a=t -r t -s s", ("t/new/index.html: cannot be written",)
    ),
    "heat maps without attention": Case(
        "plot heat-maps new.svg a=s", ("s, line 1: nothing to draw", "translate --json")
    ),
    "a heat map of an empty line": Case(
        "plot heat-maps new.svg a=empty.jsonl",
        ("empty.jsonl, line 1: nothing to draw", "is empty; choose another"),
        put("empty.jsonl", '{"text": "", "source_tokens": [], "tokens": [], "alignment": []}\n'),
    ),
    "a heat map of no line": Case(
        "plot heat-maps new.svg a=s --sentence 21", ("s: has no line 21, it has 20",)
    ),
    "sheets that may be filled": Case(
        "rate make . a=s --source s -n 2",
        ("ratings.csv: there already", "choose another directory"),
        put("ratings.csv", "filled"),
    ),
    "a corpus of no sentences": Case("synthetic new --train 0", ("train: ask for at least one",)),
    "a corpus below a file": Case(
        "synthetic s/new --train 2 --dev 1 --test 1", ("s/new", "cannot be written")
    ),
    "a corpus nobody knows": Case(
        "corpus get kfft new", ("no corpus is called kfft", "did you mean kftt?")
    ),
}


@pytest.fixture
def desk(
    tiny_text: Path,
    tiny_model: Path,
    tiny_corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A directory to spoil; relative paths are in it."""
    shutil.copytree(tiny_model, tmp_path / "model")
    shutil.copytree(tiny_corpus, tmp_path / "data")
    shutil.copy(tiny_text / "test.src", tmp_path / "s")
    shutil.copy(tiny_text / "test.tgt", tmp_path / "t")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def tiny(tiny_config: Config) -> str:
    """The recipe of the model, as overrides of another one."""
    settings = flatten(tiny_config.model_dump(mode="json")) | {"data.directory": "data"}
    values = (f"{key}={json.dumps(value)}".replace(" ", "") for key, value in settings.items())
    return " ".join(["demo/gru10", *values])


def contents(directory: Path) -> dict[Path, str]:
    """A digest of every file."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def check(case: Case, code: object, message: str, before: dict[Path, str], desk: Path) -> None:
    assert code == 2, message
    assert "Traceback" not in message
    unwrapped = " ".join(message.split())  # usage errors come in a frame
    assert not [part for part in case.says if part not in unwrapped], message
    after = contents(desk)
    assert before.items() <= after.items(), "something was lost"
    assert not [path for path in after if path.suffix == ".tmp"]


@pytest.mark.parametrize("name", CASES)
def test_bad_input(
    name: str,
    desk: Path,
    tiny: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    case = CASES[name]
    case.damage(desk)
    before = contents(desk)
    monkeypatch.setattr(sys, "argv", ["covnmt", *case.command.format(tiny=tiny).split()])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(case.stdin)))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    check(case, ended.value.code, capsys.readouterr().err, before, desk)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.alone])
def test_bad_input_in_a_process(name: str, desk: Path, run_cli: RunCli) -> None:
    case = CASES[name]
    case.damage(desk)
    before = contents(desk)
    done = run_cli(*case.command.split(), stdin=case.stdin, cwd=desk)
    assert done.stdout == ""
    check(case, done.returncode, done.stderr, before, desk)


# How a shell can leave no room for output, or no input; and what is said.
NO_STREAMS = {
    "recipe list >/dev/full": "standard output: No space left on device",
    "recipe keys >/dev/full": "standard output: No space left on device",
    "info paper/gru10 --json >/dev/full": "standard output: No space left on device",
    "translate s --model model >/dev/full": "standard output: No space left on device",
    "translate --model model <&-": "standard input is closed: name a file",
    "translate s --model model >&-": "standard output is closed: send it to",
}


@pytest.mark.parametrize("command", NO_STREAMS)
def test_streams_that_are_full_or_closed(command: str, desk: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -m covnmt {command}"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        cwd=desk,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {NO_STREAMS[command]}")
    assert len(done.stderr.splitlines()) == 1


def test_a_reader_that_has_seen_enough() -> None:
    """Neither a message nor a traceback."""
    command = f"'{sys.executable}' -m covnmt recipe keys | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_long_paths_stay_whole(run_cli: RunCli, tmp_path: Path) -> None:
    """A path in a message can be copied, however long it is."""
    directory = tmp_path / "/".join(["[a-long-name]"] * 12)
    done = run_cli("recipe", "show", directory)
    assert str(directory) in done.stderr
