"""Requests per second and latency of the server, with batching and without.

    covnmt corpus kftt corpora/kftt
    python benchmarks/serve.py --model ja-en --text corpora/kftt/test.ja

Clients each send a sentence, wait for its translation, and send the next. Two servers run side by
side and are measured in turns: one with default settings, and one that translates every sentence by
itself (`--batch-size 1 --wait 0`). With `--libretranslate PORT`, a LibreTranslate that runs on this
machine is measured too, by the same sentences.

Clients and servers share the cores of one machine; every figure notes what share of them other
programs used.
"""

import argparse
import asyncio
import gc
import json
import os
import random
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import argument_parser, argument_values, process_tree, save, summary
from server_process import ServerProcess, cpu_ticks

OPTIONS = {
    "batches": (),
    "batches, wait 10 ms": ("--wait", "10"),
    "one sentence at a time": ("--batch-size", "1", "--wait", "0"),
}
LIBRETRANSLATE = "LibreTranslate"
CLIENTS = (1, 8, 64)
REQUESTS = {1: 150, 8: 400, 64: 1500}  # of each repetition, by the number of clients
GOAL = 3.0  # p99 / p50 of 64 clients


class Client:
    """A persistent connection; without an HTTP library, as the clients share the cores."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self.port, self.address = port, address
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def send(self, content: dict[str, Any], path: str = "/v1/translate") -> None:
        """Send a request, over a new connection if the server has closed the last one."""
        if self.reader is not None and self.reader.at_eof():
            self.hang_up()
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(
                "127.0.0.1", self.port, local_addr=(self.address, 0)
            )
        body = json.dumps(content).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
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


@dataclass(frozen=True)
class Target:
    """A server to measure."""

    name: str
    port: int
    pid: int | None  # of a server that this script started
    languages: tuple[str, str]

    def request(self, text: str) -> tuple[dict[str, Any], str]:
        """Return a request for the translation of a sentence, and its path."""
        if self.name == LIBRETRANSLATE:
            source, target = self.languages
            return {"q": text, "source": source, "target": target}, "/translate"
        return {"text": text}, "/v1/translate"


async def closed_loop(target: Target, texts: Sequence[str], clients: int) -> list[float]:
    """Return the latencies of requests of clients that each wait for an answer before the next."""
    queue, taken = iter(texts), []

    async def work(number: int) -> None:
        client = Client(target.port, f"127.0.3.{number + 1}")
        for text in queue:
            began = time.perf_counter()
            await client.send(*target.request(text))
            status, answer = await client.receive()
            assert status == 200, answer
            taken.append(time.perf_counter() - began)
        client.hang_up()

    await asyncio.gather(*map(work, range(clients)))
    return taken


@contextmanager
def cpu_use(pid: int | None, requests: int) -> Iterator[dict[str, float]]:
    """Fill in the CPU time of a request, by process, and the share of cores others used."""
    used: dict[str, float] = {}
    before, began = cpu_seconds(pid), time.perf_counter()
    yield used
    seconds = time.perf_counter() - began
    server, workers, client, machine = (
        b - a for a, b in zip(before, cpu_seconds(pid), strict=True)
    )
    if pid is not None:
        used["server_cpu_ms"] = 1000 * server / requests
        used["workers_cpu_ms"] = 1000 * workers / requests
        others = machine - server - workers - client
        used["others"] = max(0.0, others / (seconds * (os.cpu_count() or 1)))
    used["client_cpu_ms"] = 1000 * client / requests
    used["load_average"] = os.getloadavg()[0]


def cpu_seconds(pid: int | None) -> tuple[float, float, float, float]:
    """Return CPU seconds of the server, its workers, this process, and the whole machine."""
    tick = os.sysconf("SC_CLK_TCK")
    # user, nice, system, idle, waiting for disks, interrupts (two kinds), taken by other machines
    machine = [int(field) for field in Path("/proc/stat").read_text().split()[1:9]]
    busy = sum(machine[:3] + machine[5:]) / tick
    if pid is None:
        return 0, 0, time.process_time(), busy
    workers = sum(cpu_ticks(each) / tick for each in process_tree(pid) - {pid})
    return cpu_ticks(pid) / tick, workers, time.process_time(), busy


async def measure_once(target: Target, texts: Sequence[str], clients: int) -> dict[str, float]:
    """Measure a number of clients."""
    with cpu_use(target.pid, len(texts)) as used:
        began = time.perf_counter()
        taken = sorted(await closed_loop(target, texts, clients))
        seconds = time.perf_counter() - began
    p50, p99 = taken[len(taken) // 2], taken[int(0.99 * len(taken))]
    return {"rate": len(taken) / seconds, "p50": p50, "p99": p99, "tail": p99 / p50, **used}


async def measure(
    targets: Sequence[Target], lines: Sequence[str], arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """Measure all servers in turns; return a row for each server and number of clients."""
    chance = random.Random(0)
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for target in targets:
        await closed_loop(target, lines[:64], 32)  # to warm up
    for _ in range(arguments.repeats):
        for clients in arguments.clients:
            texts = chance.choices(lines, k=round(REQUESTS[clients] * arguments.share))
            for target in targets:
                row = await measure_once(target, texts, clients)
                found.setdefault((target.name, clients), []).append(row)
                shown = f"{row['rate']:.1f}/s, p50 {1000 * row['p50']:.0f} ms"
                print(f"{target.name}, {clients} clients: {shown}, p99 / p50 {row['tail']:.2f}")
    return [
        {
            "server": name,
            "clients": clients,
            **{key: summary([row[key] for row in rows]) for key in rows[0]},
            # in turns, so that what other programs used touches both alike
            "speedup": statistics.median(
                mine["rate"] / other["rate"]
                for mine, other in zip(rows, found[targets[-1].name, clients], strict=True)
            ),
        }
        for (name, clients), rows in found.items()
    ]


def main() -> None:
    """Measure and write the result file."""
    parser = argument_parser(__doc__)
    parser.add_argument("--model", default="ja-en", help="model directory or bundled model")
    parser.add_argument("--text", type=Path, required=True, help="one sentence a line")
    parser.add_argument("--characters", type=int, nargs=2, default=(10, 100), help="of a sentence")
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS, choices=CLIENTS)
    parser.add_argument("--repeats", type=int, default=3, help="how often each is measured")
    parser.add_argument("--share", type=float, default=1.0, help="of the usual number of requests")
    parser.add_argument("--options", default="", help="more options of both servers")
    parser.add_argument("--libretranslate", type=int, metavar="PORT", help="of a LibreTranslate")
    parser.add_argument("--languages", nargs=2, default=("ja", "en"), help="for LibreTranslate")
    arguments = parser.parse_args()
    least, most = arguments.characters
    lines = [
        line
        for line in arguments.text.read_text("utf-8").splitlines()
        if least <= len(line) <= most
    ]
    # a full garbage collection would stop the clients for longer than most answers take
    gc.collect()
    gc.freeze()
    with ExitStack() as stack:
        targets = []
        if arguments.libretranslate:
            port, languages = arguments.libretranslate, tuple(arguments.languages)
            targets.append(Target(LIBRETRANSLATE, port, None, languages))
        for name, options in OPTIONS.items():
            command = ("--rate", "0", *arguments.options.split(), *options)
            server = stack.enter_context(ServerProcess([arguments.model], *command))
            targets.append(Target(name, server.port, server.pid, ("", "")))
        rows = asyncio.run(measure(targets, lines, arguments))
    settings = argument_values(arguments)
    save("serve", {"settings": settings, "sentences": len(lines), "rows": rows}, arguments)


if __name__ == "__main__":
    main()
