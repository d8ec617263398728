"""What kind of character one is, whatever the language."""

import re
import unicodedata

ZERO_WIDTH_JOINERS = (
    "\u200c\u200d"  # they shape the letters beside them, or join emoji, and leave no ink
)

# Scripts of Thailand, Laos, Tibet, Burma and Cambodia, of China and Japan, less those of Korea.
_SPACELESS = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u2e80-\u312f\u3190-\ua4cf\uf900-\ufaff\uff00-\uff9f"
    "\U00020000-\U0003ffff]"
)


def is_grapheme_extension(character: str) -> bool:
    """Whether it is a mark on the character before it, or joins it to the next."""
    return unicodedata.category(character).startswith("M") or character in ZERO_WIDTH_JOINERS


def is_unspaced_script(character: str) -> bool:
    """Whether it is of a script whose words no spaces part."""
    return _SPACELESS.match(character) is not None


def is_full_width(character: str) -> bool:
    """Whether it has the full width of Chinese characters."""
    return unicodedata.east_asian_width(character) in "WF"
