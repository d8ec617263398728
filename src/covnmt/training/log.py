"""Where a run reports to: log.jsonl, the progress bar and, on request, TensorBoard."""

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covnmt.base.console import ProgressBar, log
from covnmt.base.errors import UserError, install_command
from covnmt.base.files import PARSE_ERRORS, write_lines
from covnmt.training.state import Counters, TrainingRun, divergence_error
from covnmt.training.validation import ValidationResult

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


SECONDS_UNTIL_FIRST_LINE = 5.0
SECONDS_BETWEEN_LINES = 60.0  # where reports come less often


@contextmanager
def open_log(run: TrainingRun) -> Iterator["TrainingLog"]:
    """Open the log of a run at its last checkpoint. Only the main process writes files."""
    config, update = run.config.train, run.counters.update
    with ExitStack() as stack:
        tensorboard = None
        if run.world.is_main:
            truncate_log(run.log_path, run.counters)
            if config.tensorboard:
                tensorboard = open_tensorboard(run.directory / "tensorboard", update)
                stack.enter_context(tensorboard)
        bar = stack.enter_context(ProgressBar(config.updates, "training"))
        bar.show(update, "")
        yield TrainingLog(run, bar, tensorboard)


class TrainingLog:
    """Collects loss and speed between reports, and writes reports and validations."""

    def __init__(
        self, run: TrainingRun, bar: ProgressBar, tensorboard: "SummaryWriter | None"
    ) -> None:
        self.run, self.bar, self.tensorboard = run, bar, tensorboard
        self.since = time.monotonic()
        self.earlier_tokens = run.counters.report_tokens  # of the process that was stopped
        self.next_line = self.since + SECONDS_UNTIL_FIRST_LINE

    def add_nll(self, nll: float) -> None:
        """Add the negative log-likelihood of some updates; infinity or NaN ends the run."""
        self.run.counters.report_nll += nll
        if not math.isfinite(self.run.counters.report_nll):
            update = self.run.counters.update
            raise divergence_error(self.run, f"by update {update} the loss has become {nll}")

    def report(self, statistics: dict[str, float]) -> None:
        """Log loss and speed since the last report."""
        counters = self.run.counters
        loss = counters.report_nll / counters.report_tokens
        values = {"loss": loss, "words_per_second": round(self.rate())}
        self.write(values | statistics)
        self.plot(values)
        self.show(f"loss {loss:.3f}")
        counters.report_nll, counters.report_tokens = 0.0, 0
        self.since, self.earlier_tokens = time.monotonic(), 0

    def rate(self) -> float:
        """Return the target tokens per second since the last report."""
        tokens = self.run.counters.report_tokens - self.earlier_tokens
        return tokens / max(time.monotonic() - self.since, 1e-9)

    def show(self, loss: str = "loss -") -> None:
        """Show how far the run is, and how long it will take."""
        counters = self.run.counters
        status = f"epoch {counters.epoch + 1}  {loss}  {self.rate():,.0f} words/s"
        self.bar.show(counters.update, status)
        self.next_line = time.monotonic() + SECONDS_BETWEEN_LINES

    def show_if_due(self) -> None:
        """Show progress first after 5 s, then every minute, unless reports are more frequent."""
        if time.monotonic() >= self.next_line:
            self.show()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave the time spent here, on validations and checkpoints, out of the speed."""
        began = time.monotonic()
        yield
        self.since += time.monotonic() - began

    def log_validation(self, result: ValidationResult, best: bool) -> None:
        """Log a validation."""
        self.write({"validation": asdict(result), "best": best})
        self.plot({"dev/loss": result.loss, "dev/bleu": result.bleu})
        suffix = "  best" if best else ""
        log(f"update {self.run.counters.update:,}: {result.summary()}{suffix}")

    def write(self, entry: dict[str, Any]) -> None:
        """Append a line to log.jsonl."""
        if not self.run.world.is_main:
            return
        path, counters = self.run.log_path, self.run.counters
        line = {
            "update": counters.update,
            "epoch": counters.epoch,
            "words": counters.target_tokens,
            "seconds": round(counters.seconds, 2),
            **entry,
        }
        try:
            with path.open("a", encoding="utf-8") as stream:
                stream.write(f"{json.dumps(line, ensure_ascii=False)}\n")
        except OSError as error:
            raise UserError(
                f"{path}: cannot be written ({error.strerror}); checkpoints are intact"
            ) from None

    def plot(self, values: Mapping[str, float | None]) -> None:
        """Add a point to each TensorBoard curve that has a value."""
        if self.tensorboard is None:
            return
        for name, value in values.items():
            if value is not None:
                self.tensorboard.add_scalar(name, value, self.run.counters.update)
        self.tensorboard.flush()


def truncate_log(path: Path, counters: Counters) -> None:
    """Drop what was logged after the checkpoint that the run resumes from; it is logged again."""
    if not path.exists():
        return
    kept, last = [], counters.update
    for line in path.read_text("utf-8", errors="replace").split("\n"):
        try:
            entry = json.loads(line)
            repeated = counters.validation_pending and "validation" in entry
            if entry["update"] < last or (entry["update"] == last and not repeated):
                kept.append(line)
        except (*PARSE_ERRORS, KeyError, TypeError):
            break  # the end of the file, or a line that a crash cut off
    write_lines(path, kept)


def open_tensorboard(directory: Path, update: int) -> "SummaryWriter":
    """Open TensorBoard's event files; points after `update`, from a killed run, are hidden."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            "train.tensorboard needs a package that is not installed: "
            f"{install_command('tensorboard')}, or set train.tensorboard=false"
        ) from None
    return SummaryWriter(directory, purge_step=update + 1)
