"""A run of training: all that changes while it goes on, and how that is saved, restored, logged.

A save holds everything, the random state too, so a run that goes on from it is the same run.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covnmt.base.config import Config, config_differences
from covnmt.base.errors import UserError
from covnmt.base.files import write_lines
from covnmt.data.corpus import Corpus
from covnmt.decoding.onnx.format import refuse_exported
from covnmt.model.checkpoint import (
    AVERAGE_PREFIX,
    BEST_WEIGHTS,
    LAST_CHECKPOINT,
    SIGNATURE_KEY,
    WEIGHTS_PREFIX,
    load_tensors,
    load_weights,
    lock_directory,
    named_weights,
    new_model,
    remove_partial_files,
    save_tensors,
)
from covnmt.model.directory import (
    ModelDescription,
    check_model_signature,
    load_config,
    model_signature,
    save_config,
)
from covnmt.model.seq2seq import Seq2Seq
from covnmt.text.codec import copy_codecs
from covnmt.training.distributed import SINGLE_PROCESS, World
from covnmt.training.optimizer import build_optimizer, build_optimizer_step
from covnmt.training.step import TrainStep
from covnmt.training.validation import DevSet

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
    block: int = 0  # of batches; see `data.Place`
    batch: int = 0  # the next one, within the block
    epoch: int = 0  # whole passes over the corpus
    words: int = 0
    seconds: float = 0.0
    best: list[float] | None = None  # BLEU, then minus the dev loss; or that alone
    best_update: int = 0
    stale: int = 0  # validations since the best
    unchecked: bool = False  # a validation is due; a signal came before its end


@dataclass
class TrainingRun:
    """Everything that changes while training, and where it is kept."""

    config: Config
    directory: Path
    corpus: Corpus
    dev: DevSet
    model: Seq2Seq
    optimizer: torch.optim.Optimizer
    average: dict[str, Tensor]  # exponential moving average of the weights, if asked for
    device: torch.device
    world: World
    counters: Counters = field(default_factory=Counters)
    before: float = 0.0  # seconds that earlier calls took

    @cached_property
    def train_step(self) -> TrainStep:
        """What makes the updates; asked for when everything is in its place."""
        step = build_optimizer_step(self.model, self.optimizer, self.average, self.config.train)
        return TrainStep(self.model, step, self.config.train, self.world)

    @property
    def saved(self) -> bool:
        """Whether there is a save to go on from; a run has one before it has a best model."""
        return (self.directory / LAST_CHECKPOINT).exists()

    @property
    def known(self) -> ModelDescription:
        """What config.json says about its model."""
        return ModelDescription(
            self.config, self.corpus.report.vocabulary_sizes, self.corpus.report.fingerprint
        )

    @property
    def log(self) -> Path:
        return self.directory / "log.jsonl"


@contextmanager
def open_run(
    config: Config, directory: Path, device: torch.device, world: World = SINGLE_PROCESS
) -> Iterator[TrainingRun]:
    """Start a run, or pick it up where it was saved; of several workers the first one writes."""
    corpus = Corpus.open(config.data.directory)
    dev = DevSet.open(corpus)
    rows = corpus.report.vocabulary_sizes
    model = new_model(config, rows["source"], rows["target"]).to(device)
    optimizer = build_optimizer(model, config.train)
    average = {k: w.clone() for k, w in named_weights(model).items()} if config.train.ema else {}
    run = TrainingRun(config, directory, corpus, dev, model, optimizer, average, device, world)
    with lock_run_directory(directory, world):
        if saved := run.saved:
            check_same_settings(config, directory)
            restore_checkpoint(run)
            run.before = run.counters.seconds
        else:
            refuse_model_without_checkpoint(directory)
        if run.world.is_main:
            remove_partial_files(directory)
            if not saved:
                copy_codecs(config.data.directory, directory)
            save_config(directory, run.known)
            truncate_log(run)
        yield run


@contextmanager
def lock_run_directory(directory: Path, world: World) -> Iterator[None]:
    """One training at a time in a directory; what the first worker is told, all are told."""
    with ExitStack() as held:
        problem = ""
        if world.is_main:
            try:
                held.enter_context(lock_directory(directory))
            except UserError as error:
                problem = str(error)
        if problem := world.all_gather(problem)[0]:
            raise UserError(problem)
        yield


def refuse_model_without_checkpoint(directory: Path) -> None:
    """A model that is no run (averaged, exported, copied) must not give way to a new one."""
    refuse_exported(directory)
    if (directory / BEST_WEIGHTS).exists():
        raise UserError(
            f"{directory}: holds a model without {LAST_CHECKPOINT}, which going on needs; "
            "choose another directory"
        )


def check_same_settings(config: Config, directory: Path) -> None:
    """A run goes on only with the settings it began with."""
    before = load_config(directory).config
    changed = [
        f"{key}: {old!r} before, {new!r} now"
        for key, old, new in config_differences(before, config)
        if not key.startswith(MAY_CHANGE)
    ]
    if changed:
        raise UserError(
            f"{directory} holds a run with other settings ({'; '.join(changed)}); "
            "choose another directory, or go on with the old settings"
        )


def save_checkpoint(run: TrainingRun, keep: bool = False) -> None:
    """Write everything that changes, in one file; the best weights too if there are none yet.

    With `keep` the weights are among the recent ones. Those of a run that was stopped are not, or
    an average would tell that it was.
    """
    if not all(bool(weight.isfinite().all()) for weight in named_weights(run.model).values()):
        raise divergence_error(run, f"update {run.counters.update} made weights infinite")
    if not run.world.is_main:
        return
    tensors = {
        f"{WEIGHTS_PREFIX}{name}": weight for name, weight in named_weights(run.model).items()
    }
    tensors |= {f"{AVERAGE_PREFIX}{name}": weight for name, weight in run.average.items()}
    for number, state in run.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{key}": torch.as_tensor(v) for key, v in state.items()}
    tensors["random.cpu"] = torch.get_rng_state()
    if run.device.type == "cuda":
        tensors["random.cuda"] = torch.cuda.get_rng_state(run.device)
    about = {"counters": asdict(run.counters), "corpus": run.corpus.identity()}
    weights = run.average or named_weights(run.model)
    if keep and run.config.train.keep:  # before the save, or a crash between them would lose it
        save_recent(run, weights)
    write_tensors(run, LAST_CHECKPOINT, tensors, about)
    if run.counters.best is None:
        save_best(run, weights, {"update": run.counters.update})


def save_best(run: TrainingRun, weights: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write the weights that `covnmt translate` takes."""
    if run.world.is_main:
        write_tensors(run, BEST_WEIGHTS, weights, about)


def write_tensors(
    run: TrainingRun, name: str, tensors: dict[str, Tensor], about: dict[str, Any]
) -> None:
    """Write a file of the run that also tells the settings it was made with."""
    save_tensors(run.directory / name, tensors, about | {SIGNATURE_KEY: model_signature(run.known)})


def save_recent(run: TrainingRun, weights: dict[str, Tensor]) -> None:
    """Keep the last few weights for averaging."""
    update = run.counters.update
    write_tensors(run, f"recent/{update:08d}.safetensors", weights, {"update": update})
    for old in sorted((run.directory / "recent").glob("*.safetensors"))[: -run.config.train.keep]:
        old.unlink()


def restore_checkpoint(run: TrainingRun) -> None:
    """Put everything back as it was at the last save."""
    path = run.directory / LAST_CHECKPOINT
    tensors, about = load_tensors(path)
    if "counters" not in about:
        raise UserError(f"{path}: not a save of `covnmt train`; choose another run directory")
    if about.get("corpus") != run.corpus.identity():
        raise UserError(
            f"{path}: saved while training on other data than {run.config.data.directory}; "
            "name the data directory it was trained on, or choose another run directory"
        )
    check_model_signature(about.get(SIGNATURE_KEY), run.known, path)

    def group(prefix: str) -> dict[str, Tensor]:
        return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

    load_weights(run.model, group(WEIGHTS_PREFIX), path)
    run.average = {name: w.to(run.device) for name, w in group(AVERAGE_PREFIX).items()}
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in group("optimizer.").items():
        number, key = name.split(".")
        state.setdefault(int(number), {})[key] = tensor
    groups = run.optimizer.state_dict()["param_groups"]
    try:
        run.optimizer.load_state_dict({"state": state, "param_groups": groups})
        torch.set_rng_state(tensors["random.cpu"])
        if "random.cuda" in tensors and run.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["random.cuda"], run.device)
        run.counters = Counters(**about["counters"])
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path}: damaged: not all of a save is in it ({error}); restore it from a copy, or "
            "choose another run directory"
        ) from None


def divergence_error(run: TrainingRun, what: str) -> UserError:
    """Say what became infinite or NaN, where the last good checkpoint is, and what to try."""
    path = run.directory / LAST_CHECKPOINT
    where = f"the last good save is {path}" if path.exists() else "nothing had been saved yet"
    return UserError(
        f"{what}; {where}. In another run directory, try a lower train.learning_rate, "
        "a longer train.warmup, a smaller train.clip, or train.precision=fp32"
    )


def write_log(run: TrainingRun, entry: dict[str, Any]) -> None:
    """One more line in the log."""
    if not run.world.is_main:
        return
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


def truncate_log(run: TrainingRun) -> None:
    """Forget what was logged after the save that we go on from; it will be made again."""
    if not run.log.exists():
        return
    kept, last = [], run.counters.update
    for line in run.log.read_text("utf-8", errors="replace").split("\n"):
        try:
            entry = json.loads(line)
            due = run.counters.unchecked and "validation" in entry
            if entry["update"] < last or (entry["update"] == last and not due):
                kept.append(line)
        except (ValueError, KeyError):
            break  # the end, or the line that a crash cut off
    write_lines(run.log, kept)
