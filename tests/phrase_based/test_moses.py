"""The engine moses with programs that only write down how they were called."""

import json
import os
import stat
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from covnmt.base.errors import UserError
from covnmt.phrase_based.engine import train, translate, tune
from covnmt.phrase_based.moses import TUNED, UNTUNED, find, source_words, target_tokens
from covnmt.phrase_based.settings import SearchSettings, TuneSettings
from covnmt.text.vocabulary import UNK, Vocabulary

from .conftest import SETTINGS

ENGINE = SETTINGS.model_copy(update={"engine": "moses"})
SEARCH = SearchSettings(reorder=5, processes=2)

# Notes its arguments, and makes the files that the real one would make: the decoder says the name
# of its first word backwards (a source word that is copied) and links it to the last.
PROGRAM = """#!{python}
import json, pathlib, sys
name, arguments = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
lines = sys.stdin.read().splitlines()
with open({log!r}, "a") as stream:
    stream.write(json.dumps([name, arguments, len(lines)]) + "\\n")
def made(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("settings")
after = dict(zip(arguments, arguments[1:]))
if name == "train-model.perl":
    made(pathlib.Path(after["-root-dir"]) / "model" / "moses.ini")
if name == "mert-moses.pl":
    made(pathlib.Path(after["--working-dir"]) / "moses.ini")
if name == "moses":
    pathlib.Path(after["-alignment-output-file"]).write_text(
        "".join("0-0\\n" if line else "\\n" for line in lines))
    print("\\n".join(line.split()[0] if line else "" for line in lines))
"""
PROGRAMS = ("moses", "lmplz", "train-model.perl", "mert-moses.pl")


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the programs note how they were called."""
    log = tmp_path / "calls.jsonl"
    for name in PROGRAMS:
        write_program(tmp_path / "bin" / name, PROGRAM.format(python=sys.executable, log=str(log)))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return log


def read_calls(log: Path) -> list[tuple[str, dict[str, str], list[str], int]]:
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return [(n, dict(pairwise(a)), a, lines) for n, a, lines in rows]


def test_the_whole_way(calls: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    model = train(tiny_corpus, tmp_path / "model", ENGINE)
    (lm, order, _, words), (perl, trained, _, _) = read_calls(calls)
    place = model.directory / "moses"
    assert (lm, order["-o"], words) == ("lmplz", "3", len(model.links().offsets) - 1)
    assert perl == "train-model.perl"
    assert (trained["-f"], trained["-e"], trained["-first-step"]) == ("source", "target", "4")
    assert trained["-lm"] == f"0:3:{place}/lm.arpa:8"
    assert trained["-max-phrase-length"] == "4"
    links = (place / "model" / "aligned.grow-diag-final-and").read_text().splitlines()
    text = [(place / f"corpus.{side}").read_text().splitlines() for side in ("source", "target")]
    assert len(links) == len(text[0]) == len(text[1]) == words
    # `lmplz` and Moses have a meaning of their own for <unk>: even that is just a word here
    assert {word[0] for line in text[0] for word in line.split()} == {"s"}
    said = " ".join(text[1])
    assert {word[0] for word in said.split()} == {"t"}
    assert f"t{UNK}" in said.split()

    train(tiny_corpus, tmp_path / "model", ENGINE)
    assert len(read_calls(calls)) == 2  # nothing is done twice
    assert translate(model.directory, ["x"], SEARCH)[0].tokens == ["x"]
    assert read_calls(calls)[-1][1]["-f"] == str(model.directory / UNTUNED)

    told = tune(model.directory, TuneSettings(search=SEARCH, sentences=6, nbest=30))
    name, tuned, arguments, _ = read_calls(calls)[-1]
    assert name == "mert-moses.pl"
    assert tuned["--nbest"] == "30"
    assert "--decoder-flags=-threads 2 -distortion-limit 5" in arguments
    assert str(TUNED) in told
    assert len((place / "dev.source").read_text().splitlines()) == 6

    known = model.codec("source").vocabulary.words[0]
    found = translate(model.directory, [f"new {known}", "", f"{known} new"], SEARCH)
    assert read_calls(calls)[-1][1]["-f"] == str(model.directory / TUNED)
    assert [each.tokens for each in found] == [["new"], [], [known]]
    assert [each.links for each in found] == [{(0, 0)}, frozenset(), {(0, 0)}]

    train(tiny_corpus, model.directory, ENGINE.model_copy(update={"order": 2}))
    translate(model.directory, ["x"], SEARCH)  # what was tuned belongs to another training
    assert read_calls(calls)[-1][1]["-f"] == str(model.directory / UNTUNED)


def test_a_program_that_fails(calls: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    write_program(tmp_path / "bin" / "lmplz", "#!/bin/sh\necho no memory >&2\nexit 3\n")
    with pytest.raises(UserError, match=r"lmplz ended with code 3; .*training.log says why"):
        train(tiny_corpus, tmp_path / "model", ENGINE)
    assert "no memory" in (tmp_path / "model" / "moses" / "training.log").read_text()


def test_without_moses(tmp_path: Path, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="moses: no such program on the PATH"):
        train(tiny_corpus, tmp_path / "model", ENGINE)
    assert not (tmp_path / "model").exists()


def test_scripts_beside_the_decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path / "bin" / "moses", "#!/bin/sh\n")
    write_program(tmp_path / "scripts" / "training" / "mert-moses.pl", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find("mert-moses.pl") == tmp_path / "scripts" / "training" / "mert-moses.pl"


def test_words_as_moses_reads_them() -> None:
    vocabulary = Vocabulary(("one", "two", "three"))  # ids 2, 3, 4
    tokens = ["two", "|||", "one", "NULL"]
    named = source_words(tokens, vocabulary)
    assert named == ["s3", "u1", "s2", "u3"]
    assert target_tokens(["t4", "u1", "s3", "t1", "u3"], named, tokens, vocabulary) == [
        *("three", "|||", "two", "UNK", "NULL")
    ]
