"""Recipes: the bundled ones, overrides and `extends`, and errors."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from covnmt.base.config import (
    PAPER_SYSTEMS,
    Config,
    CoverageConfig,
    DecodeConfig,
    changed_settings,
    flatten_keys,
    validate_settings,
)
from covnmt.base.errors import UserError
from covnmt.base.recipe import (
    bundled_recipes,
    find_recipe,
    format_recipe,
    load_recipe,
    toml_string,
)
from covnmt.model.seq2seq import Seq2Seq, count_parameters
from tests.paper.worked_example import ADDED, TOTAL

# A recipe, and what its error must say (the file's name comes before "line").
MISTAKES = {
    "unknown key": ("[model]\nhiden = 8\n", ["line 2", "unknown key model.hiden", "model.hidden?"]),
    "key in the wrong group": ("[train]\n\nhidden = 8\n", ["line 3", "mean model.hidden?"]),
    "key outside any group": ("hidden = 8\n", ["line 1", "mean model.hidden?"]),
    "unknown group": ("[trian]\nupdates = 8\n", ["line 1", "unknown key trian", "mean train?"]),
    "group in the wrong place": ("[coverage]\nkind = 'gru'\n", ["line 1", "model.coverage?"]),
    "dotted key": ("model.coverage.knd = 'gru'\n", ["line 1", "mean model.coverage.kind?"]),
    "nothing like it": ("[model]\nxyzzy = 8\n", ["line 2", "covnmt recipe keys"]),
    "negative": ("[train]\nupdates = -1\n", ["line 2", "train.updates", "-1"]),
    "zero": ("[data]\nbatch_size = 0\n", ["line 2", "data.batch_size"]),
    "a fraction of one": ("[model]\ndropout = 1.0\n", ["line 2", "model.dropout", "less than 1"]),
    "no number": ("[train]\nclip = nan\n", ["line 2", "train.clip", "finite"]),
    "infinite": ("[train]\nlearning_rate = inf\n", ["line 2", "learning_rate", "finite"]),
    "beyond reason": ("[train]\nlearning_rate = 1e38\n", ["line 2", "less than or equal", "1e+38"]),
    "a seed too long": (f"[train]\nseed = {2**63}\n", ["line 2", "train.seed", "less than"]),
    "no such choice": ("[model]\norder = 'papr'\n", ["line 2", "'code' or 'paper'", "'papr'"]),
    "text for a number": ("[model]\nhidden = 'many'\n", ["line 2", "model.hidden", "'many'"]),
    "number for a switch": ("[model]\ntie_target = 7\n", ["line 2", "model.tie_target", "7"]),
    "half a unit": ("[model]\nhidden = 8.5\n", ["line 2", "model.hidden", "8.5"]),
    "value for a group": ("model = 3\n", ["line 1", "model", "3"]),
    "inside a list": ("[train]\nbetas = [0.9, 2]\n", ["line 2", "train.betas.1"]),
    "list too short": ("[train]\nbetas = [0.9]\n", ["line 2", "train.betas"]),
    "odd width": ("[model]\nhidden = 7\n", ["line 1", "hidden = 7 must be even"]),
    "size without a network": (
        "[model.coverage]\nkind = 'linguistic'\nsize = 3\n",
        ["line 1", "size = 3 needs kind = tanh or gru, not linguistic"],
    ),
    "bias without a network": (
        "[model.coverage]\nbias = true\n",
        ["line 1", "bias = true needs kind"],
    ),
    "subtracting network": (
        "[model.coverage]\nkind = 'gru'\naccumulate = 'subtract'\n",
        ["line 1", "accumulate = subtract needs kind = linguistic or fertility, not gru"],
    ),
    "tied but unlike": ("[model]\ntie_target = true\nrank = 8\n", ["line 1", "tie_target", "8"]),
    "select by nothing": ("[train]\nvalidate_bleu = false\n", ["line 1", "set select = loss"]),
    "nbest beyond beam": ("[decode]\nnbest = 11\n", ["line 1", "nbest = 11", "beam = 10"]),
    "no TOML": ("[model]\nhidden 8\n", ["not valid TOML", "line 2"]),
    "a number without end": (f"[train]\nseed = {'9' * 5000}\n", ["not valid TOML", "5000 digits"]),
    "brackets without end": (f"[train]\nseed = {'[' * 5000}\n", ["not valid TOML", "recursion"]),
    "set twice": ("[model]\nhidden = 8\nhidden = 8\n", ["not valid TOML", "line 3"]),
}

OVERRIDES: dict[str, tuple[str, object]] = {
    "model.hidden=512": ("model.hidden", 512),
    "train.learning_rate = 3e-4": ("train.learning_rate", 3e-4),
    "train.learning_rate=2": ("train.learning_rate", 2.0),
    "model.order=paper": ("model.order", "paper"),
    "model.order='paper'": ("model.order", "paper"),
    "train.fertility_detach=true": ("train.fertility_detach", True),
    "train.betas=[0.8, 0.9]": ("train.betas", [0.8, 0.9]),
    "data.directory=some/where": ("data.directory", "some/where"),
    "data.directory=a=b": ("data.directory", "a=b"),
    "model.coverage.kind=gru": ("model.coverage.kind", "gru"),
}

BAD_OVERRIDES = {
    "train.seed": "write overrides as key=value",
    "=3": "write overrides as key=value",
    "train.seed=": "command line, train.seed=: train.seed",
    f"train.seed={'9' * 5000}": "exceeded maximum size",
    f"train.seed={'[' * 5000}": "train.seed: Input should be a valid integer",
    "train.sed=3": "command line, train.sed=3: unknown key train.sed; did you mean train.seed?",
    "train.updates=0": "command line, train.updates=0: train.updates: Input should be greater",
    "train.updates.x=0": "updates is a value, not a group of settings",
    "train=3": "command line, train=3: train",
}


PATHS = ["a b", "a'b", 'a"b', "a\\b", "a#b", "a=b", "3", "\u5bfa", "\N{GRINNING FACE}"]


def recipe(directory: Path, text: str, name: str = "recipe.toml") -> Path:
    path = directory / name
    path.write_text(text, "utf-8")
    return path


def complaint(path: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load_recipe(path, overrides)
    return str(caught.value)


def without(config: Config, *keys: str) -> dict[str, Any]:
    flat = flatten_keys(config.model_dump(mode="json"))
    return {key: value for key, value in flat.items() if not key.startswith(keys)}


@pytest.mark.parametrize("case", MISTAKES)
def test_errors_name_file_and_line(case: str, tmp_path: Path) -> None:
    text, expected = MISTAKES[case]
    path = recipe(tmp_path, text)
    message = complaint(path)
    assert message.startswith(str(path))
    assert [part for part in expected if part not in message] == [], message


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    """Some editors on Windows write one."""
    path = tmp_path / "r.toml"
    path.write_text("[train]\r\nupdates = 3\r\n", "utf-8-sig")
    assert load_recipe(path).train.updates == 3
    path.write_text("[train]\r\nupdate = 3\r\n", "utf-8-sig")
    assert complaint(path).startswith(f"{path}, line 2: unknown key train.update;")


def test_all_errors_are_reported_at_once(tmp_path: Path) -> None:
    message = complaint(recipe(tmp_path, "[model]\nhiden = 8\nrank = 0\n\n[train]\nclip = -1\n"))
    lines = [line.split(": ")[0].removeprefix(f"{tmp_path}/") for line in message.splitlines()]
    assert sorted(lines) == [f"recipe.toml, line {number}" for number in (2, 3, 6)]


def test_an_error_in_an_extended_recipe_names_that_file(tmp_path: Path) -> None:
    parent = recipe(tmp_path, "[model]\nhiden = 8\n", "parent.toml")
    child = recipe(tmp_path, "extends = 'parent.toml'\n\n[model]\nrank = 8\n")
    assert complaint(child).startswith(f"{parent}, line 2: unknown key model.hiden")


def test_an_error_names_the_file_that_sets_the_value(tmp_path: Path) -> None:
    recipe(tmp_path, "[train]\nupdates = 5\n", "parent.toml")
    child = recipe(tmp_path, "extends = 'parent.toml'\n\n[train]\n\nupdates = -5\n")
    assert complaint(child).startswith(f"{child}, line 5: ")
    assert complaint(child, "train.updates=-6").startswith("command line, train.updates=-6: ")


def test_extends_merges_group_by_group(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    recipe(tmp_path / "base", "[model]\nhidden = 8\nrank = 9\n[train]\nseed = 7\n", "a.toml")
    recipe(tmp_path, "extends = 'base/a.toml'\n[model]\nrank = 10\n", "b.toml")
    path = recipe(tmp_path, "extends = 'b.toml'\n[model.coverage]\nkind = 'gru'\n", "c.toml")
    loaded = load_recipe(path, ["model.coverage.size=4"])
    assert (loaded.model.hidden, loaded.model.rank, loaded.train.seed) == (8, 10, 7)
    assert loaded.model.coverage == CoverageConfig(kind="gru", size=4)


def test_a_recipe_can_extend_a_bundled_one(tmp_path: Path) -> None:
    """From any directory, by its name; a file next to the recipe comes first."""
    path = recipe(tmp_path, "extends = 'modern/gru10'\n[model]\nhidden = 8\n")
    own = load_recipe(path)
    assert own == load_recipe(find_recipe("modern/gru10"), ["model.hidden=8"])
    (tmp_path / "modern").mkdir()
    recipe(tmp_path / "modern", "[train]\nseed = 7\n", "gru10")
    assert load_recipe(path).train.seed == 7


def test_recipes_that_extend_each_other_are_an_error(tmp_path: Path) -> None:
    recipe(tmp_path, "extends = 'b.toml'\n", "a.toml")
    path = recipe(tmp_path, "extends = 'a.toml'\n", "b.toml")
    assert "itself" in complaint(path)
    assert "itself" in complaint(recipe(tmp_path, "extends = 'self.toml'\n", "self.toml"))


def test_extending_a_missing_recipe_is_an_error(tmp_path: Path) -> None:
    path = recipe(tmp_path, "extends = 'gone.toml'\n")
    assert complaint(path).startswith(f"{path}: extends gone.toml, ")


@pytest.mark.parametrize("override", OVERRIDES)
def test_an_override_changes_one_key(override: str, tmp_path: Path) -> None:
    key, value = OVERRIDES[override]
    loaded = load_recipe(recipe(tmp_path, "[model]\nrank = 9\n"), [override])
    assert flatten_keys(loaded.model_dump(mode="json"))[key] == value
    assert set(changed_settings(Config(), loaded)) == {key, "model.rank"}


@pytest.mark.parametrize("name", PATHS)
def test_a_path_as_override(name: str, tmp_path: Path) -> None:
    override = f"data.directory={toml_string(Path(name))}"
    assert load_recipe(recipe(tmp_path, ""), [override]).data.directory == Path(name)


@pytest.mark.parametrize("override", BAD_OVERRIDES)
def test_malformed_overrides_are_errors(override: str, tmp_path: Path) -> None:
    path = recipe(tmp_path, "[train]\nupdates = 5\n")
    assert BAD_OVERRIDES[override] in complaint(path, override)


def test_the_last_override_wins(tmp_path: Path) -> None:
    loaded = load_recipe(recipe(tmp_path, ""), ["train.seed=2", "train.seed=3"])
    assert loaded.train.seed == 3


def test_files_that_are_not_toml_are_errors(tmp_path: Path) -> None:
    assert "no such file" in complaint(tmp_path / "gone.toml")
    assert "cannot be read" in complaint(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"[model]\n# caf\xe9\n")
    assert "utf-8" in complaint(tmp_path / "latin.toml")


def test_bundled_recipes_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_recipe("paper/gru10") == find_recipe("paper/gru10.toml")
    with pytest.raises(UserError, match="covnmt recipe list"):
        find_recipe("paper/gru11")
    # a run directory of the same name, such as those of the demo, does not hide the recipe
    (tmp_path / "demo" / "baseline").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert find_recipe("demo/baseline").is_file()


@pytest.mark.parametrize("name", bundled_recipes())
def test_every_bundled_recipe_loads(name: str) -> None:
    path = find_recipe(name)
    assert load_recipe(path).data.directory == Path("data")
    command = path.read_text("utf-8").splitlines()[0]
    assert command.startswith("# covnmt train ")
    assert command.split()[3] in bundled_recipes()


def test_both_families_of_recipes_have_all_six_systems() -> None:
    for family in ("paper", "modern"):
        names = {name for name in bundled_recipes() if name.startswith(f"{family}/")}
        assert names == {f"{family}/{system}" for system in (*PAPER_SYSTEMS, "common")}


@pytest.mark.parametrize("system", PAPER_SYSTEMS)
def test_paper_recipes_are_the_defaults_but_for_coverage(system: str) -> None:
    loaded = load_recipe(find_recipe(f"paper/{system}"))
    assert loaded.model.coverage == PAPER_SYSTEMS[system]
    expected = Config().train.model_copy(update={"validate_from": 100_000})
    assert without(loaded, "model.coverage") == without(Config(train=expected), "model.coverage")


@pytest.mark.parametrize("system", PAPER_SYSTEMS)
def test_paper_recipes_have_the_papers_parameters(system: str) -> None:
    with torch.device("meta"):
        model = Seq2Seq(load_recipe(find_recipe(f"paper/{system}")).model, 30_001, 30_001)
    counts = count_parameters(model)
    assert sum(counts.values()) == TOTAL + ADDED[system]
    assert counts["coverage"] == ADDED[system]


@pytest.mark.parametrize("system", PAPER_SYSTEMS)
def test_modern_recipes_share_everything_but_coverage(system: str) -> None:
    loaded = load_recipe(find_recipe(f"modern/{system}"))
    baseline = load_recipe(find_recipe("modern/baseline"))
    assert loaded.model.coverage == PAPER_SYSTEMS[system]
    assert without(loaded, "model.coverage") == without(baseline, "model.coverage")
    # the network is the paper's; only training and data differ
    changed = changed_settings(Config(), baseline)
    assert {key for key in changed if key.startswith("model.")} == {"model.init", "model.dropout"}


def test_settings_survive_json() -> None:
    for system, coverage in PAPER_SYSTEMS.items():
        config = load_recipe(find_recipe(f"modern/{system}"))
        again = validate_settings(Config, config.model_dump(mode="json"))
        assert again == config
        assert again.model.coverage == coverage


def test_formatted_recipe_is_the_same_recipe(tmp_path: Path) -> None:
    path = tmp_path / "whole.toml"
    for name in bundled_recipes():
        config = load_recipe(find_recipe(name), ['data.directory="a \\"b\\" 語"'])
        path.write_text(format_recipe(config), "utf-8")
        assert load_recipe(path) == config


def test_validate_settings_explains_problems_with_their_key() -> None:
    assert validate_settings(DecodeConfig, {"beam": 3, "nbest": 2}).nbest == 2
    with pytest.raises(UserError, match="beam: Input should be greater than 0, not 0"):
        validate_settings(DecodeConfig, {"beam": 0})


def test_bundled_recipes_contain_only_values_that_change_something() -> None:
    for name in bundled_recipes():
        path = find_recipe(name)
        tree = tomllib.loads(path.read_text("utf-8"))
        parent = tree.pop("extends", None)
        sibling = path.parent / str(parent)
        base = Config()
        if parent:
            base = load_recipe(sibling if sibling.is_file() else find_recipe(parent))
        inherited = flatten_keys(base.model_dump(mode="json"))
        repeated = {key for key, value in flatten_keys(tree).items() if inherited[key] == value}
        # repeated for the reader
        assert repeated <= {"train.validate_every", "model.coverage.size", "data.batch_tokens"}, (
            name
        )
