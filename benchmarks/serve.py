"""Throughput, latency and exactness of the server under load.

    covnmt demo demo
    python benchmarks/serve.py --model demo/gru10 --text demo/text/test.src

Clients and server share the cores of one machine; every figure notes what share of them other
programs used.

throughput  requests per second of 32 clients, compared with one client and a server without
            batching (one thread per sentence or all cores, whichever is faster)
latency     99th percentile compared with the median, while requests arrive at random (Poisson) at
            half that throughput on separate connections, from when each was due to its complete
            answer; also for a single client, since long sentences take longer on an idle server too
exactness   10,000 requests of 32 clients (beam 1), a tenth of which disconnect at random: every
            other request gets its own answer, once

Throughput and latency are measured for all sentences and for those of 8 to 20 words.
"""

import argparse
import asyncio
import gc
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import argument_parser, argument_values, process_tree, save

CLIENTS = 32
# Without batches: one thread for a sentence, or all cores; whichever is faster counts.
ONE_AT_A_TIME = [
    ("--batch-size", "1", "--wait", "0"),
    ("--batch-size", "1", "--wait", "0", "--workers", "1", "--threads", str(os.cpu_count() or 1)),
]
START = "from covnmt.cli.serve import app; app()"
HANG_UP = 0.1


@contextmanager
def server(model: Path, *options: str) -> Iterator[tuple[int, int]]:
    """Start the server in a separate process; give its port and process id."""
    command = [sys.executable, "-c", START, "--model", str(model), "--port", "0", "--rate", "0"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            first = process.stderr.readline()
            found = re.search(r":(\d+)$", first.strip())
            if found is None:
                raise SystemExit(first + process.stderr.read())
            # its log must be read, or the server would wait for room in the pipe
            asyncio.get_running_loop().run_in_executor(None, process.stderr.read)
            yield int(found[1]), process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


class Client:
    """A persistent connection; without an HTTP library, as the clients share the cores."""

    def __init__(self, port: int, beam: int) -> None:
        self.port, self.beam = port, beam
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def send(self, text: str) -> None:
        """Send a request for a translation."""
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        body = json.dumps({"text": text, "beam": self.beam}).encode()
        head = (
            "POST /v1/translate HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)
        await self.writer.drain()

    async def receive(self) -> tuple[int, dict[str, Any]]:
        """Return status and content of one answer."""
        assert self.reader is not None
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        found = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
        assert found is not None, head
        body = await self.reader.readexactly(int(found[1]))
        return int(head.split()[1]), json.loads(body)

    async def ask(self, text: str) -> str:
        """Return the translation."""
        await self.send(text)
        status, answer = await self.receive()
        assert status == 200, answer
        return str(answer["translations"][0]["text"])

    async def surplus(self) -> bytes:
        """Return what the server sent without a request."""
        if self.reader is None:
            return b""
        try:
            return await asyncio.wait_for(self.reader.read(1), 0.2)
        except TimeoutError:
            return b""

    def hang_up(self) -> None:
        """Close the connection without waiting for an answer."""
        if self.writer is not None:
            self.writer.transport.abort()
        self.reader = self.writer = None


async def throughput(port: int, beam: int, texts: Sequence[str], clients: int) -> float:
    """Return requests per second of clients that each wait for an answer before the next."""
    queue = iter(texts)

    async def work() -> None:
        client = Client(port, beam)
        for text in queue:
            await client.ask(text)
        client.hang_up()

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(clients)))
    return len(texts) / (time.perf_counter() - began)


async def load(
    port: int, pid: int, beam: int, texts: Sequence[str], clients: int
) -> dict[str, float]:
    """Return requests per second, and the CPU time of a request."""
    with cpu_use(pid, len(texts)) as used:
        rate = await throughput(port, beam, texts, clients)
    return {"rate": rate, **used}


@contextmanager
def cpu_use(pid: int, requests: int) -> Iterator[dict[str, float]]:
    """Fill in the CPU time of a request, by process, and the share of cores others used."""
    used: dict[str, float] = {}
    before, began = cpu_seconds(pid), time.perf_counter()
    yield used
    seconds = time.perf_counter() - began
    server, workers, client, machine = (
        b - a for a, b in zip(before, cpu_seconds(pid), strict=True)
    )
    used["server_cpu_ms"] = 1000 * server / requests
    used["workers_cpu_ms"] = 1000 * workers / requests
    used["client_cpu_ms"] = 1000 * client / requests
    others = machine - server - workers - client
    used["others"] = max(0.0, others / (seconds * (os.cpu_count() or 1)))


def cpu_seconds(pid: int) -> tuple[float, float, float, float]:
    """Return CPU seconds of the server, its workers, this process, and the whole machine."""
    tick = os.sysconf("SC_CLK_TCK")

    def spent(each: int) -> float:
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / tick

    workers = sum(spent(each) for each in process_tree(pid) - {pid})
    # user, nice, system, idle, waiting for disks, interrupts (two kinds), taken by other machines
    machine = [int(field) for field in Path("/proc/stat").read_text().split()[1:9]]
    busy = sum(machine[:3] + machine[5:]) / tick
    return spent(pid), workers, time.process_time(), busy


async def latencies(port: int, beam: int, texts: Sequence[str], rate: float) -> list[float]:
    """Return the sorted latencies while requests arrive at random at this rate."""
    taken: list[float] = []
    chance = random.Random(1)

    async def ask(text: str, due: float) -> None:
        client = Client(port, beam)
        await client.ask(text)
        taken.append(time.perf_counter() - due)
        client.hang_up()

    tasks = []
    due = time.perf_counter()
    for text in texts:
        due += chance.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(ask(text, due)))
    await asyncio.gather(*tasks)
    return sorted(taken)


async def latency_row(
    port: int, pid: int, beam: int, texts: Sequence[str], rate: float
) -> dict[str, Any]:
    """Measure latency on an idle server and at this rate."""
    client, idle = Client(port, beam), []
    for text in texts[: len(texts) // 4]:
        began = time.perf_counter()
        await client.ask(text)
        idle.append(time.perf_counter() - began)
    client.hang_up()
    with cpu_use(pid, len(texts)) as used:
        busy = await latencies(port, beam, texts, rate)
    at_rate = {**percentiles(busy), **used}
    return {"rate": rate, "idle": percentiles(sorted(idle)), "half load": at_rate}


def percentiles(taken: Sequence[float]) -> dict[str, float]:
    median, p99 = taken[len(taken) // 2], taken[int(0.99 * len(taken))]
    return {"median": median, "p99": p99, "ratio": p99 / median}


async def exactness(port: int, expected: dict[str, str], requests: int) -> dict[str, int]:
    """Send many requests, disconnect at random; count right, wrong, lost and surplus answers."""
    chance = random.Random(2)
    texts = chance.choices(list(expected), k=requests)
    queue = iter(texts)
    counts: Counter[str] = Counter()

    async def work() -> None:
        client = Client(port, beam=1)
        for text in queue:
            if chance.random() < HANG_UP:
                await client.send(text)
                await asyncio.sleep(chance.random() * 0.02)
                client.hang_up()
                counts["hung up"] += 1
                continue
            try:
                answer = await asyncio.wait_for(client.ask(text), 60)
                counts["right" if answer == expected[text] else "wrong"] += 1
            except (OSError, EOFError, TimeoutError, AssertionError):
                counts["lost"] += 1
                client.hang_up()
        counts["twice"] += len(await client.surplus())
        client.hang_up()

    await asyncio.gather(*(work() for _ in range(CLIENTS)))
    return {key: counts[key] for key in ("right", "wrong", "lost", "twice", "hung up")}


async def measure(model: Path, lines: Sequence[str], arguments: argparse.Namespace) -> Any:
    """Measure throughput, latency and exactness."""
    beam, count = arguments.beam, arguments.requests
    ordinary = [line for line in lines if 8 <= len(line.split()) <= 20]
    pools = {
        name: random.Random(0).choices(pool, k=count)
        for name, pool in (("all", lines), ("8 to 20 words", ordinary))
    }
    expected: dict[str, str] = {}
    alone: dict[str, dict[str, float]] = {}
    for options in ONE_AT_A_TIME:
        with server(model, *options) as (port, pid):
            client = Client(port, beam=1)
            for text in lines[: arguments.pool]:
                expected[text] = await client.ask(text)
            client.hang_up()
            for name, pool in pools.items():
                row = await load(port, pid, beam, pool[: count // 4], 1)
                alone[name] = max(alone.get(name, row), row, key=lambda each: each["rate"])
    with server(model) as (port, pid):
        await throughput(port, beam, lines[:CLIENTS], CLIENTS)
        together = {
            name: await load(port, pid, beam, pool, CLIENTS) for name, pool in pools.items()
        }
        latency = {
            name: await latency_row(port, pid, beam, pool, together[name]["rate"] / 2)
            for name, pool in pools.items()
        }
        found = await exactness(port, expected, arguments.exact)
    return {
        "throughput": {
            name: {
                "alone": alone[name],
                "together": row,
                "ratio": row["rate"] / alone[name]["rate"],
            }
            for name, row in together.items()
        },
        "latency": latency,
        "exactness": found,
        "load_average": os.getloadavg(),
    }


def main() -> None:
    """Measure and write the result file."""
    parser = argument_parser(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="model directory")
    parser.add_argument("--text", type=Path, required=True, help="one sentence a line")
    parser.add_argument("--beam", type=int, default=5, help="beam size")
    parser.add_argument(
        "--requests", type=int, default=2000, help="throughput and latency: requests"
    )
    parser.add_argument("--pool", type=int, default=200, help="exactness: different sentences")
    parser.add_argument("--exact", type=int, default=10_000, help="exactness: requests")
    arguments = parser.parse_args()
    lines = arguments.text.read_text("utf-8").splitlines()
    # a full garbage collection would stop the clients for longer than most answers take
    gc.collect()
    gc.freeze()
    found = asyncio.run(measure(arguments.model, lines, arguments))
    print(json.dumps(found, indent=2))
    save("serve", {"settings": argument_values(arguments), "clients": CLIENTS, **found}, arguments)


if __name__ == "__main__":
    main()
