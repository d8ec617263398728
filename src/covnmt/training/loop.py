"""The training loop (paper, section 4; docs/paper-to-code.md, section 1.4).

A run can be stopped at any moment, by Ctrl-C, a time limit or a power cut; the same command resumes
it from its last checkpoint. On a CPU in fp32 it then ends with bit-identical weights: the batches
are a function of their number, and a checkpoint holds everything else that changes.
"""

import math
import signal
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Literal

import torch

from covnmt.base.config import Config
from covnmt.base.signals import handled_signals
from covnmt.data.batching import (
    Batch,
    BatchPosition,
    PlannedBatch,
    prefetch,
    read_batch,
    train_batches,
)
from covnmt.kernels import dispatch
from covnmt.model.checkpoint import load_weights, named_weights
from covnmt.training.distributed import SINGLE_PROCESS, World
from covnmt.training.log import TrainingLog, open_log
from covnmt.training.optimizer import build_optimizer_step
from covnmt.training.state import (
    Counters,
    TrainingRun,
    divergence_error,
    open_run,
    save_best,
    save_checkpoint,
)
from covnmt.training.step import TrainStep
from covnmt.training.validation import ValidationResult, validate

# On a GPU batches are padded to multiples of these (pairs, tokens): few CUDA graphs then suffice.
PADDED_MULTIPLES = (8, 4)

Limit = Literal["updates", "epochs", "patience", "minutes"]
AfterValidation = Callable[[TrainingRun, ValidationResult], None]


def train(
    config: Config,
    directory: Path,
    device: torch.device,
    world: World = SINGLE_PROCESS,
    after_validation: AfterValidation | None = None,
) -> "TrainingOutcome":
    """Train the model that the recipe describes, from the start or from the last checkpoint.

    Every rank calls this. All ranks validate, save and stop after the same updates. On every rank
    `after_validation` sees the model with the weights that were validated; it must not change them.
    """
    with (
        open_run(config, directory, device, world) as run,
        open_log(run) as log,
        stop_condition(run) as stop,
        closing(batches_by_update(run)) as updates,
    ):
        counters, recipe = run.counters, config.train
        optimizer_step = build_optimizer_step(run.model, run.optimizer, run.ema, recipe)
        step = TrainStep(run.model, optimizer_step, recipe, world)

        if counters.validation_pending:  # a signal interrupted it before the run was resumed
            with log.pause():
                validate_and_keep_best(run, log, stop, after_validation)
                save_checkpoint(run, keep=stop.limit is not None)

        while not stop:
            batches, target_tokens = next(updates)
            # forward, backward, all-reduce, gradient clipping, optimizer step, EMA
            step(batches, target_tokens, counters.update, elapsed_share(run))
            counters.update += 1
            counters.target_tokens += target_tokens
            counters.report_tokens += target_tokens

            stop.poll()
            update = counters.update
            report_due = update % recipe.report_every == 0
            checkpoint_due = update % recipe.checkpoint_every == 0
            counters.validation_pending = stop.limit is not None or (
                update % recipe.validate_every == 0 and update >= recipe.validate_from
            )
            if stop or report_due or checkpoint_due or counters.validation_pending:
                log.add_nll(step.take_nll())  # waits for the GPU; ends a run that has diverged
            if report_due:
                log.report(step.graphs.statistics())
            else:
                log.show_if_due()
            with log.pause():
                if counters.validation_pending and not stop.signal:
                    if not run.has_checkpoint:  # best weights alone could not be resumed
                        save_checkpoint(run)
                    validate_and_keep_best(run, log, stop, after_validation)
                if stop or checkpoint_due:
                    save_checkpoint(run, keep=stop.limit is not None or checkpoint_due)
        return stop.outcome()


def validate_and_keep_best(
    run: TrainingRun,
    log: TrainingLog,
    stop: "StopCondition",
    after_validation: AfterValidation | None = None,
) -> None:
    """Score the model on the dev set, and save its weights if they are the best so far.

    A signal interrupts it; the validation then stays pending until the run is resumed.
    """
    counters, select = run.counters, run.config.train.select
    with ema_weights(run):
        result = validate(
            run.model, run.dev, run.config, run.device, run.world, stop.has_received_signal
        )
        if result is None:
            stop.poll_signal()
            return
        if not math.isfinite(result.loss):
            raise divergence_error(run, f"the dev loss is {result.loss}")
        score = [-result.loss]
        if select == "bleu" and result.bleu is not None:
            score = [result.bleu, *score]
        is_best = counters.best is None or score > counters.best
        if is_best:
            counters.best, counters.best_update = score, counters.update
            counters.validations_since_best = 0
            metadata = {"update": counters.update, "loss": result.loss, "bleu": result.bleu}
            save_best(run, named_weights(run.model), metadata)
        else:
            counters.validations_since_best += 1
        if after_validation:
            after_validation(run, result)
    log.log_validation(result, is_best)
    counters.validation_pending = False
    stop.check_limits()


@contextmanager
def ema_weights(run: TrainingRun) -> Iterator[None]:
    """Give the model the averaged weights for a while, if the run has any."""
    if not run.ema:
        yield
        return
    current = {name: weight.clone() for name, weight in named_weights(run.model).items()}
    try:
        load_weights(run.model, run.ema, run.directory)
        yield
    finally:
        load_weights(run.model, current, run.directory)


def batches_by_update(run: TrainingRun) -> Generator[tuple[list[Batch], int], None, None]:
    """Move the run's counters, and yield this rank's batches of each update.

    With them comes the number of target tokens of all ranks. The sequence starts at the counters'
    position, and is the same for any world size.
    """
    split = run.corpus.split("train")
    multiples = PADDED_MULTIPLES if dispatch.uses_triton(run.device) else (1, 1)
    start = BatchPosition(run.counters.block, run.counters.batch)
    planned = train_batches(split, run.config.data, run.config.train.seed, start)

    def load(plan: PlannedBatch) -> tuple[Batch, int]:
        source, target = split.lengths(plan.indices)
        pairs = plan.indices[run.world.pairs_of_rank(source + target)]
        return read_batch(split, pairs, multiples), int((target + 1).sum())

    # each batch with the position of the next, where a resumed run would start
    loaded = prefetch(((after, *load(plan)) for plan, after in pairwise(planned)), depth=4)
    while group := list(islice(loaded, run.config.train.accumulate)):
        after = group[-1][0]
        run.counters.block, run.counters.batch = after.position
        run.counters.epoch = after.epoch
        batches = [batch.to(run.device) for _, batch, _ in group]
        yield batches, sum(target_tokens for _, _, target_tokens in group)


def elapsed_share(run: TrainingRun) -> float:
    """Return the share of its time limit that the run has used, earlier processes included.

    The limit is what earlier processes used plus `train.minutes`: on resuming a run the share
    falls, and with `cosine_in_time` the learning rate rises again.
    """
    limit = run.config.train.minutes * 60
    return run.counters.seconds / (run.previous_seconds + limit) if limit else 0.0


class StopCondition:
    """Whether training ends: at a limit of the recipe or at a signal, on all ranks alike."""

    def __init__(self, run: TrainingRun) -> None:
        self.run = run
        self.began, self.elapsed = time.monotonic(), 0.0
        self.received = 0  # number of the signal that this process received
        self.signal: signal.Signals | None = None  # that any rank received, as all know
        self.limit: Limit | None = None
        self.check_limits()

    def __bool__(self) -> bool:
        return self.limit is not None or self.signal is not None

    def has_received_signal(self) -> bool:
        """Whether this process received one; other ranks may not know of it yet."""
        return self.received != 0

    def poll(self) -> None:
        """Agree with the other ranks on time and signals, by an all-reduce on the CPU."""
        elapsed = time.monotonic() - self.began
        self.elapsed, number = self.run.world.all_reduce_max(elapsed, self.received)
        self._set_signal(number)
        self.run.counters.seconds = self.run.previous_seconds + self.elapsed
        self.check_limits()

    def poll_signal(self) -> None:
        """Agree with the other ranks on the signal that one of them received."""
        self._set_signal(*self.run.world.all_reduce_max(self.received))

    def _set_signal(self, number: float) -> None:
        self.signal = signal.Signals(int(number)) if number else None

    def check_limits(self) -> None:
        """See whether the run has reached a limit of the recipe."""
        config, counters = self.run.config.train, self.run.counters
        reached: dict[Limit, bool] = {
            "updates": counters.update >= config.updates,
            "epochs": 0 < config.epochs <= counters.epoch,
            "patience": 0 < config.patience <= counters.validations_since_best,
            "minutes": 0 < config.minutes * 60 <= self.elapsed,
        }
        self.limit = next((limit for limit, yes in reached.items() if yes), None)

    def outcome(self) -> "TrainingOutcome":
        """Say how training ended. After a signal it is unfinished: resuming would continue it."""
        if self.signal is not None:
            reason = f"stopped by {self.signal.name}"
            return TrainingOutcome(reason, self.run.counters, finished=False, interrupted=True)
        config = self.run.config.train
        reasons: dict[Limit | None, str] = {
            "updates": f"made {config.updates:,} updates",
            "epochs": f"read the corpus {config.epochs} times",
            "patience": f"no gain in {self.run.counters.validations_since_best} validations",
            "minutes": f"{config.minutes:g} minutes are over",
        }
        return TrainingOutcome(
            reasons[self.limit],
            self.run.counters,
            finished=True,
            interrupted=self.has_received_signal(),
            limit=self.limit,
        )


@contextmanager
def stop_condition(run: TrainingRun) -> Iterator[StopCondition]:
    """Let Ctrl-C and SIGTERM end the run after the current update; a second Ctrl-C ends it at once.

    The first saves a checkpoint, the second does not. SIGINT stays ignored where it was.
    """
    stop = StopCondition(run)

    def handle(number: int) -> None:
        stop.received = number
        if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):
            signal.signal(signal.SIGINT, signal.default_int_handler)

    with handled_signals(handle):
        yield stop


@dataclass(frozen=True)
class TrainingOutcome:
    """How a call of `train` ended."""

    reason: str
    counters: Counters
    finished: bool  # False after a signal: the same command would resume the run
    interrupted: bool  # a signal came, perhaps too late for this run: start nothing else
    limit: Limit | None = None  # of the recipe that the run reached
