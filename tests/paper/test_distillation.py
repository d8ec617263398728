"""Distillation: a student trained on its teacher's translations, in steps that can be resumed."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from covnmt.base.config import Config
from covnmt.base.errors import UserError
from covnmt.base.files import write_lines
from covnmt.base.recipe import find_recipe, load_recipe
from covnmt.data.corpus import Corpus
from covnmt.decoding.backtrace import Hypothesis
from covnmt.decoding.engines import SearchResult
from covnmt.inference.model import Model
from covnmt.paper import distillation, neural, systems, tables
from covnmt.paper.distillation import (
    STUDENT_SHARE,
    TRANSLATIONS,
    distill,
    read_translations,
    translate_chunks,
    write_chunk,
    write_corpus,
)
from covnmt.paper.experiments import EmbeddedPairText, Experiment, find_experiment
from covnmt.paper.jobs import run_jobs
from covnmt.paper.parallel_jobs import group_by_training
from covnmt.paper.plan import ExperimentJob, ExperimentPlan
from covnmt.paper.results import Result, read_record
from covnmt.text.codec import SIDES
from covnmt.training.loop import TrainingOutcome
from covnmt.training.state import Counters

TEACHER, STUDENT, ONLY = (
    ExperimentJob(f"gru10-{ending}", 1) for ending in ("teacher", "distilled", "distilled-only")
)


def tiny_experiment(directory: Path) -> Experiment:
    recipe = directory / "tiny.toml"
    tiny = find_recipe("reproduce/embedded-tiny")
    write_lines(recipe, [f'extends = "{tiny}"', "[train]", "updates = 30"])
    text = EmbeddedPairText(train=60, dev=6, test=8, example_count=1)
    return replace(find_experiment("embedded", "tiny"), text=text, other_recipe=str(recipe))


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExperimentPlan]:
    """Finished jobs of two students with one teacher."""
    directory = tmp_path_factory.mktemp("distillation")
    experiment = tiny_experiment(directory)
    where = directory / "work", directory / "results"
    plan = ExperimentPlan(experiment, *where, device="cpu", jobs=[STUDENT, ONLY])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distillation, "CHUNK_PAIRS", 16)
        small = replace(systems.VARIANTS[TEACHER.system], changes=("model.hidden=12",))
        patch.setitem(systems.VARIANTS, TEACHER.system, small)
        list(run_jobs(plan))
        yield plan


@pytest.mark.slow
def test_student_reads_what_its_teacher_translates(plan: ExperimentPlan) -> None:
    teacher = plan.model_directory(TEACHER)
    split = Corpus.open(plan.prepared).split("train")
    model = Model.load(teacher, device="cpu")
    translations = dict(read_translations(split, teacher / TRANSLATIONS))
    only = Corpus.open(plan.training_data(ONLY)).split("train")
    sources = [split.source[i].tolist() for i in range(len(split))]
    for i in range(len(only)):
        index = sources.index(only.source[i].tolist())
        assert translations[index].tolist() == only.target[i].tolist()
    line = " ".join(model.source.vocabulary.decode(sources[0]))
    decode = model.decode.model_copy(update=distillation.DECODING)
    [expected] = model.translate([line], decode)
    if expected.finished:
        assert model.target.vocabulary.decode(translations[0]) == list(expected.tokens)


@pytest.mark.slow
def test_results_name_the_teacher_and_what_it_did(plan: ExperimentPlan) -> None:
    results = [
        read_record(Result, plan.result_file(job), job.system, job.seed) for job in (STUDENT, ONLY)
    ]
    for result, references in zip(results, (True, False), strict=True):
        about = result.distillation
        assert about is not None
        assert (about.teacher, about.references) == (TEACHER.name, references)
        assert about.translated == 60 >= about.kept
        data = Corpus.open(plan.training_data(ExperimentJob(result.system, 1)))
        assert len(data.split("train")) == about.kept + 60 * references
        assert result.data["train"].kept == 60  # of the text itself
        assert result.recipe["model"]["hidden"] != 12
    assert plan.model_directory(TEACHER).joinpath("trained.json").exists()
    assert not plan.result_file(TEACHER).exists()
    rows = tables.distillation_table(results).splitlines()[2:]
    assert [row.split(" | ")[-1] for row in rows] == ["yes |", "no |"]
    assert all(f"`{TEACHER.name}`" in row for row in rows)


def test_student_corpus_has_original_and_translated_pairs(tmp_path: Path) -> None:
    prepared = tmp_path / "prepared"
    EmbeddedPairText(train=20, dev=2, test=2).prepare(prepared)
    corpus = Corpus.open(prepared)
    split = corpus.split("train")
    kept = [(k, np.array([5, 6, k % 3 + 1], np.uint32)) for k in range(0, 20, 2)]
    (tmp_path / "out").mkdir()
    write_corpus(corpus, kept, tmp_path / "out", references=True)
    new = Corpus.open(tmp_path / "out")
    train = new.split("train")
    assert len(train) == new.report.splits["train"].kept == 30
    for k in range(20):
        assert all((getattr(train, s)[k] == getattr(split, s)[k]).all() for s in SIDES)
    assert (train.source[21] == split.source[2]).all()
    assert train.target[21].tolist() == [5, 6, 3]
    assert new.split("dev").text("source") == corpus.split("dev").text("source")
    assert new.report.fingerprint == corpus.report.fingerprint


class CountingEngine:
    """Translates every sentence into its last token; counts what it is given."""

    def __init__(self) -> None:
        self.sentences = 0

    def search(self, source, decode, on_step):  # type: ignore[no-untyped-def]
        assert not decode.retry
        self.sentences += len(source.ids)
        nothing = np.zeros((0, 1), np.float32)
        return SearchResult(
            [[Hypothesis((int(n),), 0.0, 0.0, nothing, True)] for n in source.lengths], None
        )


def test_translating_resumes_and_keeps_to_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distillation, "CHUNK_PAIRS", 8)
    EmbeddedPairText(train=20, dev=2, test=2).prepare(tmp_path / "prepared")
    split = Corpus.open(tmp_path / "prepared").split("train")
    engine, model = CountingEngine(), Model.__new__(Model)
    model.engine = cast(Any, engine)
    model.decode = load_recipe(find_recipe("reproduce/embedded-tiny")).decode
    folder = tmp_path / "translations"
    write_chunk(folder / "00000.npz", [[1]] * 8, seconds=100)
    assert translate_chunks(model, split, folder, limit=50) == 100  # no time is left
    assert engine.sentences == 0
    assert len(list(read_translations(split, folder))) == 8
    assert translate_chunks(model, split, folder, limit=0) > 100
    assert engine.sentences == 12
    found = dict(read_translations(split, folder))
    assert sorted(found) == list(range(20))
    late = split.order[8:].tolist()
    assert all(found[k].tolist() == [len(split.source[k]) + 1] for k in late)


def test_teacher_whose_searches_never_end_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distillation, "CHUNK_PAIRS", 20)
    EmbeddedPairText(train=20, dev=2, test=2).prepare(tmp_path / "prepared")
    write_chunk(tmp_path / "teacher" / TRANSLATIONS / "00000.npz", [()] * 20, seconds=1)
    monkeypatch.setattr(Model, "load", lambda *_, **__: None)
    monkeypatch.setattr(distillation, "translate_chunks", lambda *_: 1.0)
    with pytest.raises(UserError, match="teacher: none of its 20 translations ended"):
        distill(tmp_path / "prepared", tmp_path / "teacher", tmp_path / "out", references=False)
    assert not (tmp_path / "out").exists()


def test_teacher_translations_and_student_share_the_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes = []

    def train(config: Config, *_: object, **__: object) -> TrainingOutcome:
        minutes.append(config.train.minutes)
        return TrainingOutcome("its time was over", Counters(), True, False, limit="minutes")

    monkeypatch.setattr(neural, "train", train)
    monkeypatch.setattr(neural, "distill", lambda *arguments: minutes.append(arguments[-1]))
    plan = ExperimentPlan(tiny_experiment(tmp_path), tmp_path, tmp_path, minutes=10)
    neural.train_job(plan, STUDENT)
    assert minutes == pytest.approx([3.825, 0.85, 3.825], abs=1e-3)  # 85% of 10 in all


def test_students_and_their_teacher_run_one_after_the_other() -> None:
    other = ExperimentJob("gru10", 1)
    assert group_by_training([STUDENT, other, TEACHER, ONLY]) == [[STUDENT, TEACHER, ONLY], [other]]
    assert 0.3 < STUDENT_SHARE < 0.6
