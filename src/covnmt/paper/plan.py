"""The plan of an experiment: its jobs in a fixed order, their files, and which are finished.

A job is finished when its result file exists, wherever it was run. So the same command resumes
after an interruption, and on another machine once the results have been copied there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from covnmt.base.files import check_writable
from covnmt.metrics.bleu import PAPER_BLEU
from covnmt.paper.experiments import Experiment
from covnmt.paper.results import Result, read_record, result_path
from covnmt.paper.systems import recipe_overrides, teacher_system

FIRST_SEED, SECOND_SEED = 1, 2


@dataclass(frozen=True)
class ExperimentJob:
    """One system, to be trained with one seed, and measured."""

    system: str
    seed: int

    @property
    def name(self) -> str:
        """Name of its model directory and result file."""
        return f"{self.system}-seed{self.seed}"


@dataclass(frozen=True)
class ExperimentPlan:
    """What to do and where: the corpus in `data`, large files in `work`, figures in `results`."""

    experiment: Experiment
    work: Path
    results: Path
    data: Path | None = None
    minutes: float | None = None  # of one job, measuring included
    device: str = "auto"
    jobs: Sequence[ExperimentJob] = ()
    shared: bool = False  # the machine does other work too, so speeds are not recorded

    @property
    def prepared(self) -> Path:
        """Directory of the prepared data."""
        return self.work / self.experiment.name / "data"

    @property
    def result_directory(self) -> Path:
        """Directory of the experiment's results."""
        return self.results / self.experiment.name

    def model_directory(self, job: ExperimentJob) -> Path:
        """Return the model directory of a job."""
        return self.work / self.experiment.name / job.name

    def training_data(self, job: ExperimentJob) -> Path:
        """Return the directory that a job is trained on: a student has one of its own."""
        if teacher_system(job.system):
            return self.model_directory(job).with_name(f"{job.name}-data")
        return self.prepared

    def result_file(self, job: ExperimentJob) -> Path:
        """Return the result file of a job."""
        return result_path(self.result_directory, job.system, job.seed)

    def open_jobs(self) -> list[ExperimentJob]:
        """List the jobs without a result, in order."""
        return [job for job in self.jobs if not self.result_file(job).exists()]

    def prepare(self) -> None:
        """Prepare the data, if there are open jobs and their results can be written."""
        if jobs := self.open_jobs():
            check_writable(self.result_file(jobs[0]))
            self.experiment.prepare(self.data, self.prepared)

    def command(self, job: ExperimentJob, minutes: float | None) -> str:
        """Return the command that repeats a result; local directories are left out."""
        limit = f" --minutes {minutes:g}" if minutes else ""
        shared = " --shared" if self.shared else ""
        experiment = f"{self.experiment.corpus} --scale {self.experiment.scale}"
        chosen = f"--system {job.system} --seed {job.seed}"
        return f"covnmt reproduce {experiment} {chosen}{limit}{shared}"

    def progress_rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield system, seed, "done" or "left", and BLEU of each job."""
        for job in self.jobs:
            path, bleu = self.result_file(job), ""
            if path.exists():
                scores = read_record(Result, path, job.system, job.seed).score_values
                bleu = f"{scores[PAPER_BLEU]:.2f}" if PAPER_BLEU in scores else ""
            yield job.system, str(job.seed), "done" if path.exists() else "left", bleu


def choose_jobs(
    experiment: Experiment, systems: Sequence[str] = (), seeds: Sequence[int] = ()
) -> list[ExperimentJob]:
    """List all systems once, then those with a second seed; or exactly what is asked for."""
    for system in systems:
        recipe_overrides(system)  # refuses unknown systems
    chosen = list(dict.fromkeys(systems)) or list(experiment.systems)
    if systems or seeds:
        unique_seeds = list(dict.fromkeys(seeds)) or [FIRST_SEED]
        return [ExperimentJob(system, seed) for seed, system in product(unique_seeds, chosen)]
    second = [ExperimentJob(system, SECOND_SEED) for system in experiment.second_seed]
    return [ExperimentJob(system, FIRST_SEED) for system in chosen] + second
