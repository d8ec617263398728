"""Fixtures: sample results, and a small corpus with the file names of KFTT."""

from pathlib import Path

import pytest

from covnmt.evaluation.evaluate import Comparison, compare
from covnmt.evaluation.system_output import SystemOutput
from covnmt.evaluation.test_set import EvaluationSet
from covnmt.paper.results import Result
from tests.paper.sample_results import (
    KFTT,
    OUTPUTS,
    REFERENCES,
    sample_content,
    sample_result,
    write_open_corpus,
)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    outputs = {system: SystemOutput(lines) for system, lines in OUTPUTS.items()}
    return compare(outputs, EvaluationSet([REFERENCES], REFERENCES))


@pytest.fixture
def results(comparison: Comparison) -> list[Result]:
    done = [("gru10", 1), ("baseline", 1), ("fertility", 1), ("tanh1", 1), ("baseline", 2)]
    return [sample_result(sample_content(comparison, *job)) for job in [*done, ("gru10", 2)]]


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    write_open_corpus(tmp_path)
    KFTT.prepare(tmp_path, tmp_path / "prepared")
    return tmp_path / "prepared"
