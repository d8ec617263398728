"""One function over many items: results, errors, and processes that die."""

import os
import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from covnmt import pool
from covnmt.errors import UserError
from covnmt.pool import number, spread


class Job(NamedTuple):
    """A file to write, and how often the one who does so dies first."""

    path: Path
    deaths: int = 0


def work(job: Job) -> tuple[str, int]:
    """Leaves a mark for every attempt."""
    with job.path.open("a") as stream:
        stream.write("x")
    if len(job.path.read_text()) <= job.deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return job.path.name, number()


def refuse(job: Job) -> None:
    raise UserError(f"{job.path}, line 7: bad")


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_every_item_once(count: int, tmp_path: Path) -> None:
    jobs = [Job(tmp_path / str(k)) for k in range(count)]
    found = list(spread(work, jobs, workers=2))
    assert sorted(name for name, _ in found) == [job.path.name for job in jobs]
    assert {path.read_text() for path in tmp_path.iterdir()} <= {"x"}
    assert {worker for _, worker in found} <= {0, 1}


def test_alone_there_is_no_other_process(tmp_path: Path) -> None:
    assert list(spread(lambda item: item + 1, [1, 2], workers=1)) == [2, 3]


def test_a_process_that_dies_is_replaced(tmp_path: Path) -> None:
    """Nothing is lost; what had come before is not asked for again."""
    jobs = [Job(tmp_path / str(k), deaths=int(k == 3)) for k in range(6)]
    assert sorted(name for name, _ in spread(work, jobs, workers=2)) == list("012345")
    assert (tmp_path / "3").read_text() == "xx"


def test_an_item_that_always_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "DEATHS", 1)
    jobs = [Job(tmp_path / str(k), deaths=9 * (k == 0)) for k in range(2)]
    with pytest.raises(UserError, match=r"workers died 2 times, and .* fewer --workers"):
        list(spread(work, jobs, workers=2))


def test_bad_input_in_a_worker_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="line 7: bad"):
        list(spread(refuse, [Job(tmp_path / "a"), Job(tmp_path / "b")], workers=2))
