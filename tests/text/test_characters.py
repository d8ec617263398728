"""Classes of characters."""

import pytest

from covnmt.text.characters import is_full_width, is_grapheme_extension, is_unspaced_script

# a character; is it a grapheme extension, of a script without spaces, of full width
KINDS = [
    ("a", False, False, False),
    ("\u0301", True, False, False),
    ("\u200d", True, False, False),
    ("ก", False, True, False),
    ("\u0e49", True, True, False),
    ("寺", False, True, True),
    ("。", False, True, True),
    ("ｱ", False, True, False),
    ("학", False, False, True),
    ("ا", False, False, False),
]


@pytest.mark.parametrize(("letter", "before", "unspaced", "full"), KINDS)
def test_classes_of_characters(letter: str, before: bool, unspaced: bool, full: bool) -> None:
    assert (is_grapheme_extension(letter), is_unspaced_script(letter), is_full_width(letter)) == (
        before,
        unspaced,
        full,
    )
