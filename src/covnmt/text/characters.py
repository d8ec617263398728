"""Classes of characters, independent of the language."""

import re
import unicodedata

# They shape the letters next to them, or join emoji, and are invisible themselves.
ZERO_WIDTH_JOINERS = "\u200c\u200d"

# Thai, Lao, Tibetan, Burmese and Khmer; Chinese and Japanese, without the letters of Korean.
_UNSPACED_SCRIPT = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u2e80-\u312f\u3190-\ua4cf\uf900-\ufaff\uff00-\uff9f"
    "\U00020000-\U0003ffff]"
)


def is_grapheme_extension(character: str) -> bool:
    """Return whether a character is a mark on the one before it, or joins that to the next."""
    return unicodedata.category(character).startswith("M") or character in ZERO_WIDTH_JOINERS


def is_unspaced_script(character: str) -> bool:
    """Return whether a character belongs to a script without spaces between words."""
    return _UNSPACED_SCRIPT.match(character) is not None


def is_full_width(character: str) -> bool:
    """Return whether a character is as wide as a Chinese one."""
    return unicodedata.east_asian_width(character) in "WF"
