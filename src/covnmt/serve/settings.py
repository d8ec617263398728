"""Settings of the server; the defaults are safe on a machine that others can reach."""

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from covnmt.base.config import PositiveInt, Settings, validate_settings
from covnmt.base.cpus import available_cpus
from covnmt.base.errors import UserError
from covnmt.base.files import read_lines
from covnmt.base.recipe import read_toml

WORKERS = min(available_cpus(), 4)
THREADS = max(1, available_cpus() // WORKERS)
HOST = re.compile(r"\*|[^\s:/\[\]*]+|\[[0-9a-f:.]+\]")
ORIGIN = re.compile(r"https?://([^\s:/\[\]*@]+|\[[0-9a-f:.]+\])(:\d+)?")


class ApiKey(Settings):
    """An API key, and limits of its own instead of those for everybody."""

    key: str
    name: str = Field("", description="for the log")
    rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None, description="requests per second; without it those of an address"
    )
    burst: PositiveInt = Field(100, description="requests at once, if it has a rate")
    max_sentences: PositiveInt | None = Field(None, description="sentences in one request")


class ServeSettings(Settings):
    """Settings of the server, apart from its models."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(8000, description="0: any free port")
    api_keys: tuple[ApiKey, ...] = Field(
        (), description="every request except those of the page and the probes needs one of them"
    )
    allow_origins: tuple[str, ...] = Field((), description="other sites that may call this server")
    allow_hosts: tuple[str, ...] = Field(
        (), description="names of this server, besides its address and localhost"
    )
    rate: Annotated[float, Field(ge=0)] = Field(
        20.0, description="requests per second from one address, on average; 0: no limit"
    )
    burst: PositiveInt = Field(100, description="requests from one address at once")
    max_body: PositiveInt = Field(1 << 18, description="bytes of a request")
    max_sentences: PositiveInt = Field(500, description="sentences in one request")
    max_beam: PositiveInt = Field(20, description="largest beam that a request may ask for")
    max_cells: PositiveInt = Field(
        20_000_000,
        description="cells of all attention matrices of a request: estimated tokens squared times "
        "n-best; ten times as many if it asks for alignments",
    )
    max_markup: PositiveInt = Field(
        20_000,
        description="characters of the documents of a request that may be markup: `<` and `&` of "
        "HTML, signs and line breaks of Markdown and subtitles",
    )
    workers: PositiveInt = Field(WORKERS, description="processes per model; one on a GPU")
    threads: PositiveInt = Field(THREADS, description="CPU threads of each process")
    queue: PositiveInt = Field(
        1000, description="sentences that may wait for a model; then requests get status 429"
    )
    batch_size: PositiveInt = Field(32, description="sentences translated together")
    wait: Annotated[float, Field(ge=0)] = Field(
        0.0, description="seconds that the first sentence of a batch waits for others"
    )
    timeout: Annotated[float, Field(gt=0)] = Field(
        60.0, description="seconds that a request may take"
    )
    max_connections: PositiveInt = Field(1000, description="open connections")
    max_connections_per_address: PositiveInt = Field(
        250, description="open connections from one address"
    )
    header_timeout: Annotated[float, Field(gt=0)] = Field(
        10.0, description="seconds until a connection has sent a whole header"
    )
    body_timeout: Annotated[float, Field(gt=0)] = Field(
        30.0, description="seconds until a request has sent its whole body"
    )
    write_timeout: Annotated[float, Field(gt=0)] = Field(
        30.0, description="seconds that a client may not read its answer"
    )
    grace: Annotated[float, Field(ge=0)] = Field(
        30.0, description="seconds that running requests may take after a stop"
    )
    stall_timeout: Annotated[float, Field(gt=0)] = Field(
        15.0, description="seconds without a sign of life after which a worker process is replaced"
    )
    unload_after: Annotated[float, Field(ge=0)] = Field(
        0.0,
        description="unload a model after this many idle seconds, until the next request; 0: never",
    )
    log_text: bool = Field(False, description="write source texts to the log")


def parse_host(text: str) -> str:
    """Return a name of this server as browsers send it: in lower case, without a port."""
    name = bracket_ipv6(text.lower()) if text.count(":") > 1 else text.lower()
    if not HOST.fullmatch(name):
        raise UserError(f"--allow-host {text}: a name alone, as in translate.example.org, or *")
    return name


def parse_origin(text: str) -> str:
    """Return a site as browsers send it: in lower case, without a path."""
    origin = text.lower().removesuffix("/")
    if not ORIGIN.fullmatch(origin):
        raise UserError(
            f"--allow-origin {text}: scheme, name and no path, as in https://www.example.org; "
            "every site needs its own"
        )
    return origin


def read_api_keys(path: Path) -> tuple[ApiKey, ...]:
    """Read keys from a file, so that no list of processes shows them.

    A TOML file has a table for each client, by name, with `key` and its limits. Of any other file
    the first line is the only key.
    """
    if path.suffix != ".toml":
        key = next(iter(read_lines(path)), "").strip()
        return (ApiKey(key=check_api_key(key, f"{path}, line 1")),)
    keys: list[ApiKey] = []
    for name, table in read_toml(path).items():
        if not isinstance(table, dict):
            raise UserError(f"{path}: {name}: write a table, [{name}], with key = ...")
        check_api_key(table.get("key"), f"{path}: {name}: key")
        keys.append(_read_table(path, name, table))
        if any(key.key == keys[-1].key for key in keys[:-1]):
            raise UserError(f"{path}: {name}: another client has this key")
    if not keys:
        raise UserError(f"{path}: has no keys; write [name] and key = ... for each client")
    return tuple(keys)


def check_api_key(key: Any, place: str) -> str:
    """Refuse what headers cannot send or is easily guessed; the message does not repeat it."""
    if not isinstance(key, str) or len(key) < 8 or not (key.isascii() and key.isprintable()):
        raise UserError(f"{place}: an API key needs at least 8 ASCII characters")
    return key


def _read_table(path: Path, name: str, table: dict[str, Any]) -> ApiKey:
    return validate_settings(ApiKey, {**table, "name": name}, lambda _: f"{path}: {name}: ")


def bracket_ipv6(host: str) -> str:
    """Return a host as it is written in a URL, where IPv6 addresses have brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
