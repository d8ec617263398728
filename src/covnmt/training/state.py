"""The state of a training run: what changes while it trains, and its checkpoints.

A checkpoint holds all of it, random state included, so a resumed run is the same run: on a CPU in
fp32 it ends with bit-identical weights.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from covnmt.base.config import Config, require_same_settings
from covnmt.base.console import log, warn
from covnmt.base.errors import UserError
from covnmt.base.files import lock_directory
from covnmt.data.corpus import Corpus
from covnmt.decoding.onnx.format import refuse_exported
from covnmt.model.checkpoint import (
    BEST_WEIGHTS,
    EMA_PREFIX,
    LAST_CHECKPOINT,
    SIGNATURE_KEY,
    WEIGHTS_PREFIX,
    load_tensors,
    load_weights,
    named_weights,
    new_model,
    save_tensors,
    strip_prefix,
)
from covnmt.model.directory import (
    ModelDescription,
    check_model_signature,
    load_config,
    model_signature,
    save_config,
)
from covnmt.model.seq2seq import Seq2Seq, count_parameters
from covnmt.text.codec import copy_codecs
from covnmt.training.distributed import SINGLE_PROCESS, World
from covnmt.training.optimizer import build_optimizer
from covnmt.training.validation import DevSet

# Settings that may differ when a run is resumed.
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

LARGEST_FOR_CPU = 20_000_000  # parameters

# How the names of tensors in a checkpoint begin, next to those of the weights.
OPTIMIZER_PREFIX, RNG_PREFIX = "optimizer.", "random."


class Counters(BaseModel):
    """How far a run has come. Aliases are the names in checkpoint files."""

    model_config = ConfigDict(extra="forbid")

    update: int = 0
    block: int = 0  # of batches; see `data.batching.BatchPosition`
    batch: int = 0  # the next one, within the block
    epoch: int = 0  # complete passes over the corpus
    target_tokens: int = Field(0, alias="words")
    seconds: float = 0.0
    best: list[float] | None = None  # BLEU, then minus the dev loss; or only the latter
    best_update: int = 0
    validations_since_best: int = Field(0, alias="stale")
    validation_pending: bool = Field(False, alias="unchecked")  # due, or interrupted by a signal
    report_nll: float = 0.0  # negative log-likelihood since the last report,
    report_tokens: int = 0  # and target tokens


class CheckpointMetadata(BaseModel):
    """The metadata of a checkpoint."""

    counters: Counters
    corpus: str | None = None  # `Corpus.identity`
    signature: dict[str, Any] | None = Field(None, alias=SIGNATURE_KEY)


@dataclass
class TrainingRun:
    """Everything that changes while training, and where it is kept."""

    config: Config
    directory: Path
    corpus: Corpus
    dev: DevSet
    model: Seq2Seq
    optimizer: torch.optim.Optimizer
    ema: dict[str, Tensor]  # exponential moving average of the weights; empty without train.ema
    device: torch.device
    world: World
    counters: Counters = field(default_factory=Counters)
    previous_seconds: float = 0.0  # of training before this process resumed the run

    @property
    def has_checkpoint(self) -> bool:
        """Whether the run can be resumed; it can before it has a best model."""
        return (self.directory / LAST_CHECKPOINT).exists()

    @property
    def description(self) -> ModelDescription:
        """What config.json says about the model."""
        report = self.corpus.report
        return ModelDescription(self.config, report.vocabulary_sizes, report.fingerprint)

    @property
    def log_path(self) -> Path:
        return self.directory / "log.jsonl"


@contextmanager
def open_run(
    config: Config, directory: Path, device: torch.device, world: World = SINGLE_PROCESS
) -> Iterator[TrainingRun]:
    """Start a run, or restore it from its last checkpoint. Only the main process writes files."""
    if directory.resolve() == config.data.directory.resolve():
        raise UserError(f"{directory}: holds the data; choose another directory for the run")
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory}: is a file; --run takes a directory")
    corpus = Corpus.open(config.data.directory)
    dev = DevSet.open(corpus)
    sizes = corpus.report.vocabulary_sizes
    with lock_run_directory(directory, world):
        if resumed := (directory / LAST_CHECKPOINT).exists():
            require_same_settings(
                load_config(directory).config,
                config,
                f"{directory} holds a run",
                "choose another directory, or resume with the old settings",
                MAY_CHANGE,
            )
        else:
            refuse_model_without_checkpoint(directory)
        log_start(config, corpus, device, world)
        model = new_model(config, sizes["source"], sizes["target"]).to(device)
        optimizer = build_optimizer(model, config.train)
        ema = {k: w.clone() for k, w in named_weights(model).items()} if config.train.ema else {}
        run = TrainingRun(config, directory, corpus, dev, model, optimizer, ema, device, world)
        if resumed:
            restore_checkpoint(run)
        if world.is_main:
            for path in directory.rglob(".*.safetensors.*.tmp"):  # a killed run left them
                path.unlink(missing_ok=True)
            if not resumed:
                copy_codecs(config.data.directory, directory)
            save_config(directory, run.description)
        yield run


def log_start(config: Config, corpus: Corpus, device: torch.device, world: World) -> None:
    """Say what is trained on what, before the model is made, which takes a while if it is large."""
    sizes = corpus.report.vocabulary_sizes
    with torch.device("meta"):  # takes no memory
        model = Seq2Seq(config.model, sizes["source"], sizes["target"])
    parameters = sum(count_parameters(model).values())
    hardware = f"CPU (threads: {torch.get_num_threads()})"
    if device.type == "cuda":
        hardware = torch.cuda.get_device_name(device)
    log(
        f"training on {hardware}{f' and {world.size - 1} more' if world.size > 1 else ''}: "
        f"{corpus.report.splits['train'].kept:,} pairs, vocabularies of {sizes['source']:,} and "
        f"{sizes['target']:,}, {parameters:,} parameters, up to {config.train.updates:,} updates; "
        f"weights, gradients and optimizer take {training_bytes(config, parameters) / 1e9:.1f} GB"
    )
    if device.type == "cpu" and parameters > LARGEST_FOR_CPU:
        warn(
            "a model of this size needs a GPU: on a CPU an update takes seconds; make it smaller, "
            "for example with model.embedding=256 model.hidden=256 model.rank=256"
        )


def training_bytes(config: Config, parameters: int) -> int:
    """Return the memory of weights, gradients, optimizer state and averaged weights, all fp32."""
    copies = 4 + (1 if config.train.ema else 0)  # both optimizers keep two numbers per weight
    return 4 * copies * parameters


@contextmanager
def lock_run_directory(directory: Path, world: World) -> Iterator[None]:
    """Lock the run directory. If the main process cannot, every rank raises the same error."""
    with ExitStack() as stack:
        problem = ""
        if world.is_main:
            try:
                stack.enter_context(lock_directory(directory))
            except UserError as error:
                problem = str(error)
        if problem := world.all_gather(problem)[0]:
            raise UserError(problem)
        yield


def refuse_model_without_checkpoint(directory: Path) -> None:
    """Refuse to overwrite an averaged, exported or copied model with a new run."""
    refuse_exported(directory)
    if (directory / BEST_WEIGHTS).exists():
        raise UserError(
            f"{directory}: holds a model without {LAST_CHECKPOINT}, which resuming needs; "
            "choose another directory"
        )


def save_checkpoint(run: TrainingRun, keep: bool = False) -> None:
    """Write the whole state in one file, and the best weights if there are none yet.

    With `keep` the weights are also added to the recent ones, for averaging. Checkpoints of an
    interruption are not kept, so that averages of them do not depend on interruptions.
    """
    weights = named_weights(run.model)
    if not all(bool(weight.isfinite().all()) for weight in weights.values()):
        raise divergence_error(run, f"update {run.counters.update} made weights infinite")
    if not run.world.is_main:
        return
    tensors = add_prefix(WEIGHTS_PREFIX, weights) | add_prefix(EMA_PREFIX, run.ema)
    for number, moments in run.optimizer.state_dict()["state"].items():
        moments = {key: torch.as_tensor(value) for key, value in moments.items()}
        tensors |= add_prefix(f"{OPTIMIZER_PREFIX}{number}.", moments)
    tensors[f"{RNG_PREFIX}cpu"] = torch.get_rng_state()
    if run.device.type == "cuda":
        tensors[f"{RNG_PREFIX}cuda"] = torch.cuda.get_rng_state(run.device)
    metadata = {"counters": run.counters.model_dump(by_alias=True), "corpus": run.corpus.identity()}
    best = run.ema or weights
    if keep and run.config.train.keep:  # before the checkpoint: a crash in between would lose them
        save_recent(run, best, run.config.train.keep)
    save_signed_tensors(run, LAST_CHECKPOINT, tensors, metadata)
    if run.counters.best is None:
        save_best(run, best, {"update": run.counters.update})


def save_best(run: TrainingRun, weights: dict[str, Tensor], metadata: dict[str, Any]) -> None:
    """Write the weights that `covnmt translate` loads."""
    if run.world.is_main:
        save_signed_tensors(run, BEST_WEIGHTS, weights, metadata)


def save_recent(run: TrainingRun, weights: dict[str, Tensor], keep: int) -> None:
    """Write weights to be averaged, and remove all but the last `keep`."""
    update = run.counters.update
    save_signed_tensors(run, f"recent/{update:08d}.safetensors", weights, {"update": update})
    for old in sorted((run.directory / "recent").glob("*.safetensors"))[:-keep]:
        old.unlink()


def save_signed_tensors(
    run: TrainingRun, name: str, tensors: dict[str, Tensor], metadata: dict[str, Any]
) -> None:
    """Write a file of the run, with the signature of the model that its weights belong to."""
    signed = metadata | {SIGNATURE_KEY: model_signature(run.description)}
    save_tensors(run.directory / name, tensors, signed)


def restore_checkpoint(run: TrainingRun) -> None:
    """Put everything back as it was at the last checkpoint."""
    path = run.directory / LAST_CHECKPOINT
    tensors, raw_metadata = load_tensors(path)
    metadata = parse_metadata(raw_metadata, path)
    if metadata.corpus != run.corpus.identity():
        raise UserError(
            f"{path}: saved while training on other data than {run.config.data.directory}; "
            "name the data directory it was trained on, or choose another run directory"
        )
    check_model_signature(metadata.signature, run.description, path)
    load_weights(run.model, strip_prefix(WEIGHTS_PREFIX, tensors), path)
    ema = strip_prefix(EMA_PREFIX, tensors)
    run.ema = {name: weight.to(run.device) for name, weight in ema.items()}
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in strip_prefix(OPTIMIZER_PREFIX, tensors).items():
        number, key = name.split(".")
        state.setdefault(int(number), {})[key] = tensor
    groups = run.optimizer.state_dict()["param_groups"]
    rng = strip_prefix(RNG_PREFIX, tensors)
    try:
        run.optimizer.load_state_dict({"state": state, "param_groups": groups})
        torch.set_rng_state(rng["cpu"])
        if "cuda" in rng and run.device.type == "cuda":
            torch.cuda.set_rng_state(rng["cuda"], run.device)
    except (KeyError, TypeError) as error:
        raise damaged_checkpoint(path, str(error)) from None
    run.counters = metadata.counters
    run.previous_seconds = run.counters.seconds


def last_update(directory: Path) -> int:
    """Return the update of a run's last checkpoint, which is checked as a whole; 0 without one."""
    path = directory / LAST_CHECKPOINT
    if not path.exists():
        return 0
    return parse_metadata(load_tensors(path)[1], path).counters.update


def parse_metadata(metadata: dict[str, Any], path: Path) -> CheckpointMetadata:
    """Check the metadata of a checkpoint."""
    if "counters" not in metadata:
        raise UserError(f"{path}: not a checkpoint of `covnmt train`; choose another run directory")
    try:
        return CheckpointMetadata.model_validate(metadata)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise damaged_checkpoint(path, f"{where}: {first['msg']}") from None


def damaged_checkpoint(path: Path, problem: str) -> UserError:
    """Name the file, what is wrong with it, and what to do."""
    return UserError(
        f"{path}: damaged: not a complete checkpoint ({problem}); restore it from a copy, or "
        "choose another run directory"
    )


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put the prefix before all names."""
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def divergence_error(run: TrainingRun, problem: str) -> UserError:
    """Say what became infinite or NaN, where the last good checkpoint is, and what to try."""
    path = run.directory / LAST_CHECKPOINT
    last = f"the last good checkpoint is {path}" if path.exists() else "there is no checkpoint yet"
    return UserError(
        f"{problem}; {last}. In another run directory, try a lower train.learning_rate, "
        "a longer train.warmup, a smaller train.clip, or train.precision=fp32"
    )
