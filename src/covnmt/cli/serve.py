"""The `serve` command: translate over HTTP."""

import signal
from pathlib import Path
from typing import Annotated

import typer

from covnmt.base.errors import UserError, install_command
from covnmt.base.signals import recorded_signals
from covnmt.cli.options import (
    DeviceOption,
    FromSettings,
    apply_settings_file,
    check_finite,
    expand_settings,
)
from covnmt.serve.settings import (
    ServeSettings,
    parse_host,
    parse_origin,
    read_api_keys,
)

app = typer.Typer()

SET_BY_OTHER_OPTIONS = frozenset({"api_keys", "allow_origins", "allow_hosts", "wait"})
RARELY_CHANGED = frozenset(
    {
        *("burst", "max_body", "max_sentences", "max_beam", "max_connections"),
        *("max_connections_per_address", "header_timeout", "body_timeout", "write_timeout"),
        *("stall_timeout", "max_cells", "max_markup"),
    }
)
ServerOptions = Annotated[
    ServeSettings,
    FromSettings(ServeSettings, omit=SET_BY_OTHER_OPTIONS, hidden=RARELY_CHANGED),
]


@app.command(context_settings={"auto_envvar_prefix": "COVNMT"})
@expand_settings
def serve(
    model: Annotated[
        list[str],
        typer.Option(
            "--model",
            "-m",
            help="model directory or bundled model, with an optional name and languages: MODEL, "
            "NAME=MODEL or NAME:ja-en=MODEL; repeatable",
        ),
    ],
    settings: ServerOptions,
    _settings_file: Annotated[
        Path | None,
        typer.Option(
            "--settings",
            envvar="COVNMT_SETTINGS",
            is_eager=True,
            callback=apply_settings_file,
            help="TOML file with any of these options, as in: port = 8000",
        ),
    ] = None,
    device: DeviceOption = "auto",
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            help="file whose first line is the key of every request; or, named .toml, the keys and "
            "limits of several clients. Requests carry a key as X-API-Key: KEY or Authorization: "
            "Bearer KEY"
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="site whose pages may call this server; repeatable")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="name by which clients reach this server (Host header); * for any; repeatable"
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            min=0,
            help="milliseconds that the first sentence of a batch waits for others",
            callback=check_finite,
        ),
    ] = 0.0,
) -> None:
    """Serve models over HTTP, with a web page that shows alignment and coverage.

    The environment variable COVNMT_PORT sets --port, and so on for every option.
    """
    changes = {
        "api_keys": read_api_keys(api_key_file) if api_key_file else (),
        "allow_origins": tuple(map(parse_origin, allow_origin or ())),
        "allow_hosts": tuple(map(parse_host, allow_host or ())),
        "wait": wait / 1000,
    }
    with recorded_signals() as signals:
        try:
            from covnmt.serve.server import run_server
        except ImportError as error:
            raise UserError(
                f"the server needs {error.name}, which is not installed: {install_command('serve')}"
            ) from None
        run_server(model, settings.model_copy(update=changes), device, signals)
    if signal.SIGINT in signals:  # SIGTERM is the usual end of a server, and no failure
        raise KeyboardInterrupt
