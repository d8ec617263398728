"""The models that come along: found by name, small, and at work without PyTorch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from covnmt.align import Aligner
from covnmt.directory import CARD, SHIPPED, find_model, model_rows, shipped_models
from covnmt.engine.exported import read_description
from covnmt.errors import UserError
from covnmt.info import describe_target
from covnmt.serve.engine import parse_spec
from covnmt.translate import Translator

MOST_BYTES = 16 * 2**20
# Sentences of our own, as a person may type them, and what their translations cannot do without.
SAID = [
    ("zh-en", "申请人应于三十日内补正。", ["applicant", "thirty|30", "days"]),
    ("zh-en", "申請", []),
    ("zh-en", "图书馆应保存阅览纪录", ["librar"]),
    ("ja-en", "この寺は京都市の北にある。", ["temple", "Kyoto"]),
    ("ja-en", "この 橋 は 江戸 時代 に 作ら れ た", ["bridge", "Edo"]),
    ("ja-en", "彼は１８６８年に生まれた。", ["1868"]),
]
# Makes the import of PyTorch impossible, then runs the command.
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from covnmt.cli import main; main()"


def test_names() -> None:
    assert shipped_models() == ["ja-en", "zh-en"]
    assert [row[0] for row in model_rows()] == shipped_models()
    assert all("to English" in title for _, title, _ in model_rows())


@pytest.mark.parametrize("name", shipped_models())
def test_a_model_is_small_and_whole(name: str) -> None:
    files = [path for path in (SHIPPED / name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES
    assert read_description(SHIPPED / name)["precision"] == "int8"
    info = describe_target(name, words=0)
    assert info.config.model.coverage.kind == "gru"
    assert str(info.config.data.directory) == "data"  # not a place on the machine of its training
    card = (SHIPPED / name / CARD).read_text("utf-8")
    for part in ("## Learnt from", "## Scores", "## Limits", "## Licence"):
        assert part in card


@pytest.mark.parametrize("name", shipped_models())
def test_it_says_what_matters(name: str) -> None:
    translator = Translator.load(name, threads=1)
    mine = [(line, words) for model, line, words in SAID if model == name]
    for (line, words), found in zip(mine, translator.translate([l for l, _ in mine]), strict=True):
        assert found.text
        assert not any(sign in found.text for sign in ("UNK", "▁", "<0x"))
        for word in words:
            assert any(each in found.text for each in word.split("|")), (line, found.text)


def test_it_aligns() -> None:
    pair = ("この寺は京都市の北にある。", "This temple is in the north of Kyoto City.")
    [aligned] = Aligner.load("ja-en", threads=1).align([pair])
    assert aligned.matrix.shape == (len(aligned.target_tokens), len(aligned.source_tokens))
    looked_at = {
        target.strip("▁"): aligned.source_tokens[aligned.matrix[i].argmax()]
        for i, target in enumerate(aligned.target_tokens)
    }
    assert looked_at["temple"].endswith("寺")
    assert looked_at["Kyoto"].startswith("京都")


def test_the_command_needs_no_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "translate", "--model", "zh-en"],
        input="申请人应于三十日内补正。\n",
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "applicant" in done.stdout.lower()


def test_a_directory_of_that_name_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_model("zh-en") == SHIPPED / "zh-en"
    assert find_model("./other/zh-en") == Path("other/zh-en")
    (tmp_path / "zh-en").mkdir()
    assert find_model("zh-en") == Path("zh-en")
    with pytest.raises(UserError, match=r"^zh-en: not a model directory"):
        Translator.load("zh-en")
    with pytest.raises(UserError, match=r"fr-en: not a model.* one that comes along: ja-en, zh-en"):
        Translator.load("fr-en")


def test_the_server_knows_its_languages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text, name in (("zh-en", "zh-en"), ("law=zh-en", "law")):
        spec = parse_spec(text)
        assert (spec.name, spec.source, spec.target) == (name, "zh", "en")
        assert spec.directory == SHIPPED / "zh-en"
