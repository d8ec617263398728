"""How the server behaves; the defaults are safe on a machine that others can reach."""

import re
from dataclasses import dataclass

from covnmt.base.errors import UserError
from covnmt.base.processes import available_cpus

WORKERS = min(available_cpus(), 4)
THREADS = max(1, available_cpus() // WORKERS)
HOST = re.compile(r"\*|[^\s:/\[\]*]+|\[[0-9a-f:.]+\]")
ORIGIN = re.compile(r"https?://([^\s:/\[\]*@]+|\[[0-9a-f:.]+\])(:\d+)?")


@dataclass(frozen=True)
class ServeSettings:
    """Everything but the models."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None  # asked of every request but those for the page and the probes
    allow_origins: tuple[str, ...] = ()  # other sites whose pages may call this server
    allow_hosts: tuple[str, ...] = ()  # names of this server besides its address and localhost
    rate: float = 20.0  # requests a second from one address, in the long run; 0: no limit
    burst: int = 100  # requests from one address at once
    max_body: int = 1 << 18  # bytes
    max_sentences: int = 500  # in one request
    max_beam: int = 20
    workers: int = WORKERS  # processes per model; one on a GPU
    threads: int = THREADS  # CPU threads of each
    queue: int = 1000  # sentences that may wait for a model
    batch_size: int = 32  # sentences translated together
    wait: float = 0.01  # seconds that the first of a batch waits for others
    timeout: float = 60.0  # seconds that a request may take, and the most it may ask for
    log_text: bool = False  # log what is translated


def parse_host(text: str) -> str:
    """A name of this server as browsers send it: in small letters, without a port."""
    name = bracket_ipv6(text.lower()) if text.count(":") > 1 else text.lower()
    if not HOST.fullmatch(name):
        raise UserError(f"--allow-host {text}: a name alone, as in translate.example.org, or *")
    return name


def parse_origin(text: str) -> str:
    """A site as browsers send it: in small letters, without a path."""
    origin = text.lower().removesuffix("/")
    if not ORIGIN.fullmatch(origin):
        raise UserError(
            f"--allow-origin {text}: scheme, name and no path, as in https://www.example.org; "
            "every site needs its own"
        )
    return origin


def bracket_ipv6(host: str) -> str:
    """As it stands in an address, where the numbers of IPv6 have brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
