"""How should OpenMP threads wait: training speed on free and on busy cores.

    python benchmarks/waiting_threads.py

Every setting of GOMP_SPINCOUNT (how often a thread of libgomp looks for work before it sleeps) and
of the number of threads has a process of its own with a model of the demo's size. One at a time
trains for `--seconds`, in turns, so that other work on the machine affects all alike; then again,
in new processes, beside a busy loop on each core. `auto` is what covnmt chooses, `others` is the
share of the machine that other processes took meanwhile; the best round of each setting counts.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness import argument_parser, argument_values, save

SPIN_COUNTS = ("auto", "0", "100", "1000", "3000", "10000", "30000", "100000", "300000")
DEFAULT = "300000"  # of libgomp
SECONDS_OF_LOAD = 60.0  # until the load average knows of the busy loops
WORDS, PAIRS, LENGTH = 2000, 100, 20  # of the demo's batches of 2,048 tokens
CORES = len(os.sched_getaffinity(0))


def work(threads: int) -> None:
    """Train for as many seconds as each line of standard input says; print words per second."""
    import covnmt  # noqa: F401 (chooses how threads wait, before torch is imported)

    import torch  # isort: skip
    from scale import Case, train_step

    from covnmt.data.batching import collate
    from covnmt.training.distributed import SINGLE_PROCESS

    torch.set_num_threads(threads)
    step = train_step(None, Case(WORDS, 128, PAIRS), SINGLE_PROCESS)
    rows = torch.randint(2, WORDS - 1, (PAIRS, 2 * LENGTH)).tolist()
    batch = collate([(row[:LENGTH], row[LENGTH:]) for row in rows], WORDS - 1, WORDS - 1)
    words = PAIRS * (LENGTH + 1)
    step([batch], words, 0)
    print("ready", flush=True)
    for line in sys.stdin:
        updates, began, cpu = 0, time.monotonic(), time.process_time()
        while time.monotonic() - began < float(line) or not updates:
            step([batch], words, 0)
            updates += 1
        seconds = time.monotonic() - began
        used = (time.process_time() - cpu) / seconds
        print(json.dumps({"rate": updates * words / seconds, "cpus": used}), flush=True)


def start(spin_count: str, threads: int) -> subprocess.Popen[str]:
    """Start the process of a setting."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    if spin_count != "auto":
        environment["GOMP_SPINCOUNT"] = spin_count
    command = [sys.executable, __file__, "--work", str(threads)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
    assert process.stdout
    process.stdout.readline()
    return process


def busy_seconds() -> float:
    """Return the CPU time that all processes of the machine have taken."""
    user, nice, system, *_ = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def wait_until_free(deadline: float) -> None:
    """Wait until other processes take less than a tenth of a core, or until the deadline."""
    while time.monotonic() < deadline:
        began, busy = time.monotonic(), busy_seconds()
        time.sleep(0.2)
        if (busy_seconds() - busy) / (time.monotonic() - began) < 0.1:
            return


def measure(process: subprocess.Popen[str], seconds: float) -> dict[str, float]:
    """Let one process train."""
    assert process.stdin
    assert process.stdout
    began, busy = time.monotonic(), busy_seconds()
    process.stdin.write(f"{seconds}\n")
    process.stdin.flush()
    found: dict[str, float] = json.loads(process.stdout.readline())
    passed = time.monotonic() - began
    others = (busy_seconds() - busy) / passed - found["cpus"]
    return {**found, "others": others}


def main() -> None:
    """Measure all settings and write the result file."""
    parser = argument_parser(__doc__)
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5, help="turns of every setting")
    parser.add_argument("--seconds", type=float, default=1.5, help="of training in a turn")
    parser.add_argument("--spin-counts", nargs="+", default=SPIN_COUNTS, help="to compare")
    parser.add_argument("--situations", nargs="+", default=["free", "busy"], help="of the cores")
    parser.add_argument(
        "--patience", type=float, default=0.0, help="minutes to wait for other work to pause"
    )
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work)
        return
    settings = [(count, CORES) for count in arguments.spin_counts] + [(DEFAULT, 1)]
    rows: list[dict[str, Any]] = []
    deadline = time.monotonic() + 60 * arguments.patience
    for situation in arguments.situations:
        loops = [
            subprocess.Popen([sys.executable, "-c", "while True: pass"])
            for _ in range(CORES if situation == "busy" else 0)
        ]
        if loops:
            time.sleep(SECONDS_OF_LOAD)
        processes = {setting: start(*setting) for setting in settings}
        for _ in range(arguments.rounds):
            for (count, threads), process in processes.items():
                if situation == "free":
                    wait_until_free(deadline)
                found = measure(process, arguments.seconds)
                row = {"situation": situation, "spin_count": count, "threads": threads, **found}
                rows.append(row)
        for loop in loops:
            loop.kill()
            loop.wait()
        for count, threads in settings:
            mine = [
                r
                for r in rows
                if (r["situation"], r["spin_count"], r["threads"]) == (situation, count, threads)
            ]
            print(
                situation,
                count,
                threads,
                " ".join(f"{r['rate']:,.0f}({r['others']:.2f})" for r in mine),
                flush=True,
            )
        for process in processes.values():
            process.kill()
            process.wait()
    save("waiting-threads", {"settings": argument_values(arguments), "rows": rows}, arguments)


if __name__ == "__main__":
    main()
