"""Bundled models: found by name, small, and working without PyTorch."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from covnmt.base.errors import UserError
from covnmt.base.files import write_lines
from covnmt.cli import models as model_commands
from covnmt.decoding.onnx.export import export_model
from covnmt.decoding.onnx.format import read_manifest
from covnmt.inference import check_files, parallel
from covnmt.inference.check_files import CheckInput, check_pairs
from covnmt.inference.check_output import format_pairs
from covnmt.inference.documents import translate_document_input
from covnmt.inference.info import model_info
from covnmt.inference.model import Model, ModelLoader
from covnmt.inference.parallel import (
    TranslationJob,
    align_parallel_files,
    translate_files,
)
from covnmt.inference.terms import NO_TERMS
from covnmt.model import directory
from covnmt.model.directory import (
    BUNDLED_MODELS,
    LEXICON_FILE,
    MODEL_CARD,
    bundled_models,
    describe_bundled_models,
    find_model,
)
from covnmt.paper import demo
from covnmt.serve import served_model
from covnmt.serve.served_model import ModelSpec, parse_spec

MOST_BYTES = 16 * 2**20
# Sentences as a person may type them, and words that their translations must contain.
SAID = [
    ("de-en", "Die Regierung hat am Montag neue Maßnahmen angekündigt.", ["overnment", "Monday"]),
    ("de-en", "Bitte geben Sie Ihr Passwort ein", ["password"]),
    ("de-en", "Mein Hund schläft den ganzen Tag.", ["dog", "sleep"]),
    ("de-en", "Wir müssen die Umwelt schützen.", ["protect", "environment"]),
    ("zh-en", "申请人应于三十日内补正。", ["applicant", "thirty|30", "days"]),
    ("zh-en", "申請人應於三十日內補正。", ["applicant", "thirty|30", "days"]),
    ("zh-en", "靐", []),
    ("zh-en", "罚锾为新台币１２，５００元。", ["12,500"]),
    ("zh-en", "應於2023年5月1日前依第12條申報。", ["May 1, 2023", "Article 12"]),
    ("zh-en", "图书馆应保存阅览纪录", ["ibrar", "record"]),
    ("ja-en", "この寺は京都市の北にある。", ["temple", "Kyoto"]),
    ("ja-en", "この 橋 は 江戸 時代 に 作ら れ た", ["bridge", "Edo"]),
    ("ja-en", "彼は１８６８年に生まれた。", ["1868"]),
]
# Translations by others, and their omissions.
LEFT_OUT = [
    (
        "de-en",
        "Der Ausschuss hat den Bericht mit großer Mehrheit angenommen.",
        "The committee adopted the report.",
        "mit großer Mehrheit",
    ),
    (
        "de-en",
        "Wir müssen die Umwelt schützen und Arbeitsplätze schaffen.",
        "We must protect the environment.",
        "Arbeitsplätze schaffen",
    ),
    (
        "de-en",
        "Der Ausschuss hat den Bericht mit großer Mehrheit angenommen.",
        "The committee adopted the report by a large majority.",
        "",
    ),
    ("ja-en", "金閣寺は京都にある有名な寺です。", "Kinkaku-ji is a famous temple.", "京都"),
    ("ja-en", "彼は1868年に江戸で生まれた。", "He was born in Edo.", "1868"),
    ("ja-en", "この橋は江戸時代に作られた。", "This bridge was built in the Edo period.", ""),
    ("zh-en", "申请人应于三十日内补正。", "The applicant shall make corrections.", "三十日内"),
    ("zh-en", "申请人应于三十日内补正。", "The applicant shall correct it within 30 days.", ""),
]
# Makes the import of PyTorch impossible, then runs the command.
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from covnmt.cli import main; main()"


@pytest.fixture
def bundled(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Bundle a tiny model as xx-en; the test runs in an empty directory."""
    folder, here = tmp_path / "shipped", tmp_path / "here"
    export_model(tiny_model, folder / "xx-en", "int8")
    write_lines(
        folder / "xx-en" / MODEL_CARD,
        ["---", "license: mit", "bleu: 1.5", "---", "", "# Xish to English, tiny"],
    )
    here.mkdir()
    monkeypatch.chdir(here)
    for module in (directory, served_model):
        monkeypatch.setattr(module, "BUNDLED_MODELS", folder)
    return folder / "xx-en"


def test_a_bundled_model_is_found_by_name(bundled: Path) -> None:
    assert bundled_models() == ["xx-en"]
    [model] = describe_bundled_models()
    assert (model.name, model.title) == ("xx-en", "Xish to English, tiny")
    assert (model.license, model.bleu, model.directory) == ("mit", "1.5", bundled)
    assert model.mebibytes < 1
    assert find_model("xx-en") == bundled
    assert Model.load("xx-en").translate(["anything"])[0].source == "anything"
    assert Model.load("xx-en").align([("a b", "c")])[0].source_tokens == ("a", "b")
    assert model_info("xx-en", vocabulary_size=0).config.data.directory == Path("data")


def test_without_the_hub_a_name_with_an_owner_is_a_path(
    bundled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "is_hub_name", lambda _: False)
    assert find_model("other/xx-en") == Path("other/xx-en")


def test_a_directory_hides_the_bundled_model_of_the_same_name(bundled: Path) -> None:
    Path("xx-en").mkdir()
    assert find_model("xx-en") == Path("xx-en")
    with pytest.raises(UserError, match=r"^xx-en: not a model .* hides the bundled model"):
        Model.load("xx-en")
    with pytest.raises(UserError, match=r"fr-en: not a model.* a bundled one: xx-en$"):
        Model.load("fr-en")


def test_the_server_knows_the_languages_of_a_bundled_model(bundled: Path) -> None:
    for text, name in (("xx-en", "xx-en"), ("law=xx-en", "law")):
        assert parse_spec(text) == ModelSpec(name, bundled, "xx", "en")


def test_commands_work_without_bundled_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(directory, "BUNDLED_MODELS", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert (bundled_models(), describe_bundled_models()) == ([], [])
    with pytest.raises(UserError, match=r"zh-en: not a model directory .* `covnmt train` made$"):
        Model.load("zh-en")
    model_commands.models()
    assert "covnmt train" in capsys.readouterr().err


def test_the_demo_translates_with_the_bundled_models_there_are(
    bundled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "example_sentences", lambda language: ["0", f"a {language}", *"bcde"])
    shown = [str(text) for text in demo.translate_examples()]
    assert len(shown) == demo.EXAMPLES.stop - demo.EXAMPLES.start
    assert shown[0].startswith("xx-en  a xx\n")
    assert list(demo.check_example()) == []


def test_the_demo_shows_what_a_translation_leaves_out() -> None:
    [shown] = map(str, demo.check_example())
    assert shown.endswith(": weil er das Vertrauen des Parlaments verloren hatte.")


# The models of this version


@pytest.mark.parametrize("name", bundled_models())
def test_a_bundled_model_is_small_and_complete(name: str) -> None:
    files = [path for path in (BUNDLED_MODELS / name).rglob("*") if path.is_file()]
    sizes = {path.name: path.stat().st_size for path in files}
    assert sizes[LEXICON_FILE] <= 2 * 10**6
    assert sum(sizes.values()) - sizes[LEXICON_FILE] <= MOST_BYTES
    assert read_manifest(BUNDLED_MODELS / name).precision == "int8"
    info = model_info(name, vocabulary_size=0)
    assert info.config.model.coverage.kind == "gru"
    assert str(info.config.data.directory) == "data"  # not a path on the machine of its training
    card = (BUNDLED_MODELS / name / MODEL_CARD).read_text("utf-8")
    for part in ("## Training data", "## Scores", "## Limits", "## License"):
        assert part in card


@pytest.mark.parametrize("name", bundled_models())
def test_bundled_models_translate_key_words(name: str) -> None:
    translator = Model.load(name, threads=1)
    mine = [(line, words) for model, line, words in SAID if model == name]
    for (line, words), found in zip(mine, translator.translate([l for l, _ in mine]), strict=True):
        assert found.text
        assert not any(sign in found.text for sign in ("UNK", "▁", "<0x"))
        for word in words:
            assert any(each in found.text for each in word.split("|")), (line, found.text)


@pytest.mark.parametrize("name", bundled_models())
def test_bundled_models_find_omissions(name: str) -> None:
    checker = Model.load(name)
    mine = [(line, text, words) for model, line, text, words in LEFT_OUT if model == name]
    found = checker.check(((line, text) for line, text, _ in mine), words=True)
    for each, (_, _, words) in zip(found, mine, strict=True):
        assert words in " ".join(part.text for part in each.omissions)
        assert bool(each.omissions) == bool(words)


def pair_files(directory: Path, pairs: list[tuple[str, str]]) -> tuple[Path, Path]:
    write_lines(directory / "s", [line for line, _ in pairs])
    write_lines(directory / "t", [text for _, text in pairs])
    return directory / "s", directory / "t"


@pytest.mark.parametrize(
    ("line", "is_copy"),
    [
        ("Die Regierung hat am Montag neue Maßnahmen angekündigt.", True),
        ("Angela Merkel, Emmanuel Macron und Boris Johnson", False),
        ("New York Times, Washington Post", False),
    ],
)
def test_a_source_that_was_not_translated_is_no_translation(line: str, is_copy: bool) -> None:
    """Names are the same in both languages."""
    [report] = Model.load("de-en").check([(line, line)])
    assert report.is_unrelated == is_copy


def test_several_processes_check_like_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine = [(line, text) for model, line, text, _ in LEFT_OUT if model == "ja-en"]
    monkeypatch.setattr(check_files, "CHUNK_PAIRS", 4)
    files = pair_files(tmp_path, [*mine, *reversed(mine)])
    alone, together = (
        check_pairs(ModelLoader.find(["ja-en"], threads=n), CheckInput(*files).pairs())
        for n in (1, 2)
    )
    assert list(format_pairs(together, as_json=True)) == list(format_pairs(alone, as_json=True))
    with pytest.raises(UserError, match="leave --device out"):
        list(check_pairs(ModelLoader.find(["ja-en"], "cuda", 2), CheckInput(*files).pairs()))


def test_several_processes_align_like_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(parallel, "ALIGNMENT_CHUNK_PAIRS", 64)
    pairs = [(line, text) for model, line, text, _ in LEFT_OUT if model == "ja-en"] * 30
    files = pair_files(tmp_path, pairs)
    alone, together = (
        align_parallel_files(ModelLoader.find(["ja-en"], threads=n), *files, tokenized=False)
        for n in (1, 2)
    )
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one.matrix, other.matrix, atol=1e-5)
    with pytest.raises(UserError, match="leave --device out"):
        list(align_parallel_files(ModelLoader.find(["ja-en"], "cuda", 2), *files, tokenized=False))
    files = pair_files(tmp_path, [*pairs, ("京都", "")])
    with pytest.raises(UserError, match="line 91: one side is empty"):
        list(align_parallel_files(ModelLoader.find(["ja-en"], threads=2), *files, tokenized=False))


@pytest.mark.parametrize("name", bundled_models())
def test_bundled_models_translate_without_torch(name: str) -> None:
    line = next(line for model, line, _ in SAID if model == name)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "translate", "--model", name],
        input=f"{line}\n",
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 3


def test_each_shard_and_document_unlike_the_training_text_is_warned_of_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also by the processes that translate shards."""
    usual, foreign = ["本法自公布日施行。"], ["How are you?", "Fine, thank you."]
    for name, lines in (("usual", usual), ("foreign", foreign)):
        write_lines(tmp_path / "in" / name, lines)
    loader = ModelLoader.find(["zh-en"], threads=1)
    job = TranslationJob(loader, loader.decode.model_copy(update={"beam": 1}))
    translate_files(job, [tmp_path / "in"], tmp_path / "out", 2)
    shown = " ".join(capfd.readouterr().err.split())
    assert shown.count("in Latin script") == 1
    assert "in/foreign: 2 of 2 lines are in Latin script, which zh-en was not" in shown
    page = tmp_path / "page.md"
    write_lines(page, ["# 本法自公布日施行。", "", "How are you? Fine."])
    translate_document_input(job, page, "markdown", NO_TERMS, 1)
    shown = " ".join(capfd.readouterr().err.split())
    assert "page.md: 2 of 3 sentences are in Latin script" in shown
    assert shown.count("in Latin script") == 1
