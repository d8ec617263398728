"""Scores of the test set, and the description of a training."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from covnmt.base.files import write_lines
from covnmt.data.corpus import Split
from covnmt.metrics.bleu import chrf, sacre_bleu
from covnmt.model.directory import load_config
from covnmt.paper.measure import mark_lowercased_signatures, score_text
from covnmt.paper.neural import describe_run


def test_scores_of_lowercased_text_are_signed_as_sacrebleu_does() -> None:
    output = ["The cat sat on A mat today", "Kyoto is old"]
    references = ["the Cat sat on a Mat Today .", "kyoto Is Very old"]
    lower = [[line.lower() for line in lines] for lines in (output, references)]
    ours = mark_lowercased_signatures([score(lower[0], [lower[1]]) for score in (sacre_bleu, chrf)])
    for score, metric in zip(ours, (BLEU(lowercase=True), CHRF(lowercase=True)), strict=True):
        assert score.value == pytest.approx(metric.corpus_score(output, [references]).score)
        assert score.signature == str(metric.get_signature())


def test_capitals_do_not_count_on_either_side() -> None:
    """Systems that never saw a capital cannot write one."""
    lines = ["The Temple of the North .", "It is OLD , very old indeed ."]
    test = SimpleNamespace(text=lambda side: lines)
    evaluation = score_text([line.upper() for line in lines], None, cast(Split, test))
    assert [score.value for score in evaluation.translation] == pytest.approx([100, 100, 100, 0])


def test_speed_is_the_median_after_the_first_report(tiny_model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(tiny_model, run)
    entry = {"update": 10, "epoch": 0, "words": 9, "seconds": 1.0, "loss": 2.0}
    rates = [1, 300, 100, 200]
    lines = [json.dumps(entry | {"words_per_second": rate}) for rate in rates]
    write_lines(run / "log.jsonl", lines)
    assert describe_run(run, load_config(run).config, "done")["training"].words_per_second == 200
