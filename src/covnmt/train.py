"""Training: `train(config, directory)` is a loop of small functions (paper, section 4; SPEC 1.4).

A run can be stopped at any moment, by Ctrl-C, a time limit or a power cut, and goes on from its
last save when the same command is given again. On a CPU in fp32 it then ends with the very same
weights: the batches are a function of their number, and a save holds all that changes.
"""

import hashlib
import json
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from covnmt import ops
from covnmt.checkpoint import (
    BEST,
    LAST,
    Description,
    load_config,
    load_tensors,
    load_weights,
    new_model,
    remove_leftovers,
    save_config,
    save_tensors,
    weights_of,
)
from covnmt.config import Config, TrainConfig, differences
from covnmt.curves import Curves, open_curves
from covnmt.data import Batch, prefetch, read_batch, train_batches
from covnmt.errors import UserError
from covnmt.files import write_lines
from covnmt.model.seq2seq import Seq2Seq
from covnmt.optimise import build_optimizer, build_step
from covnmt.progress import Meter
from covnmt.text.codec import copy_codecs
from covnmt.text.corpus import Corpus
from covnmt.update import Updater
from covnmt.validate import Validation, validate

# On a GPU batches are padded to multiples of this, so that few graphs serve them all.
SHAPES = 4

# Settings that may change between two parts of one run.
MAY_CHANGE = (
    "data.directory",
    "decode.",
    "train.updates",
    "train.epochs",
    "train.minutes",
    "train.patience",
    "train.report_every",
    "train.checkpoint_every",
    "train.keep",
    "train.tensorboard",
)


@dataclass
class Counters:
    """How far a run has come; saved with the weights."""

    update: int = 0
    batch: int = 0
    epoch: int = 0  # whole passes over the corpus
    words: int = 0
    seconds: float = 0.0
    best: list[float] | None = None  # BLEU, then minus the dev loss; or that alone
    best_update: int = 0
    stale: int = 0  # validations since the best


@dataclass
class Run:
    """Everything that changes while training, and where it is kept."""

    config: Config
    directory: Path
    corpus: Corpus
    model: Seq2Seq
    optimizer: torch.optim.Optimizer
    average: dict[str, Tensor]  # exponential moving average of the weights, if asked for
    device: torch.device
    counters: Counters = field(default_factory=Counters)

    @cached_property
    def updater(self) -> Updater:
        """What makes the updates; asked for when everything is in its place."""
        step = build_step(self.model, self.optimizer, self.average, self.config.train)
        return Updater(self.model, step, self.config.train)

    @property
    def log(self) -> Path:
        return self.directory / "log.jsonl"


@dataclass(frozen=True)
class Outcome:
    """How a call of `train` ended."""

    reason: str
    counters: Counters
    finished: bool  # False when a signal stopped it; the same command would go on


def train(config: Config, directory: Path, device: torch.device) -> Outcome:
    """Train the model that the settings describe, from the start or from the last save."""
    run = open_run(config, directory, device)
    began, seconds = time.monotonic(), run.counters.seconds
    reason = why_stop(run, 0.0)
    points = open_curves(directory / "tensorboard", config.train.tensorboard, run.counters.update)
    bar = Meter(config.train.updates, "training")
    with stop_signals() as stop, points as curves, bar as meter:
        meter.show(run.counters.update, "")
        recent = Recent()
        updates = update_batches(run) if reason is None else iter(())
        for batches, words in updates:
            make_update(run, batches, words)
            recent.words += words
            run.counters.seconds = seconds + time.monotonic() - began
            stopped = stop.reason
            reason = why_stop(run, time.monotonic() - began)
            due = what_is_due(run.counters.update, config.train, last=reason is not None)
            if due or stopped:
                recent.settle(run)
            if "report" in due:
                meter.show(run.counters.update, report(run, recent, curves))
                recent = Recent()
            if "check" in due:
                meter.note(check(run, curves))
                reason = reason or why_stop(run, time.monotonic() - began)
            if reason or stopped or "save" in due:
                save_run(run)
            if reason or stopped:
                break
    return Outcome(str(reason or stop.reason), run.counters, finished=reason is not None)


def open_run(config: Config, directory: Path, device: torch.device) -> Run:
    """Start a run, or pick it up where it was saved."""
    corpus = Corpus.open(config.data.directory)
    corpus.split("dev")  # rather now than at the first validation
    rows = corpus.report.rows
    model = new_model(config, rows["source"], rows["target"]).to(device)
    optimizer = build_optimizer(model, config.train)
    average = {k: w.clone() for k, w in weights_of(model).items()} if config.train.ema else {}
    run = Run(config, directory, corpus, model, optimizer, average, device)
    remove_leftovers(directory)
    if (directory / LAST).exists():
        check_same_settings(config, directory)
        restore_run(run)
    else:
        copy_codecs(config.data.directory, directory)
    save_config(directory, Description(config, rows, corpus.report.fingerprint))
    trim_log(run)
    return run


def check_same_settings(config: Config, directory: Path) -> None:
    """A run goes on only with the settings it began with."""
    before = load_config(directory).config
    changed = [
        f"{key}: {old!r} before, {new!r} now"
        for key, old, new in differences(before, config)
        if not key.startswith(MAY_CHANGE)
    ]
    if changed:
        raise UserError(
            f"{directory} holds a run with other settings ({'; '.join(changed)}); "
            "choose another directory, or go on with the old settings"
        )


def update_batches(run: Run) -> Iterator[tuple[list[Batch], int]]:
    """The batches of each update and their words, from where the run stands; always the same."""
    split = run.corpus.split("train")
    numbered = train_batches(split, run.config.data, run.config.train.seed, run.counters.batch)
    # each batch with the one after it, which knows the passes made by then
    shape = SHAPES if ops.fuses(run.device) else 1
    plans = ((after, read_batch(split, plan.indices, shape)) for plan, after in pairwise(numbered))
    loaded = prefetch(plans, depth=4)
    while group := list(islice(loaded, run.config.train.accumulate)):
        run.counters.batch = group[-1][0].number
        run.counters.epoch = group[-1][0].epoch
        words = sum(batch.target_words for _, batch in group)
        yield [batch.to(run.device) for _, batch in group], words


def make_update(run: Run, batches: list[Batch], words: int) -> None:
    """One step of the optimiser."""
    run.updater(batches, words, run.counters.update)
    run.counters.update += 1
    run.counters.words += words


def diverged(run: Run, what: str) -> str:
    """What to tell when the numbers are no numbers any more."""
    saved = run.directory / LAST
    where = f"the last good save is {saved}" if saved.exists() else "nothing had been saved yet"
    return (
        f"{what}; {where}. In another run directory, try a lower train.learning_rate, "
        "a longer train.warmup, a smaller train.clip, or train.precision=fp32"
    )


@dataclass
class Recent:
    """Loss and speed since the last report."""

    nll: float = 0.0
    words: int = 0
    since: float = field(default_factory=time.monotonic)

    def settle(self, run: Run) -> None:
        """Take over the loss of the updates made; what is no number ends the run."""
        self.nll += run.updater.take_loss()
        if not math.isfinite(self.nll):
            made = f"update {run.counters.update}"
            raise UserError(diverged(run, f"by {made} the loss has become {self.nll}"))


def report(run: Run, recent: Recent, curves: Curves) -> str:
    """Log how it goes; gives the short form for the bar."""
    loss = recent.nll / recent.words
    rate = recent.words / (time.monotonic() - recent.since)
    values = {"loss": loss, "words_per_second": round(rate)}
    write_log(run, values)
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


def check(run: Run, curves: Curves) -> str:
    """Validate, and keep the weights if they are the best so far."""
    config, counters = run.config.train, run.counters
    with averaged(run):
        result = validate(run.model, run.corpus, run.config, run.device)
        if not math.isfinite(result.loss):
            raise UserError(diverged(run, f"the dev loss is {result.loss}"))
        score = [-result.loss]
        if config.select == "bleu" and result.bleu is not None:
            score = [result.bleu, *score]
        if better := counters.best is None or score > counters.best:
            counters.best, counters.best_update, counters.stale = score, counters.update, 0
            about = {"update": counters.update, "loss": result.loss, "bleu": result.bleu}
            save_tensors(run.directory / BEST, weights_of(run.model), about)
        else:
            counters.stale += 1
    write_log(run, {"validation": result.to_json(), "best": better})
    curves.add(counters.update, {"dev/loss": result.loss, "dev/bleu": result.bleu})
    return f"update {counters.update:,}: {result.summary()}{'  best' if better else ''}"


@contextmanager
def averaged(run: Run) -> Iterator[None]:
    """The averaged weights in place of the current ones, where there are any."""
    current = {name: w.clone() for name, w in weights_of(run.model).items()}
    if run.average:
        load_weights(run.model, run.average, run.directory)
    yield
    load_weights(run.model, current, run.directory)


def why_stop(run: Run, seconds: float) -> str | None:
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


def save_run(run: Run) -> None:
    """Write everything that changes, in one file; the best weights too if there are none yet."""
    if not all(bool(weight.isfinite().all()) for weight in weights_of(run.model).values()):
        raise UserError(diverged(run, f"update {run.counters.update} made weights infinite"))
    tensors = {f"model.{name}": weight for name, weight in weights_of(run.model).items()}
    tensors |= {f"average.{name}": weight for name, weight in run.average.items()}
    for number, state in run.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{key}": torch.as_tensor(v) for key, v in state.items()}
    tensors["random.cpu"] = torch.get_rng_state()
    if run.device.type == "cuda":
        tensors["random.cuda"] = torch.cuda.get_rng_state(run.device)
    about = {"counters": asdict(run.counters), "corpus": corpus_identity(run.corpus)}
    save_tensors(run.directory / LAST, tensors, about)
    weights = run.average or weights_of(run.model)
    if run.counters.best is None:
        save_tensors(run.directory / BEST, weights, {"update": run.counters.update})
    if run.config.train.keep:
        keep_recent(run, weights)


def corpus_identity(corpus: Corpus) -> str:
    """A digest of what was prepared and how, wherever its files lie."""
    places = {"settings": {"train", "dev", "test"}}
    return hashlib.sha256(corpus.report.model_dump_json(exclude=places).encode()).hexdigest()


def keep_recent(run: Run, weights: dict[str, Tensor]) -> None:
    """Keep the last few weights for averaging."""
    recent = run.directory / "recent"
    about = {"update": run.counters.update}
    save_tensors(recent / f"{run.counters.update:08d}.safetensors", weights, about)
    for old in sorted(recent.glob("*.safetensors"))[: -run.config.train.keep]:
        old.unlink()


def restore_run(run: Run) -> None:
    """Put everything back as it was at the last save."""
    path = run.directory / LAST
    tensors, about = load_tensors(path)
    if "counters" not in about:
        raise UserError(f"{path}: not a save of `covnmt train`; choose another run directory")
    if about.get("corpus") != corpus_identity(run.corpus):
        raise UserError(
            f"{path}: saved while training on other data than {run.config.data.directory}; "
            "name the data directory it was trained on, or choose another run directory"
        )

    def group(prefix: str) -> dict[str, Tensor]:
        return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

    load_weights(run.model, group("model."), path)
    run.average = {name: w.to(run.device) for name, w in group("average.").items()}
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in group("optimizer.").items():
        number, key = name.split(".")
        state.setdefault(int(number), {})[key] = tensor
    groups = run.optimizer.state_dict()["param_groups"]
    run.optimizer.load_state_dict({"state": state, "param_groups": groups})
    torch.set_rng_state(tensors["random.cpu"])
    if "random.cuda" in tensors and run.device.type == "cuda":
        torch.cuda.set_rng_state(tensors["random.cuda"], run.device)
    run.counters = Counters(**about["counters"])


def write_log(run: Run, entry: dict[str, Any]) -> None:
    """One more line in the log."""
    head = {"update": run.counters.update, "epoch": run.counters.epoch}
    timing = {"words": run.counters.words, "seconds": round(run.counters.seconds, 2)}
    line = json.dumps({**head, **timing, **entry}, ensure_ascii=False)
    try:
        with run.log.open("a", encoding="utf-8") as stream:
            stream.write(f"{line}\n")
    except OSError as error:
        raise UserError(
            f"{run.log}: cannot be written ({error.strerror}); saves are intact"
        ) from None


def trim_log(run: Run) -> None:
    """Forget what was logged after the save that we go on from; it will be made again."""
    if not run.log.exists():
        return
    kept = []
    for line in run.log.read_text("utf-8", errors="replace").split("\n"):
        try:
            if json.loads(line)["update"] <= run.counters.update:
                kept.append(line)
        except (ValueError, KeyError):
            break  # the end, or the line that a crash cut off
    write_lines(run.log, kept)


@dataclass
class Stop:
    """Set by a signal; the loop looks at it after every update."""

    reason: str | None = None


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Ctrl-C and SIGTERM end the run after the update in hand; a second Ctrl-C at once."""
    stop = Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.reason = f"stopped by {signal.Signals(number).name}"
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["Outcome", "Validation", "train"]
