"""Sentences of our own, Japanese and Chinese, for systems to be shown with (docs/examples)."""

from pathlib import Path

from covnmt.base.files import read_lines

PACKAGE = Path(__file__).parents[1]


def example_sentences(language: str) -> list[str]:
    """Those of a language, split into words by spaces; none if there are none."""
    inside, beside = PACKAGE / "examples", PACKAGE.parents[1] / "docs/examples"
    path = (inside if inside.exists() else beside) / f"{language}.txt"
    return list(read_lines(path)) if path.exists() else []
