"""Warnings about a whole request: text that the model was not made for, or did not finish."""

from collections.abc import Sequence

from covnmt.inference.domain import DomainMonitor, DomainStatistics
from covnmt.inference.translate import Translation


def find_warnings(
    model: str, domain: DomainStatistics | None, translations: Sequence[Translation]
) -> list[dict[str, str]]:
    """Return what is said of these sentences together, each as `kind` and `message`."""
    warnings = list[dict[str, str]]()
    if domain is not None:
        monitor = DomainMonitor(domain, model, unit="sentence")
        monitor.add_all(translations)
        if message := monitor.message():
            kind = "script" if monitor.is_foreign() else "unusual"
            warnings.append({"kind": kind, "message": message})
    unfinished = sum(not translation.finished for translation in translations)
    if unfinished:
        count = f"{unfinished:,} of {len(translations):,} sentences"
        message = f"{count} not finished: the search found no end"
        warnings.append({"kind": "unfinished", "message": message})
    return warnings
