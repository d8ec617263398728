"""Find fonts that have the characters of a figure, whatever the language.

Matplotlib's own font has no Chinese, Japanese or Korean. The fonts of the system are searched for
the characters it lacks. If no font has them the figure is drawn all the same, with a warning that
says what to install.
"""

import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import matplotlib
from matplotlib import font_manager
from matplotlib.font_manager import FontProperties

from covnmt.base.console import warn
from covnmt.text.characters import ZERO_WIDTH_JOINERS, is_full_width

BASE_FONT = "DejaVu Sans"  # part of matplotlib
REGULAR_WEIGHTS = (400, "normal", "regular", "book")
# Han characters have a shape for each region: a letter of one language (first and last of its
# block) decides which.
CJK_REGIONS = {"JP": ("\u3040", "\u30ff"), "KR": ("\uac00", "\ud7a3"), "SC": ("\u4e00", "\u9fff")}
MISSING_FONT = (
    "no font on this machine has {count} of the characters in the figure ({sample}): they are "
    "drawn as boxes. Install one that does, for Chinese, Japanese and Korean for example "
    "with `apt-get install fonts-noto-cjk`, for most others `fonts-noto-core`, and draw again."
)

_warned: set[str] = set()  # a report draws many figures and needs one warning


def find_fonts(text: str) -> list[str]:
    """Return names of fonts that together have all characters of `text`, the first ones first.

    Warn once per process if no font has some of them.
    """
    missing = {character for character in text if is_visible(character)} - _charset(BASE_FONT)
    fonts = [BASE_FONT]
    for name in _candidates(missing):
        if not missing:
            break
        if available := missing & _charset(name):
            missing -= available
            fonts.append(name)
    if missing and not _warned:
        warning = MISSING_FONT.format(count=len(missing), sample=" ".join(sorted(missing)[:8]))
        warn(warning)
        _warned.add(warning)
    return fonts


def is_visible(character: str) -> bool:
    """Return whether a character leaves ink: no white space, control or format character."""
    return not character.isspace() and unicodedata.category(character) not in ("Cc", "Cf")


def without_invisible(word: str) -> str:
    """Remove characters without ink, except spaces and those that shape their neighbors."""
    return "".join(c for c in word if is_visible(c) or c in f" {ZERO_WIDTH_JOINERS}")


def em_width(text: str) -> float:
    """Estimate the width of a text in units of its font size; Chinese characters are 1."""
    return sum(1.0 if is_full_width(c) else 0.62 for c in text)


def _candidates(missing: Iterable[str]) -> Iterator[str]:
    """Yield system fonts, the likeliest first; none if no character is missing."""
    characters = sorted(missing)
    if not characters:
        return
    _add_new_fonts()
    region = next(
        (
            name
            for name, (low, high) in CJK_REGIONS.items()
            if any(low <= c <= high for c in characters)
        ),
        None,
    )
    matplotlib_data = Path(matplotlib.get_data_path())
    names = {
        entry.name
        for entry in font_manager.fontManager.ttflist
        if entry.style == "normal"
        and entry.weight in REGULAR_WEIGHTS
        and matplotlib_data not in Path(entry.fname).parents
        and Path(entry.fname).exists()
    }
    yield from sorted(names, key=lambda name: (*_unlikeliness(name, region), name))


def _unlikeliness(name: str, region: str | None) -> tuple[bool, bool, bool]:
    """Rank the right region first, then fonts without serifs, then proportional fonts."""
    return not (region and name.endswith(f"CJK {region}")), "Sans" not in name, "Mono" in name


@cache
def _add_new_fonts() -> None:
    """Add fonts installed after matplotlib cached its list."""
    cached = {str(entry.fname) for entry in font_manager.fontManager.ttflist}
    for path in font_manager.findSystemFonts():
        if path not in cached:
            try:
                font_manager.fontManager.addfont(path)
            except (OSError, RuntimeError):
                continue  # damaged or of a kind matplotlib cannot read


@cache
def _charset(name: str) -> frozenset[str]:
    font = font_manager.get_font(font_manager.findfont(FontProperties(family=[name])))
    return frozenset(map(chr, font.get_charmap()))
