"""Bad text, and bad ways to prepare it: what is said, and that nothing is lost."""

import os

from .bad_input import CUT_OFF, Case, bad_input_tests, put

PREPARE = "prepare new --train"

CASES = {
    # prepare
    "files of different lengths": Case(
        f"{PREPARE} s short",
        ("short ", "line 2"),
        put("short", "x\ny\n"),
        alone=True,
    ),
    "the source is the shorter": Case(
        f"{PREPARE} short t", ("short ", "line 2"), put("short", "x\ny\n")
    ),
    "dev files of different lengths": Case(
        f"{PREPARE} s t --dev s short", ("short ", "line 1"), put("short", "x\n")
    ),
    "training text is not UTF-8": Case(
        f"{PREPARE} latin t",
        ("latin, line 3: ", "iconv"),
        put("latin", b"a\nb\nna\xefve\n" + b"c\n" * 17),
    ),
    "training text is UTF-16": Case(
        f"{PREPARE} wide t", ("wide, line 1: ",), put("wide", "a\nb\n".encode("utf-16"))
    ),
    "training text is empty": Case(
        f"{PREPARE} empty empty",
        ("empty and empty",),
        put("empty", ""),
    ),
    "training text is nothing but blank lines": Case(
        f"{PREPARE} blank blank", ("training pair",), put("blank", "\n \n\n")
    ),
    "training text is missing": Case(f"{PREPARE} s nowhere", ("nowhere: ",)),
    "training text is a directory": Case(f"{PREPARE} model t", ("model: ", "Is a directory")),
    "training text is a truncated .gz": Case(
        f"{PREPARE} s.gz t", ("s.gz",), put("s.gz", CUT_OFF), alone=True
    ),
    "training text is no .gz at all": Case(f"{PREPARE} s.gz t", ("s.gz",), put("s.gz", "plain\n")),
    "training text is a truncated .xz": Case(
        f"{PREPARE} s.xz t", ("s.xz",), put("s.xz", b"\xfd7zXZ\x00\x00")
    ),
    "no sentence is short enough": Case(
        f"{PREPARE} s t --max-length 1", ("training pair", "20", "max_length")
    ),
    "more source than target files": Case(f"{PREPARE} s,s t", ("--train: ",)),
    "a comma too many": Case(f"{PREPARE} s, t,", ("--train: ",)),
    "a pipe, though the text is read twice": Case(
        f"{PREPARE} pipe t",
        ("pipe: ",),
        lambda desk: os.mkfifo(desk / "pipe"),
    ),
    "plain text of a language not told": Case(
        f"{PREPARE} s t --plain --source-language ja", ("--plain", "--target-language")
    ),
    "plain text in words": Case(
        f"{PREPARE} s t --plain --source-language ja --target-language en --source-tokenizer jieba",
        ("--plain",),
    ),
    "simplified characters of another language": Case(
        f"{PREPARE} s t --simplify --source-language ja",
        ("--simplify", "--source-language zh"),
    ),
    "Chinese numerals of another language": Case(
        f"{PREPARE} s t --numerals --source-language ja",
        ("--simplify", "--source-language zh"),
    ),
    "a vocabulary too small": Case(f"{PREPARE} s t --source-vocab 2", ("--source-vocab",)),
    "a language that is no code": Case(
        f"{PREPARE} s t --source-language english", ("--source-language", "english")
    ),
    "data made with other settings": Case(
        "prepare data --train s t --max-length 70",
        ("data: ", "max_length", "--overwrite"),
    ),
    "prepare into a file": Case("prepare s --train s t", ("s: ",)),
    "prepare over the text that is read": Case(
        "prepare data --train s t --dev data/dev.target.txt data/dev.source.txt --overwrite",
        ("data/dev.source.txt: ",),
    ),
    "prepare into a model": Case(
        "prepare model --train s t --overwrite",
        ("model: ",),
    ),
    "prepare into text that was fetched": Case(
        "prepare . --train s t",
        (".: ", "covnmt corpus get"),
        put("corpus.json", '{"corpus": "kftt"}'),
    ),
    "subwords of nothing but blank lines": Case(
        f"{PREPARE} blank blank --source-tokenizer sentencepiece",
        ("30000",),
        put("blank", "\n \n\n"),
    ),
    # synthetic
    "a corpus of no sentences": Case("synthetic new --train 0", ("train: ",)),
    "a corpus below a file": Case("synthetic s/new --train 2 --dev 1 --test 1", ("s/new",)),
    # corpus
    "a corpus nobody knows": Case("corpus get kfft new", ("kfft: ", "kftt?")),
}

test_bad_input, test_bad_input_in_a_process = bad_input_tests(CASES)
