"""Start the server, log where it listens, and stop it gracefully."""

import errno
import logging
import socket
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Listener
from pathlib import Path

from covnmt.base.console import log
from covnmt.base.errors import UserError, install_command
from covnmt.base.files import read_lines
from covnmt.serve.settings import ServeSettings, bracket_ipv6

SHUTDOWN_SECONDS = 30  # to finish what was accepted


def run_server(models: Sequence[str], settings: ServeSettings, device: str) -> None:
    """Serve these models until interrupted; then finish what was accepted."""
    try:
        import uvicorn

        from covnmt.serve.app import create_app
    except ImportError as error:
        raise UserError(
            f"the server needs {error.name}, which is not installed: {install_command('serve')}"
        ) from None
    from covnmt.serve.model_pool import open_models, parse_spec
    from covnmt.serve.prometheus import ServerMetrics
    from covnmt.serve.worker import freeze_gc

    metrics = ServerMetrics()
    specs = [parse_spec(text) for text in models]
    # before the models are opened, which takes longer than to find the port taken
    listening = open_socket(settings.host, settings.port)
    check_temporary_directory()
    served = open_models(specs, device, settings, metrics.observe_batch)
    app = create_app(served, settings, metrics)
    _log_to_stderr()
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    freeze_gc()
    host, port = listening.getsockname()[:2]
    log(f"listening on http://{bracket_ipv6(host)}:{port}")
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        # also after a second Ctrl-C, which waits for nothing
        for model in served.values():
            model.abandon()


def check_temporary_directory() -> None:
    """Raise an error if worker processes cannot be started through a socket in it."""
    directory = tempfile.gettempdir()
    try:
        Listener(family="AF_UNIX").close()
    except OSError as error:
        raise UserError(
            f"{directory}: worker processes are started through a socket in this temporary "
            f"directory, but: {error}; name another, with a short path: TMPDIR=/tmp for example"
        ) from None


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on this address."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        port_refused = getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES)
        remedy = "try --port 0" if port_refused else "give --host an address of this machine"
        raise UserError(f"cannot listen on {host}, port {port}: {error}; {remedy}") from None
    # connections inherit it; asyncio sets it only on sockets made another way, and without it the
    # body of every answer waits 40 ms for the client to confirm the head
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def read_api_key(path: Path) -> str:
    """Read the API key from the first line of a file, so that no list of processes shows it."""
    key = next(iter(read_lines(path)), "").strip()
    if len(key) < 8 or not key.isascii():
        raise UserError(f"{path}, line 1: an API key needs at least 8 ASCII characters")
    return key


def _log_to_stderr() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    logging.getLogger("covnmt.serve").setLevel(logging.INFO)
