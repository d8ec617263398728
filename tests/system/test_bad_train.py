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
        ("r.toml, line 2: ", "model.hiden", "model.hidden"),
        put("r.toml", "[model]\nhiden = 64\n"),
        alone=True,
    ),
    "an unknown group": Case(
        "recipe show r.toml", ("r.toml", "modle"), put("r.toml", "[modle]\nhidden=2\n")
    ),
    "an impossible value": Case(
        "recipe show r.toml",
        ("r.toml", "hidden = 7"),
        put("r.toml", "[model]\nhidden = 7\n"),
    ),
    "a value of the wrong kind": Case(
        "recipe show r.toml",
        ("r.toml, line 3: train.updates: ", "'many'"),
        put("r.toml", "# mine\n[train]\nupdates = 'many'\n"),
    ),
    "an unknown key on the command line": Case(
        f"{TRAIN} train.sead=2", ("train.sead", "train.seed")
    ),
    "an impossible value on the command line": Case(
        f"{TRAIN} model.coverage.kind=magic", ("model.coverage.kind: ", "not 'magic'")
    ),
    "values that do not go together": Case(
        "recipe show demo/gru10 model.hidden=7", ("gru10.toml model.hidden=7: ",)
    ),
    "an override without a value": Case(f"{TRAIN} train.seed", ("'train.seed'", "key=value")),
    "a recipe that is not TOML": Case(
        "train r.toml", ("r.toml: ", "line 1"), put("r.toml", "model: hidden\n")
    ),
    "a recipe that extends itself": Case(
        "train r.toml", ("r.toml: ",), put("r.toml", "extends = 'r.toml'\n")
    ),
    "a recipe that does not exist": Case(
        "train paper/gru11", ("paper/gru11: ", "covnmt recipe list")
    ),
    "a recipe that is a directory": Case("train model", ("model: ", "recipe")),
    "a data directory that is a model": Case(
        f"{TRAIN[:-4]}model", ("model: ", "covnmt prepare"), alone=True
    ),
    "a data directory that does not exist": Case(
        f"{TRAIN[:-4]}nowhere", ("nowhere: ", "covnmt prepare")
    ),
    "a damaged corpus.json": Case(TRAIN, ("data/corpus.json: ",), change("data/corpus.json", half)),
    "a vocabulary that does not fit the data": Case(
        TRAIN,
        ("data: ", "covnmt prepare"),
        change("data/source.vocab", backwards),
    ),
    "truncated ids": Case(
        TRAIN,
        ("data/train.source.ids: ", "covnmt prepare"),
        change("data/train.source.ids", half),
    ),
    "truncated offsets": Case(
        TRAIN,
        ("data/train.target.offsets.npy: ", "covnmt prepare"),
        change("data/train.target.offsets.npy", half),
    ),
    "a run with other settings": Case(
        "train demo/gru10 --run model data.directory=data",
        ("model", "model.hidden: "),
    ),
    "a run on other data": Case(
        "train {tiny} --run model",
        ("model/last.safetensors: ",),
        other_data,
    ),
    "a truncated checkpoint": Case(
        "train {tiny} --run model",
        ("model/last.safetensors: ",),
        change("model/last.safetensors", half),
    ),
    "data without a dev set": Case(f"{TRAIN} train.updates=1", ("data: ",), data_without_dev),
    "train into a file": Case(
        "train demo/gru10 --run s data.directory=data",
        ("s: ",),
    ),
    "train into a model that is not a run": Case(
        "train {tiny} --run model",
        ("model: ", "last.safetensors"),
        remove("model/last.safetensors"),
    ),
    "train into an exported model": Case(
        "train {tiny} --run exported",
        ("exported: ",),
        exported_model,
    ),
    "train on an unknown device": Case(f"{TRAIN} --device gpu", ("'gpu'", "auto, cpu or cuda")),
    "train on a device that covnmt does not know": Case(
        f"{TRAIN} --device mps", ("'mps'", "auto, cpu or cuda")
    ),
    "a network that is too wide": Case(
        f"{TRAIN} model.hidden=1000000000000000000000000000", ("model.hidden",)
    ),
    "too many batches per update": Case(
        f"{TRAIN} train.accumulate=99999999999999999999", ("train.accumulate",)
    ),
    "a model that does not fit into memory": Case(f"{TRAIN} model.hidden=1000000", ("memory",)),
    # average
    "average more than was kept": Case("average model new --last 9", ("model: ", "train.keep=9")),
    "average into a run": Case("average model model --last 1", ("model: ",)),
    "average into an exported model": Case(
        "average model exported --last 1",
        ("exported: ",),
        exported_model,
    ),
    "average no weights": Case("average model new --last 0", ("--last",)),
    "average a directory that is not a run": Case("average data new", ("data:", "train.keep")),
    # export
    "export a model into itself": Case(
        "export model --output model",
        ("model: ",),
        remove("model/last.safetensors"),
    ),
    "export an exported model": Case("export ja-en", ("ja-en", "`covnmt train`")),
    "export into a run": Case("export model -o model", ("model: ",)),
}

test_bad_input, test_bad_input_in_a_process = bad_input_tests(CASES)
