"""The command that answers over HTTP: serve."""

from pathlib import Path
from typing import Annotated

import typer

from covnmt.cli.options import DeviceOption, finite
from covnmt.serve.settings import THREADS, WORKERS

app = typer.Typer()


@app.command()
def serve(
    model: Annotated[
        list[str],
        typer.Option("--model", "-m", help="DIR, NAME=DIR or NAME:ja-en=DIR; repeatable"),
    ],
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one")] = 8000,
    device: DeviceOption = "auto",
    workers: Annotated[int, typer.Option(min=1, help="processes per model")] = WORKERS,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of each")] = THREADS,
    api_key_file: Annotated[
        Path | None, typer.Option(help="its first line is asked of every request")
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="site whose pages may call this server; repeatable")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="name of this server; * for any; repeatable")
    ] = None,
    rate: Annotated[
        float, typer.Option(min=0, help="requests/s of an address; 0: any", callback=finite)
    ] = 20.0,
    queue: Annotated[int, typer.Option(min=1, help="sentences that may wait")] = 1000,
    batch_size: Annotated[int, typer.Option(min=1, help="sentences done together")] = 32,
    wait: Annotated[
        float, typer.Option(min=0, help="ms to wait for others", callback=finite)
    ] = 10.0,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="seconds for a request", callback=finite)
    ] = 60.0,
    log_text: Annotated[bool, typer.Option(help="log what is translated")] = False,
) -> None:
    """Translate over HTTP, with a page that shows what became of every word."""
    from covnmt.serve.server import read_api_key, run_server
    from covnmt.serve.settings import ServeSettings, parse_host, parse_origin

    settings = ServeSettings(
        host=host,
        port=port,
        api_key=read_api_key(api_key_file) if api_key_file else None,
        allow_origins=tuple(map(parse_origin, allow_origin or ())),
        allow_hosts=tuple(map(parse_host, allow_host or ())),
        rate=rate,
        workers=workers,
        threads=threads,
        queue=queue,
        batch_size=batch_size,
        wait=wait / 1000,
        timeout=timeout,
        log_text=log_text,
    )
    run_server(model, settings, device)
