"""Bad text, and bad ways to prepare it: what is said, and that nothing is lost."""

import os

from .bad_input import CUT_OFF, Case, bad_input_tests, put

PREPARE = "prepare new --train"

CASES = {
    # prepare
    "files of different lengths": Case(
        f"{PREPARE} s short",
        ("short ends after line 2 but s continues", "the same number of lines"),
        put("short", "x\ny\n"),
        alone=True,
    ),
    "the source is the shorter": Case(
        f"{PREPARE} short t", ("short ends after line 2 but t continues",), put("short", "x\ny\n")
    ),
    "dev files of different lengths": Case(
        f"{PREPARE} s t --dev s short", ("short ends after line 1",), put("short", "x\n")
    ),
    "training text is not UTF-8": Case(
        f"{PREPARE} latin t",
        ("latin, line 3: not UTF-8", "convert the file first", "iconv"),
        put("latin", b"a\nb\nna\xefve\n" + b"c\n" * 17),
    ),
    "training text is UTF-16": Case(
        f"{PREPARE} wide t", ("wide, line 1: not UTF-8",), put("wide", "a\nb\n".encode("utf-16"))
    ),
    "training text is empty": Case(
        f"{PREPARE} empty empty",
        ("empty and empty are empty", "a sentence on each line"),
        put("empty", ""),
    ),
    "training text is nothing but blank lines": Case(
        f"{PREPARE} blank blank", ("no training pair is left", "empty"), put("blank", "\n \n\n")
    ),
    "training text is missing": Case(f"{PREPARE} s nowhere", ("nowhere: ", "no such file")),
    "training text is a directory": Case(f"{PREPARE} model t", ("model: ", "Is a directory")),
    "training text is a truncated .gz": Case(
        f"{PREPARE} s.gz t", ("s.gz", "cannot be read"), put("s.gz", CUT_OFF), alone=True
    ),
    "training text is no .gz at all": Case(
        f"{PREPARE} s.gz t", ("s.gz", "cannot be read"), put("s.gz", "plain\n")
    ),
    "training text is a truncated .xz": Case(
        f"{PREPARE} s.xz t", ("s.xz", "cannot be read"), put("s.xz", b"\xfd7zXZ\x00\x00")
    ),
    "no sentence is short enough": Case(
        f"{PREPARE} s t --max-length 1", ("no training pair is left", "20 too long", "max_length")
    ),
    "more source than target files": Case(
        f"{PREPARE} s,s t", ("--train: 2 source files but 1 target files",)
    ),
    "a comma too many": Case(f"{PREPARE} s, t,", ("--train: a file name is missing",)),
    "a pipe, though the text is read twice": Case(
        f"{PREPARE} pipe t",
        ("pipe: a pipe, which can be read only once", "write it to a file"),
        lambda desk: os.mkfifo(desk / "pipe"),
    ),
    "plain text of a language not told": Case(
        f"{PREPARE} s t --plain --source-language ja", ("--plain needs both", "--target-language")
    ),
    "plain text in words": Case(
        f"{PREPARE} s t --plain --source-language ja --target-language en --source-tokenizer jieba",
        ("--plain",),
    ),
    "simplified characters of another language": Case(
        f"{PREPARE} s t --simplify --source-language ja",
        ("--simplify and --numerals are for Chinese: add --source-language zh",),
    ),
    "Chinese numerals of another language": Case(
        f"{PREPARE} s t --numerals --source-language ja",
        ("--simplify and --numerals are for Chinese: add --source-language zh",),
    ),
    "a vocabulary too small": Case(f"{PREPARE} s t --source-vocab 2", ("--source-vocab",)),
    "a language that is no code": Case(
        f"{PREPARE} s t --source-language english", ("--source-language", "english")
    ),
    "data made with other settings": Case(
        "prepare data --train s t --max-length 70",
        ("data: already contains a corpus", "max_length", "--overwrite"),
    ),
    "prepare into a file": Case("prepare s --train s t", ("s: cannot be written",)),
    "prepare over the text that is read": Case(
        "prepare data --train s t --dev data/dev.target.txt data/dev.source.txt --overwrite",
        ("data/dev.source.txt: the output would replace an input",),
    ),
    "prepare into a model": Case(
        "prepare model --train s t --overwrite",
        ("model: contains a model", "another directory"),
    ),
    "prepare into text that was fetched": Case(
        "prepare . --train s t",
        (".: holds text downloaded by `covnmt corpus get`", "another directory"),
        put("corpus.json", '{"corpus": "kftt"}'),
    ),
    "subwords of nothing but blank lines": Case(
        f"{PREPARE} blank blank --source-tokenizer sentencepiece",
        ("size 30000 can be made of empty lines",),
        put("blank", "\n \n\n"),
    ),
    # synthetic
    "a corpus of no sentences": Case("synthetic new --train 0", ("train: ask for at least one",)),
    "a corpus below a file": Case(
        "synthetic s/new --train 2 --dev 1 --test 1", ("s/new", "cannot be written")
    ),
    # corpus
    "a corpus nobody knows": Case(
        "corpus get kfft new", ("kfft: no such corpus", "did you mean kftt?")
    ),
}

test_bad_input, test_bad_input_in_a_process = bad_input_tests(CASES)
