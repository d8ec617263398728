"""Commands that list and describe models and recipes: models, info, recipe."""

import json
from typing import Annotated

import typer

from covnmt.base.console import log
from covnmt.cli.options import (
    print_table,
)

app = typer.Typer()
recipe_app = typer.Typer(
    no_args_is_help=True, help="List recipes, their keys, and resolved settings."
)
app.add_typer(recipe_app, name="recipe")


@app.command()
def models() -> None:
    """List the bundled models; `--model NAME` uses one."""
    from covnmt.model.directory import bundled_model_rows

    if not (rows := bundled_model_rows()):
        log("this version bundles no models; train one with `covnmt train`")
    print_table(("name", "what", "directory"), rows)


@app.command()
def info(
    target: Annotated[str, typer.Argument(help="recipe or model")],
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    vocabulary_size: Annotated[
        int,
        typer.Option(
            "--vocabulary-size",
            "--words",
            min=4,
            max=10**9,
            help="rows of the embeddings, end symbol included, for a recipe without data",
        ),
    ] = 30_001,
) -> None:
    """Show the settings and the parameter counts of a recipe or a model."""
    from covnmt.inference.info import model_info

    description = model_info(target, vocabulary_size)
    if as_json:
        print(json.dumps(description.to_json(), indent=2))
        return
    print_table(("key", "value"), description.settings_rows())
    print_table(("block", "parameters"), description.parameter_rows())


@recipe_app.command("list")
def recipe_list() -> None:
    """List the bundled recipes."""
    from covnmt.base.recipe import bundled_recipes

    for name in bundled_recipes():
        print(name)


@recipe_app.command("keys")
def recipe_keys() -> None:
    """List every key with its choices, default and meaning."""
    from covnmt.base.config import describe_keys

    print_table(("key", "choices", "default", "meaning"), describe_keys())


@recipe_app.command("show")
def recipe_show(
    recipe: str, overrides: Annotated[list[str] | None, typer.Argument()] = None
) -> None:
    """Print the resolved settings of a recipe as JSON."""
    from covnmt.base.recipe import find_recipe, load_recipe

    print(load_recipe(find_recipe(recipe), overrides).model_dump_json(indent=2))
