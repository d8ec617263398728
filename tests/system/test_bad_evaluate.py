"""Bad input to the commands that evaluate translations: errors name it, and nothing is lost."""

from .bad_input import Case, bad_input_tests, put

CASES = {
    # compare
    "matrices of a system that is not there": Case(
        "compare a=s b=t --reference t --reference-attention c=m.npz",
        ("--reference-attention c", "a, b"),
    ),
    "a system without a name": Case("compare =s b=s -r t", ("'=s'",)),
    "a system whose name is no text": Case("compare \udcff=s b=s -r t", ("udcff",)),
    "a system without a file": Case("compare a= b=s -r t", ("'a='",)),
    # report
    "a title that is no text": Case("report p a=s b=s -r t -s s --title \udcff", ("not UTF-8",)),
    "fewer than no heat maps": Case("report new a=s -r t -s s --maps -1", ("--maps",)),
    "a report below a file": Case("report t/new a=t -r t -s s", ("t/new",)),
    # plot
    "heat maps without attention": Case(
        "plot heat-maps new.svg a=s", ("s, line 1: ", "translate --json"), alone=True
    ),
    "a heat map of an empty line": Case(
        "plot heat-maps new.svg a=empty.jsonl",
        ("empty.jsonl, line 1: ",),
        put("empty.jsonl", '{"text": "", "source_tokens": [], "tokens": [], "alignment": []}\n'),
    ),
    "a heat map of no line": Case("plot heat-maps new.svg a=s --sentence 21", ("s: ", "21", "20")),
    # rate
    "sheets that may be filled": Case(
        "rate make . a=s --source s -n 2",
        ("ratings.csv: ",),
        put("ratings.csv", "filled"),
    ),
}

test_bad_input, test_bad_input_in_a_process = bad_input_tests(CASES)
