"""A Ray cluster of two nodes on this machine: workers and a node are killed while it works."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from covnmt.base.errors import UserError
from covnmt.base.ray_cluster import map_on_cluster
from covnmt.inference.model import ModelLoader
from covnmt.inference.parallel import TranslationJob, translate_files

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own are not ours to mend

PATIENCE = 120
NODE = {"num_cpus": 2, "wait": False}  # we wait; Ray would for half a minute at most


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    nodes: Any = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **NODE})
    nodes.wait_for_nodes(PATIENCE)
    yield nodes
    nodes.shutdown()


def work(directory: Path, item: int) -> int:
    """Write a mark for every attempt, wait until three have begun, and sleep a moment."""
    (directory / f"{item}.{os.getpid()}.{time.monotonic_ns()}").touch()
    end = time.monotonic() + PATIENCE
    while len(workers(directory)) < 3 and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(0.3)
    return item


def workers(directory: Path) -> set[str]:
    """Return the workers that have left a mark."""
    return {path.name.split(".")[1] for path in directory.glob("*.*")}


def die_once(directory: Path, item: int) -> int:
    mark = directory / "died"
    if item == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return work(directory, item)


def die(item: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return item


class DiesAtStart:
    """A function that kills the worker that unpickles it, like a package missing on a machine."""

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return os._exit, (1,)

    def __call__(self, item: int) -> int:
        return item


def refuse(item: int) -> int:
    raise UserError(f"line {item}: bad")


def test_results_are_complete_though_a_worker_and_a_node_are_killed(
    cluster: Any, tmp_path: Path
) -> None:
    """Every item gives one result, though some were started twice."""
    second = cluster.add_node(**NODE)
    cluster.wait_for_nodes(PATIENCE)
    items = list(range(16))
    made = map_on_cluster(partial(die_once, tmp_path), items, cluster.address, cores=1)
    found = [next(made) for _ in range(5)]
    cluster.remove_node(second, allow_graceful=False)
    found += made
    assert sorted(found) == items
    begun = [int(path.name.split(".")[0]) for path in tmp_path.glob("*.*")]
    assert set(begun) == set(items)
    assert (tmp_path / "died").exists()
    assert len(workers(tmp_path)) > 2


def test_files_are_translated_on_a_cluster(cluster: Any, tiny_model: Path, tmp_path: Path) -> None:
    lines = ["ka lo", "", "zu"]
    (tmp_path / "a").write_text("".join(f"{line}\n" for line in lines))
    loader = ModelLoader.find([tiny_model], device="cpu", threads=1)
    job = TranslationJob(loader, loader.decode)
    translate_files(job, [tmp_path / "a"], tmp_path / "alone", 1)
    done = translate_files(job, [tmp_path / "a"], tmp_path / "out", 1, ray=cluster.address)
    assert (done.files, done.lines) == (1, 3)
    assert (tmp_path / "out" / "a").read_text() == (tmp_path / "alone" / "a").read_text()


def test_an_error_in_a_worker_is_raised_in_the_caller(cluster: Any) -> None:
    with pytest.raises(UserError, match="line 3: bad"):
        list(map_on_cluster(refuse, [3], cluster.address, cores=1))


def test_an_item_that_always_kills_its_worker_is_an_error(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covnmt.base.ray_cluster.MAX_RETRIES", 1)
    with pytest.raises(UserError, match="7: 2 workers died on it"):
        list(map_on_cluster(die, [7], cluster.address, cores=1))


def test_workers_that_die_before_they_start_are_an_error(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covnmt.base.ray_cluster.MAX_RETRIES", 1)
    with pytest.raises(UserError, match="2 workers in a row died"):
        list(map_on_cluster(DiesAtStart(), [7], cluster.address, cores=1))


def test_actors_take_no_more_cpus_than_a_machine_has(cluster: Any) -> None:
    assert list(map_on_cluster(abs, [-7], cluster.address, cores=64)) == [7]


def test_waiting_for_a_busy_cluster_is_said(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("covnmt.base.ray_cluster.SECONDS_UNTIL_WARNING", 0.01)
    assert list(map_on_cluster(abs, [-7], cluster.address, cores=2)) == [7]
    assert "waiting until other jobs leave num_cpus=2 on a machine" in capfd.readouterr().err


def test_without_items_no_cluster_is_needed() -> None:
    assert list(map_on_cluster(refuse, [], "nowhere:1", cores=1)) == []


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install .*\[cluster\]"):
        list(map_on_cluster(refuse, [1], "auto", cores=1))
