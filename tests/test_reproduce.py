"""The paper's experiment as a list of jobs: order, resumption, packs, results, tables."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from covnmt.config import SYSTEMS
from covnmt.errors import UserError
from covnmt.evaluate import Comparison, compare
from covnmt.files import write_lines
from covnmt.metrics.bleu import chrf, sacre_bleu
from covnmt.metrics.inputs import EvaluationSet, Output
from covnmt.recipe import find_recipe, load_recipe
from covnmt.reproduce import jobs, tables
from covnmt.reproduce.experiments import (
    EXPERIMENTS,
    GOLD,
    Experiment,
    OpenText,
    find_experiment,
    is_tuned,
)
from covnmt.reproduce.jobs import Job, Plan, choose_jobs, run_jobs, settings, time_left
from covnmt.reproduce.measure import case_insensitive, describe_run, score_text
from covnmt.reproduce.pack import pack, unpack
from covnmt.reproduce.page import trouble, write_page
from covnmt.reproduce.results import Result, layout, read_results, write_result
from covnmt.reproduce.summary import summarise
from covnmt.reproduce.systems import PHRASE_BASED, VARIANTS, changes_of
from covnmt.text.corpus import Corpus, Split

KFTT, TINY = find_experiment("kftt"), find_experiment("embedded", "tiny")
EXAMPLES = Path(__file__).parents[1] / "docs/examples"

# The test set of the made-up results: its systems differ in what they get wrong.
WORDS = ["kappa", "delta", "omega", "sigma", "theta", "gamma"]
REFERENCES = [
    " ".join(WORDS[(start + k * k) % len(WORDS)] for k in range(5 + start % 50))
    for start in range(120)
]
OUTPUTS = {
    "baseline": [" ".join(line.split()[:-2]) for line in REFERENCES],
    "fertility": [" ".join(line.split()[:-1]) for line in REFERENCES],
    "gru10": REFERENCES,
    # better than the baseline here, worse there
    "tanh1": [line[: -6 - 6 * (k % 2) * 2] for k, line in enumerate(REFERENCES)],
}


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    outputs = {system: Output(lines) for system, lines in OUTPUTS.items()}
    return compare(outputs, EvaluationSet([REFERENCES], REFERENCES))


def made_up(comparison: Comparison, system: str, seed: int, **changes: Any) -> dict[str, Any]:
    """A result as a job would write it, of the made-up test set."""
    found = comparison.systems[system if system in OUTPUTS else "baseline"]
    alignment = [{"name": "AER", "value": 50.0 + seed}, {"name": "SAER", "value": 60.0}]
    tokens = ["a", "b", "a", "b"] if system == "baseline" else ["a", "b", "c", "d"]
    return {
        "experiment": "kftt",
        "system": system,
        "seed": seed,
        "commit": "abc1234",
        "machine": {"gpu": "A GPU", "cpu": "A CPU", "cores": 8},
        "data": {"train": {"kept": 1000}},
        "recipe": {"model": {"hidden": 8, "coverage": {"kind": system}}, "train": {"seed": seed}},
        "parameters": {"total": 1000 if system == "baseline" else 1100},
        "training": {
            "reason": "made 20 updates",
            "update": 20,
            "words_per_second": 960 if system == "baseline" else 800,
            "curve": [[10, 3.0, 900], [20, 2.0, 960]],
            "validations": [[20, 2.5, 12.0]],
        },
        "scores": {
            "translation": [score.to_json() for score in found.translation],
            "alignment": alignment,
            "proxies": [score.to_json() for score in found.proxies],
        },
        "gold": {"pairs": 3, "what": "made-up pairs"},
        "test": {
            "statistics": found.statistics.tolist(),
            "source_lengths": [len(line.split()) for line in REFERENCES],
        },
        "examples": [
            {
                "source_tokens": ["x", "y"],
                "tokens": tokens,
                "text": " ".join(tokens),
                "alignment": [[0.9, 0.1]] * 4,
                "coverage": [3.6, 0.4],
            }
        ],
    } | changes


def as_result(content: dict[str, Any]) -> Result:
    return Result(content["system"], content["seed"], content)


# The list of jobs


def names(chosen: list[Job]) -> list[str]:
    return [job.name for job in chosen]


def test_one_seed_of_every_system_comes_before_the_second_seeds() -> None:
    first = [f"{system}-seed1" for system in SYSTEMS]
    second = ["baseline-seed2", "fertility-seed2", "gru10-seed2"]
    assert names(choose_jobs(KFTT)) == first + second
    assert names(choose_jobs(find_experiment("embedded"))) == first
    assert names(choose_jobs(TINY)) == ["baseline-seed1", "gru10-seed1"]


def test_jobs_that_are_asked_for() -> None:
    asked = choose_jobs(KFTT, ["gru10", "gru4", "gru10"], [3, 4])
    assert names(asked) == ["gru10-seed3", "gru4-seed3", "gru10-seed4", "gru4-seed4"]
    assert len(choose_jobs(KFTT, seeds=[7])) == 6
    with pytest.raises(UserError, match=r"gru11: no such system; choose from baseline, .*gru16"):
        choose_jobs(KFTT, ["gru11"])


class Machine:
    """Does jobs by writing an empty result; stops before the job it is told to."""

    def __init__(self, stop_before: str = "") -> None:
        self.done: list[str] = []
        self.stop_before = stop_before

    def run_job(self, plan: Plan, job: Job) -> None:
        if job.name == self.stop_before:
            raise KeyboardInterrupt
        self.done.append(job.name)
        write_result(plan.result(job), {"system": job.system, "seed": job.seed})


def tiny_plan(directory: Path, **changes: Any) -> Plan:
    plan = Plan(TINY, directory / "work", directory / "results", jobs=choose_jobs(TINY))
    return replace(plan, **changes)


@pytest.fixture
def three_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setattr(type(TINY.text), "prepare", lambda *arguments: None)
    return tiny_plan(tmp_path, jobs=choose_jobs(TINY, ["baseline", "tanh1", "gru10"]))


@pytest.mark.parametrize("stop", ["baseline-seed1", "tanh1-seed1", "gru10-seed1"])
def test_a_stopped_list_goes_on(
    stop: str, three_jobs: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Machine(stop_before=stop), Machine()
    monkeypatch.setattr(jobs, "run_job", first.run_job)
    with pytest.raises(KeyboardInterrupt):
        list(run_jobs(three_jobs))
    monkeypatch.setattr(jobs, "run_job", second.run_job)
    list(run_jobs(three_jobs))
    assert first.done + second.done == names(list(three_jobs.jobs))
    assert three_jobs.left() == []


def test_results_from_elsewhere_are_not_made_again(
    three_jobs: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_result(three_jobs.result(Job("tanh1", 1)), {"system": "tanh1", "seed": 1})
    machine = Machine()
    monkeypatch.setattr(jobs, "run_job", machine.run_job)
    assert len(list(run_jobs(three_jobs))) == 2
    assert machine.done == ["baseline-seed1", "gru10-seed1"]
    assert list(run_jobs(three_jobs)) == []


def test_results_that_cannot_be_written_are_told_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    with pytest.raises(UserError, match=r"embedded-tiny.baseline-seed1\.json: cannot be written"):
        list(run_jobs(tiny_plan(tmp_path)))
    assert not (tmp_path / "work").exists()


def test_the_list_says_what_is_done_and_left(tmp_path: Path, comparison: Comparison) -> None:
    plan = tiny_plan(tmp_path)
    write_result(plan.result(Job("gru10", 1)), made_up(comparison, "gru10", 1))
    assert list(jobs.progress_rows(plan)) == [
        ("baseline", "1", "left", ""),
        ("gru10", "1", "done", "100.00"),
    ]


# One job


@pytest.mark.parametrize("system", [*SYSTEMS, *VARIANTS])
def test_systems_differ_only_in_what_makes_them(system: str, tmp_path: Path) -> None:
    plan = Plan(KFTT, tmp_path, tmp_path)
    config = settings(plan, Job(system, 5), minutes=1.5)
    assert (config.train.seed, config.train.minutes) == (5, 1.5)
    assert config.data.directory == plan.prepared
    if system in SYSTEMS:
        assert config.model.coverage == SYSTEMS[system]
        shared = load_recipe(find_recipe(KFTT.recipe)).model
        assert config.model.model_copy(update={"coverage": shared.coverage}) == shared
    else:
        modern = replace(plan, experiment=find_experiment("kftt", "modern"))
        base = VARIANTS[system].base
        pairs = [
            [
                (settings(p, Job(name, 5), 1.5), is_tuned(p.experiment, name))
                for name in (system, base)
            ]
            for p in (plan, modern)
        ]
        assert any(one != other for one, other in pairs)


def test_recipes_have_the_sizes_of_the_paper() -> None:
    for corpus in ("kftt", "twlaw"):
        model = load_recipe(find_recipe(find_experiment(corpus).recipe)).model
        assert (model.embedding, model.hidden, model.rank) == (620, 1000, 620)


def test_a_stopped_training_has_only_the_time_that_is_left(tmp_path: Path) -> None:
    assert time_left(None, tmp_path) == 0
    assert time_left(10, tmp_path) == pytest.approx(8.5)
    log = ['{"seconds": 60}', '{"seconds": 120.0}', '{"secon']
    write_lines(tmp_path / "log.jsonl", log)
    assert time_left(10, tmp_path) == pytest.approx(6.5)
    assert 0 < time_left(1, tmp_path) < 0.1


def test_commands_name_no_directory(tmp_path: Path) -> None:
    told = jobs.command(tiny_plan(tmp_path, minutes=2.5), Job("gru10", 3))
    assert told == ("covnmt reproduce embedded --scale tiny --system gru10 --seed 3 --minutes 2.5")


def test_case_insensitive_scores_are_those_of_sacrebleu() -> None:
    output = ["The cat sat on A mat today", "Kyoto is old"]
    references = ["the Cat sat on a Mat Today .", "kyoto Is Very old"]
    lower = [[line.lower() for line in lines] for lines in (output, references)]
    ours = case_insensitive([score(lower[0], [lower[1]]) for score in (sacre_bleu, chrf)])
    for score, metric in zip(ours, (BLEU(lowercase=True), CHRF(lowercase=True)), strict=True):
        assert score.value == pytest.approx(metric.corpus_score(output, [references]).score)
        assert score.signature == str(metric.get_signature())


# Corpora


def write_open_corpus(directory: Path, gold: bool = True) -> None:
    """Text in the places where that of KFTT is."""
    for part, size in (("train", 30), ("dev", 4), ("test", 5)):
        write_lines(directory / f"kftt-ja-en/{part}.ja", [f"寺 は {k} 。" for k in range(size)])
        write_lines(directory / f"kftt-ja-en/{part}.en", [f"Temple {k}." for k in range(size)])
    if gold:
        folder = directory / "gold-align/ja-en-kftt"
        for ending, line in (("ja", "寺 \u3000 。"), ("en", "temple ."), ("talp", "0-0 2-1")):
            write_lines(folder / f"test.{ending}", [line])


def test_open_corpora_are_prepared_as_words(tmp_path: Path) -> None:
    write_open_corpus(tmp_path)
    prepared = tmp_path / "prepared"
    for _ in range(2):  # the second time there is nothing to do
        KFTT.text.prepare(tmp_path, prepared)
    corpus = Corpus.open(prepared)
    assert corpus.codec("target").tokenize("Temple 3.") == ["temple", "3", "."]
    assert corpus.codec("source").tokenize("寺 は 3 。") == ["寺", "は", "3", "。"]
    assert corpus.split("test").target_text()[0] == "Temple 0."
    assert [(prepared / name).read_text("utf-8") for name in GOLD] == [
        "寺 ␣ 。\n",  # a wide space counts as a word there
        "temple .\n",
        "0-0 2-1\n",
    ]


def test_files_may_lie_right_in_the_directory(tmp_path: Path) -> None:
    write_open_corpus(tmp_path, gold=False)
    KFTT.text.prepare(tmp_path / "kftt-ja-en", tmp_path / "prepared")
    assert not (tmp_path / "prepared" / GOLD[2]).exists()


MISSING = {
    "kftt": r"train\.ja: no such file .*covnmt corpus get kftt DIR",
    "twlaw": r"train\.seg\.zh: no such file .*unpack twlaw-zh-en\.tar\.xz",
}


@pytest.mark.parametrize("corpus", MISSING)
def test_a_missing_corpus_says_how_to_get_it(corpus: str, tmp_path: Path) -> None:
    text = find_experiment(corpus).text
    with pytest.raises(UserError, match=MISSING[corpus]):
        text.prepare(tmp_path, tmp_path / "prepared")
    with pytest.raises(UserError, match="give --data, or --unpack FILE"):
        text.prepare(None, tmp_path / "prepared")


@pytest.mark.parametrize(
    ("corpus", "scale", "message"),
    [
        ("kfft", None, "kfft: no such corpus; choose from kftt, twlaw, embedded"),
        ("kftt", "tiny", "kftt has no scale 'tiny'; it is run at scale paper"),
        ("embedded", "paper", "embedded has no scale 'paper'; it is run at scale small or tiny"),
    ],
)
def test_unknown_experiments(corpus: str, scale: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_experiment(corpus, scale)


def test_every_experiment_has_its_own_folder_and_a_recipe() -> None:
    assert len({each.name for each in EXPERIMENTS}) == len(EXPERIMENTS)
    for each in EXPERIMENTS:
        assert find_experiment(each.corpus, each.scale) == each
        assert set(each.again) <= set(each.systems)
        load_recipe(find_recipe(each.recipe), changes_of(each.systems[-1]))


@pytest.mark.parametrize("experiment", [e for e in EXPERIMENTS if isinstance(e.text, OpenText)])
def test_example_sentences(experiment: Experiment, tmp_path: Path) -> None:
    lines = experiment.text.examples(tmp_path)
    assert 10 <= len(lines) <= 15
    assert sum(len(line.split()) > 30 for line in lines) >= 4
    assert all(line == " ".join(line.split()) and line.endswith("。") for line in lines)


# Packs


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    write_open_corpus(tmp_path)
    KFTT.text.prepare(tmp_path, tmp_path / "prepared")
    return tmp_path / "prepared"


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_pack_comes_back_as_it_was(prepared: Path, tmp_path: Path) -> None:
    for name in ("one.tar.xz", "two.tar.xz"):
        pack(prepared, "kftt", tmp_path / name)
    assert (tmp_path / "one.tar.xz").read_bytes() == (tmp_path / "two.tar.xz").read_bytes()
    there = tmp_path / "elsewhere/kftt/data"
    assert unpack(tmp_path / "one.tar.xz", "kftt", there)
    assert contents(there) == contents(prepared)
    assert [path.name for path in there.parent.iterdir()] == ["data"]
    KFTT.text.prepare(None, there)
    assert not unpack(tmp_path / "nothing", "kftt", there)


def test_packs_that_are_none(prepared: Path, tmp_path: Path) -> None:
    pack(prepared, "kftt", tmp_path / "good.tar.xz")
    whole = (tmp_path / "good.tar.xz").read_bytes()
    (tmp_path / "cut.tar.xz").write_bytes(whole[: len(whole) // 2])
    for file, name, message in (
        ("none.tar.xz", "kftt", "no such file; make it with --pack"),
        ("cut.tar.xz", "kftt", "cannot be unpacked"),
        ("good.tar.xz", "twlaw", "holds kftt, not a pack of twlaw"),
    ):
        with pytest.raises(UserError, match=message):
            unpack(tmp_path / file, name, tmp_path / "new/data")
        assert list((tmp_path / "new").iterdir()) == []


# Results

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_layout_is_json(value: Any) -> None:
    assert json.loads(layout(value)) == value


def test_rows_of_figures_stand_on_one_line() -> None:
    text = layout({"a": [[1, 2], [3, 4]], "b": ["x", "y"]})
    assert text == '{\n  "a": [\n    [1, 2],\n    [3, 4]\n  ],\n  "b": ["x", "y"]\n}'


def test_damaged_results_are_named(tmp_path: Path, comparison: Comparison) -> None:
    good = made_up(comparison, "gru10", 1)
    for content, message in (
        ({"format": 9}, "gru10-seed1.json: not a result of `covnmt reproduce`"),
        ({"format": 1, **good, "seed": 2}, "holds gru10, seed 2"),
        ({"format": 1, "system": "gru10", "seed": 1, "test": {}}, "has no parameters, training"),
    ):
        (tmp_path / "gru10-seed1.json").write_text(json.dumps(content), "utf-8")
        with pytest.raises(UserError, match=message):
            read_results(tmp_path)


# Summary, tables, page


@pytest.fixture
def results(comparison: Comparison) -> list[Result]:
    done = [("gru10", 1), ("baseline", 1), ("fertility", 1), ("tanh1", 1), ("baseline", 2)]
    return [as_result(made_up(comparison, *job)) for job in [*done, ("gru10", 2)]]


def test_marks_are_those_of_compare(results: list[Result], comparison: Comparison) -> None:
    summary = summarise(KFTT, results)
    assert [each.system for each in summary.systems] == ["baseline", "fertility", "tanh1", "gru10"]
    for each in summary.systems[1:]:
        expected = comparison.sign_tests["baseline", each.system]
        assert set(each.sign_tests.values()) == {expected}
        assert (each.better() > 0) == bool(comparison.marks(each.system))
    assert [tables.mark(each) for each in summary.systems] == ["", "†", "", "† 2 of 2"]


def test_the_phrase_based_row(results: list[Result], comparison: Comparison) -> None:
    """It comes first, has no parameters, and those who beat it get a mark of their own."""
    # as good as `fertility`: better than the baseline, worse than gru10
    phrases = made_up(comparison, "fertility", 1) | {"system": PHRASE_BASED}
    summary = summarise(KFTT, [*results, as_result(phrases)])
    assert [each.system for each in summary.systems][:2] == [PHRASE_BASED, "baseline"]
    assert [tables.mark(each) for each in summary.systems] == [
        "†",
        "",
        "†",
        "",
        "† 2 of 2 ‡ 2 of 2",
    ]
    first, *_ = rows_of(tables.translation_table(summary))
    assert first["system"] == "`pbsmt`, phrase-based"
    assert (first["parameters"], first["paper: BLEU"]) == ("-", "28.41")
    aligned, *_ = rows_of(tables.alignment_table(summary))
    assert (aligned["AER ↓"], aligned["paper: AER"]) == ("51.00", "-")
    assert "pbsmt" not in tables.speed_table(summary) + tables.attention_table(summary)
    assert changes_of(PHRASE_BASED) == []


def test_gains_ratios_and_spreads(results: list[Result], comparison: Comparison) -> None:
    summary = summarise(KFTT, results)
    gru10, fertility = summary.find("gru10"), summary.find("fertility")
    assert gru10 is not None
    assert fertility is not None
    bleu = {name: found.translation[0].value for name, found in comparison.systems.items()}
    assert gru10.gain == pytest.approx(bleu["gru10"] - bleu["baseline"])
    assert gru10.gain_band is not None
    low, high = gru10.gain_band
    assert low < bleu["gru10"] - bleu["baseline"] < high
    assert gru10.speed_ratio == pytest.approx(800 / 960)
    aer = gru10.scores["AER"]
    assert (aer.mean, aer.low, aer.high, aer.seeds) == (51.5, 51, 52, 2)
    assert tables.spread(aer) == "51.50 [51.00, 52.00]"
    assert tables.spread(fertility.scores["AER"]) == "51.00"
    assert summary.missing == ("linguistic-seed1", "gru1-seed1", "fertility-seed2")


def test_only_equals_are_compared(comparison: Comparison) -> None:
    baseline = as_result(made_up(comparison, "baseline", 1))
    elsewhere = {"gpu": "Another GPU", "cpu": "A CPU", "cores": 8}
    moved = as_result(made_up(comparison, "gru10", 1, machine=elsewhere))
    newer = as_result(made_up(comparison, "gru1", 1, commit="another"))
    other_seed = as_result(made_up(comparison, "fertility", 2))
    other_size = made_up(comparison, "tanh1", 1)
    other_size["recipe"]["model"]["hidden"] = 16
    summary = summarise(KFTT, [baseline, moved, newer, other_seed, as_result(other_size)])
    found = {each.system: each for each in summary.systems}
    assert found["gru10"].speed_ratio is None
    assert found["gru1"].speed_ratio is None
    assert found["tanh1"].speed_ratio is not None
    assert found["gru10"].gain is not None
    assert (found["fertility"].gain, found["fertility"].gain_band) == (None, None)
    assert found["fertility"].sign_tests == {}
    assert summary.unequal == ("model.hidden: 16 or 8",)
    assert summary.machines == ("A GPU", "Another GPU")


def rows_of(table: str) -> Iterator[dict[str, str]]:
    """A Markdown table as dictionaries by its head."""
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()
    ]
    return (dict(zip(head, row, strict=True)) for row in rows)


def test_table_one(results: list[Result], comparison: Comparison) -> None:
    rows = {
        row["system"].split("`")[1]: row
        for row in rows_of(tables.translation_table(summarise(KFTT, results)))
    }
    assert rows["baseline"]["parameters"] == "1,000"
    assert rows["gru10"]["parameters"] == "+100"
    assert rows["gru10"]["BLEU (paper's)"] == "100.00 [100.00, 100.00]"
    expected = comparison.systems["tanh1"]
    assert rows["tanh1"]["BLEU (paper's)"] == f"{expected.translation[0].value:.2f}"
    assert rows["tanh1"]["sacreBLEU"] == f"{expected.translation[1].value:.2f}"
    assert (rows["gru10"]["paper: BLEU"], rows["gru10"]["paper: gain"]) == ("30.14", "+1.82")
    assert rows["baseline"]["95%"] == "-"
    assert rows["gru10"]["95%"].startswith("+")
    assert " to +" in rows["gru10"]["95%"]


def test_figures_of_the_paper_agree_with_each_other() -> None:
    assert list(tables.PAPER) == [PHRASE_BASED, *SYSTEMS]
    baseline = tables.PAPER["baseline"].bleu
    for system, row in tables.PAPER.items():
        if row.gain is not None:
            assert row.bleu - baseline == pytest.approx(row.gain), system
    for before, after, fewer in zip(*tables.PAPER_RATES.values(), (33.2, 40.0), strict=True):
        assert 100 * (1 - after / before) == pytest.approx(fewer, abs=0.05)


def test_changes_against_the_baseline(results: list[Result]) -> None:
    summary = summarise(KFTT, results)
    base, gru10 = summary.find("baseline"), summary.find("gru10")
    assert base is not None
    assert gru10 is not None
    changed = replace(gru10, scores={"DROP": replace(gru10.scores["AER"], mean=15.0)})
    before = replace(base, scores={"DROP": replace(gru10.scores["AER"], mean=20.0)})
    assert tables.versus(changed, before, "DROP") == "15.00 (-25%)"
    assert tables.versus(changed, None, "DROP").startswith("15.00 [")
    assert tables.versus(changed, before, "REP") == "-"


def test_the_page(results: list[Result], tmp_path: Path, comparison: Comparison) -> None:
    extra = as_result(made_up(comparison, "gru4", 1))
    for result in [*results, extra]:
        write_result(tmp_path / f"{result.system}-seed{result.seed}.json", result.content)
    page = write_page(KFTT, tmp_path).read_text("utf-8")
    for part in (
        "# KFTT, Japanese to English",
        "## Translation (Table 1)",
        "On 3 made-up pairs;",
        "a proxy cannot confirm",
        "| `gru4` | d = 4 |",
        "- `baseline`: a b a b",
        "![Sentence 1](example-1.png)",
        "Not run yet: `linguistic-seed1`, `gru1-seed1`, `fertility-seed2`.",
        "0.833 | 0.833 |",
        "`gru10`: made 20 updates.",
    ):
        assert part in page
    assert "Not one recipe" not in page
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    assert all(first != second for first, second in pairwise(headings))
    for file in ("lengths.png", "lengths.svg", "training.png", "training.svg", "example-1.png"):
        assert (tmp_path / file).stat().st_size > 1000
    summary = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    assert summary["missing"] == ["linguistic-seed1", "gru1-seed1", "fertility-seed2"]
    again = write_page(KFTT, tmp_path).read_text("utf-8")
    assert again == page


def test_a_page_of_one_result(tmp_path: Path, comparison: Comparison) -> None:
    nothing = {"gold": {"pairs": 0, "what": None}, "examples": []}
    content = made_up(comparison, "gru10", 1, **nothing)
    write_result(tmp_path / "gru10-seed1.json", content)
    page = write_page(KFTT, tmp_path).read_text("utf-8")
    assert "No gold alignments were given" in page
    assert "Example sentences" not in page
    shipped = write_page(find_experiment("kftt", "shipped"), tmp_path).read_text("utf-8")
    assert "There is no AER: these subwords" in shipped
    with pytest.raises(UserError, match="no result files yet"):
        write_page(KFTT, tmp_path / "empty")


def test_a_page_of_the_phrase_based_system_alone(tmp_path: Path, comparison: Comparison) -> None:
    write_result(tmp_path / "pbsmt-seed1.json", made_up(comparison, PHRASE_BASED, 1))
    page = write_page(KFTT, tmp_path).read_text("utf-8")
    assert "| `pbsmt`, phrase-based | - |" in page
    assert "lengths.png" not in page
    assert "Not run yet: `baseline-seed1`" in page


# translation, attention to "x" and "y", source words hardly seen and target words said again
TROUBLES = [
    ("a b", [[1.0, 0.0], [0.9, 0.1]], 1),
    ("a b a b", [[0.5, 0.5]] * 4, 2),
    ("a a a", [[1.0, 0.0]] * 3, 3),
    ("", [], 2),
]


@pytest.mark.parametrize(("text", "alignment", "expected"), TROUBLES)
def test_trouble(text: str, alignment: list[list[float]], expected: int) -> None:
    example = {"source_tokens": ["x", "y"], "tokens": text.split(), "alignment": alignment}
    assert trouble(example) == expected


def test_capitals_do_not_count() -> None:
    """On neither side: systems that never saw one cannot write one."""
    lines = ["The Temple of the North .", "It is OLD , very old indeed ."]
    test = SimpleNamespace(source_text=lambda: lines, target_text=lambda: lines)
    found = score_text([line.upper() for line in lines], cast(Split, test))
    assert [score.value for score in found.translation] == pytest.approx([100, 100, 100, 0])


def test_speed_is_the_median_after_the_first_report(tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "run")
    entry = {"update": 10, "epoch": 0, "words": 9, "seconds": 1.0, "loss": 2.0}
    rates = [1, 300, 100, 200]
    lines = [json.dumps(entry | {"words_per_second": rate}) for rate in rates]
    write_lines(tmp_path / "run" / "log.jsonl", lines)
    assert describe_run(tmp_path / "run", "done")["training"]["words_per_second"] == 200


# The sheet


WORDS = ["寺", "は", "古い"]  # as the system tells them: there are no spaces to go by


def test_the_sheet_stays_out_of_the_results(prepared: Path, tmp_path: Path) -> None:
    plan = Plan(KFTT, tmp_path / "work", tmp_path / "results")
    plan.prepared.parent.mkdir(parents=True)
    prepared.rename(plan.prepared)
    for system in ("baseline", "gru10"):
        lines = [json.dumps({"text": f"{system} {k}", "source_tokens": WORDS}) for k in range(5)]
        write_lines(plan.run(Job(system, 1)) / "test.jsonl", lines)
    directory = jobs.write_sheet(plan, ["baseline", "gru10"], 1)
    key = json.loads((directory / "key.json").read_text("utf-8"))
    assert [item["words"] for item in key["items"]] == [len(WORDS)] * 10
    assert not (tmp_path / "results").exists()
    with pytest.raises(UserError, match=r"tanh1-seed1.test\.jsonl: no such file; run the job"):
        jobs.write_sheet(plan, ["baseline", "tanh1"], 1)


def test_statistics_keep_their_shape(results: list[Result]) -> None:
    assert results[0].statistics.shape == (len(REFERENCES), 10)
    assert results[0].statistics.dtype == np.int64
