"""Bad recipes, data and runs: exit code 2, a message that names the place, nothing overwritten."""

from .bad_input import (
    Case,
    backwards,
    bad_input_tests,
    change,
    data_without_dev,
    exported_model,
    half,
    other_data,
    put,
    remove,
)

TRAIN = "train demo/gru10 --run new data.directory=data"

CASES = {
    # recipe and train
    "an unknown key": Case(
        "train r.toml",
        ("r.toml, line 2: unknown key model.hiden", "did you mean model.hidden?"),
        put("r.toml", "[model]\nhiden = 64\n"),
        alone=True,
    ),
    "an unknown group": Case(
        "recipe show r.toml", ("r.toml", "unknown key modle"), put("r.toml", "[modle]\nhidden=2\n")
    ),
    "an impossible value": Case(
        "recipe show r.toml",
        ("r.toml", "hidden = 7 must be even"),
        put("r.toml", "[model]\nhidden = 7\n"),
    ),
    "a value of the wrong kind": Case(
        "recipe show r.toml",
        ("r.toml, line 3: train.updates: ", "not 'many'"),
        put("r.toml", "# mine\n[train]\nupdates = 'many'\n"),
    ),
    "an unknown key on the command line": Case(
        f"{TRAIN} train.sead=2", ("unknown key train.sead; did you mean train.seed?",)
    ),
    "an impossible value on the command line": Case(
        f"{TRAIN} model.coverage.kind=magic", ("model.coverage.kind: ", "not 'magic'")
    ),
    "values that do not go together": Case(
        "recipe show demo/gru10 model.hidden=7", ("gru10.toml model.hidden=7: model: hidden = 7",)
    ),
    "an override without a value": Case(f"{TRAIN} train.seed", ("'train.seed'", "key=value")),
    "a recipe that is not TOML": Case(
        "train r.toml", ("r.toml: not valid TOML", "line 1"), put("r.toml", "model: hidden\n")
    ),
    "a recipe that extends itself": Case(
        "train r.toml", ("r.toml: extends ", "itself"), put("r.toml", "extends = 'r.toml'\n")
    ),
    "a recipe that does not exist": Case(
        "train paper/gru11", ("paper/gru11: no such recipe", "covnmt recipe list")
    ),
    "a recipe that is a directory": Case("train model", ("model: ", "recipe")),
    "a data directory that is a model": Case(
        f"{TRAIN[:-4]}model", ("model: not a prepared corpus", "covnmt prepare"), alone=True
    ),
    "a data directory that does not exist": Case(
        f"{TRAIN[:-4]}nowhere", ("nowhere: not a prepared corpus", "covnmt prepare")
    ),
    "a damaged corpus.json": Case(
        TRAIN, ("data/corpus.json: not valid JSON",), change("data/corpus.json", half)
    ),
    "a vocabulary that does not fit the data": Case(
        TRAIN,
        ("data: the vocabularies are not those of its ids", "covnmt prepare"),
        change("data/source.vocab", backwards),
    ),
    "truncated ids": Case(
        TRAIN,
        ("data/train.source.ids: has ", "covnmt prepare"),
        change("data/train.source.ids", half),
    ),
    "truncated offsets": Case(
        TRAIN,
        ("data/train.target.offsets.npy: ", "covnmt prepare"),
        change("data/train.target.offsets.npy", half),
    ),
    "a run with other settings": Case(
        "train demo/gru10 --run model data.directory=data",
        ("model holds a run with other settings", "model.hidden: 12 before, 128 now"),
    ),
    "a run on other data": Case(
        "train {tiny} --run model",
        ("model/last.safetensors: saved while training on other data than data", "name the data"),
        other_data,
    ),
    "a truncated checkpoint": Case(
        "train {tiny} --run model",
        ("model/last.safetensors: damaged",),
        change("model/last.safetensors", half),
    ),
    "data without a dev set": Case(
        f"{TRAIN} train.updates=1", ("data: was prepared without dev files",), data_without_dev
    ),
    "train into a file": Case(
        "train demo/gru10 --run s data.directory=data",
        ("s: is a file; --run takes a directory",),
    ),
    "train into a model that is not a run": Case(
        "train {tiny} --run model",
        ("model: holds a model without last.safetensors", "choose another directory"),
        remove("model/last.safetensors"),
    ),
    "train into an exported model": Case(
        "train {tiny} --run exported",
        ("exported: holds an exported model", "choose another directory"),
        exported_model,
    ),
    "train on an unknown device": Case(
        f"{TRAIN} --device gpu", ("'gpu': no such device", "auto, cpu or cuda")
    ),
    "train on a device that covnmt does not know": Case(
        f"{TRAIN} --device mps", ("'mps': no such device", "auto, cpu or cuda")
    ),
    "a network that is too wide": Case(
        f"{TRAIN} model.hidden=1000000000000000000000000000", ("model.hidden", "less than or equal")
    ),
    "too many batches per update": Case(
        f"{TRAIN} train.accumulate=99999999999999999999", ("train.accumulate", "less than or equal")
    ),
    "a model that does not fit into memory": Case(
        f"{TRAIN} model.hidden=1000000", ("not enough memory", "a smaller model")
    ),
    # average
    "average more than was kept": Case("average model new --last 9", ("model: ", "train.keep=9")),
    "average into a run": Case(
        "average model model --last 1", ("model: ", "choose another directory")
    ),
    "average into an exported model": Case(
        "average model exported --last 1",
        ("exported: holds an exported model", "choose another directory"),
        exported_model,
    ),
    "average no weights": Case("average model new --last 0", ("--last",)),
    "average a directory that is not a run": Case("average data new", ("data:", "train.keep")),
    # export
    "export a model into itself": Case(
        "export model --output model",
        ("model: holds a trained model", "choose another directory"),
        remove("model/last.safetensors"),
    ),
    "export an exported model": Case(
        "export ja-en", ("is exported already", "`covnmt train` made")
    ),
    "export into a run": Case("export model -o model", ("model: ", "choose another directory")),
}

test_bad_input, test_bad_input_in_a_process = bad_input_tests(CASES)
