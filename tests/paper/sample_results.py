"""Sample results, text and plans."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from covnmt.base.files import write_lines
from covnmt.evaluation.evaluate import Comparison
from covnmt.paper.experiments import find_experiment
from covnmt.paper.plan import ExperimentJob, ExperimentPlan, choose_jobs
from covnmt.paper.results import Result

KFTT, TINY = find_experiment("kftt"), find_experiment("embedded", "tiny")

# The test set of the sample results: its systems make different errors.
WORDS = ["kappa", "delta", "omega", "sigma", "theta", "gamma"]
REFERENCES = [
    " ".join(WORDS[(start + k * k) % len(WORDS)] for k in range(5 + start % 50))
    for start in range(120)
]
OUTPUTS = {
    "baseline": [" ".join(line.split()[:-2]) for line in REFERENCES],
    "fertility": [" ".join(line.split()[:-1]) for line in REFERENCES],
    "gru10": REFERENCES,
    # better than the baseline here, worse there
    "tanh1": [line[: -6 - 6 * (k % 2) * 2] for k, line in enumerate(REFERENCES)],
}


def sample_content(
    comparison: Comparison, system: str, seed: int, **changes: Any
) -> dict[str, Any]:
    """Build the content of a result file, measured on the sample test set."""
    evaluation = comparison.systems[system if system in OUTPUTS else "baseline"]
    alignment = [
        {"name": name, "value": value, "signature": ""}
        for name, value in (("AER", 50.0 + seed), ("SAER", 60.0))
    ]
    tokens = ["a", "b", "a", "b"] if system == "baseline" else ["a", "b", "c", "d"]
    return {
        "experiment": "kftt",
        "system": system,
        "seed": seed,
        "commit": "abc1234",
        "machine": {"gpu": "A GPU", "cpu": "A CPU", "cores": 8},
        "data": {"train": {"kept": 1000}},
        "recipe": {"model": {"hidden": 8, "coverage": {"kind": system}}, "train": {"seed": seed}},
        "parameters": {"total": 1000 if system == "baseline" else 1100},
        "training": {
            "reason": "made 20 updates",
            "update": 20,
            "words_per_second": 960 if system == "baseline" else 800,
            "curve": [[10, 3.0, 900], [20, 2.0, 960]],
            "validations": [[20, 2.5, 12.0]],
        },
        "scores": {
            "translation": [asdict(score) for score in evaluation.translation],
            "alignment": alignment,
            "proxies": [asdict(score) for score in evaluation.proxies],
        },
        "gold": {"pairs": 3, "what": "made-up pairs"},
        "test": {
            "statistics": evaluation.statistics.tolist(),
            "source_lengths": [len(line.split()) for line in REFERENCES],
        },
        "examples": [
            {
                "source_tokens": ["x", "y"],
                "tokens": tokens,
                "text": " ".join(tokens),
                "alignment": [[0.9, 0.1]] * 4,
                "coverage": [3.6, 0.4],
            }
        ],
    } | changes


def sample_result(content: dict[str, Any]) -> Result:
    """Validate a result as if it was read from a file."""
    return Result.model_validate(content)


def empty_result(job: ExperimentJob) -> Result:
    """Result of a job that measured nothing."""
    nothing: dict[str, Any] = {
        "experiment": TINY.name,
        "system": job.system,
        "seed": job.seed,
        "commit": "abc1234",
        "machine": {"gpu": None, "cpu": "A CPU", "cores": 8},
        "data": {},
        "recipe": {},
        "parameters": {"total": 0},
        "training": {
            "reason": "",
            "update": 0,
            "words_per_second": None,
            "curve": [],
            "validations": [],
        },
        "scores": {},
        "gold": {"pairs": 0, "what": None},
        "test": {"source_lengths": [], "statistics": []},
        "examples": [],
    }
    return Result.model_validate(nothing)


def names(chosen: list[ExperimentJob]) -> list[str]:
    return [job.name for job in chosen]


def tiny_plan(directory: Path, **changes: Any) -> ExperimentPlan:
    plan = ExperimentPlan(TINY, directory / "work", directory / "results", jobs=choose_jobs(TINY))
    return replace(plan, **changes)


def write_open_corpus(directory: Path, gold: bool = True) -> None:
    """Write text with the file names of KFTT."""
    for split, size in (("train", 30), ("dev", 4), ("test", 5)):
        write_lines(directory / f"kftt-ja-en/{split}.ja", [f"寺 は {k} 。" for k in range(size)])
        write_lines(directory / f"kftt-ja-en/{split}.en", [f"Temple {k}." for k in range(size)])
    if gold:
        folder = directory / "gold-align/ja-en-kftt"
        for ending, line in (("ja", "寺 \u3000 。"), ("en", "temple ."), ("talp", "0-0 2-1")):
            write_lines(folder / f"test.{ending}", [line])


def rows_of(table: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a Markdown table as dictionaries by heading."""
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()
    ]
    return (dict(zip(head, row, strict=True)) for row in rows)
