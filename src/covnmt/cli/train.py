"""The commands that make models: `train`, with one worker or several, `average` and `export`."""

from pathlib import Path
from typing import Annotated

import typer

from covnmt.base.console import log
from covnmt.cli.options import DeviceOption, TrainingThreadsOption

app = typer.Typer()


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="a TOML file, or a name: paper/gru10")],
    overrides: Annotated[list[str] | None, typer.Argument(help="train.seed=2 ...")] = None,
    run: Annotated[Path | None, typer.Option(help="model directory (runs/RECIPE)")] = None,
    device: DeviceOption = "auto",
    threads: TrainingThreadsOption = 0,
    gpus: Annotated[int, typer.Option(min=1, help="workers, one per GPU (or CPU process)")] = 1,
    restarts: Annotated[
        int, typer.Option(min=0, help="go on by itself so often when a worker dies (--gpus)")
    ] = 0,
) -> None:
    """Train a model; the same command again goes on where it stopped."""
    import torch

    from covnmt.base.recipe import find_recipe, load_recipe
    from covnmt.decoding.torch import pick_device
    from covnmt.training.distributed import launch_torchrun, process_group
    from covnmt.training.loop import train as run_training

    path = find_recipe(recipe)
    config = load_recipe(path, overrides)
    directory = run or Path("runs") / "-".join(filter(None, (path.parent.name, path.stem)))
    if gpus > 1:
        place = ["--run", str(directory), "--device", device, "--threads", str(threads)]
        raise typer.Exit(
            launch_torchrun(gpus, restarts, ["train", *place, recipe, *(overrides or ())])
        )
    if threads:
        torch.set_num_threads(threads)
    with process_group(pick_device(device)) as (world, own):
        outcome = run_training(config, directory, own, world)
        done = (
            f"{outcome.counters.update:,} updates, {outcome.counters.target_tokens:,} target words"
        )
        log(f"{directory}: {outcome.reason} ({done})")
        if not outcome.finished:
            log("give the same command again to go on")
    if not outcome.finished:
        raise typer.Exit(130)


@app.command()
def average(
    run: Annotated[Path, typer.Argument(help="model directory trained with train.keep")],
    target: Annotated[Path, typer.Argument(help="where the averaged model goes")],
    last: Annotated[int, typer.Option(min=1, help="how many of the kept weights")] = 5,
) -> None:
    """Average the last kept weights of a run into a model of their own."""
    from covnmt.decoding.onnx.format import refuse_exported
    from covnmt.model.checkpoint import average_checkpoints

    refuse_exported(target)
    used = average_checkpoints(run, target, last)
    log(f"{target}: the mean of {', '.join(used)}")


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="model directory")],
    target: Annotated[
        Path | None, typer.Option("--output", "-o", file_okay=False, help="MODEL-onnx or -int8")
    ] = None,
    int8: Annotated[bool, typer.Option(help="a quarter of the size, and faster")] = False,
    shortlist: Annotated[
        tuple[Path, Path, Path] | None,
        typer.Option(help="source, target and links: fewer words to choose from, and faster"),
    ] = None,
) -> None:
    """Write a model for fast translation on a CPU, without PyTorch."""
    from covnmt.decoding.onnx.export import AlignedText, export_model
    from covnmt.model.checkpoint import refuse_run_directory

    directory = target or model.with_name(f"{model.absolute().name}-{'int8' if int8 else 'onnx'}")
    refuse_run_directory(directory)
    linked = AlignedText(*shortlist) if shortlist else None
    sizes = export_model(model, directory, "int8" if int8 else "fp32", linked)
    log(f"{directory}: {sum(sizes.values()) / 2**20:,.1f} MiB")
