"""Several workers, one run: who is who, whose rows are whose, and how all of them agree.

torchrun starts the workers, on one machine or on several, and starts all of them again when one
dies. Each holds the whole model and takes its share of the rows of every batch. Gradients are
added up over the workers (see `update`), so the update is that of one worker with all the rows.
"""

import os
import signal
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from covnmt.base.arrays import IntArray
from covnmt.base.console import stderr_console
from covnmt.base.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """One of the workers, and how many there are."""

    rank: int = 0
    size: int = 1
    connected: bool = False  # they can reach each other; a worker may also be the only one of them

    @property
    def is_main(self) -> bool:
        """Whether it is this one that writes files and talks."""
        return self.rank == 0

    def rows_of_rank(self, lengths: IntArray) -> IntArray:
        """The places of this worker's rows, given the words in every row of a batch.

        The rows are dealt by length, there and back like cards: every worker gets as many, but
        for one, and about as many words. Whoever adds the shares up has each row once.
        """
        longest_first = np.argsort(-lengths, kind="stable")
        turn = np.arange(len(lengths)) % (2 * self.size)
        owner = np.minimum(turn, 2 * self.size - 1 - turn)
        return np.sort(longest_first[owner == self.rank])

    def shard(self, items: Sequence[T]) -> Sequence[T]:
        """This worker's items, dealt one by one."""
        return items[self.rank :: self.size]

    def all_gather(self, value: T) -> list[T]:
        """What every worker has, the first one's first."""
        if not self.connected:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def all_reduce_max(self, *values: float) -> list[float]:
        """Of each value the greatest that any worker has; a GPU is not waited for."""
        if not self.connected:
            return list(values)
        table = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(table, dist.ReduceOp.MAX)
        return table.tolist()

    def reseed(self, seed: int, update: int) -> None:
        """Give the workers after the first random numbers of their own for this update.

        They are a function of seed, rank and update, so no save has to hold them. The first
        worker's come from the state that a save holds, as if it were alone.
        """
        if self.rank:
            mixed = np.random.SeedSequence([seed, self.rank, update])
            torch.manual_seed(int(mixed.generate_state(1, np.uint64)[0]))


SINGLE_PROCESS = World()


def interleave(parts: Sequence[Sequence[T]]) -> list[T]:
    """All the items again, from what every worker made of its own (see `World.mine`)."""
    items: list[Any] = [None] * sum(map(len, parts))
    for rank, part in enumerate(parts):
        items[rank :: len(parts)] = part
    return items


@contextmanager
def process_group(device: torch.device) -> Iterator[tuple[World, torch.device]]:
    """This process among the workers that torchrun started, and its device; alone without it."""
    if not dist.is_torchelastic_launched():
        yield SINGLE_PROCESS, device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        if device.index >= torch.cuda.device_count():
            raise UserError(
                f"{torch.cuda.device_count()} GPUs on this machine, but "
                f"{os.environ['LOCAL_WORLD_SIZE']} workers; start as many as there are"
            )
        torch.cuda.set_device(device)
    store, rank, size = next(rendezvous("env://"))
    world = World(rank, size, connected=True)
    # objects and numbers of the host go by gloo, so that they never wait for a GPU
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=attempt_store(store, world), rank=rank, world_size=size)
    stderr_console.quiet = not world.is_main
    try:
        yield world, device
        dist.barrier()
    finally:
        stderr_console.quiet = False
        dist.destroy_process_group()


def attempt_store(store: Store, world: World) -> Store:
    """A part of torchrun's store that belongs to these workers alone.

    After a restart the store still holds the addresses of the workers that died, and nothing that
    tells one attempt from another. So each worker asks the first one under a name of its own, and
    the first answers with a name for the attempt until all of them have come.
    """
    attempt = name = uuid.uuid4().hex
    if world.is_main:
        while store.add(f"{attempt}/here", 0) < world.size - 1:
            for asked in (f"asks/{rank}" for rank in range(1, world.size)):
                if store.check([asked]):
                    store.set(f"answer/{store.get(asked).decode()}", attempt)
            time.sleep(0.01)
    else:
        store.set(f"asks/{world.rank}", name)
        attempt = store.get(f"answer/{name}").decode()
        store.add(f"{attempt}/here", 1)
    return PrefixStore(attempt, store)


def launch_torchrun(workers: int, restarts: int, arguments: Sequence[str]) -> int:
    """Run `covnmt` with these arguments in several workers on this machine; gives its exit code.

    It is what `torchrun --standalone --nproc-per-node WORKERS -m covnmt ...` does.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
    counts = ["--nproc-per-node", str(workers), "--max-restarts", str(restarts)]
    try:
        run(parse_args(["--standalone", *counts, "-m", "--", "covnmt", *arguments]))
    except SignalException:
        return 130
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode > 0:
            return failure.exitcode
        name = signal.Signals(-failure.exitcode).name
        raise UserError(
            f"worker {rank} of {workers} was ended by {name}; give the same command again to go "
            "on from the last save, or let it do so by itself: --restarts 3"
        ) from None
    return 0
