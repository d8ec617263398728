"""The list of jobs, in a fixed order: prepare, then train and measure each system, then report.

A job is done when its result file exists, wherever it was run; so the same command goes on after a
stop, and on another machine once the results have been copied there. A training that was stopped
goes on from its last save, and has only the time that is left of its own.
"""

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from covnmt.base.config import Config, DecodeConfig
from covnmt.base.console import log
from covnmt.base.errors import UserError
from covnmt.base.files import check_writable, read_json, read_lines, write_json
from covnmt.base.recipe import find_recipe, load_recipe, toml_string
from covnmt.paper.experiments import Experiment, tunes_length_penalty
from covnmt.paper.results import (
    PAPER_BLEU,
    FinishedTraining,
    Measurements,
    PreparedData,
    Provenance,
    ReportPoint,
    Result,
    SplitCounts,
    SystemDescription,
    Training,
    TriedPenalty,
    ValidationPoint,
    read_result,
    result_path,
    write_result,
)
from covnmt.paper.systems import PHRASE_BASED, recipe_overrides, training_system

FIRST_SEED, SECOND_SEED = 1, 2
# Of a job's time, what is kept for the last validation, translation, alignment and scores.
RESERVE = 0.15
SHEET_SENTENCES = 200
TRAINED = "trained.json"
OUTPUTS = "test.jsonl"  # the translated test set, in the model directory
WARM_UP = 1  # reports of speed that do not count


@dataclass(frozen=True)
class ExperimentJob:
    """One system, trained with one seed, and measured."""

    system: str
    seed: int

    @property
    def name(self) -> str:
        """Of its directory."""
        return f"{self.system}-seed{self.seed}"


@dataclass(frozen=True)
class ExperimentPlan:
    """What to do and where: text in `data`, everything large in `work`, figures in `results`."""

    experiment: Experiment
    work: Path
    results: Path
    data: Path | None = None
    minutes: float | None = None
    device: str = "auto"
    jobs: Sequence[ExperimentJob] = ()
    shared: bool = False  # the machine does other work too, so that speeds say nothing

    @property
    def prepared(self) -> Path:
        """The prepared directory."""
        return self.work / self.experiment.name / "data"

    @property
    def result_directory(self) -> Path:
        """Where this experiment's results are."""
        return self.results / self.experiment.name

    def run(self, job: ExperimentJob) -> Path:
        """The model directory of a job."""
        return self.work / self.experiment.name / job.name

    def result(self, job: ExperimentJob) -> Path:
        """The result file of a job."""
        return result_path(self.result_directory, job.system, job.seed)

    def left(self) -> list[ExperimentJob]:
        """The jobs still to be done, in order."""
        return [job for job in self.jobs if not self.result(job).exists()]

    def prepare(self) -> None:
        """The text, if any job is left; before that, whether a result could be written."""
        if left := self.left():
            check_writable(self.result(left[0]))
            self.experiment.text.prepare(self.data, self.prepared)


def choose_jobs(
    experiment: Experiment, systems: Sequence[str] = (), seeds: Sequence[int] = ()
) -> list[ExperimentJob]:
    """All systems once, then those that have a second seed; or exactly what is asked for."""
    for system in systems:
        recipe_overrides(system)
    chosen = list(dict.fromkeys(systems)) or list(experiment.systems)
    if systems or seeds:
        each = list(dict.fromkeys(seeds)) or [FIRST_SEED]
        return [ExperimentJob(system, seed) for seed, system in product(each, chosen)]
    again = [ExperimentJob(system, SECOND_SEED) for system in experiment.again]
    return [ExperimentJob(system, FIRST_SEED) for system in chosen] + again


def run_jobs(plan: ExperimentPlan) -> Iterator[str]:
    """Do what is left, telling what was done; raises KeyboardInterrupt when stopped by a signal."""
    plan.prepare()
    left = plan.left()
    for number, job in enumerate(left, 1):
        log(f"job {number} of {len(left)}: {job.name}")
        began = time.monotonic()
        run_job(plan, job)
        yield f"{plan.result(job)}: done in {time.monotonic() - began:,.0f} seconds"


def run_job(plan: ExperimentPlan, job: ExperimentJob) -> None:
    """Train one system, measure it, and write its result."""
    if job.system == PHRASE_BASED:
        from covnmt.paper.phrase_based import run_phrase_based_job

        directory, outputs = plan.run(job), plan.run(job) / OUTPUTS
        description, measured = run_phrase_based_job(
            plan.experiment, directory, plan.prepared, job.seed, outputs
        )
        where, minutes = this_machine(), plan.minutes
    else:
        ended, description, measured = run_neural_job(plan, job)
        where, minutes = ended, ended.minutes
    result = Result(
        experiment=plan.experiment.name,
        system=job.system,
        seed=job.seed,
        command=reproduce_command(plan, job, minutes),
        commit=where.commit,
        machine=where.machine,
        versions=where.versions,
        **describe_data(plan.prepared).set_fields(),
        **description.set_fields(),
        **measured.set_fields(),
    )
    write_result(plan.result_directory, result)


def this_machine() -> Provenance:
    """Return the commit, machine and versions of this process."""
    from covnmt.base.provenance import collect_provenance

    return Provenance(**collect_provenance())


def describe_data(prepared: Path) -> PreparedData:
    """Return what `prepare` reported about each part of the corpus."""
    from covnmt.data.corpus import Corpus

    splits = Corpus.open(prepared).report.splits
    counts = {name: SplitCounts(**report.model_dump()) for name, report in splits.items()}
    return PreparedData(data=counts)


def run_neural_job(
    plan: ExperimentPlan, job: ExperimentJob
) -> tuple[FinishedTraining, SystemDescription, Measurements]:
    """Train a neural system, unless its training was done for another one, and measure it."""
    from covnmt.data.corpus import Corpus
    from covnmt.model.checkpoint import write_last_weights
    from covnmt.paper.measure import NeuralSystem, measure_system, without_length_limit

    trained = ExperimentJob(training_system(job.system), job.seed)
    run = model = plan.run(trained)
    ended = train_system(plan, trained)
    config = job_config(plan, job, 0.0)
    began = time.monotonic()
    if config.train.ema != job_config(plan, trained, 0.0).train.ema:
        model = plan.run(job)
        write_last_weights(run, model)
    decode, tried = tune_length_penalty(plan, job, model, config.decode)
    limits = without_length_limit(decode, Corpus.open(plan.prepared).split("test"))
    system = NeuralSystem.load(model, plan.device, limits)
    measured = measure_system(system, plan.experiment, plan.prepared, plan.run(job) / OUTPUTS)
    seconds = round(time.monotonic() - began, 1)
    tested = config.model_copy(update={"decode": decode})
    description = describe_run(run, tested, ended.reason, speed=not plan.shared)
    fields = {**description.set_fields(), "measuring_seconds": seconds}
    return ended, SystemDescription(**fields, **({"tuning": tried} if tried else {})), measured


def describe_run(run: Path, tested: Config, reason: str, speed: bool = True) -> SystemDescription:
    """Describe settings, size and training from the files of a model directory.

    `tested` has the decoding settings and the weight averaging that the system is measured with.
    Without `speed` the machine did other work too.
    """
    from covnmt.inference.info import model_info

    about = model_info(str(run), vocabulary_size=0)
    recipe = about.config.model_dump(mode="json", exclude={"data": {"directory"}})  # a local path
    recipe["decode"] = tested.decode.model_dump(mode="json")
    recipe["train"]["ema"] = tested.train.ema
    log = [json.loads(line) for line in read_lines(run / "log.jsonl")]
    reports = [entry for entry in log if "loss" in entry]
    validations = [entry for entry in log if "validation" in entry]
    speeds = [entry["words_per_second"] for entry in reports[WARM_UP:]]
    last = log[-1]
    return SystemDescription(
        recipe=recipe,
        words=about.vocabulary_sizes,
        parameters=about.to_json()["parameters"],
        training=Training(
            reason=reason,
            **{key: last[key] for key in ("update", "epoch", "words", "seconds")},
            best_update=max((e["update"] for e in validations if e["best"]), default=0),
            words_per_second=statistics.median(speeds) if speeds and speed else None,
            curve=[
                ReportPoint(e["update"], round(e["loss"], 4), e["words_per_second"])
                for e in reports
            ],
            validations=[
                ValidationPoint(
                    e["update"], round(e["validation"]["loss"], 4), e["validation"]["bleu"]
                )
                for e in validations
            ],
        ),
    )


def tune_length_penalty(
    plan: ExperimentPlan, job: ExperimentJob, model: Path, decode: DecodeConfig
) -> tuple[DecodeConfig, list[TriedPenalty]]:
    """Choose the length penalty on the dev set, where the experiment does; else try nothing.

    A model directory of the job's own keeps the choice, so that an export has it too.
    """
    from covnmt.inference.tune_penalties import save_decoding
    from covnmt.paper.measure import tune_on_dev

    if not tunes_length_penalty(plan.experiment, job.system):
        return decode, []
    tuning = tune_on_dev(plan.experiment, model, plan.prepared, plan.device, decode)
    best = tuning.best.decode
    if model == plan.run(job):
        save_decoding(model, best)
    return best, [
        TriedPenalty(
            trial.decode.length_penalty, round(trial.bleu, 2), round(trial.length_ratio, 3)
        )
        for trial in tuning.trials
    ]


def train_system(plan: ExperimentPlan, job: ExperimentJob) -> FinishedTraining:
    """Train, or resume training; a finished training is only looked up."""
    from covnmt.decoding.torch import pick_device
    from covnmt.training.loop import train

    run = plan.run(job)
    if (run / TRAINED).exists():
        return FinishedTraining.model_validate(read_json(run / TRAINED))
    config = job_config(plan, job, training_minutes_left(plan.minutes, run))
    outcome = train(config, run, pick_device(plan.device))
    reason = outcome.reason
    if plan.minutes and outcome.limit == "minutes":
        reason = f"its time was over ({plan.minutes:g} minutes, measuring included)"
    where = this_machine()
    ended = FinishedTraining(reason=reason, minutes=plan.minutes, **where.set_fields())
    if outcome.finished:
        write_json(run / TRAINED, ended.model_dump(mode="json"))
    if outcome.interrupted:
        raise KeyboardInterrupt
    return ended


def job_config(plan: ExperimentPlan, job: ExperimentJob, minutes: float) -> Config:
    """The recipe that all systems share, with what makes this one."""
    own = [
        f"data.directory={toml_string(plan.prepared)}",
        f"train.seed={job.seed}",
        f"train.minutes={minutes:.3f}",
    ]
    return load_recipe(find_recipe(plan.experiment.recipe), [*recipe_overrides(job.system), *own])


def training_minutes_left(minutes: float | None, run: Path) -> float:
    """Minutes that training may still take, less what it took before a stop; 0 is no limit."""
    if minutes is None:
        return 0.0
    return max((1 - RESERVE) * minutes - training_minutes_spent(run / "log.jsonl"), 0.01)


def training_minutes_spent(log: Path) -> float:
    """As the log of a run tells; 0 before there is one."""
    spent = 0.0
    for line in read_lines(log) if log.exists() else ():
        try:
            spent = json.loads(line)["seconds"] / 60
        except (ValueError, KeyError):
            break  # the line that a crash cut off
    return spent


def reproduce_command(plan: ExperimentPlan, job: ExperimentJob, minutes: float | None) -> str:
    """What gives this result again, with the time of its training; directories are one's own."""
    slot = f" --minutes {minutes:g}" if minutes else ""
    corpus, scale = plan.experiment.corpus, plan.experiment.scale
    chosen = f"--system {job.system} --seed {job.seed}"
    beside = " --shared" if plan.shared else ""
    return f"covnmt reproduce {corpus} --scale {scale} {chosen}{slot}{beside}"


def progress_rows(plan: ExperimentPlan) -> Iterator[tuple[str, str, str, str]]:
    """Each job: system, seed, whether it is done, and its BLEU."""
    for job in plan.jobs:
        done = plan.result(job).exists()
        bleu = ""
        if done:
            scores = read_result(plan.result(job), job.system, job.seed).score_values
            bleu = f"{scores[PAPER_BLEU]:.2f}" if PAPER_BLEU in scores else ""
        yield job.system, str(job.seed), "done" if done else "left", bleu


def write_rating_sheets(plan: ExperimentPlan, systems: Sequence[str], seed: int) -> Path:
    """Blinded rating sheets of 200 test sentences in WORK: they hold corpus text."""
    from covnmt.evaluation.human_evaluation import given_source_words, make_rating_sheets
    from covnmt.evaluation.system_output import read_outputs

    rows = {}
    for system in systems:
        file = plan.run(ExperimentJob(system, seed)) / OUTPUTS
        if not file.exists():
            raise UserError(f"{file}: no such file; run the job on this machine, or copy it here")
        rows[system] = read_outputs(file)
    source = list(read_lines(plan.prepared / "test.source.txt"))
    texts = {system: [each.text for each in lines] for system, lines in rows.items()}
    directory = plan.work / plan.experiment.name / "sheet"
    n = min(SHEET_SENTENCES, sum(bool(line.strip()) for line in source))
    make_rating_sheets(texts, source, n, seed, directory, given_source_words(rows.values(), source))
    return directory
