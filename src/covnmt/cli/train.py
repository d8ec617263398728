"""Commands that make models: train, average, export."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from covnmt.base.console import log
from covnmt.cli.options import (
    DeviceOption,
    OutputArgument,
    OutputDirectoryOption,
    SingleModelOption,
    TrainingThreadsOption,
    require_model_argument,
    resumable,
    take_one_output,
)

app = typer.Typer()


@app.command()
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="TOML file, or name of a bundled recipe such as paper/gru10; "
            "default: modern/gru10 on a GPU, small/gru10 on a CPU"
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="settings to change: train.seed=2 ... (`covnmt recipe keys` lists them)"
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="directory made by `covnmt prepare`; same as data.directory=DIRECTORY",
            show_default="data.directory of the recipe: data",
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="run directory", show_default="runs/RECIPE")
    ] = None,
    device: DeviceOption = "auto",
    threads: TrainingThreadsOption = 0,
    gpus: Annotated[int, typer.Option(min=1, help="number of training processes, one per GPU")] = 1,
    max_restarts: Annotated[
        int,
        typer.Option(
            min=0, help="with --gpus: resume this many times when a training process dies"
        ),
    ] = 0,
) -> None:
    """Train a model. Run the same command again to resume."""
    from covnmt.base.recipe import find_recipe, load_recipe, toml_string
    from covnmt.decoding.torch import limit_threads, pick_device
    from covnmt.training.distributed import launch_torchrun, process_group
    from covnmt.training.loop import train as run_training
    from covnmt.training.state import last_update

    overrides = list(overrides or ())
    if recipe and "=" in recipe and not Path(recipe).exists():
        overrides.insert(0, recipe)
        recipe = None
    if recipe is None:
        recipe = "small/gru10" if pick_device(device).type == "cpu" else "modern/gru10"
        log(f"recipe: {recipe}; `covnmt recipe list` has others")
    path = find_recipe(recipe)
    if data:
        overrides.append(f"data.directory={toml_string(data)}")
    config = load_recipe(path, overrides)
    directory = run or Path("runs") / "-".join(filter(None, (path.parent.name, path.stem)))
    if gpus > 1:
        options = ["--run", str(directory), "--device", device, "--threads", str(threads)]
        arguments = ["train", *options, recipe, *overrides]
        update = partial(last_update, directory)
        raise typer.Exit(launch_torchrun(gpus, arguments, max_restarts, update))
    limit_threads(threads)
    with process_group(pick_device(device)) as (world, worker_device):
        with resumable():
            outcome = run_training(config, directory, worker_device, world)
        counters = outcome.counters
        log(
            f"{directory}: {outcome.reason}; {counters.update:,} updates and "
            f"{counters.target_tokens:,} target tokens in all"
        )
        if not outcome.finished:
            log("run the same command again to resume")
    if not outcome.finished:
        raise typer.Exit(130)


@app.command()
def average(
    run: Annotated[Path, typer.Argument(help="run directory trained with train.keep")],
    argument: OutputArgument = None,
    output: OutputDirectoryOption = None,
    last: Annotated[int, typer.Option(min=1, help="number of checkpoints to average")] = 5,
) -> None:
    """Average the last checkpoints of a run into a new model."""
    from covnmt.decoding.onnx.format import refuse_exported
    from covnmt.model.checkpoint import average_checkpoints

    directory = take_one_output(output, argument, "the directory of the averaged model")
    refuse_exported(directory)
    averaged = average_checkpoints(run, directory, last)
    log(f"{directory}: the mean of {', '.join(averaged)}")


@app.command()
def export(
    model: Annotated[Path | None, typer.Argument(help="model directory")] = None,
    model_option: SingleModelOption = [],  # noqa: B006
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            file_okay=False,
            help="directory of the exported model",
            show_default="MODEL-onnx or MODEL-int8",
        ),
    ] = None,
    int8: Annotated[
        bool, typer.Option(help="quantize to 8 bits: a quarter of the size, and faster")
    ] = False,
    shortlist: Annotated[
        tuple[Path, Path, Path] | None,
        typer.Option(
            help="source text, its translation, their links (Pharaoh format): build a shortlist, "
            "which limits the output vocabulary of each sentence and so is faster"
        ),
    ] = None,
) -> None:
    """Export a model to ONNX, for fast translation on a CPU without PyTorch."""
    from covnmt.decoding.onnx.export import ShortlistText, export_model
    from covnmt.model.checkpoint import refuse_run_directory

    source = require_model_argument(model, model_option, "export")
    suffix = "int8" if int8 else "onnx"
    directory = output or source.with_name(f"{source.absolute().name}-{suffix}")
    refuse_run_directory(directory)
    shortlist_text = ShortlistText(*shortlist) if shortlist else None
    sizes = export_model(source, directory, "int8" if int8 else "fp32", shortlist_text)
    log(f"{directory}: {sum(sizes.values()) / 2**20:,.1f} MiB")
