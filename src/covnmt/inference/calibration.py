"""Turn evidence of omissions into probabilities: logistic regression on synthetic omissions.

`covnmt calibrate` fits it on pairs that the model was not trained on and writes `check.json` to the
model directory. Nothing in it depends on labeled translations.
"""

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
from pydantic import Field

from covnmt.base.arrays import DoubleArray
from covnmt.base.config import Settings, read_settings
from covnmt.base.errors import UserError
from covnmt.base.files import file_digest, write_json
from covnmt.inference.domain import DomainStatistics
from covnmt.model.directory import CALIBRATION_FILE, LEXICON_FILE

REMEDY = "restore it from a copy, or make it again with `covnmt calibrate`"
RIDGE = 1.0  # weight of the squares of the coefficients
ROUNDS = 50
PRIOR = 0.1  # probability that a part or a word is omitted, before it is looked at
MIN_PROBABILITY = 0.005  # of what has log odds; and 1 less this is the greatest


class Logistic(Settings):
    """Logistic regression over named features, which it standardizes."""

    features: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    bias: float
    examples: tuple[int, int] = Field((0, 0), description="without and with an omission")

    @classmethod
    def fit(
        cls,
        features: Sequence[str],
        rows: Sequence[Sequence[float]],
        labels: Sequence[bool],
        prior_odds: float | None = None,
        importance: Sequence[float] | None = None,
    ) -> "Logistic":
        """Fit by Newton's method; `prior_odds` replaces the odds of the examples.

        An example of `importance` 2 counts as much as two of 1.
        """
        x, y = np.array(rows, np.float64), np.array(labels, bool)
        counts = np.ones(len(y)) if importance is None else np.array(importance, np.float64)
        mean, deviation = x.mean(axis=0), x.std(axis=0)
        scale = np.where(deviation > 1e-4, deviation, 1.0)
        z = np.column_stack([np.ones(len(x)), (x - mean) / scale])
        penalty = np.diag([0.0] + [RIDGE] * x.shape[1])
        w = np.zeros(z.shape[1])
        for _ in range(ROUNDS):
            p = sigmoid(z @ w)
            gradient = z.T @ (counts * (p - y)) + penalty @ w
            hessian = (z * (counts * p * (1 - p) + 1e-9)[:, None]).T @ z + penalty
            step = np.linalg.solve(hessian, gradient)
            w -= step
            if np.abs(step).max() < 1e-8:
                break
        bias, positive = float(w[0]), int(y.sum())
        if prior_odds is not None:
            odds = max(counts[~y].sum(), 1) / max(counts[y].sum(), 1)
            bias += float(np.log(prior_odds * odds))
        return cls(
            features=tuple(features),
            mean=_rounded(mean),
            scale=_rounded(scale),
            weights=_rounded(w[1:]),
            bias=round(bias, 5),
            examples=(len(y) - positive, positive),
        )

    def probabilities(self, rows: Sequence[Sequence[float]]) -> DoubleArray:
        """Return the probability of each row."""
        if not rows:
            return np.zeros(0)
        x = (np.array(rows) - np.array(self.mean)) / np.array(self.scale)
        return sigmoid(x @ np.array(self.weights) + self.bias)


def _rounded(values: DoubleArray) -> tuple[float, ...]:
    return tuple(round(float(value), 5) for value in values)


def sigmoid(values: DoubleArray | float) -> DoubleArray:
    """Return the logistic function, without overflow."""
    return np.asarray(1 / (1 + np.exp(-np.clip(values, -60, 60))))


def log_odds(probabilities: DoubleArray | Sequence[float] | float) -> DoubleArray:
    """Return the inverse of the logistic function, for probabilities not too near to 0 and 1."""
    p = np.clip(probabilities, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return np.asarray(np.log(p / (1 - p)))


class Calibration(Settings):
    """What `check.json` holds."""

    format: int = 1
    lexical: Logistic = Field(description="parts, before anything is decoded")
    parts: Logistic = Field(description="sentences, clauses and phrases")
    words: Logistic = Field(description="single words")
    lines: Logistic | None = Field(None, description="lines from which anything is omitted")
    unrelated: Logistic = Field(description="lines that are no translation of the source")
    length_mean: float = Field(description="of log target words per source word")
    length_deviation: float
    domain: DomainStatistics
    made_from: str = Field("", description="the pairs it was fitted on")
    lexicon: str = Field("", description="SHA-256 of the lexicon it was fitted with, if any")
    checksum: str = Field("", description="SHA-256 of the other keys as JSON")

    @classmethod
    def load(cls, directory: Path) -> "Calibration | None":
        """Read the calibration of a model directory, if it has one."""
        path = directory / CALIBRATION_FILE
        if not path.exists():
            return None
        calibration = read_settings(path, cls, REMEDY)
        if calibration.checksum != calibration.content_digest():
            raise UserError(f"{path}: damaged: its checksum is that of other content; {REMEDY}")
        lexicon = directory / LEXICON_FILE
        if calibration.lexicon and file_digest(lexicon) != calibration.lexicon:
            raise UserError(f"{lexicon}: not the lexicon that {path.name} was made with; {REMEDY}")
        return calibration

    def content_digest(self) -> str:
        """Hash all but the checksum itself."""
        tree = self.model_dump(mode="json", exclude={"checksum"}, exclude_none=True)
        return sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()

    def save(self, directory: Path) -> None:
        """Write it to a model directory, with checksums of itself and of the lexicon there."""
        lexicon = directory / LEXICON_FILE
        digest = file_digest(lexicon) if lexicon.exists() else ""
        changed = self.model_copy(update={"lexicon": digest})
        tree = changed.model_dump(mode="json") | {"checksum": changed.content_digest()}
        write_json(directory / CALIBRATION_FILE, tree)
