"""Several jobs at the same time, each in a process of its own, on one GPU or on several.

One training leaves much of a large GPU idle. A process is told to stop by the end of its standard
input, which also comes when this one dies: then it saves what it trains, and the same command goes
on from there.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from queue import SimpleQueue

from covnmt.base.console import log
from covnmt.base.errors import UserError
from covnmt.base.processes import available_cpus
from covnmt.paper.jobs import ExperimentJob, ExperimentPlan
from covnmt.paper.systems import training_system

CHILD = """
from covnmt.__main__ import main
from covnmt.paper.parallel_jobs import stop_when_stdin_closes
stop_when_stdin_closes()
main()
"""


def run_jobs_in_parallel(plan: ExperimentPlan, number: int) -> Iterator[str]:
    """Do what is left, so many jobs at a time; the failure of one leaves the others alone."""
    plan.prepare()
    crew = JobProcesses(plan, number)
    try:
        with ThreadPoolExecutor(number) as places:
            try:
                chores = [places.submit(crew.run, jobs) for jobs in group_by_training(plan.left())]
                for chore in as_completed(chores):
                    chore.result()
                    yield f"{len(plan.jobs) - len(plan.left())} of {len(plan.jobs)} jobs are done"
            except BaseException:  # a stop, or nobody to tell any more
                places.shutdown(wait=False, cancel_futures=True)
                crew.stop()
                raise
    finally:
        crew.kill()  # whoever is left: a second Ctrl-C did not wait
    if left := plan.left():
        names = ", ".join(job.name for job in left)
        raise UserError(f"not done: {names}; the reason is told above. The same command goes on")


def group_by_training(jobs: Sequence[ExperimentJob]) -> list[list[ExperimentJob]]:
    """Jobs that one training serves, together."""
    groups: dict[ExperimentJob, list[ExperimentJob]] = {}
    for job in jobs:
        groups.setdefault(ExperimentJob(training_system(job.system), job.seed), []).append(job)
    return list(groups.values())


@dataclass
class JobProcesses:
    """The processes that work, and the devices that are free for others."""

    plan: ExperimentPlan
    number: int
    working: list[subprocess.Popen[str]] = field(default_factory=list)
    stopped: bool = False

    def __post_init__(self) -> None:
        names = list_devices(self.plan.device)
        self.shared = self.plan.shared or self.number > len(names)
        self.free: SimpleQueue[str] = SimpleQueue()
        for place in range(self.number):
            self.free.put(names[place % len(names)])

    def run(self, jobs: Sequence[ExperimentJob]) -> None:
        """Do jobs of one training on a device that is free."""
        device = self.free.get()
        try:
            self._run(jobs, device)
        finally:
            self.free.put(device)

    def _run(self, jobs: Sequence[ExperimentJob], device: str) -> None:
        """In a process, telling what it tells."""
        threads = str(max(1, available_cpus() // self.number))
        with subprocess.Popen(
            [
                sys.executable,
                "-c",
                CHILD,
                *reproduce_arguments(self.plan, jobs, device, self.shared),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={"OMP_NUM_THREADS": threads, **os.environ},
            start_new_session=True,  # Ctrl-C is for us
        ) as process:
            self.working.append(process)
            if self.stopped:
                self.stop()
            for line in process.stdout or ():
                log(f"{jobs[0].name}: {line.rstrip()}")
        if process.returncode < 0 and not self.stopped:
            name = signal.Signals(-process.returncode).name
            log(f"{jobs[0].name}: its process died ({name})", style="red")

    def stop(self) -> None:
        """Have all of them save what they do, and end."""
        self.stopped = True
        for process in self.working:
            if process.stdin:
                process.stdin.close()

    def kill(self) -> None:
        """At once."""
        for process in self.working:
            process.kill()


def list_devices(name: str) -> list[str]:
    """The devices that a name means; every GPU, unless one is asked for."""
    import torch

    count = torch.cuda.device_count() if name == "auto" else 0
    return [f"cuda:{k}" for k in range(count)] if count > 1 else [name]


def reproduce_arguments(
    plan: ExperimentPlan, jobs: Sequence[ExperimentJob], device: str, shared: bool
) -> list[str]:
    """The command that does some jobs of a plan, one after the other."""
    given = {
        "--scale": plan.experiment.scale,
        "--work": plan.work,
        "--results": plan.results,
        "--device": device,
        "--seed": jobs[0].seed,
        **({"--minutes": plan.minutes} if plan.minutes else {}),
    }
    options = [str(each) for option in given.items() for each in option]
    systems = [each for job in jobs for each in ("--system", job.system)]
    flags = ["--no-report", *(["--shared"] if shared else [])]
    return ["reproduce", plan.experiment.corpus, *options, *systems, *flags]


def stop_when_stdin_closes() -> None:
    """In such a process: the end of its standard input is as good as a signal to stop."""

    def wait_and_stop() -> None:
        os.read(sys.stdin.fileno(), 1)  # not sys.stdin.read(), whose lock an exit would wait for
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait_and_stop, daemon=True).start()
