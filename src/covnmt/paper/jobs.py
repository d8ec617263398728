"""Run the jobs of a plan one after the other: train, measure, write the result."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from covnmt.base.console import log
from covnmt.base.errors import UserError
from covnmt.base.files import read_lines
from covnmt.base.provenance import collect_provenance
from covnmt.data.corpus import Corpus
from covnmt.evaluation.human_evaluation import given_source_words, make_rating_sheets
from covnmt.evaluation.system_output import read_outputs
from covnmt.paper.neural import run_neural_job
from covnmt.paper.phrase_based import run_phrase_based_job
from covnmt.paper.plan import ExperimentJob, ExperimentPlan
from covnmt.paper.results import Provenance, Result, SplitCounts, write_result
from covnmt.paper.systems import PHRASE_BASED

OUTPUTS = "test.jsonl"  # the translated test set, in the model directory
SHEET_SENTENCES = 200


def run_jobs(plan: ExperimentPlan) -> Iterator[str]:
    """Run the open jobs, yielding a message after each.

    Raises KeyboardInterrupt after a signal, once training is saved; running again resumes.
    """
    plan.prepare()
    jobs = plan.open_jobs()
    for number, job in enumerate(jobs, 1):
        log(f"job {number} of {len(jobs)}: {job.name}")
        began = time.monotonic()
        run_job(plan, job)
        yield f"{plan.result_file(job)}: done in {time.monotonic() - began:,.0f} seconds"


def run_job(plan: ExperimentPlan, job: ExperimentJob) -> None:
    """Train one system, measure it, and write its result."""
    directory = plan.model_directory(job)
    outputs = directory / OUTPUTS
    provenance: Provenance
    if job.system == PHRASE_BASED:
        provenance, minutes = Provenance(**collect_provenance()), plan.minutes
        measured = run_phrase_based_job(
            plan.experiment, directory, plan.prepared, job.seed, outputs
        )
    else:
        # of the training, which may be an earlier one, by another version of this package
        finished_training, measured = run_neural_job(plan, job, outputs)
        provenance, minutes = finished_training, finished_training.minutes
    splits = Corpus.open(plan.prepared).report.splits
    result = Result(
        experiment=plan.experiment.name,
        system=job.system,
        seed=job.seed,
        command=plan.command(job, minutes),
        commit=provenance.commit,
        machine=provenance.machine,
        versions=provenance.versions,
        data={name: SplitCounts(**report.model_dump()) for name, report in splits.items()},
        **measured,
    )
    write_result(plan.result_directory, result)


def write_rating_sheets(plan: ExperimentPlan, systems: Sequence[str], seed: int) -> Path:
    """Write blinded rating sheets of 200 test sentences into `work`: they hold corpus text."""
    outputs = {}
    for system in systems:
        path = plan.model_directory(ExperimentJob(system, seed)) / OUTPUTS
        if not path.exists():
            raise UserError(f"{path}: no such file; run the job on this machine, or copy it here")
        outputs[system] = read_outputs(path)
    source = list(read_lines(plan.prepared / "test.source.txt"))
    texts = {system: [line.text for line in lines] for system, lines in outputs.items()}
    directory = plan.work / plan.experiment.name / "sheet"
    n = min(SHEET_SENTENCES, sum(bool(line.strip()) for line in source))
    words = given_source_words(outputs.values(), source)
    make_rating_sheets(texts, source, n, seed, directory, words)
    return directory
