"""Commands that run whole experiments: reproduce and demo."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from covnmt.base.console import log, stdout_console
from covnmt.base.errors import UserError
from covnmt.cli.options import (
    DeviceOption,
    TrainingThreadsOption,
    check_finite,
    check_output_path,
    resumable,
)

if TYPE_CHECKING:
    from covnmt.paper.plan import ExperimentPlan

app = typer.Typer()


@app.command()
def reproduce(
    corpus: Annotated[
        Literal["kftt", "twlaw", "embedded", "de-en", "en-de", "ja-en", "zh-en"],
        typer.Argument(
            help="kftt, twlaw, embedded (the synthetic pair, no download), or one small model for "
            "text of several kinds: de-en, en-de, ja-en, zh-en"
        ),
    ],
    work: Annotated[Path, typer.Option(help="directory of prepared data, models and outputs")],
    results: Annotated[
        Path,
        typer.Option(
            help="directory of results, tables and figures; a job with a result is skipped"
        ),
    ],
    data: Annotated[Path | None, typer.Option(help="directory of the corpus as published")] = None,
    system: Annotated[
        list[str] | None,
        typer.Option(
            help="run only this system (see --list); repeatable", show_default="those of the paper"
        ),
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(
            min=0, help="run only this seed; repeatable", show_default="1; for some systems also 2"
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="minutes for one job: training, translation, scoring",
            show_default="kftt, twlaw: 9.5; embedded, scale original: no limit; the others: 14",
            callback=check_finite,
        ),
    ] = None,
    scale: Annotated[
        Literal["paper", "original", "modern", "shipped", "small", "tiny"] | None,
        typer.Option(
            help="paper: six systems, trained with AdamW; original: six, trained as in the paper; "
            "modern: two, with subwords and modern training; shipped: one small enough to bundle; "
            "small: six on the synthetic pair; tiny: two, as a quick test. embedded has small, "
            "tiny and a quick original; kftt and twlaw the first four; the others only shipped",
            show_default="kftt, twlaw: paper; embedded: small; the others: shipped",
        ),
    ] = None,
    device: DeviceOption = "auto",
    workers: Annotated[
        int, typer.Option("--workers", "-j", min=1, help="jobs that run at the same time")
    ] = 1,
    shared: Annotated[
        bool,
        typer.Option("--shared", help="do not record speeds: other programs use this machine too"),
    ] = False,
    list_jobs: Annotated[bool, typer.Option("--list", help="list finished and open jobs")] = False,
    report: Annotated[
        bool, typer.Option(help="write tables and figures when the jobs have run, or write none")
    ] = True,
    page: Annotated[
        bool,
        typer.Option("--page", help="run no job: write the tables and figures of those finished"),
    ] = False,
    sheet: Annotated[
        bool,
        typer.Option(
            help="run no job: write blinded sheets into --work, on which people rate two systems"
        ),
    ] = False,
    pack: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            callback=check_output_path,
            metavar="FILE.tar.xz",
            help="run no job: prepare the data, and pack it into this archive",
        ),
    ] = None,
    unpack: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.tar.xz", help="take the prepared data from this archive of --pack"
        ),
    ] = None,
) -> None:
    """Run the paper's experiment. Run the same command again to resume."""
    from covnmt.paper.experiments import find_experiment
    from covnmt.paper.pack import pack_prepared_data, unpack_prepared_data
    from covnmt.paper.plan import FIRST_SEED, ExperimentPlan, choose_jobs

    if unpack and (list_jobs or page):
        raise UserError("--list and --page read no data: give --unpack without them")
    experiment = find_experiment(corpus, scale)
    chosen = choose_jobs(experiment, system or (), seed or ())
    time = minutes or experiment.minutes
    plan = ExperimentPlan(experiment, work, results, data, time, device, chosen, shared)
    if list_jobs:
        for row in plan.progress_rows():
            print("\t".join(row))
        return
    if page:
        _write_page(plan)
        return
    if unpack:
        unpack_prepared_data(unpack, experiment.name, plan.prepared)
    if pack:
        experiment.prepare(data, plan.prepared)
        pack_prepared_data(plan.prepared, experiment.name, pack)
        log(f"wrote {pack} ({pack.stat().st_size / 2**20:.1f} MiB)")
    elif sheet:
        from covnmt.paper.jobs import write_rating_sheets

        pair = system or ["baseline", "gru10"]
        sheets = write_rating_sheets(plan, pair, (seed or [FIRST_SEED])[0])
        log(f"rating sheets: {sheets}")
    else:
        _run(plan, workers, report)


def _run(plan: "ExperimentPlan", workers: int, report: bool) -> None:
    from covnmt.paper.jobs import run_jobs
    from covnmt.paper.parallel_jobs import run_jobs_in_parallel

    with resumable():
        for line in run_jobs_in_parallel(plan, workers) if workers > 1 else run_jobs(plan):
            log(line)
    if report:
        _write_page(plan)


def _write_page(plan: "ExperimentPlan") -> None:
    from covnmt.paper.claims import CORPORA, write_claims_page
    from covnmt.paper.markdown_report import write_page

    if plan.experiment.corpus in CORPORA and plan.result_directory.exists():
        log(f"claims: {write_claims_page(plan.results)}")  # has unfinished runs too
    log(f"report: {write_page(plan.experiment, plan.result_directory)}")


@app.command()
def demo(
    directory: Annotated[
        Path, typer.Argument(help="directory of everything that the demo writes")
    ] = Path("demo"),
    threads: TrainingThreadsOption = 0,
) -> None:
    """Train a baseline and a coverage model on the synthetic pair, and compare them."""
    from covnmt.decoding.torch import limit_threads
    from covnmt.paper.demo import run_demo

    limit_threads(threads)
    for renderable in run_demo(directory):
        stdout_console.print(renderable)
