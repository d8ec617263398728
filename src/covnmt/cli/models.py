"""Commands that list, describe and upload models and recipes: models, push, info, recipe."""

import json
from pathlib import Path
from typing import Annotated

import typer

from covnmt.base.console import log
from covnmt.cli.options import (
    JsonOption,
    SingleModelOption,
    print_table,
    require_model_argument,
    require_one_model,
)

app = typer.Typer()
recipe_app = typer.Typer(
    no_args_is_help=True, help="List recipes, their keys, and resolved settings."
)
app.add_typer(recipe_app, name="recipe")


@app.command()
def models() -> None:
    """List the bundled models; `--model NAME` uses one.

    The columns are name, languages and domain, BLEU on the test set, license of the weights, size
    in MiB, and directory.
    """
    from covnmt.model.directory import describe_bundled_models

    if not (bundled := describe_bundled_models()):
        log("this version bundles no models; train one with `covnmt train`")
    print_table(
        ("name", "languages, domain", "test BLEU", "license", "MiB", "directory"),
        ((m.name, m.title, m.bleu, m.license, f"{m.mebibytes:.1f}", m.directory) for m in bundled),
    )


@app.command()
def push(
    argument: Annotated[
        str, typer.Argument(metavar="MODEL", help="model; with --model, the name instead")
    ],
    name: Annotated[str | None, typer.Argument(help="OWNER/NAME on the Hugging Face hub")] = None,
    model: SingleModelOption = [],  # noqa: B006
    license_name: Annotated[
        str | None,
        typer.Option("--license", help="license of the weights, as the hub names it: mit"),
    ] = None,
    private: Annotated[bool, typer.Option(help="let only you see a new model")] = False,
) -> None:
    """Upload a model to the Hugging Face hub; `--model OWNER/NAME` then downloads it."""
    from covnmt.model.directory import find_model
    from covnmt.model.hub import push_model

    path = require_model_argument(Path(argument) if name else None, model, "push")
    print(push_model(find_model(path), name or argument, license_name, private))


@app.command()
def info(
    target: Annotated[
        str | None,
        typer.Argument(help="recipe or model; or give --model", metavar="RECIPE_OR_MODEL"),
    ] = None,
    model: SingleModelOption = [],  # noqa: B006
    as_json: JsonOption = False,
    vocabulary_size: Annotated[
        int,
        typer.Option(
            min=4,
            max=10**9,
            help="rows of the embeddings, end symbol included, for a recipe without data",
        ),
    ] = 30_001,
) -> None:
    """Show the settings and the parameter counts of a recipe or a model."""
    from covnmt.inference.info import model_info

    name = target or str(require_one_model(model, "info"))
    description = model_info(name, vocabulary_size)
    if as_json:
        print(json.dumps(description.to_json(), indent=2))
        return
    print_table(("key", "value"), description.settings_rows())
    print_table(("block", "parameters"), description.parameter_rows())


@recipe_app.command("list")
def recipe_list() -> None:
    """List the bundled recipes with what they are for."""
    from covnmt.base.recipe import bundled_recipes, describe_recipe

    # those named common hold what the others of their directory share
    names = [name for name in bundled_recipes() if not name.endswith("/common")]
    print_table(("recipe", "what"), ((name, describe_recipe(name)) for name in names))


@recipe_app.command("keys")
def recipe_keys() -> None:
    """List every key with its choices, default and meaning."""
    from covnmt.base.config import describe_keys

    print_table(("key", "choices", "default", "meaning"), describe_keys())


@recipe_app.command("show")
def recipe_show(
    recipe: Annotated[str, typer.Argument(help="TOML file, or name of a bundled recipe")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="settings to change: train.seed=2 ...")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print all settings of a recipe, as TOML that can be trained from."""
    from covnmt.base.recipe import find_recipe, format_recipe, load_recipe

    config = load_recipe(find_recipe(recipe), overrides)
    print(config.model_dump_json(indent=2) if as_json else format_recipe(config))
