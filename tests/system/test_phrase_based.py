"""The commands of the phrase-based system on the embedded pair."""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from covnmt.base.files import read_json
from covnmt.evaluation.alignment_files import read_links
from covnmt.metrics.alignment import aer
from covnmt.metrics.bleu import paper_bleu
from covnmt.phrase_based.model import PhraseBasedModel
from tests.conftest import RunCli


@pytest.fixture(scope="module")
def model(run_cli: RunCli, tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained and tuned model."""
    directory = tmp_path_factory.mktemp("smt") / "model"
    trained = run_cli("smt", "train", tiny_corpus, directory, "--chains", 1)
    assert trained.returncode == 0, trained.stderr
    search = ("--distortion-limit", 4, "--iterations", 4, "--nbest", 30, "--restarts", 3)
    tuned = run_cli("smt", "tune", directory, *search)
    assert tuned.returncode == 0, tuned.stderr
    assert "before tuning" in tuned.stderr
    return directory


def word_for_word(model: Path, lines: list[str]) -> list[str]:
    """Translate each word by its most frequent translation, in the order of the source."""
    found = PhraseBasedModel.open(model)
    lexicon, target = found.lexicon(), found.codec("target").vocabulary
    options: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for s, t, count in zip(lexicon.source, lexicon.target, lexicon.count, strict=True):
        options[int(s)].append((int(count), int(t)))
    ids = [found.codec("source").vocabulary.encode(line.split()) for line in lines]
    best = [[max(options[i])[1] for i in row] for row in ids]
    return [" ".join(target.decode([i for i in row if i])) for row in best]


def test_translation_is_better_than_word_for_word(
    model: Path, tiny_text: Path, run_cli: RunCli, tmp_path: Path
) -> None:
    source, reference = ((tiny_text / f"test.{e}").read_text().splitlines() for e in ("src", "tgt"))
    out, links = tmp_path / "out.txt", tmp_path / "out.links"
    files = (
        tiny_text / "test.src",
        "-o",
        out,
        "--links",
        links,
        "--distortion-limit",
        4,
        "--workers",
        2,
    )
    done = run_cli("smt", "translate", model, *files)
    assert done.returncode == 0, done.stderr
    bleu = paper_bleu(out.read_text().splitlines(), [reference]).value
    assert bleu > paper_bleu(word_for_word(model, source), [reference]).value + 5
    assert len(read_links(links)) == len(source)


def test_links_may_go_to_standard_output(model: Path, run_cli: RunCli, tmp_path: Path) -> None:
    asked = ("smt", "translate", model, "-o", "out", "--links", "-")
    done = run_cli(*asked, stdin=b"\n\n", cwd=tmp_path)
    assert done.stdout == "\n\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_tuning_raises_dev_bleu(model: Path) -> None:
    content = read_json(model / "weights.json")
    assert content["dev_bleu"] > content["rounds"][0][1]


def test_json_output_can_be_evaluated(
    model: Path, tiny_text: Path, run_cli: RunCli, tmp_path: Path
) -> None:
    out, figures = tmp_path / "out.jsonl", tmp_path / "figures.json"
    text = (tiny_text / "test.src").read_bytes()
    done = run_cli(
        "smt", "translate", model, "--json", "-o", out, "--distortion-limit", 4, stdin=text
    )
    assert done.returncode == 0, done.stderr
    given = ("-r", tiny_text / "test.tgt", "-s", tiny_text / "test.src")
    judged = run_cli("evaluate", out, *given, "-o", figures)
    assert judged.returncode == 0, judged.stderr
    found = read_json(figures)
    assert found["translation"][0]["value"] > 0
    assert any(score["name"] == "little attention" for score in found["proxies"])
    row = json.loads(out.read_text().splitlines()[0])
    assert len(row["alignment"]) == len(row["tokens"])


def test_words_align_with_a_corpus(
    tiny_text: Path, tiny_corpus: Path, run_cli: RunCli, tmp_path: Path
) -> None:
    out = tmp_path / "test.links"
    files = (tiny_text / "test.src", tiny_text / "test.tgt", "-o", out)
    done = run_cli("words", "align", *files, "--data", tiny_corpus, "--aligner", "hmm")
    assert done.returncode == 0, done.stderr
    gold = read_links(tiny_text / "test.align")
    assert aer([links_of_line.sure for links_of_line in read_links(out)], gold) < 0.25


# The command, interrupted by Ctrl-C when the first stage is done.
INTERRUPTED = """
import os, signal
from covnmt.__main__ import main
from covnmt.phrase_based.model import ModelBuilder
plain = ModelBuilder.stage

def stage(self, name, *rest):
    plain(self, name, *rest)
    if name == "forward-1":
        os.kill(os.getpid(), signal.SIGINT)

ModelBuilder.stage = stage
main()
"""


def test_interrupted_training_resumes_after_the_finished_stages(
    tiny_corpus: Path, run_cli: RunCli, tmp_path: Path
) -> None:
    command = ["smt", "train", str(tiny_corpus), str(tmp_path / "model"), "--aligner", "ibm4"]
    command += ["--workers", "1"]
    stopped = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *command], capture_output=True, text=True, check=False
    )
    assert stopped.returncode == 130, stopped.stderr
    assert "run the same command again" in stopped.stderr
    again = run_cli(*command)
    assert again.returncode == 0, again.stderr
    assert "forward-1: done already" in again.stderr


WRONG = {
    "smt train nowhere model": "nowhere: not a prepared corpus",
    "smt tune nowhere": "nowhere: holds no phrase-based model",
    "smt translate nowhere": "nowhere: holds no phrase-based model",
    "words align nowhere.a nowhere.b": "nowhere.a: no such file",
    "words align nowhere.a nowhere.b --seed 99999999999999999999": "--seed",
}


@pytest.mark.parametrize("command", WRONG)
def test_bad_input_exits_with_code_2_and_its_name(
    command: str, run_cli: RunCli, tmp_path: Path
) -> None:
    done = run_cli(*command.split(), cwd=tmp_path)
    assert done.returncode == 2
    assert WRONG[command] in done.stderr
    assert "Traceback" not in done.stderr
