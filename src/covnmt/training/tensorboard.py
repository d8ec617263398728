"""Curves for TensorBoard, where a recipe asks for them; the JSONL log is written in any case."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from covnmt.base.errors import UserError, install_command

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard:
    """Points go to TensorBoard, or nowhere."""

    def __init__(self, writer: "SummaryWriter | None") -> None:
        self._writer = writer

    def add(self, update: int, values: Mapping[str, float | None]) -> None:
        """One point on each curve that has a value."""
        if self._writer is None:
            return
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(name, value, update)
        self._writer.flush()


@contextmanager
def open_tensorboard(directory: Path, wanted: bool, update: int) -> Iterator[TensorBoard]:
    """Curves in `directory`; points after `update`, left by a run that was killed, are hidden."""
    if not wanted:
        yield TensorBoard(None)
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            "train.tensorboard needs a package that is not installed: "
            f"{install_command('tensorboard')}, or say train.tensorboard=false"
        ) from None
    with SummaryWriter(directory, purge_step=update + 1) as writer:
        yield TensorBoard(writer)
