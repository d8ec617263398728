"""Bad logs of training are errors that name file and line."""

from pathlib import Path

import pytest

from covnmt.base.errors import UserError
from covnmt.evaluation.training_curves import read_training_curves


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", r"log\.jsonl: "),
        ('{"update": 1, "loss": 2.0}\n{"upd', r"log\.jsonl, line 2: "),
        (f'{{"update": {"1" * 5000}}}\n', r"log\.jsonl, line 1: "),
        ('{"loss": 2.0}\n', r"log\.jsonl, line 1: "),
        ("[1]\n", r"log\.jsonl, line 1: "),
        ('{"update": 1, "loss": [2.0]}\n', r"log\.jsonl, line 1: "),
        ('{"update": 1, "validation": [2.0]}\n', r"log\.jsonl, line 1: "),
    ],
)
def test_bad_logs_name_file_and_line(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(text, "utf-8")
    with pytest.raises(UserError, match=where):
        read_training_curves(path)
