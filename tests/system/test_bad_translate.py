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
        "translate s --model data", ("data: not a model directory", "covnmt train"), alone=True
    ),
    "a model directory that does not exist": Case(
        "translate s --model nowhere", ("nowhere: not a model directory",)
    ),
    "a model directory that is a file": Case(
        "translate s --model t", ("t: not a model directory",)
    ),
    "truncated weights": Case(
        TRANSLATE,
        ("model/model.safetensors: damaged", "restore it from a copy"),
        change("model/model.safetensors", half),
        alone=True,
    ),
    "weights of zero bytes": Case(
        TRANSLATE, ("model/model.safetensors: damaged",), put("model/model.safetensors", "")
    ),
    "weights that are text": Case(
        TRANSLATE, ("model/model.safetensors: damaged",), put("model/model.safetensors", "x" * 99)
    ),
    "weights of another model": Case(
        TRANSLATE, ("model/model.safetensors: these weights are of another model",), other_weights
    ),
    "no weights": Case(
        TRANSLATE,
        ("model/model.safetensors: no such file", "covnmt train"),
        remove("model/model.safetensors"),
    ),
    "truncated settings": Case(
        TRANSLATE,
        ("model/config.json: not valid JSON", "restore it from a copy"),
        change("model/config.json", half),
    ),
    "foreign settings": Case(
        TRANSLATE,
        ("model/config.json: not made by `covnmt train`",),
        put("model/config.json", "{}"),
    ),
    "foreign settings of another shape": Case(
        TRANSLATE, ("model/config.json: not made by",), put("model/config.json", "[1, 2]")
    ),
    "settings of the future": Case(
        TRANSLATE,
        ("model/config.json: made by a newer covnmt", "upgrade"),
        change("model/config.json", set_key("format", 99)),
    ),
    "settings with an unknown key": Case(
        TRANSLATE,
        ("model/config.json: unknown key colour",),
        change("model/config.json", set_key("colour", "red")),
    ),
    "settings without vocabulary sizes": Case(
        TRANSLATE, ("model/config.json",), change("model/config.json", set_key("words", {}))
    ),
    "settings with impossible vocabulary sizes": Case(
        TRANSLATE,
        ('model/config.json: damaged: "words" must hold',),
        change("model/config.json", set_key("words", {"source": -3, "target": 9})),
    ),
    "a vocabulary that does not fit the model": Case(
        TRANSLATE,
        ("model: its vocabularies or tokenizers are not those", "from the data directory"),
        change("model/target.vocab", without_last_line),
        alone=True,
    ),
    "a vocabulary in another order": Case(
        TRANSLATE,
        ("model: its vocabularies or tokenizers are not those",),
        change("model/source.vocab", backwards),
    ),
    "another tokenizer": Case(
        TRANSLATE,
        ("model: its vocabularies or tokenizers are not those",),
        change("model/source.json", set_key("lowercase", True)),
    ),
    "a damaged vocabulary": Case(
        TRANSLATE,
        ("model/source.vocab, line 1: 'a b'", "damaged"),
        put("model/source.vocab", "a b\n"),
    ),
    "a missing vocabulary": Case(
        TRANSLATE,
        ("model/source.vocab: no such file", "from the data directory"),
        remove("model/source.vocab"),
    ),
    "a missing tokenizer": Case(
        TRANSLATE,
        ("model/target.json: no such file", "from the data directory"),
        remove("model/target.json"),
    ),
    "an ensemble of other vocabularies": Case(
        f"{TRANSLATE} --model other", ("other: other vocabularies than model",), other_vocabulary
    ),
    "input that is not UTF-8": Case(
        "translate --model model",
        ("standard input, line 2: not UTF-8", "iconv"),
        stdin=b"x\n\xff\n",
        alone=True,
    ),
    "an input file that is not UTF-8": Case(
        "translate latin --model model",
        ("latin, line 1: not UTF-8 (byte 1", "iconv"),
        put("latin", b"x\xe9\n"),
    ),
    "input that is missing": Case("translate nowhere --model model", ("nowhere: no such file",)),
    "input that is a directory": Case("translate data --model model", ("data: cannot be read",)),
    "input that is a truncated .gz": Case(
        "translate s.gz --model model --beam 1", ("s.gz, after line ",), put("s.gz", CUT_OFF)
    ),
    "output below a file": Case(f"{TRANSLATE} -o t/out", ("t/out: cannot be written",)),
    "output that is a directory": Case(
        f"{TRANSLATE} -o data", ("--output", "'data' is a directory")
    ),
    "more translations than the beam is wide": Case(
        f"{TRANSLATE} --nbest 5 --beam 2", ("nbest = 5 is more than beam = 2",)
    ),
    "a beam that no machine can hold": Case(f"{TRANSLATE} --beam 100000", ("--beam", "1000")),
    "a length penalty beyond all numbers": Case(
        f"{TRANSLATE} --length-penalty 1e308", ("length_penalty: ", "less than or equal to 10")
    ),
    "a coverage penalty beyond all numbers": Case(
        f"{TRANSLATE} --coverage-penalty 1e308", ("coverage_penalty: ", "less than or equal to")
    ),
    "a file beside shards": Case(
        f"{TRANSLATE} --shards t --output-dir new", ("--shards", "--output")
    ),
    "a Ray cluster that is not there": Case(
        "translate --model model --shards s --output-dir new --ray localhost:1",
        ("localhost:1: no Ray cluster found", "ray start --head"),
    ),
    "a Ray cluster for a single file": Case(f"{TRANSLATE} --ray auto", ("--ray", "--shards")),
    "a beam of 0": Case(f"{TRANSLATE} --beam 0", ("--beam",)),
    "an option that does not exist": Case(f"{TRANSLATE} --beem 2", ("--beem",)),
    "fewer than no threads": Case(f"{TRANSLATE} --threads -1", ("--threads",)),
    "a dictionary without columns": Case(
        f"{TRANSLATE} --replace-unk --dictionary s", ("s, line 1: ", "a tab")
    ),
    "a dictionary that is not used": Case(
        f"{TRANSLATE} --dictionary d", ("--dictionary", "--replace-unk"), put("d", "a\tb\n")
    ),
    # tune
    "penalties of several models to be kept": Case(
        f"{TUNE} --model model --write", ("tune --write takes one model",)
    ),
    "penalties to be stored in a bundled model": Case(
        "tune s t --model ja-en --write", ("ja-en", "copy", "--write")
    ),
    "penalties for a beam of one": Case(f"{TUNE} --beam 1", ("a beam of 1", "--beam")),
    "a dev set of different lengths": Case(
        "tune s short --model model", ("short ends after line 1",), put("short", "x\n")
    ),
    "an empty dev set": Case(
        "tune none none --model model", ("none and none are empty",), put("none", "")
    ),
    "references of another text": Case(
        "tune s other --model model --write --beam 2",
        ("other", "BLEU is 0"),
        put("other", "no word of it\n" * 20),
    ),
    "a penalty to try that is negative": Case(
        f"{TUNE} --length-penalty -1", ("length_penalty: ", "greater than or equal to 0")
    ),
    # align
    "align without a model": Case("align s t", ("--model DIR",)),
    "align with several models": Case(f"{ALIGN} --model model", ("align takes one model",)),
    "align files of different lengths": Case(
        "align s short --model model",
        ("short ends after line 1 but s continues",),
        put("short", "x"),
    ),
    "align an empty line": Case(
        "align s gap --model model",
        ("s and gap, line 2: one side is empty",),
        put("gap", "x\n\n" + "x\n" * 18),
        alone=True,
    ),
    "matrices below a file": Case(f"{ALIGN} --matrices t/m.npz", ("t/m.npz: cannot be written",)),
    # check
    "check with several models": Case(
        "check s t --model model --model model", ("check takes one model",)
    ),
    "check files of different lengths": Case(
        "check s short --model model",
        ("s has 20 lines but short has 1",),
        put("short", "x"),
    ),
    # info
    "info about nothing": Case(
        "info nowhere", ("nowhere: neither a model nor a recipe", "recipe list")
    ),
    "info about a directory that is no model": Case("info data", ("data: not a model directory",)),
}

test_bad_input, test_bad_input_in_a_process = bad_input_tests(CASES)
