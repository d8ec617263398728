"""Result files: everything measured about one system trained with one seed.

A result is stored as RESULTS/EXPERIMENT/SYSTEM-seedN.json; a job whose file exists is done. Keys
that older files lack are optional, and keys that this version does not know are ignored.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, PlainSerializer, ValidationError

from covnmt.base.arrays import FloatArray, IntArray
from covnmt.base.errors import UserError
from covnmt.base.files import atomic_write_text, read_json
from covnmt.metrics.attention_statistics import CoverageEffect
from covnmt.metrics.bleu import OUTPUT_LENGTH, REFERENCE_LENGTH, Score
from covnmt.text.codec import Side

RESULT_NAME = re.compile(r"(.+)-seed(\d+)\.json")
PARTIAL_NAME = re.compile(r"(.+)-seed(\d+)\.partial\.json")
LONG_SOURCE = 40  # source words; beyond, the paper finds the baseline's outputs much too short


AnyResult = TypeVar("AnyResult", "Result", "PartialResult")


class Record(BaseModel):
    """A part of a result file."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Machine(Record):
    """The machine that trained a system."""

    gpu: str | None
    cpu: str
    cores: int | None

    @property
    def name(self) -> str:
        """The GPU, or the CPU and its cores where there is none."""
        return self.gpu or f"{self.cpu}, {self.cores} cores"


class ReportPoint(NamedTuple):
    """Training loss and speed as one line of the training log reports them."""

    update: int
    loss: float
    words_per_second: int | float


class ValidationPoint(NamedTuple):
    """A validation; for the phrase-based system a round of tuning, which has no loss."""

    update: int
    loss: float | None
    bleu: float


class CheckpointScores(NamedTuple):
    """Scores of the weights after some update; BLEU is the paper's."""

    update: int
    dev_bleu: float
    bleu: float
    length_ratio: float  # output over reference length
    aer: float | None
    saer: float | None
    drop: float
    rep: float
    repeated_4grams: float


class TriedPenalty(NamedTuple):
    """A length penalty that was tried on the dev set."""

    length_penalty: float
    bleu: float
    length_ratio: float  # output over reference


class Training(Record):
    """The course of one training."""

    reason: str
    update: int
    epoch: int | None = None
    words: int | None = None  # target tokens seen
    seconds: float | None = None
    cpu_seconds: float | None = None  # of the phrase-based system, as are the next two
    stages: dict[str, dict[str, Any]] | None = None
    tuning: dict[str, Any] | None = None  # outcome of minimum error rate training
    best_update: int | None = None
    words_per_second: int | float | None
    curve: list[ReportPoint]
    validations: list[ValidationPoint]


class SplitCounts(Record):
    """What became of one part of the corpus: `data.corpus.SplitReport`, as results have it."""

    read: int = 0
    kept: int
    dropped: dict[str, int] = {}
    tokens: dict[str, int] = {}
    coverage: dict[str, float] = {}  # percent of tokens in the vocabulary


class Gold(Record):
    """The gold alignments that AER and SAER were measured on."""

    pairs: int
    what: str | None


class SentenceMeasurements(Record):
    """Measurements of each test sentence, from which sign tests and intervals are computed."""

    sentences: int = 0
    source_lengths: list[int]
    output_lengths: list[int] = []
    statistics: list[list[int]]  # BLEU counts [N, 10]
    by_length: list[dict[str, Any]] = []


class ExampleSentence(Record):
    """The translation of an example sentence, with its attention."""

    source_tokens: list[str]
    text: str
    tokens: list[str]
    score: float = 0.0
    alignment: list[list[float]]
    coverage: list[float]
    fertility: list[float] | None = None

    @property
    def matrix(self) -> FloatArray:
        """Attention [I, J]; in JSON an empty translation has no rows to tell J by."""
        shape = (len(self.tokens), len(self.source_tokens))
        return np.array(self.alignment, dtype=np.float32).reshape(shape)


class SystemScores(Record):
    """Scores by kind; those that were not measured are empty."""

    translation: list[Score] = []
    alignment: list[Score] = []
    adequacy: list[Score] = []
    proxies: list[Score] = []
    diagnostics: list[Score] = []


class OtherTestSet(Record):
    """Scores on text of another kind than the test set."""

    sentences: int
    scores: list[Score]


class Distillation(Record):
    """How the training text of a student was made: `paper.distillation`."""

    teacher: str  # its job
    teacher_update: int  # after which its weights were best
    teacher_bleu: float | None  # of these, on the dev set
    beam: int
    translated: int  # training pairs
    kept: int  # of these; the others had no end, or were too long
    references: bool  # whether the student read the original pairs, too
    seconds: float  # of translating


def _without_missing(effect: CoverageEffect) -> dict[str, Any]:
    """Return what was measured: older results lack some of it."""
    return {name: value for name, value in asdict(effect).items() if value is not None}


StoredCoverageEffect = Annotated[CoverageEffect, PlainSerializer(_without_missing)]


class AveragedWeights(Record):
    """What was measured with the mean of the weights after several updates."""

    updates: list[int]
    scores: SystemScores
    test: SentenceMeasurements
    coverage_effect: StoredCoverageEffect | None = None


class Provenance(Record):
    """Where a system was trained: `base.provenance.collect_provenance`."""

    commit: str
    machine: Machine
    versions: dict[str, str | None] = {}


class FinishedTraining(Provenance):
    """Why a training ended and how many minutes it was given: trained.json in a model directory."""

    reason: str
    minutes: float | None


class Result(Record):
    """One system, trained once and measured."""

    format: Literal[1] = 1
    experiment: str
    system: str
    seed: int
    command: str = ""  # repeats the result
    commit: str  # this and the next two: `Provenance` of the training
    machine: Machine
    versions: dict[str, str | None] = {}
    data: dict[str, SplitCounts]  # by part of the corpus
    recipe: dict[str, Any]  # as the version that made the result had it
    words: dict[str, int] | None = None  # vocabulary sizes
    parameters: dict[str, int]
    training: Training
    tuning: list[TriedPenalty] = []  # on the dev set, after training
    measuring_seconds: float | None = None
    processes: int | None = None
    scores: SystemScores
    gold: Gold
    test: SentenceMeasurements
    examples: list[ExampleSentence]
    coverage_effect: StoredCoverageEffect | None = None
    checkpoints: list[CheckpointScores] = []  # of every validation
    averaged: AveragedWeights | None = None
    other_tests: dict[str, OtherTestSet] = {}  # by the name of the source
    distillation: Distillation | None = None

    @cached_property
    def score_values(self) -> dict[str, float]:
        """The value of every score, by the score's name."""
        return {score.name: score.value for _, kind in self.scores for score in kind}

    @cached_property
    def statistics(self) -> IntArray:
        """The BLEU counts of the test set [N, 10]."""
        return np.array(self.test.statistics, dtype=np.int64)

    def with_averaged_weights(self) -> "Result":
        """Return this result as measured with the mean of the last weights, where that was done."""
        if self.averaged is None:
            return self
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        averaged = self.averaged
        return Result.model_construct(
            **fields
            | {
                "scores": averaged.scores,
                "test": averaged.test,
                "coverage_effect": averaged.coverage_effect,
            }
        )

    def long_sentences(self) -> tuple[int, float] | None:
        """Count the test sentences beyond 40 source words; and output over reference length."""
        rows = [n for n, j in enumerate(self.test.source_lengths) if j > LONG_SOURCE]
        if not rows:
            return None
        totals = self.statistics[rows].sum(axis=0)
        return len(rows), float(totals[OUTPUT_LENGTH] / totals[REFERENCE_LENGTH])

    @property
    def length_penalty(self) -> float:
        """The length penalty that the test set was translated with."""
        return float(self.recipe["decode"]["length_penalty"])

    @property
    def speed(self) -> float | None:
        """Target words per second in training (median), unless the machine did other work too."""
        value = self.training.words_per_second
        return None if value is None else float(value)


class ResultFields(TypedDict, total=False):
    """The fields of a `Result` that training and measuring give; those left out are not written."""

    recipe: dict[str, Any]
    words: dict[Side, int]
    parameters: dict[str, int]
    training: Training
    tuning: list[TriedPenalty]
    measuring_seconds: float
    processes: int
    scores: SystemScores
    gold: Gold
    test: SentenceMeasurements
    examples: list[ExampleSentence]
    coverage_effect: CoverageEffect | None
    checkpoints: list[CheckpointScores]
    averaged: AveragedWeights
    other_tests: dict[str, OtherTestSet]
    distillation: Distillation


class PartialResult(Provenance):
    """What has been measured of a training that has not ended, in SYSTEM-seedN.partial.json."""

    format: Literal[1] = 1
    experiment: str
    system: str
    seed: int
    checkpoints: list[CheckpointScores]


def result_path(directory: Path, system: str, seed: int) -> Path:
    """Return the path of a job's result."""
    return directory / f"{system}-seed{seed}.json"


def partial_result_path(directory: Path, system: str, seed: int) -> Path:
    """Return the path of what has been measured of an unfinished job."""
    return result_path(directory, system, seed).with_suffix(".partial.json")


def write_result(directory: Path, result: Result) -> Path:
    """Write a result file with the keys that were set, in place of the partial one."""
    path = result_path(directory, result.system, result.seed)
    write_record(path, result)
    partial_result_path(directory, result.system, result.seed).unlink(missing_ok=True)
    return path


def write_record(path: Path, record: Result | PartialResult) -> None:
    content = {"format": record.format, **record.model_dump(mode="json", exclude_unset=True)}
    with atomic_write_text(path) as stream:
        stream.write(format_json(content) + "\n")


def read_results(directory: Path) -> list[Result]:
    """Read every result of an experiment, sorted by file name."""
    return [read_record(Result, *file) for file in _find_files(directory, RESULT_NAME)]


def read_partial_results(directory: Path) -> list[PartialResult]:
    """Read what has been measured of jobs that are not finished."""
    return [
        read_record(PartialResult, path, system, seed)
        for path, system, seed in _find_files(directory, PARTIAL_NAME)
        if not result_path(directory, system, seed).exists()
    ]


def _find_files(directory: Path, name: re.Pattern[str]) -> Iterator[tuple[Path, str, int]]:
    """Yield each file of such a name with its system and seed, sorted by name."""
    for path in sorted(directory.glob("*.json")):
        if match := name.fullmatch(path.name):
            yield path, match[1], int(match[2])


def read_record(kind: type[AnyResult], path: Path, system: str, seed: int) -> AnyResult:
    """Read a result; a damaged file, or the result of another job, is an error."""
    content = read_json(path)
    remedy = "remove it and run the job again"
    if not isinstance(content, dict) or content.get("format") != 1:
        raise UserError(f"{path}: not a result of `covnmt reproduce`; {remedy}")
    job = (content.get("system"), content.get("seed"))
    if job != (system, seed):
        raise UserError(f"{path}: holds {job[0]}, seed {job[1]}; rename it, or {remedy}")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        problems = error.errors()
        missing = [".".join(map(str, e["loc"])) for e in problems if e["type"] == "missing"]
        if missing:
            raise UserError(f"{path}: has no {', '.join(missing)}; {remedy}") from None
        key = ".".join(map(str, problems[0]["loc"]))
        raise UserError(f"{path}: damaged: {key}: {problems[0]['msg']}; {remedy}") from None


def format_json(value: Any, indent: str = "") -> str:
    """Format JSON with each list of plain values on one line, so that files stay short."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        rows = [f"{json.dumps(key)}: {format_json(item, inner)}" for key, item in value.items()]
        opening, closing = "{}"
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        rows = [format_json(item, inner) for item in value]
        opening, closing = "[]"
    else:
        return json.dumps(value, ensure_ascii=False)
    return opening + ",".join(f"\n{inner}{row}" for row in rows) + f"\n{indent}{closing}"
