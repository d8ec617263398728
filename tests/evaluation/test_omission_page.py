"""The web page of pairs in which something was found."""

from pathlib import Path

from covnmt.evaluation.omission_page import page_row, write_omission_page
from covnmt.inference.omissions import CheckedPair, Omission, OmissionReport, TextPair


def checked(source: str, *omissions: Omission, unrelated: float = 0.0) -> CheckedPair:
    report = OmissionReport(("x",), omissions, unrelated, False, words=3, judged=3)
    return CheckedPair(TextPair("5", source, "<b>text</b>"), report)


def test_omitted_parts_are_marked_in_the_source_as_it_is() -> None:
    pair = checked("Ｇｏ  ing 驫 d", Omission("ing 驫", 1, 3, 1.0, 0.75, "phrase", 4, 9))
    assert [(piece.text, piece.probability) for piece in page_row(pair).pieces] == [
        ("Ｇｏ  ", None),
        ("ing 驫", 0.75),
        (" d", None),
    ]


def test_the_page_has_the_marked_pairs_alone_and_escapes_them(tmp_path: Path) -> None:
    pairs = [
        checked("a"),
        checked("b", unrelated=0.9),
        checked("c d", Omission("c", 0, 1, 1, 1, "word", 0, 1)),
    ]
    write_omission_page(tmp_path / "page.html", pairs, "3 pairs checked")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert page.count("<article>") == 2
    assert "<mark" in page
    assert "&lt;b&gt;text" in page
    assert "<b>" not in page
    assert "0.90" in page
