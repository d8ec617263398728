"""10,000 requests with hang-ups, slow clients and killed workers: is any lost, doubled or kept?

    covnmt corpus kftt corpora/kftt
    python benchmarks/soak.py --model ja-en --text corpora/kftt/test.ja

Clients send requests as fast as they are answered. Most ask for the translation of one to three
sentences of the text, by one answer or a stream. The expected translations are those that the same
server gives for each sentence alone, before; an answer must have the sentences that were asked for
and their translations, once. Some clients hang up at a random moment, send or read slowly, or send
what must be refused. After every 400 requests a worker process is killed, always the newest: the
oldest lives through the whole run, so its memory can be followed.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import argument_parser, argument_values, save
from serve import Client
from server_process import ServerProcess, cpu_ticks, open_files, resident_bytes

CLIENTS = 16
KILL_EVERY, SAMPLE_EVERY = 400, 100
HANG_UP, SLOW, BAD, STREAM = 0.12, 0.03, 0.15, 0.2
PATIENCE = 120
# Memory counts as flat if its median grows by less from the second to the last quarter of the run.
FLAT = 0.05

Request = tuple[str, bytes]


def bad_requests() -> list[Request]:
    """Return requests that are answered with 4xx."""
    bodies: list[Any] = [
        {"text": "a" * 1_000_000},
        {"text": "word " * 10_000},
        {"text": "a\n" * 600},
        {"text": 3},
        {"text": "a", "model": "none"},
        {"text": "a", "model": "../../etc"},
        {"text": "a", "beam": 10_000},
        {"text": "a", "unknown": [[[[1]]]]},
        {},
    ]
    raw = [b"{", b'{"text": "\xff"}', b'{"text": ' + b"[" * 50_000, b"\x00" * 1000, b""]
    pairs = {"pairs": [{"source": "a " * 3000, "target": "b"}]}
    return [
        *(("/v1/translate", json.dumps(body).encode()) for body in bodies),
        *(("/v1/translate", body) for body in raw),
        ("/v1/align", json.dumps(pairs).encode()),
        ("/translate", json.dumps({"q": "a", "target": "nowhere"}).encode()),
        ("/v1/nothing", b"{}"),
    ]


@dataclass
class Soak:
    """The server under test, what it should answer, and what it did."""

    server: ServerProcess
    expected: dict[str, str]
    chance: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    curve: list[dict[str, float]] = field(default_factory=list)
    sent: int = 0

    async def run(self, requests: int) -> None:
        """Send all requests."""
        numbers = iter(range(1, requests + 1))
        self.sample()
        await asyncio.gather(*(self.client(each, numbers) for each in range(CLIENTS)))
        self.sample()

    async def client(self, number: int, numbers: Iterator[int]) -> None:
        """Send requests until there are no more; ordinary ones over a connection that stays."""
        address = f"127.0.2.{number + 1}"
        steady = Client(self.server.port, address)
        bad = bad_requests()
        for request_number in numbers:
            self.sent = request_number
            if request_number % SAMPLE_EVERY == 0:
                self.sample()
            if request_number % KILL_EVERY == 0:
                self.kill_a_worker()
            kind = self.chance.random()
            try:
                if kind < HANG_UP:
                    await self.hang_up(address)
                elif kind < HANG_UP + SLOW:
                    await self.ask_alone(address, slow=True)
                elif kind < HANG_UP + SLOW + BAD:
                    await self.refused(address, *self.chance.choice(bad))
                elif kind < HANG_UP + SLOW + BAD + STREAM:
                    await self.ask_alone(address, slow=False)
                else:
                    await self.ask_again(steady)
            except (OSError, EOFError, TimeoutError, AssertionError, ValueError) as error:
                self.fail("lost", repr(error))
                steady.hang_up()
        if surplus := await steady.surplus():
            self.fail("doubled", repr(surplus))
        steady.hang_up()

    def fail(self, kind: str, why: str) -> None:
        self.counts[kind] += 1
        self.problems.append(f"{kind}: {why[:300]}")

    def new_request(self) -> list[str]:
        """Return one to three sentences, each a text of its own."""
        return self.chance.choices(list(self.expected), k=self.chance.choice((1, 1, 2, 3)))

    def judge(
        self, texts: Sequence[str], status: int, sources: list[str], found: list[str]
    ) -> None:
        """Count an answer as right or wrong."""
        self.statuses[status] += 1
        if status != 200:
            self.fail("failed", f"status {status}")
        elif list(sources) != list(texts) or list(found) != [self.expected[text] for text in texts]:
            self.fail("wrong", f"{texts} became {sources}: {found}")
        else:
            self.counts["right"] += 1

    async def ask_again(self, client: Client) -> None:
        """Ask over a connection that is used again and again."""
        texts = self.new_request()
        await client.send({"text": texts, "beam": 1})
        status, answer = await asyncio.wait_for(client.receive(), PATIENCE)
        self.judge(texts, status, *read_answer(answer))

    async def ask_alone(self, address: str, slow: bool) -> None:
        """Ask over a new connection, for a stream or, slowly, for one answer; read to its end."""
        texts = self.new_request()
        path = "/v1/translate" if slow else "/v1/translate/stream"
        data = http_request(path, json.dumps({"text": texts, "beam": 1}).encode())
        reader, writer = await connect(self.server.port, address)
        try:
            for start in range(0, len(data), 100 if slow else len(data)):
                writer.write(data[start : start + (100 if slow else len(data))])
                await asyncio.sleep(0.1 * self.chance.random() if slow else 0)
            received = b""
            while block := await asyncio.wait_for(reader.read(100 if slow else 65536), PATIENCE):
                received += block
                await asyncio.sleep(0.1 * self.chance.random() if slow else 0)
        finally:
            writer.transport.abort()
        status, body = split_answers(received)
        if slow:
            self.judge(texts, status, *read_answer(json.loads(body)))
            return
        events = re.findall(r"^event: (\w+)\ndata: (.*)$", body.decode(), re.MULTILINE)
        sources = [json.loads(data)["source"] for name, data in events if name == "sentence"]
        last, content = events[-1]
        if last != "done" or [name for name, _ in events].count("done") != 1:
            self.fail("failed", f"stream ended with {last}: {content}")
        else:
            self.judge(texts, status, sources, json.loads(content)["texts"])

    async def refused(self, address: str, path: str, body: bytes) -> None:
        """Send what must be refused."""
        reader, writer = await connect(self.server.port, address)
        try:
            writer.write(http_request(path, body))
            received = await asyncio.wait_for(reader.read(), PATIENCE)
        except ConnectionError:
            # the server does not read the body of a request that its headers rule out
            self.counts["bad, reset"] += 1
            return
        finally:
            writer.transport.abort()
        status, _ = split_answers(received)
        self.statuses[status] += 1
        if 400 <= status < 500:
            self.counts["bad, refused"] += 1
        else:
            self.fail("bad accepted", f"{status} {body[:80]!r}")

    async def hang_up(self, address: str) -> None:
        """Disconnect before, in or after the request, or in the middle of the answer."""
        data = http_request(
            self.chance.choice(["/v1/translate", "/v1/translate/stream"]),
            json.dumps({"text": self.new_request(), "beam": 1}).encode(),
        )
        _, writer = await connect(self.server.port, address)
        part = self.chance.choice([0, self.chance.randrange(len(data)), len(data), len(data)])
        writer.write(data[:part])
        await asyncio.sleep(0.3 * self.chance.random() ** 2)
        writer.transport.abort()
        self.counts["hung up"] += 1

    def kill_a_worker(self) -> None:
        """Kill the newest worker process."""
        workers = sorted(self.server.workers())
        if len(workers) > 1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(workers[-1], signal.SIGKILL)
                self.counts["workers killed"] += 1

    def sample(self) -> None:
        """Measure the memory of the server and of its oldest worker, and its open files."""
        pid = self.server.pid
        workers = sorted(self.server.workers())
        self.curve.append(
            {
                "requests": self.sent,
                "server_mib": round(resident_bytes(pid) / 2**20, 2),
                "oldest_worker_mib": round(resident_bytes(workers[0]) / 2**20, 2),
                "all_mib": round(sum(self.server.resident().values()) / 2**20, 2),
                "open_files": open_files(pid),
                "cpu_seconds": cpu_ticks(pid) / os.sysconf("SC_CLK_TCK"),
            }
        )


async def connect(port: int, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0), limit=2**14)


def http_request(path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def read_answer(answer: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the sources and translations of an answer."""
    rows = answer.get("translations", [])
    return [row["sentences"][0]["source"] for row in rows], [row["text"] for row in rows]


def split_answers(received: bytes) -> tuple[int, bytes]:
    """Return status and body of the only answer in what was received."""
    head, separator, body = received.partition(b"\r\n\r\n")
    assert separator, f"no answer: {received[:80]!r}"
    if b"transfer-encoding: chunked" in head.lower():
        whole, rest = b"", body
        while True:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size, 16)
            whole, rest = whole + rest[:length], rest[length + 2 :]
            if not length:
                break
        body, surplus = whole, rest
    else:
        found = re.search(rb"content-length: (\d+)", head.lower())
        assert found is not None, head
        body, surplus = body[: int(found[1])], body[int(found[1]) :]
        assert len(body) == int(found[1]), "the answer is not complete"
    assert not surplus, f"more than one answer: {surplus[:80]!r}"
    return int(head.split(None, 2)[1]), body


def growth(curve: Sequence[dict[str, float]], key: str) -> dict[str, float]:
    """Compare the last quarter of the run with the second; the first fills caches."""
    requests = curve[-1]["requests"]
    second, last = (
        statistics.median(
            row[key] for row in curve if low * requests <= row["requests"] <= high * requests
        )
        for low, high in ((0.25, 0.5), (0.75, 1))
    )
    return {"second quarter": second, "last quarter": last, "growth": round(last / second - 1, 4)}


async def measure(arguments: argparse.Namespace, lines: Sequence[str]) -> dict[str, Any]:
    """Send all requests to a server; return what became of them, and its memory."""
    chance = random.Random(arguments.seed)
    options = ["--workers", "2", "--rate", "0", "--queue", "5000"]
    with ServerProcess([arguments.model], *options) as server:
        first = Client(server.port)
        expected = {}
        for line in chance.sample(lines, min(arguments.pool, len(lines))):
            await first.send({"text": line, "beam": 1})
            status, answer = await first.receive()
            sources, texts = read_answer(answer)
            if status == 200 and sources == [line]:  # a line of several sentences is left out
                expected[line] = texts[0]
        first.hang_up()
        soak = Soak(server, expected, chance)
        await soak.run(arguments.requests)
    wrong = {kind: soak.counts[kind] for kind in ("wrong", "lost", "doubled", "failed")}
    wrong["bad accepted"] = soak.counts["bad accepted"]
    grown = {key: growth(soak.curve, key) for key in ("server_mib", "oldest_worker_mib")}
    flat = all(each["growth"] < FLAT for each in grown.values())
    return {
        "sentences": len(expected),
        "counts": {**soak.counts, **wrong},
        "statuses": {str(status): count for status, count in sorted(soak.statuses.items())},
        "problems": soak.problems[:20],
        "growth": grown,
        "log_lines_with_traceback": server.log().count("Traceback"),
        "held": flat and not any(wrong.values()),
        "load_average": os.getloadavg(),
        "memory": soak.curve,
    }


def main() -> None:
    """Measure and write the result file; exit with 1 if something was lost or memory grew."""
    parser = argument_parser(__doc__)
    parser.add_argument("--model", default="ja-en", help="model directory or bundled model")
    parser.add_argument("--text", type=Path, required=True, help="one sentence a line")
    parser.add_argument("--requests", type=int, default=10_000, help="in all")
    parser.add_argument("--pool", type=int, default=200, help="different sentences")
    parser.add_argument("--seed", type=int, default=1, help="of all that is random")
    arguments = parser.parse_args()
    lines = [line for line in arguments.text.read_text("utf-8").splitlines() if line.strip()]
    found = asyncio.run(measure(arguments, lines))
    print(json.dumps({key: value for key, value in found.items() if key != "memory"}, indent=2))
    save("soak", {"settings": argument_values(arguments), "clients": CLIENTS, **found}, arguments)
    sys.exit(0 if found["held"] else 1)


if __name__ == "__main__":
    main()
