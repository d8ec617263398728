"""A neural system as a job: trained within its time, tuned on the dev set, measured.

Interrupted training resumes from its last checkpoint, with the time that it has left.
"""

import json
import statistics
import time
from pathlib import Path

from covnmt.base.config import Config, DecodeConfig
from covnmt.base.files import read_json, read_lines, write_json
from covnmt.base.provenance import collect_provenance
from covnmt.base.recipe import find_recipe, load_recipe, toml_string
from covnmt.data.corpus import Corpus, Split
from covnmt.decoding.torch import pick_device
from covnmt.evaluation.coverage_effect import measure_coverage_effect
from covnmt.inference.info import model_info
from covnmt.inference.model import load
from covnmt.inference.tune_penalties import (
    decoding_for_tuning,
    penalty_grid,
    save_decoding,
    score_penalties,
)
from covnmt.model.checkpoint import BEST_WEIGHTS, load_tensors, write_last_weights
from covnmt.paper.checkpoints import (
    CheckpointMeasurement,
    average_last_weights,
    read_checkpoint_scores,
)
from covnmt.paper.distillation import (
    STUDENT_SHARE,
    TEACHER_SHARE,
    TRANSLATING_SHARE,
    distill,
    read_distillation,
)
from covnmt.paper.experiments import should_tune_length_penalty
from covnmt.paper.measure import NeuralSystem, measure_other_tests, measure_system
from covnmt.paper.plan import ExperimentJob, ExperimentPlan
from covnmt.paper.results import (
    AveragedWeights,
    FinishedTraining,
    ReportPoint,
    ResultFields,
    Training,
    TriedPenalty,
    ValidationPoint,
)
from covnmt.paper.systems import VARIANTS, recipe_overrides, teacher_system, training_system
from covnmt.training.loop import train

TRAINED = "trained.json"
AVERAGED_OUTPUTS = "test-averaged.jsonl"  # next to jobs.OUTPUTS
WARM_UP = 1  # reports of speed that do not count


def run_neural_job(
    plan: ExperimentPlan, job: ExperimentJob, outputs: Path
) -> tuple[FinishedTraining, ResultFields]:
    """Train a system, unless its training was done for another one, and measure it."""
    training_job = ExperimentJob(training_system(job.system), job.seed)
    run = plan.model_directory(training_job)
    ended = train_job(plan, training_job)
    config = job_config(plan, job, minutes=0.0)
    began = time.monotonic()
    model = run
    if config.train.ema != job_config(plan, training_job, minutes=0.0).train.ema:
        model = plan.model_directory(job)
        write_last_weights(run, model)
    decode, penalties = tune_length_penalty(plan, job, model, config.decode)
    uncut_decode = without_length_limit(decode, Corpus.open(plan.prepared).split("test"))
    measured = measure_weights(plan, model, uncut_decode, outputs)
    if plan.experiment.checkpoints:
        measured |= measure_checkpoints(plan, job, run, uncut_decode)
    seconds = round(time.monotonic() - began, 1)
    measured_config = config.model_copy(update={"decode": decode})
    description = describe_run(run, measured_config, ended.reason, speed=not plan.shared)
    tuning: ResultFields = {"tuning": penalties} if penalties else {}
    if teacher_system(training_job.system):
        tuning["distillation"] = read_distillation(plan.training_data(training_job))
    return ended, {**description, **tuning, "measuring_seconds": seconds, **measured}


def measure_weights(
    plan: ExperimentPlan, directory: Path, decode: DecodeConfig, outputs: Path
) -> ResultFields:
    """Measure the model in a directory, and what its coverage does on the test set."""
    model = load(directory, device=plan.device)
    system = NeuralSystem(model, decode)
    measured = measure_system(system, plan.experiment, plan.prepared, outputs)
    test = Corpus.open(plan.prepared).split("test")
    pairs = zip(test.text("source"), test.text("target"), strict=True)
    measured["coverage_effect"] = measure_coverage_effect(model, pairs)
    if others := measure_other_tests(model, decode, plan.prepared):
        measured["other_tests"] = others
    return measured


def measure_checkpoints(
    plan: ExperimentPlan, job: ExperimentJob, run: Path, decode: DecodeConfig
) -> ResultFields:
    """Return what was measured of each checkpoint, and measure the mean of the last weights."""
    model = average_last_weights(run, plan.experiment.checkpoints)
    _, about = load_tensors(model / BEST_WEIGHTS)
    outputs = plan.model_directory(job) / AVERAGED_OUTPUTS
    measured = measure_weights(plan, model, decode, outputs)
    averaged = AveragedWeights(
        updates=[int(name) for name in about["averaged"]],
        scores=measured["scores"],
        test=measured["test"],
        coverage_effect=measured["coverage_effect"],
    )
    # of a system that only decodes differently, checkpoints were not measured
    checkpoints = read_checkpoint_scores(run, job) if run == plan.model_directory(job) else []
    return {"checkpoints": checkpoints, "averaged": averaged}


def describe_run(run: Path, config: Config, reason: str, speed: bool = True) -> ResultFields:
    """Describe settings, size and training from the files of a model directory.

    `config` has the decoding settings and the weight averaging that the system is measured with.
    Without `speed` the machine did other work too.
    """
    about = model_info(str(run), vocabulary_size=0)
    recipe = about.config.model_dump(mode="json", exclude={"data": {"directory"}})  # a local path
    recipe["decode"] = config.decode.model_dump(mode="json")
    recipe["train"]["ema"] = config.train.ema
    log = [json.loads(line) for line in read_lines(run / "log.jsonl")]
    reports = [entry for entry in log if "loss" in entry]
    validations = [entry for entry in log if "validation" in entry]
    speeds = [entry["words_per_second"] for entry in reports[WARM_UP:]]
    last = log[-1]
    return {
        "recipe": recipe,
        "words": about.vocabulary_sizes,
        "parameters": about.to_json()["parameters"],
        "training": Training(
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
    }


def tune_length_penalty(
    plan: ExperimentPlan, job: ExperimentJob, model: Path, decode: DecodeConfig
) -> tuple[DecodeConfig, list[TriedPenalty]]:
    """Choose the length penalty on the dev set, where the experiment does; else try nothing.

    A model directory of the job's own keeps the choice, so that an export has it too.
    """
    if not should_tune_length_penalty(plan.experiment, job.system):
        return decode, []
    dev, plain = Corpus.open(plan.prepared).split("dev"), plan.experiment.text.plain
    references = [line if plain else line.lower() for line in dev.text("target")]
    settings = decoding_for_tuning(without_length_limit(decode, dev))
    translations = load(model, device=plan.device).translate_stream(dev.text("source"), settings)
    tuning = score_penalties(translations, references, penalty_grid(decode))
    best = tuning.best.decode
    if model == plan.model_directory(job):
        save_decoding(model, best)
    return best, [
        TriedPenalty(
            trial.decode.length_penalty, round(trial.bleu, 2), round(trial.length_ratio, 3)
        )
        for trial in tuning.trials
    ]


def without_length_limit(decode: DecodeConfig, split: Split) -> DecodeConfig:
    """Raise the source limit so that no line of a split is cut: attention has to fit the words."""
    longest = int(split.source.lengths().max())
    return decode.model_copy(update={"max_source": longest + 1})


def train_job(plan: ExperimentPlan, job: ExperimentJob, share: float = 1.0) -> FinishedTraining:
    """Train or resume; of a finished training only the record is read.

    `share` is that of a job's training minutes. A student first needs its teacher's translations.
    """
    run = plan.model_directory(job)
    if (run / TRAINED).exists():
        return FinishedTraining.model_validate(read_json(run / TRAINED))
    if teacher := teacher_system(job.system):
        teach(plan, job, ExperimentJob(teacher, job.seed))
        share *= STUDENT_SHARE
    config = job_config(plan, job, training_minutes_left(plan, run, share))
    after_validation = None
    if plan.experiment.checkpoints:
        decode = without_length_limit(config.decode, Corpus.open(plan.prepared).split("test"))
        after_validation = CheckpointMeasurement(plan, job, decode)
    outcome = train(config, run, pick_device(plan.device), after_validation=after_validation)
    reason = outcome.reason
    if plan.minutes and outcome.limit == "minutes":
        reason = f"its time was over ({plan.minutes:g} minutes, measuring included)"
    ended = FinishedTraining(reason=reason, minutes=plan.minutes, **collect_provenance())
    if outcome.finished:
        write_json(run / TRAINED, ended.model_dump(mode="json"))
    if outcome.interrupted:
        raise KeyboardInterrupt
    return ended


def teach(plan: ExperimentPlan, job: ExperimentJob, teacher: ExperimentJob) -> None:
    """Train the teacher of a job, unless that is done, and write what the student is trained on."""
    train_job(plan, teacher, TEACHER_SHARE)
    distill(
        plan.prepared,
        plan.model_directory(teacher),
        plan.training_data(job),
        VARIANTS[job.system].references,
        plan.device,
        TRANSLATING_SHARE * training_minutes(plan),
    )


def job_config(plan: ExperimentPlan, job: ExperimentJob, minutes: float) -> Config:
    """Load the recipe that all systems share, with what makes this one."""
    overrides = [
        *recipe_overrides(job.system),
        f"data.directory={toml_string(plan.training_data(job))}",
        f"train.seed={job.seed}",
        f"train.minutes={minutes:.3f}",
    ]
    return load_recipe(find_recipe(plan.experiment.recipe), overrides)


def training_minutes(plan: ExperimentPlan) -> float:
    """Compute the minutes of a job that are not for measuring; 0 is no limit."""
    return (1 - plan.experiment.measuring_share) * (plan.minutes or 0.0)


def training_minutes_left(plan: ExperimentPlan, run: Path, share: float = 1.0) -> float:
    """Compute the training minutes left of a job's time after an interruption; 0 is no limit."""
    if plan.minutes is None:
        return 0.0
    spent, log = 0.0, run / "log.jsonl"
    for line in read_lines(log) if log.exists() else ():
        try:
            spent = json.loads(line)["seconds"] / 60
        except (ValueError, KeyError):
            break  # a line that a crash cut off
    return max(share * training_minutes(plan) - spent, 0.01)
