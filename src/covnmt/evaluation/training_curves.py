"""Read the curves of a training run from its `log.jsonl`."""

import json
from pathlib import Path
from typing import NamedTuple

from covnmt.base.errors import UserError
from covnmt.base.files import PARSE_ERRORS, read_lines


class Curve(NamedTuple):
    """Values by update."""

    updates: list[int]
    values: list[float]


class TrainingCurves(NamedTuple):
    """The curves of one run."""

    training_loss: Curve
    validation_loss: Curve
    validation_bleu: Curve


def read_training_curves(path: Path) -> TrainingCurves:
    """Read `log.jsonl`; raise if nothing was reported yet."""
    log = TrainingCurves(Curve([], []), Curve([], []), Curve([], []))
    for number, line in enumerate(read_lines(path), 1):
        where = f"{path}, line {number}"
        try:
            entry = json.loads(line)
        except PARSE_ERRORS as error:
            raise UserError(f"{where}: not valid JSON ({error})") from None
        if not isinstance(entry, dict) or not isinstance(entry.get("update"), int):
            raise UserError(f'{where}: no "update"; expected the log.jsonl of a training run')
        try:
            validation = entry.get("validation") or {}
            for curve, value in (
                (log.training_loss, entry.get("loss")),
                (log.validation_loss, validation.get("loss")),
                (log.validation_bleu, validation.get("bleu")),
            ):
                if value is not None:
                    curve.updates.append(entry["update"])
                    curve.values.append(float(value))
        except (AttributeError, TypeError, ValueError):
            raise UserError(f"{where}: loss and BLEU should be numbers") from None
    if not log.training_loss.updates and not log.validation_loss.updates:
        raise UserError(f"{path}: no report yet; wait for the first report of the training")
    return log
