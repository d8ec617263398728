"""Memory of the server over 30,000 good and bad requests.

    covnmt demo demo
    python benchmarks/soak.py --model demo/gru10 --text demo/text/test.src

Eight requests per second for an hour are about 30,000. Eight clients send them as fast as they are
answered: oversized bodies, sentences of 10,000 words, invalid UTF-8, control characters, unknown
models, wrong types, invalid JSON, and between them translations, streams, alignments, and clients
that disconnect. Resident memory of the server and its workers is read after every thousand
requests; the first two thousand do not count, since allocators and caches fill up.
"""

import argparse
import asyncio
import json
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from harness import argument_parser, argument_values, process_tree, save
from serve import server

CLIENTS, EVERY, WARM = 8, 1000, 2
PAGE = 4096
HANG_UP = 0.05

Request = tuple[str, bytes]


def bad_requests() -> list[Request]:
    """Return requests that are answered with 4xx."""
    bodies: list[Any] = [
        {"text": "a" * 1_000_000},
        {"text": "word " * 10_000},
        {"text": "word " * 300},
        {"text": "a\n" * 600},
        {"text": "a\x00b"},
        {"text": 3},
        {"text": "a", "model": "none"},
        {"text": "a", "model": "../../etc"},
        {"text": "a", "beam": 10_000},
        {"text": "a", "unknown": [[[[1]]]]},
        {},
    ]
    raw = [b"{", b'{"text": "\xff"}', b'{"text": ' + b"[" * 50_000, b"\x00" * 1000, b""]
    pairs = {"pairs": [{"source": "a " * 300, "target": "b"}]}
    return [
        *(("/v1/translate", json.dumps(body).encode()) for body in bodies),
        *(("/v1/translate", body) for body in raw),
        ("/v1/align", json.dumps(pairs).encode()),
        ("/translate", json.dumps({"q": "a", "target": "nowhere"}).encode()),
        ("/v1/nothing", b"{}"),
    ]


def good_request(chance: random.Random, lines: Sequence[str]) -> Request:
    """Return a request that is answered with 200."""
    line = chance.choice(lines)
    if chance.random() < 0.2:
        pair = {"source": line, "target": chance.choice(lines)}
        return "/v1/align", json.dumps({"pairs": [pair]}).encode()
    parts = chance.sample(["tokens", "alignment", "coverage", "remarks"], 2)
    body = json.dumps({"text": line, "beam": 1, "return": parts}).encode()
    return chance.choice(["/v1/translate", "/v1/translate/stream"]), body


async def ask(port: int, request: Request, hang_up: float | None) -> int:
    """Return the status of the answer, 0 if this client disconnects before."""
    path, body = request
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    try:
        writer.write(head.encode() + body)
        if hang_up is not None:
            await asyncio.sleep(hang_up)
            return 0
        answer = await asyncio.wait_for(reader.read(), 60)
        return int(answer.split(None, 2)[1])
    finally:
        writer.transport.abort()


def resident(root: int) -> int:
    """Return the resident bytes of a process and all its descendants."""
    pages = [Path(f"/proc/{pid}/statm").read_text().split()[1] for pid in process_tree(root)]
    return sum(map(int, pages)) * PAGE


async def soak(
    port: int, requests: Iterator[Request], chance: random.Random, measure: Callable[[], int]
) -> tuple[Counter[int], list[int]]:
    """Return counts of statuses, and memory after every thousand requests."""
    statuses: Counter[int] = Counter()
    curve = [measure()]

    async def work() -> None:
        for request in requests:
            hang_up = 0.02 * chance.random() if chance.random() < HANG_UP else None
            try:
                statuses[await ask(port, request, hang_up)] += 1
            except ConnectionError:
                # the server does not read the body of a request that its headers rule out
                statuses[-1] += 1
            if statuses.total() % EVERY == 0:
                curve.append(measure())

    await asyncio.gather(*(work() for _ in range(CLIENTS)))
    return statuses, curve


async def measure(arguments: argparse.Namespace, lines: Sequence[str]) -> dict[str, Any]:
    """Send all requests to a server and measure its memory."""
    chance = random.Random(1)
    bad = bad_requests()
    requests = (
        good_request(chance, lines) if chance.random() < 0.5 else chance.choice(bad)
        for _ in range(arguments.requests)
    )
    with server(arguments.model) as (port, pid):
        statuses, curve = await soak(port, requests, chance, lambda: resident(pid))
    slope, _ = statistics.linear_regression(range(len(curve) - WARM), curve[WARM:])
    mib = [round(value / 2**20, 2) for value in curve]
    names = {0: "hung up", -1: "reset"}
    return {
        "statuses": {str(names.get(k, k)): n for k, n in sorted(statuses.items())},
        "resident_mib": mib,
        "growth_mib": round(mib[-1] - mib[WARM], 2),
        "growth_mib_per_1000_requests": round(slope / 2**20, 4),
    }


def main() -> None:
    """Measure and write the result file."""
    parser = argument_parser(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="model directory")
    parser.add_argument("--text", type=Path, required=True, help="one sentence a line")
    parser.add_argument("--requests", type=int, default=30_000, help="in all")
    arguments = parser.parse_args()
    lines = arguments.text.read_text("utf-8").splitlines()
    found = asyncio.run(measure(arguments, lines))
    print(json.dumps(found, indent=2))
    save("soak", {"settings": argument_values(arguments), "clients": CLIENTS, **found}, arguments)


if __name__ == "__main__":
    main()
