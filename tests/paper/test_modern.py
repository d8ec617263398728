"""Systems of subwords or plain text: measures, tuning, and variants that share a training."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from covnmt.base.config import changed_settings
from covnmt.base.files import read_parallel_lines, write_lines
from covnmt.base.recipe import find_recipe, load_recipe
from covnmt.data.corpus import Corpus
from covnmt.inference.model import Model
from covnmt.inference.tune_penalties import LENGTH_PENALTIES
from covnmt.metrics.bleu import paper_bleu
from covnmt.paper import tables
from covnmt.paper.experiments import OpenCorpusText, find_experiment, should_tune_length_penalty
from covnmt.paper.jobs import run_jobs, write_rating_sheets
from covnmt.paper.markdown_report import write_page
from covnmt.paper.plan import ExperimentJob, ExperimentPlan
from covnmt.paper.results import Result, read_record, read_results
from covnmt.paper.summary import differing_settings
from covnmt.paper.systems import recipe_overrides, training_system
from covnmt.text.codec import SIDES, Codec

SYSTEMS = ("gru10", "gru10-no-average", "gru10-no-length-penalty", "gru10-length-penalty")
# corpus, scale, system, and whether its length penalty is chosen on the dev set
TUNED = [
    ("kftt", "modern", "baseline", True),
    ("twlaw", "shipped", "gru10", True),
    ("kftt", "modern", "gru10-no-dropout", True),
    ("kftt", "modern", "gru10-no-length-rules", True),
    ("kftt", "modern", "gru10-no-length-penalty", False),
    ("kftt", "modern", "gru10-length-penalty", False),
    ("kftt", "paper", "gru10", False),
    ("kftt", "paper", "gru10-length-penalty", False),
    ("kftt", "paper", "gru10-modern", True),
    ("embedded", "small", "gru10", False),
]
TINY = find_recipe("reproduce/embedded-tiny")


@pytest.fixture(scope="module")
def plan(tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> ExperimentPlan:
    """Finished jobs of all SYSTEMS on a tiny corpus with the file names of KFTT."""
    directory = tmp_path_factory.mktemp("modern")
    raw = directory / "raw"
    gold = raw / "gold-align/ja-en-kftt"
    gold.mkdir(parents=True)
    for ending, own in (("src", "ja"), ("tgt", "en")):
        for split in ("train", "dev", "test"):
            shutil.copy(tiny_text / f"{split}.{ending}", raw / f"{split}.{own}")
        shutil.copy(tiny_text / f"test.{ending}", gold / f"test.{own}")
    shutil.copy(tiny_text / "test.align", gold / "test.talp")
    recipe = directory / "tiny.toml"
    modern = ("[train]", "updates = 90", "ema = 0.9", "[decode]", "beam = 4", "length_penalty = 9")
    write_lines(recipe, [f'extends = "{TINY}"', *modern])
    kftt = find_experiment("kftt", "modern")
    assert isinstance(kftt.text, OpenCorpusText)
    tiny = replace(kftt, other_recipe=str(recipe), text=replace(kftt.text, subwords=60))
    plan = ExperimentPlan(tiny, directory / "work", directory / "results", raw, device="cpu")
    list(run_jobs(replace(plan, jobs=[ExperimentJob(system, 1) for system in SYSTEMS])))
    return plan


def test_systems_of_subwords_have_no_proxies(plan: ExperimentPlan) -> None:
    first, *others = read_results(plan.result_directory)
    for result in (first, *others):
        assert result.scores.model_fields_set == {"translation", "alignment"}
        assert "AER" in result.score_values
    lines = Corpus.open(plan.prepared).split("test").text("source")
    assert first.test.source_lengths == [len(line.split()) for line in lines]


def test_one_training_serves_variants_that_only_decode_differently(plan: ExperimentPlan) -> None:
    assert [training_system(system) for system in SYSTEMS] == ["gru10"] * 4
    assert training_system("gru10-no-dropout") == "gru10-no-dropout"
    assert [path.parent.name for path in plan.work.rglob("last.safetensors")] == ["gru10-seed1"]
    results = [
        json.loads(plan.result_file(ExperimentJob(system, 1)).read_text("utf-8"))
        for system in SYSTEMS
    ]
    assert all(item["training"] == results[0]["training"] for item in results)
    assert [item["recipe"]["decode"]["length_penalty"] for item in results[2:]] == [0, 1]
    assert [item["recipe"]["train"]["ema"] for item in results] == [0.9, 0, 0.9, 0.9]
    texts = {
        (plan.model_directory(ExperimentJob(system, 1)) / "test.jsonl").read_text("utf-8")
        for system in SYSTEMS
    }
    assert len(texts) >= 3  # the one chosen may be another's


@pytest.mark.parametrize(("corpus", "scale", "system", "tuned"), TUNED)
def test_systems_with_a_tuned_length_penalty(
    corpus: str, scale: str, system: str, tuned: bool
) -> None:
    assert should_tune_length_penalty(find_experiment(corpus, scale), system) == tuned


def test_length_penalty_is_the_best_on_dev_and_is_stored(plan: ExperimentPlan) -> None:
    results = [
        read_record(Result, plan.result_file(ExperimentJob(system, 1)), system, 1)
        for system in SYSTEMS
    ]
    assert [bool(result.tuning) for result in results] == [True, True, False, False]
    dev = Corpus.open(plan.prepared).split("dev")
    references = [line.lower() for line in dev.text("target")]
    for result in results[:2]:
        assert [value for value, *_ in result.tuning] == list(LENGTH_PENALTIES)
        most = max(bleu for _, bleu, _ in result.tuning)
        best = next([value, bleu] for value, bleu, _ in result.tuning if bleu == most)
        translator = Model.load(plan.model_directory(ExperimentJob(result.system, 1)), device="cpu")
        assert best[0] == result.length_penalty == translator.decode.length_penalty
        texts = [item.text for item in translator.translate(dev.text("source"))]
        assert round(paper_bleu(texts, [references]).value, 2) == best[1]


def test_page_shows_the_length_penalties_that_were_tried(plan: ExperimentPlan) -> None:
    page = write_page(plan.experiment, plan.result_directory).read_text("utf-8")
    section = page.partition("## Length normalization, chosen on the dev set")[2].partition("##")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == ["gru10", "gru10-no-average"]
    assert "Not one recipe" not in page
    results = read_results(plan.result_directory)
    older = [result.model_copy(update={"tuning": []}) for result in results]
    assert tables.length_penalty_table(older) == ""


def test_tuned_penalties_count_as_one_setting(plan: ExperimentPlan) -> None:
    """A penalty that was not tuned still differs from them."""
    first = read_record(Result, plan.result_file(ExperimentJob("gru10", 1)), "gru10", 1)
    other = first.model_copy(deep=True)
    other.recipe["decode"]["length_penalty"] = 9.0
    fixed = first.model_copy(update={"tuning": []})
    assert differing_settings([first, other]) == ()
    [difference] = differing_settings([first, fixed])
    assert difference.startswith("decode.length_penalty: ")


@pytest.mark.parametrize("corpus", ["kftt", "twlaw"])
def test_modern_variant_has_the_settings_of_the_modern_scale(corpus: str) -> None:
    of_words, of_pieces = (find_experiment(corpus, scale).recipe for scale in ("paper", "modern"))
    words = load_recipe(find_recipe(of_words), recipe_overrides("gru10-modern"))
    pieces = load_recipe(find_recipe(of_pieces), recipe_overrides("gru10"))
    assert list(changed_settings(words, pieces)) == ["data.max_length"]


def test_rating_sheets_find_outputs_of_variants_without_training(plan: ExperimentPlan) -> None:
    key = json.loads((write_rating_sheets(plan, SYSTEMS, 1) / "key.json").read_text("utf-8"))
    assert {item["system"] for item in key["items"]} == set(SYSTEMS)


def test_result_names_where_and_how_long_its_system_was_trained(
    plan: ExperimentPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COVNMT_COMMIT", "another")
    list(run_jobs(replace(plan, results=tmp_path, jobs=[ExperimentJob("gru10", 1)], minutes=0.2)))
    (again,) = read_results(tmp_path / plan.experiment.name)
    before = json.loads(plan.result_file(ExperimentJob("gru10", 1)).read_text("utf-8"))
    assert again.commit == before["commit"] != "another"
    assert again.command == before["command"]
    assert again.scores.model_dump(exclude_unset=True) == before["scores"]


def test_shared_machine_records_no_speed(plan: ExperimentPlan, tmp_path: Path) -> None:
    list(run_jobs(replace(plan, results=tmp_path, jobs=[ExperimentJob("gru10", 1)], shared=True)))
    (beside,) = read_results(tmp_path / plan.experiment.name)
    assert beside.speed is None
    assert beside.command.endswith(" --seed 1 --shared")


def test_page_without_proxies_says_why(plan: ExperimentPlan) -> None:
    page = write_page(plan.experiment, plan.result_directory).read_text("utf-8")
    assert "## Over- and under-translation\n" in page
    assert "DROP" not in page


# Plain text


PAIRS = [
    ("この 橋 は 古 い 。", "This bridge is old."),
    ("（ ２ 月 ） 駅", "The Station in February"),
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> ExperimentPlan:
    """A finished job whose system reads and writes plain text."""
    directory = tmp_path_factory.mktemp("plain")
    for split, times in (("train", 40), ("dev", 1), ("test", 1)):
        for n, ending in enumerate(("ja", "en")):
            lines = [pair[n] for pair in PAIRS * times]
            write_lines(directory / f"raw/{split}.{ending}", lines)
    kftt = find_experiment("kftt", "shipped")
    assert isinstance(kftt.text, OpenCorpusText)
    text = replace(kftt.text, subwords=310)
    tiny = replace(kftt, other_recipe="reproduce/embedded-tiny", text=text)
    where = directory / "work", directory / "results", directory / "raw"
    plan = ExperimentPlan(tiny, *where, device="cpu", jobs=[ExperimentJob("gru10", 1)])
    plan.prepare()
    for n, side in enumerate(SIDES):  # as mixed text has them
        write_lines(plan.prepared / f"test-talk.{side}.txt", [PAIRS[0][n]])
    list(run_jobs(plan))
    return plan


def test_other_test_sets_are_scored_by_their_names(plain: ExperimentPlan) -> None:
    [result] = read_results(plain.result_directory)
    [(name, scored)] = result.other_tests.items()
    assert (name, scored.sentences) == ("talk", 1)
    values = {score.name: score.value for score in scored.scores}
    page = write_page(plain.experiment, plain.result_directory).read_text("utf-8")
    assert "| system | seed | talk, 1 pairs |" in page
    assert f"| `gru10` | 1 | {values['BLEU']:.2f} / {values['chrF']:.2f} |" in page
    older = [result.model_copy(update={"other_tests": {}})]
    assert tables.other_tests_table(older) == ""


def test_plain_text_is_scored_cased(plain: ExperimentPlan) -> None:
    [result] = read_results(plain.result_directory)
    assert result.scores.model_fields_set == {"translation"}
    [sacrebleu] = [score for score in result.scores.translation if score.name == "BLEU"]
    assert "case:mixed" in sacrebleu.signature
    lengths = Corpus.open(plain.prepared).split("test").source.lengths()
    assert result.test.source_lengths == lengths.tolist()


def test_one_in_ten_plain_pairs_is_also_read_without_full_stop(plain: ExperimentPlan) -> None:
    corpus = Corpus.open(plain.prepared)
    assert corpus.report.splits["train"].read == 84  # one in ten of those with a full stop again
    tokenizer = Codec.load(plain.prepared, "source")
    assert tokenizer.tokenize("この橋は古い。") == tokenizer.tokenize(PAIRS[0][0])
    assert tokenizer.tokenize("(2月)駅") == tokenizer.tokenize(PAIRS[1][0])
    bare = read_parallel_lines(*(plain.prepared.parent / f"bare.{side}" for side in SIDES))
    assert list(bare) == [("この 橋 は 古 い", "This bridge is old")] * 4
