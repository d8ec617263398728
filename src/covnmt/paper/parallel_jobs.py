"""Run several jobs at the same time, each in a process of its own, on one GPU or on several.

One training leaves much of a large GPU idle. A child process stops at the end of its standard
input, which also comes when the parent dies: it saves its training, and the same command resumes.
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

import torch

from covnmt.base.console import log, warn
from covnmt.base.cpus import available_cpus
from covnmt.base.errors import UserError
from covnmt.paper.plan import ExperimentJob, ExperimentPlan
from covnmt.paper.systems import teacher_system, training_system

CHILD = """
from covnmt.__main__ import main
from covnmt.paper.parallel_jobs import stop_when_stdin_closes
stop_when_stdin_closes()
main()
"""


def run_jobs_in_parallel(plan: ExperimentPlan, jobs_at_once: int) -> Iterator[str]:
    """Run the open jobs, `jobs_at_once` at a time; if one fails, the others continue."""
    plan.prepare()
    processes = JobProcesses(plan, jobs_at_once)
    try:
        with ThreadPoolExecutor(jobs_at_once) as threads:
            try:
                groups = group_by_training(plan.open_jobs())
                futures = [threads.submit(processes.run, jobs) for jobs in groups]
                for future in as_completed(futures):
                    future.result()
                    finished = len(plan.jobs) - len(plan.open_jobs())
                    yield f"{finished} of {len(plan.jobs)} jobs are done"
            except BaseException:  # an interruption, or a caller that reads no more messages
                threads.shutdown(wait=False, cancel_futures=True)
                processes.stop()
                raise
    finally:
        processes.kill()  # those that remain: a second Ctrl-C did not wait for them
    if jobs := plan.open_jobs():
        names = ", ".join(job.name for job in jobs)
        raise UserError(f"not done: {names}; see the errors above. The same command resumes")


def group_by_training(jobs: Sequence[ExperimentJob]) -> list[list[ExperimentJob]]:
    """Group the jobs that one training serves, or one teacher."""
    groups: dict[ExperimentJob, list[ExperimentJob]] = {}
    for job in jobs:
        system = teacher_system(job.system) or training_system(job.system)
        groups.setdefault(ExperimentJob(system, job.seed), []).append(job)
    return list(groups.values())


@dataclass
class JobProcesses:
    """The running child processes, and the devices that are free for others."""

    plan: ExperimentPlan
    jobs_at_once: int
    running: list[subprocess.Popen[str]] = field(default_factory=list)
    stopped: bool = False

    def __post_init__(self) -> None:
        devices = list_devices(self.plan.device)
        self.shared = self.plan.shared or self.jobs_at_once > len(devices)
        self.free_devices: SimpleQueue[str] = SimpleQueue()
        for k in range(self.jobs_at_once):
            self.free_devices.put(devices[k % len(devices)])

    def run(self, jobs: Sequence[ExperimentJob]) -> None:
        """Run the jobs of one training on a free device."""
        device = self.free_devices.get()
        try:
            self._run_on(device, jobs)
        finally:
            self.free_devices.put(device)

    def _run_on(self, device: str, jobs: Sequence[ExperimentJob]) -> None:
        """Run jobs in a child process, and forward its output."""
        threads = str(max(1, available_cpus() // self.jobs_at_once))
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
            start_new_session=True,  # Ctrl-C is handled by the parent
        ) as process:
            self.running.append(process)
            if self.stopped:
                self.stop()
            for line in process.stdout or ():
                log(f"{jobs[0].name}: {line.rstrip()}")
        if process.returncode < 0 and not self.stopped:
            name = signal.Signals(-process.returncode).name
            warn(f"{jobs[0].name}: its process died ({name})")

    def stop(self) -> None:
        """Have all child processes save their training and end."""
        self.stopped = True
        for process in self.running:
            if process.stdin:
                process.stdin.close()

    def kill(self) -> None:
        """Kill all child processes."""
        for process in self.running:
            process.kill()


def list_devices(name: str) -> list[str]:
    """List the devices of an option --device: every GPU, unless one is named."""
    count = torch.cuda.device_count() if name == "auto" else 0
    return [f"cuda:{k}" for k in range(count)] if count > 1 else [name]


def reproduce_arguments(
    plan: ExperimentPlan, jobs: Sequence[ExperimentJob], device: str, shared: bool
) -> list[str]:
    """Return the command line of some jobs of a plan."""
    values = {
        "--scale": plan.experiment.scale,
        "--work": plan.work,
        "--results": plan.results,
        "--device": device,
        "--seed": jobs[0].seed,
        **({"--minutes": plan.minutes} if plan.minutes else {}),
    }
    options = [str(item) for option in values.items() for item in option]
    systems = [item for job in jobs for item in ("--system", job.system)]
    flags = ["--no-report", *(["--shared"] if shared else [])]
    return ["reproduce", plan.experiment.corpus, *options, *systems, *flags]


def stop_when_stdin_closes() -> None:
    """Send this process SIGTERM at the end of its standard input."""

    def wait_and_stop() -> None:
        os.read(sys.stdin.fileno(), 1)  # not sys.stdin.read(), whose lock would block an exit
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait_and_stop, daemon=True).start()
