"""Omission and addition rates of a system's output, by the model of `covnmt check` as a judge."""

from collections.abc import Sequence

from covnmt import __version__
from covnmt.base.console import track
from covnmt.base.errors import UserError
from covnmt.inference.check_files import check_pairs
from covnmt.inference.check_settings import MAX_TOKENS, MIN_PROBABILITY
from covnmt.inference.model import ModelLoader
from covnmt.inference.omissions import OmissionReport, TextPair
from covnmt.metrics.bleu import Score
from covnmt.model.directory import CALIBRATION_FILE, LEXICON_FILE


def judged_scores(
    judge: ModelLoader, source: Sequence[str], output: Sequence[str]
) -> tuple[Score, ...]:
    """Return the percentages of omitted source words and of target words without a source.

    A source word is omitted if it is in a part that `covnmt check` reports, or in a line whose
    translation is reported as unrelated; a target word is an addition if no source word supports it
    as usual. Lines that are too long are skipped.
    """
    directory = judge.directories[0]
    for name in (CALIBRATION_FILE, LEXICON_FILE):
        if not (directory / name).exists():
            raise UserError(
                f"{directory}: cannot judge without {name}; make it with `covnmt calibrate`"
            )
    rows = enumerate(zip(source, output, strict=True), 1)
    pairs = (TextPair(str(number), *texts) for number, texts in rows)
    checked = track(check_pairs(judge, pairs), len(source), "judging", "pairs")
    reports = [report for _, report in checked if isinstance(report, OmissionReport)]
    words, omitted, judged, unsupported = (
        sum(getattr(report, name) for report in reports)
        for name in ("words", "omitted", "target_judged", "unsupported")
    )
    end = f"lines:{len(reports)}|max-tokens:{MAX_TOKENS}|version:covnmt-{__version__}"
    name = directory.name
    return (
        Score(
            "judged omissions",
            100 * omitted / max(words, 1),
            f"judge:{name}|min:{MIN_PROBABILITY}|per:source-word|{end}",
        ),
        Score(
            "judged additions",
            100 * unsupported / max(judged, 1),
            f"judge:{name}|lexicon|per:target-word|{end}",
        ),
    )
