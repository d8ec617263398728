"""Training on several GPUs or machines: ranks, their pairs of a batch, and how they agree.

torchrun starts one process (rank) for each GPU, on one machine or several, and restarts all of them
when one dies. Every rank holds the whole model and takes its pairs of every batch; gradients are
summed over the ranks (see `step`), so an update equals that of one process with all the pairs.
"""

import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from covnmt.base.arrays import IntArray
from covnmt.base.console import stderr_console, warn
from covnmt.base.cpus import available_cpus
from covnmt.base.errors import UserError

T = TypeVar("T")

SECONDS_UNTIL_TORCHRUN_ENDS_US = 3.0  # it looks every tenth of a second


@dataclass(frozen=True)
class World:
    """This process's rank, the world size, and communication with the other ranks."""

    rank: int = 0
    size: int = 1
    has_process_group: bool = False  # perhaps of this process alone

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def pairs_of_rank(self, lengths: IntArray) -> IntArray:
        """Return the indices of this rank's pairs, given the tokens in every pair of a batch.

        Pairs are dealt by length, back and forth: the ranks' numbers of pairs differ by at most
        one, their numbers of tokens by at most one pair. Over all ranks every pair occurs once.
        """
        longest_first = np.argsort(-lengths, kind="stable")
        turn = np.arange(len(lengths)) % (2 * self.size)
        owner = np.minimum(turn, 2 * self.size - 1 - turn)
        return np.sort(longest_first[owner == self.rank])

    def shard(self, items: Sequence[T]) -> Sequence[T]:
        """Return every `size`-th item, beginning with the one at this rank."""
        return items[self.rank :: self.size]

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of the ranks."""
        if not self.has_process_group:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def all_reduce_max(self, *values: float) -> list[float]:
        """Return the maximum of each value over all ranks. On the CPU: no GPU is waited for."""
        if not self.has_process_group:
            return list(values)
        table = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(table, dist.ReduceOp.MAX)
        return table.tolist()

    def reseed(self, seed: int, update: int) -> None:
        """Give each rank but the main one its own random numbers for this update.

        They are a function of seed, rank and update, so checkpoints need not hold them. The main
        process continues from the random state in the checkpoint, as if it were alone.
        """
        if self.rank:
            mixed = np.random.SeedSequence([seed, self.rank, update])
            torch.manual_seed(int(mixed.generate_state(1, np.uint64)[0]))


SINGLE_PROCESS = World()


def interleave(shards: Sequence[Sequence[T]]) -> list[T]:
    """Put the shards of all ranks back together, the inverse of `World.shard`."""
    items: list[Any] = [None] * sum(map(len, shards))
    for rank, shard in enumerate(shards):
        items[rank :: len(shards)] = shard
    return items


@contextmanager
def process_group(device: torch.device) -> Iterator[tuple[World, torch.device]]:
    """Join the process group that torchrun started; give this rank's world and device.

    Without torchrun there is a single process.
    """
    if not dist.is_torchelastic_launched():
        yield SINGLE_PROCESS, device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        if device.index >= torch.cuda.device_count():
            raise UserError(
                f"{torch.cuda.device_count()} GPUs on this machine, but "
                f"{os.environ['LOCAL_WORLD_SIZE']} workers; start one for each GPU"
            )
        torch.cuda.set_device(device)
    store, rank, size = next(rendezvous("env://"))
    world = World(rank, size, has_process_group=True)
    # gloo carries objects and numbers on the CPU, so that they never wait for a GPU
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=attempt_store(store, world), rank=rank, world_size=size)
    stderr_console.quiet = not world.is_main
    try:
        yield world, device
        dist.barrier()
    except RuntimeError:
        # Perhaps another rank died: then torchrun ends this one too, and says which one it was.
        time.sleep(SECONDS_UNTIL_TORCHRUN_ENDS_US)
        raise
    finally:
        stderr_console.quiet = False
        dist.destroy_process_group()


def attempt_store(store: Store, world: World) -> Store:
    """Return a part of torchrun's store that belongs to this attempt alone.

    After a restart the store still holds the addresses of the dead processes, and nothing in it
    distinguishes attempts. So each rank asks the main process under a unique name, and the
    main process answers with the name of the attempt until all ranks have come.
    """
    attempt = name = uuid.uuid4().hex
    if world.is_main:
        while store.add(f"{attempt}/here", 0) < world.size - 1:
            for question in (f"asks/{rank}" for rank in range(1, world.size)):
                if store.check([question]):
                    store.set(f"answer/{store.get(question).decode()}", attempt)
            time.sleep(0.01)
    else:
        store.set(f"asks/{world.rank}", name)
        attempt = store.get(f"answer/{name}").decode()
        store.add(f"{attempt}/here", 1)
    return PrefixStore(attempt, store)


def launch_torchrun(
    workers: int,
    arguments: Sequence[str],
    restarts: int = 0,
    last_update: Callable[[], int] = lambda: 0,
) -> int:
    """Run `covnmt` in several processes on this machine; return its exit code.

    The same as `torchrun --standalone --nproc-per-node WORKERS -m covnmt ...`. When a worker dies,
    all start again from the last checkpoint; `last_update` returns its update, for the message.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cpus() // workers)))
    options = ["--standalone", "--nproc-per-node", str(workers), "-m", "--", "covnmt"]
    while True:
        logging.disable(logging.ERROR)  # what torchrun says of a dead worker
        try:
            run(parse_args([*options, *arguments]))
            return 0
        except SignalException:
            return 130
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
        finally:
            logging.disable(logging.NOTSET)
        if failure.exitcode > 0:
            return failure.exitcode
        death = f"worker {rank} died (signal {-failure.exitcode})"
        if not restarts:
            raise UserError(
                f"{death}; run the same command again to resume from the last checkpoint, or let "
                "it restart by itself: --max-restarts 3"
            )
        restarts -= 1
        warn(f"{death}; restarting from update {last_update():,}")
