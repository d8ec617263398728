"""Bad input to the commands that judge translations: what is said, and that nothing is lost."""

import pytest

from .bad_input import Case, Refused, put

CASES = {
    # compare
    "matrices of a system that is not there": Case(
        "compare a=s b=t --reference t --forced c=m.npz",
        ("--forced c: no such system; there are a, b",),
    ),
    "a system without a name": Case("compare =s b=s -r t", ("'=s'", "write NAME=FILE")),
    "a system whose name is no text": Case("compare \udcff=s b=s -r t", ("udcff", "not UTF-8")),
    "a system without a file": Case("compare a= b=s -r t", ("'a='", "write NAME=FILE")),
    # report
    "a title that is no text": Case("report p a=s b=s -r t -s s --title \udcff", ("not UTF-8",)),
    "fewer than no heat maps": Case("report new a=s -r t -s s --maps -1", ("--maps",)),
    "a report below a file": Case(
        "report t/new a=t -r t -s s", ("t/new/index.html: cannot be written",)
    ),
    # plot
    "heat maps without attention": Case(
        "plot heat-maps new.svg a=s", ("s, line 1: nothing to draw", "translate --json")
    ),
    "a heat map of an empty line": Case(
        "plot heat-maps new.svg a=empty.jsonl",
        ("empty.jsonl, line 1: nothing to draw", "is empty; choose another"),
        put("empty.jsonl", '{"text": "", "source_tokens": [], "tokens": [], "alignment": []}\n'),
    ),
    "a heat map of no line": Case(
        "plot heat-maps new.svg a=s --sentence 21", ("s: has no line 21, it has 20",)
    ),
    # rate
    "sheets that may be filled": Case(
        "rate make . a=s --source s -n 2",
        ("ratings.csv: there already", "choose another directory"),
        put("ratings.csv", "filled"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str, refused: Refused) -> None:
    refused(CASES[name])
