"""How the server behaves; the defaults are safe on a machine that others can reach."""

from dataclasses import dataclass

from covnmt.pool import cores

WORKERS = min(cores(), 4)
THREADS = max(1, cores() // WORKERS)


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
