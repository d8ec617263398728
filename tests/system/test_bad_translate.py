"""Bad models, and bad input to them: what is said, and that nothing is lost."""

from .bad_input import (
    CUT_OFF,
    Case,
    backwards,
    bad_input_tests,
    change,
    half,
    other_vocabulary,
    other_weights,
    put,
    remove,
    set_key,
    without_last_line,
)

TRANSLATE = "translate s --model model"
TUNE = "tune s t --model model"
ALIGN = "align s t --model model"

CASES = {
    # translate
    "no model": Case("translate s", ("--model DIR", "ja-en, zh-en"), alone=True),
    "a model directory that is none": Case(
        "translate s --model data", ("data: ", "covnmt train"), alone=True
    ),
    "a model directory that does not exist": Case("translate s --model nowhere", ("nowhere: ",)),
    "a model directory that is a file": Case("translate s --model t", ("t: ",)),
    "truncated weights": Case(
        TRANSLATE,
        ("model/model.safetensors: ",),
        change("model/model.safetensors", half),
        alone=True,
    ),
    "weights of zero bytes": Case(
        TRANSLATE, ("model/model.safetensors: ",), put("model/model.safetensors", "")
    ),
    "weights that are text": Case(
        TRANSLATE, ("model/model.safetensors: ",), put("model/model.safetensors", "x" * 99)
    ),
    "weights of another model": Case(TRANSLATE, ("model/model.safetensors: ",), other_weights),
    "no weights": Case(
        TRANSLATE,
        ("model/model.safetensors: ", "covnmt train"),
        remove("model/model.safetensors"),
    ),
    "truncated settings": Case(
        TRANSLATE,
        ("model/config.json: ",),
        change("model/config.json", half),
    ),
    "foreign settings": Case(
        TRANSLATE,
        ("model/config.json: ",),
        put("model/config.json", "{}"),
    ),
    "foreign settings of another shape": Case(
        TRANSLATE, ("model/config.json: ",), put("model/config.json", "[1, 2]")
    ),
    "settings of the future": Case(
        TRANSLATE,
        ("model/config.json: ",),
        change("model/config.json", set_key("format", 99)),
    ),
    "settings with an unknown key": Case(
        TRANSLATE,
        ("model/config.json: ", "colour"),
        change("model/config.json", set_key("colour", "red")),
    ),
    "settings without vocabulary sizes": Case(
        TRANSLATE, ("model/config.json",), change("model/config.json", set_key("words", {}))
    ),
    "settings with impossible vocabulary sizes": Case(
        TRANSLATE,
        ("model/config.json: ", '"words"'),
        change("model/config.json", set_key("words", {"source": -3, "target": 9})),
    ),
    "a vocabulary that does not fit the model": Case(
        TRANSLATE,
        ("model: ",),
        change("model/target.vocab", without_last_line),
        alone=True,
    ),
    "a vocabulary in another order": Case(
        TRANSLATE,
        ("model: ",),
        change("model/source.vocab", backwards),
    ),
    "another tokenizer": Case(
        TRANSLATE,
        ("model: ",),
        change("model/source.json", set_key("lowercase", True)),
    ),
    "a damaged vocabulary": Case(
        TRANSLATE,
        ("model/source.vocab, line 1: ", "'a b'"),
        put("model/source.vocab", "a b\n"),
    ),
    "a missing vocabulary": Case(
        TRANSLATE,
        ("model/source.vocab: ",),
        remove("model/source.vocab"),
    ),
    "a missing tokenizer": Case(
        TRANSLATE,
        ("model/target.json: ",),
        remove("model/target.json"),
    ),
    "an ensemble of other vocabularies": Case(
        f"{TRANSLATE} --model other", ("other: ",), other_vocabulary
    ),
    "input that is not UTF-8": Case(
        "translate --model model",
        ("standard input, line 2: ", "iconv"),
        stdin=b"x\n\xff\n",
        alone=True,
    ),
    "an input file that is not UTF-8": Case(
        "translate latin --model model",
        ("latin, line 1: ", "iconv"),
        put("latin", b"x\xe9\n"),
    ),
    "input that is missing": Case("translate nowhere --model model", ("nowhere: ",)),
    "input that is a directory": Case("translate data --model model", ("data: ",)),
    "input that is a truncated .gz": Case(
        "translate s.gz --model model --beam 1", ("s.gz, after line ",), put("s.gz", CUT_OFF)
    ),
    "output below a file": Case(f"{TRANSLATE} -o t/out", ("t/out: ",)),
    "output that is a directory": Case(f"{TRANSLATE} -o data", ("--output", "'data'")),
    "more translations than the beam is wide": Case(
        f"{TRANSLATE} --nbest 5 --beam 2", ("nbest = 5", "beam = 2")
    ),
    "a beam that no machine can hold": Case(f"{TRANSLATE} --beam 100000", ("--beam", "1000")),
    "a length penalty beyond all numbers": Case(
        f"{TRANSLATE} --length-penalty 1e308", ("length_penalty: ", "10")
    ),
    "a coverage penalty beyond all numbers": Case(
        f"{TRANSLATE} --coverage-penalty 1e308", ("coverage_penalty: ",)
    ),
    "a file beside shards": Case(
        f"{TRANSLATE} --shards t --output-dir new", ("--shards", "--output")
    ),
    "a Ray cluster that is not there": Case(
        "translate --model model --shards s --output-dir new --ray localhost:1",
        ("localhost:1: ", "ray start --head"),
    ),
    "a Ray cluster for a single file": Case(f"{TRANSLATE} --ray auto", ("--ray", "--shards")),
    "a beam of 0": Case(f"{TRANSLATE} --beam 0", ("--beam",)),
    "an option that does not exist": Case(f"{TRANSLATE} --beem 2", ("--beem",)),
    "fewer than no threads": Case(f"{TRANSLATE} --threads -1", ("--threads",)),
    "a dictionary without columns": Case(
        f"{TRANSLATE} --replace-unk --dictionary s", ("s, line 1: ",)
    ),
    "a dictionary that is not used": Case(
        f"{TRANSLATE} --dictionary d", ("--dictionary", "--replace-unk"), put("d", "a\tb\n")
    ),
    # tune
    "penalties of several models to be kept": Case(f"{TUNE} --model model --write", ("--write",)),
    "a calibration to be stored in a bundled model": Case(
        "calibrate ja-en --dev s t", ("ja-en", "copy")
    ),
    "penalties to be stored in a bundled model": Case(
        "tune s t --model ja-en --write", ("ja-en", "--write")
    ),
    "penalties for a beam of one": Case(f"{TUNE} --beam 1", ("--beam",)),
    "a dev set of different lengths": Case(
        "tune s short --model model", ("short ", "line 1"), put("short", "x\n")
    ),
    "an empty dev set": Case("tune none none --model model", ("none and none",), put("none", "")),
    "references of another text": Case(
        "tune s other --model model --write --beam 2",
        ("other", "BLEU"),
        put("other", "no word of it\n" * 20),
    ),
    "a penalty to try that is negative": Case(
        f"{TUNE} --length-penalty -1", ("length_penalty: ", "0")
    ),
    # align
    "align without a model": Case("align s t", ("--model DIR",)),
    "align with several models": Case(f"{ALIGN} --model model", ("align",)),
    "align files of different lengths": Case(
        "align s short --model model",
        ("short ", "line 1"),
        put("short", "x"),
    ),
    "align an empty line": Case(
        "align s gap --model model",
        ("s and gap, line 2: ",),
        put("gap", "x\n\n" + "x\n" * 18),
        alone=True,
    ),
    "matrices below a file": Case(f"{ALIGN} --matrices t/m.npz", ("t/m.npz: ",)),
    # check
    "check with several models": Case("check s t --model model --model model", ("check",)),
    "check files of different lengths": Case(
        "check s short --model model",
        ("s has 20", "short has 1"),
        put("short", "x"),
    ),
    # info
    "info about nothing": Case("info nowhere", ("nowhere: ", "recipe list")),
    "info about a directory that is no model": Case("info data", ("data: ",)),
}

test_bad_input, test_bad_input_in_a_process = bad_input_tests(CASES)
