"""Training: `train(config, directory)` is a loop of small functions (paper, section 4; SPEC 1.4).

A run can be stopped at any moment, by Ctrl-C, a time limit or a power cut, and goes on from its
last save when the same command is given again. On a CPU in fp32 it then ends with the very same
weights: the batches are a function of their number, and a save holds all that changes.
"""

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from types import FrameType

import torch

from covnmt.base.config import Config, TrainConfig
from covnmt.base.console import ProgressBar, log
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
from covnmt.training.state import (
    Counters,
    TrainingRun,
    divergence_error,
    open_run,
    save_best,
    save_checkpoint,
    write_log,
)
from covnmt.training.tensorboard import TensorBoard, open_tensorboard
from covnmt.training.validation import validate

# On a GPU batches are padded to multiples of so many pairs and words: few graphs serve them all.
SHAPES = (8, 4)


@dataclass(frozen=True)
class TrainingOutcome:
    """How a call of `train` ended."""

    reason: str
    counters: Counters
    finished: bool  # False when a signal stopped it; the same command would go on
    interrupted: bool  # a signal came, be it too late for this run: nothing else should begin


def train(
    config: Config, directory: Path, device: torch.device, world: World = SINGLE_PROCESS
) -> TrainingOutcome:
    """Train the model that the settings describe, from the start or from the last save.

    Every worker calls it; what makes them stop, validate or save is the same for all.
    """
    with open_run(config, directory, device, world) as run:
        return work_on(run)


def work_on(run: TrainingRun) -> TrainingOutcome:
    """The loop: from where the run stands to a reason to end, or to a signal."""
    config, began, stopped = run.config, time.monotonic(), 0.0
    wanted = config.train.tensorboard and run.world.is_main
    points = open_tensorboard(run.directory / "tensorboard", wanted, run.counters.update)
    bar = ProgressBar(config.train.updates, "training")
    with stop_signals() as stop, points as curves, bar as meter:
        meter.show(run.counters.update, "")
        if run.counters.unchecked:  # the call before was stopped in it
            stopped = check(run, curves, stop)
            save_checkpoint(run, keep=stop_reason(run, 0.0) is not None)
        reason = stop_reason(run, 0.0)
        recent = ReportWindow()
        updates = update_batches(run) if reason is None and not stopped else iter(())
        for batches, words in updates:
            make_update(run, batches, words)
            recent.words += words
            elapsed, stopped = run.world.all_reduce_max(time.monotonic() - began, stop.number)
            run.counters.seconds = run.before + elapsed
            reason = stop_reason(run, elapsed)
            due = what_is_due(run.counters.update, config.train, last=reason is not None)
            run.counters.unchecked = "check" in due
            if due or stopped:
                recent.settle(run)
            if "report" in due:
                meter.show(run.counters.update, report(run, recent, curves))
                recent = ReportWindow()
            paused = time.monotonic()
            if "check" in due and not stopped:
                if not run.saved:
                    save_checkpoint(run)
                stopped = check(run, curves, stop)
                reason = reason or stop_reason(run, elapsed)
            if reason or stopped or "save" in due:
                save_checkpoint(run, keep=reason is not None or "save" in due)
            recent.since += time.monotonic() - paused
            if reason or stopped:
                break
    if reason is None or run.counters.unchecked:
        name = signal.Signals(int(stopped)).name
        return TrainingOutcome(f"stopped by {name}", run.counters, finished=False, interrupted=True)
    return TrainingOutcome(reason, run.counters, finished=True, interrupted=stop.number > 0)


def update_batches(run: TrainingRun) -> Iterator[tuple[list[Batch], int]]:
    """The batches of each update, from where the run stands; always the same.

    They are this worker's rows; the number is the target words of all workers together.
    """
    split, shape = run.corpus.split("train"), SHAPES if dispatch.uses_triton(run.device) else (1, 1)
    start = BatchPosition(run.counters.block, run.counters.batch)
    planned = train_batches(split, run.config.data, run.config.train.seed, start)

    def load(plan: PlannedBatch) -> tuple[Batch, int]:
        source, target = split.lengths(plan.indices)
        mine = plan.indices[run.world.rows_of_rank(source + target)]
        return read_batch(split, mine, shape), int((target + 1).sum())

    # each batch with the one after it, which knows the passes made by then
    loaded = prefetch(((after, *load(plan)) for plan, after in pairwise(planned)), depth=4)
    while group := list(islice(loaded, run.config.train.accumulate)):
        after = group[-1][0]
        run.counters.block, run.counters.batch = after.position
        run.counters.epoch = after.epoch
        yield [batch.to(run.device) for _, batch, _ in group], sum(words for _, _, words in group)


def time_spent(run: TrainingRun) -> float:
    """The share of its time that the run has used, earlier calls counted in."""
    limit = run.config.train.minutes * 60
    return run.counters.seconds / (run.before + limit) if limit else 0.0


def make_update(run: TrainingRun, batches: list[Batch], words: int) -> None:
    """One step of the optimiser."""
    run.train_step(batches, words, run.counters.update, time_spent(run))
    run.counters.update += 1
    run.counters.words += words


@dataclass
class ReportWindow:
    """Loss and speed since the last report; `since` leaves out what is no update."""

    nll: float = 0.0
    words: int = 0
    since: float = field(default_factory=time.monotonic)

    def settle(self, run: TrainingRun) -> None:
        """Take over the loss of the updates made; what is no number ends the run."""
        self.nll += run.train_step.take_loss()
        if not math.isfinite(self.nll):
            made = f"update {run.counters.update}"
            raise divergence_error(run, f"by {made} the loss has become {self.nll}")


def report(run: TrainingRun, recent: ReportWindow, curves: TensorBoard) -> str:
    """Log how it goes; gives the short form for the bar."""
    loss = recent.nll / recent.words
    rate = recent.words / (time.monotonic() - recent.since)
    values = {"loss": loss, "words_per_second": round(rate)}
    write_log(run, values | run.train_step.graphs.warm_up())
    curves.add(run.counters.update, values)
    return f"epoch {run.counters.epoch + 1}  loss {loss:.3f}  {rate:,.0f} words/s"


def what_is_due(update: int, config: TrainConfig, last: bool) -> set[str]:
    """What to do after this update; the last one is always validated."""
    regular = update % config.validate_every == 0 and update >= config.validate_from
    due = {
        "report": update % config.report_every == 0,
        "check": last or regular,
        "save": update % config.checkpoint_every == 0,
    }
    return {what for what, now in due.items() if now}


def check(run: TrainingRun, curves: TensorBoard, stop: "StopSignal") -> float:
    """Validate, and keep the weights if they are the best so far.

    A signal breaks it off, to be made by the next call; gives the signal's number, or 0.
    """
    config, counters = run.config.train, run.counters
    with averaged(run):
        result = validate(
            run.model, run.dev, run.config, run.device, run.world, lambda: stop.number > 0
        )
        if result is None:
            return run.world.all_reduce_max(stop.number)[0]
        if not math.isfinite(result.loss):
            raise divergence_error(run, f"the dev loss is {result.loss}")
        score = [-result.loss]
        if config.select == "bleu" and result.bleu is not None:
            score = [result.bleu, *score]
        if better := counters.best is None or score > counters.best:
            counters.best, counters.best_update, counters.stale = score, counters.update, 0
            about = {"update": counters.update, "loss": result.loss, "bleu": result.bleu}
            save_best(run, named_weights(run.model), about)
        else:
            counters.stale += 1
    write_log(run, {"validation": result.to_json(), "best": better})
    curves.add(counters.update, {"dev/loss": result.loss, "dev/bleu": result.bleu})
    log(f"update {counters.update:,}: {result.summary()}{'  best' if better else ''}")
    counters.unchecked = False
    return 0.0


@contextmanager
def averaged(run: TrainingRun) -> Iterator[None]:
    """The averaged weights in place of the current ones, where there are any."""
    current = {name: w.clone() for name, w in named_weights(run.model).items()}
    if run.average:
        load_weights(run.model, run.average, run.directory)
    yield
    load_weights(run.model, current, run.directory)


def stop_reason(run: TrainingRun, seconds: float) -> str | None:
    """The reason to end here, if there is one."""
    config, counters = run.config.train, run.counters
    if counters.update >= config.updates:
        return f"made {config.updates:,} updates"
    if config.epochs and counters.epoch >= config.epochs:
        return f"read the corpus {config.epochs} times"
    if config.patience and counters.stale >= config.patience:
        return f"no gain in {counters.stale} validations"
    if config.minutes and seconds >= config.minutes * 60:
        return f"{config.minutes:g} minutes are over"
    return None


@dataclass
class StopSignal:
    """Set by a signal; looked at after every update, and all along a validation."""

    number: int = 0


@contextmanager
def stop_signals() -> Iterator[StopSignal]:
    """Ctrl-C and SIGTERM end the run soon, with a save; a second Ctrl-C at once, without one."""
    stop = StopSignal()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.number = number
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
