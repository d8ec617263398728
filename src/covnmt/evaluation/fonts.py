"""Fonts that have the letters of a figure, whatever the language.

Matplotlib's own font has no Chinese, Japanese or Korean. The fonts of the system are asked, one
after another, for the characters still missing. If none has them the figure is drawn all the same,
and the person is told what to install.
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

BASE = "DejaVu Sans"  # comes with matplotlib
REGULAR = (400, "normal", "regular", "book")
# One set of code points, drawn in each country's own way: a letter that only one language has
# (first and last of its block) decides which.
CJK = {"JP": ("\u3040", "\u30ff"), "KR": ("\uac00", "\ud7a3"), "SC": ("\u4e00", "\u9fff")}
HINT = (
    "no font on this machine has {count} of the characters in the figure ({sample}): they are "
    "drawn as boxes. Install one that does, for Chinese, Japanese and Korean for example "
    "with `apt-get install fonts-noto-cjk`, for most others `fonts-noto-core`, and draw again."
)

_told: set[str] = set()  # hints given; a report draws many figures and needs one


def families(text: str) -> list[str]:
    """Names of fonts that together have all of `text`, to be tried in this order.

    Prints a hint if some characters are in no font at all; once, however many figures follow.
    """
    missing = {letter for letter in text if visible(letter)} - _letters(BASE)
    chosen = [BASE]
    for name in _candidates(missing):
        if not missing:
            break
        if found := missing & _letters(name):
            missing -= found
            chosen.append(name)
    if missing and not _told:
        sample = " ".join(sorted(missing)[:8])
        hint = HINT.format(count=len(missing), sample=sample)
        warn(hint)
        _told.add(hint)
    return chosen


def visible(letter: str) -> bool:
    """Whether the character leaves ink: not white space, not a control or format character."""
    return not letter.isspace() and unicodedata.category(letter) not in ("Cc", "Cf")


def without_invisible(word: str) -> str:
    """The word less what leaves no ink, but for spaces and what shapes the letters around it."""
    return "".join(c for c in word if visible(c) or c in f" {ZERO_WIDTH_JOINERS}")


def em_width(text: str) -> float:
    """About how wide the text is, in units of its size; Chinese characters count one."""
    return sum(1.0 if is_full_width(c) else 0.62 for c in text)


def _candidates(missing: Iterable[str]) -> Iterator[str]:
    """Fonts of the system, the likeliest first; asked for only when the base is not enough."""
    letters = sorted(missing)
    if not letters:
        return
    _look_for_new_fonts()
    region = next(
        (name for name, (low, high) in CJK.items() if any(low <= c <= high for c in letters)), None
    )
    own = Path(matplotlib.get_data_path())
    names = {
        entry.name
        for entry in font_manager.fontManager.ttflist
        if entry.style == "normal"
        and entry.weight in REGULAR
        and own not in Path(entry.fname).parents
        and Path(entry.fname).exists()
    }
    yield from sorted(names, key=lambda name: (*_unlikeliness(name, region), name))


def _unlikeliness(name: str, region: str | None) -> tuple[bool, bool, bool]:
    """Rank the right region first, then fonts without serifs, then fonts of varying width."""
    return not (region and name.endswith(f"CJK {region}")), "Sans" not in name, "Mono" in name


@cache
def _look_for_new_fonts() -> None:
    """Matplotlib remembers the fonts it once found; add those installed since."""
    known = {str(entry.fname) for entry in font_manager.fontManager.ttflist}
    for path in font_manager.findSystemFonts():
        if path not in known:
            try:
                font_manager.fontManager.addfont(path)
            except (OSError, RuntimeError):
                continue  # damaged or of a kind matplotlib cannot read


@cache
def _letters(name: str) -> frozenset[str]:
    """All characters the font has."""
    font = font_manager.get_font(font_manager.findfont(FontProperties(family=[name])))
    return frozenset(map(chr, font.get_charmap()))
