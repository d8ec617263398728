"""Attack a server of this machine: does it hold?

    python benchmarks/abuse.py
    python benchmarks/abuse.py --rows H1 M4

Every row repeats an attack that once stopped, blocked or slowed down the server, and compares what
is seen with a bound. The script starts `covnmt serve` with the models `ja-en` and `zh-en`, several
times: some attacks kill it. With `--port` it attacks a server that runs already on this machine,
and leaves out the rows that stop it, kill its workers or need its log.

Attacks are bounded: a process of the server may use 4 GiB, nothing waits for more than two
minutes, and nothing but the loopback interface is used. Clients have addresses of their own
(127.0.0.2, ...), so that limits per address do not hide anything. The exit status is 1 if a row
does not hold.
"""

import contextlib
import http.client
import json
import os
import random
import re
import resource
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from typing import Any

from harness import argument_parser, argument_values, process_tree, save
from server_process import ServerProcess, cpu_ticks, is_running, open_files, resident_bytes

MODELS = ("ja-en", "zh-en")
MEMORY = 4 << 30  # bytes that a process of the server may allocate
PATIENCE = 120  # seconds that any request may take before the attack counts as won

SHORT = "今日は良い天気です。"
ORDINARY = "金閣寺は京都市北区にある寺院で、足利義満により建立された。"
CLAUSES = (
    "東の山には大きな寺があり、西の山にも大きな寺があり、"
    "北の山には小さな神社があるが、南には山も寺も神社もないが、"
)
LONG = CLAUSES * 3
POST = b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
ENDLESS = {
    "10 kana": ("ja-en", "あ" * 10),
    "20 kana": ("ja-en", "あ" * 20),
    "32 kana": ("ja-en", "あ" * 32),
    "66 kana": ("ja-en", "あ" * 66),
    "190 kana": ("ja-en", "あ" * 190),
    '30 letters "w"': ("ja-en", "w" * 30),
    '30 letters "w", zh-en': ("zh-en", "w" * 30),
    "60 kana, zh-en": ("zh-en", "の" * 60),
}
WIDE = {  # texts of up to 190 tokens, most of them single bytes
    "60 kana, zh-en": ("zh-en", "の" * 60),
    "60 syllables of Korean, zh-en": ("zh-en", "한국어" * 20),
    "190 kana": ("ja-en", "あ" * 190),
    "160 letters": ("ja-en", "w" * 160),
}
EVERYTHING = ["tokens", "alignment", "coverage", "remarks"]
addresses = (f"127.0.{n // 250}.{n % 250 + 2}" for n in count())


@dataclass(frozen=True)
class Finding:
    """What was seen, and what there should be."""

    what: str
    seen: str
    should: str
    held: bool
    value: float | None = None


def at_most(what: str, value: float, bound: float, unit: str = "s") -> Finding:
    return Finding(
        what, f"{value:,.2f} {unit}", f"at most {bound:,.1f} {unit}", value <= bound, value
    )


def equal(what: str, value: object, expected: object) -> Finding:
    return Finding(what, str(value), str(expected), value == expected)


def true(what: str, held: bool, seen: object = "", should: str = "yes") -> Finding:
    return Finding(what, str(seen) or ("yes" if held else "no"), should, held)


@dataclass(frozen=True)
class Answer:
    """An HTTP response, or what happened instead of one (status 0)."""

    status: int
    body: bytes
    headers: dict[str, str]
    seconds: float

    def json(self) -> Any:
        """Return the content, None if it is not JSON."""
        with contextlib.suppress(ValueError):
            return json.loads(self.body)
        return None

    def text(self) -> str:
        """Return the translation of a single text, empty if there is none."""
        content = self.json()
        if not isinstance(content, dict):
            return ""
        rows = content.get("translations") or [{"text": content.get("translatedText", "")}]
        return str(rows[0]["text"])


def as_json(body: object) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode()


class Client:
    """Requests from one address of the loopback interface, each on a connection of its own."""

    def __init__(self, port: int, address: str | None = None) -> None:
        self.port, self.address = port, address or next(addresses)

    def ask(
        self,
        path: str,
        body: object = None,
        *,
        method: str | None = None,
        kind: str = "application/json",
        headers: dict[str, str] | None = None,
        limit: float = PATIENCE,
    ) -> Answer:
        """Send a request; what is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes) or body is None else as_json(body)
        method = method or ("GET" if data is None else "POST")
        started = time.monotonic()
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=limit, source_address=(self.address, 0)
        )
        try:
            connection.request(
                method, path, data, {**({"Content-Type": kind} if data else {}), **(headers or {})}
            )
            response = connection.getresponse()
            content, status = response.read(), response.status
            sent = {name.lower(): value for name, value in response.getheaders()}
        except (OSError, http.client.HTTPException) as error:
            status, content, sent = 0, repr(error).encode(), {}
        finally:
            connection.close()
        return Answer(status, content, sent, time.monotonic() - started)

    def translate(self, text: str | list[str], limit: float = PATIENCE, **fields: Any) -> Answer:
        return self.ask("/v1/translate", {"text": text, **fields}, limit=limit)

    def metrics(self) -> dict[str, float]:
        """Return the samples of /metrics, by name and labels."""
        lines = self.ask("/metrics").body.decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def connect(self, data: bytes = b"", receive_buffer: int | None = None) -> socket.socket:
        """Open a connection and send this."""
        made = socket.socket()
        made.settimeout(PATIENCE)
        if receive_buffer:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        made.bind((self.address, 0))
        made.connect(("127.0.0.1", self.port))
        made.sendall(data)
        return made

    def raw(self, data: bytes, limit: float = 20) -> bytes:
        """Send these bytes and return all that comes back, until it ends or time is up."""
        received = b""
        try:
            with self.connect(data) as made:
                made.settimeout(limit)
                while block := made.recv(65536):
                    received += block
        except OSError:
            pass
        return received


@dataclass
class Stage:
    """Where attacks take place: a server that runs already, or new ones."""

    models: Sequence[str]
    port: int | None = None
    shared: ServerProcess | None = field(default=None, init=False)

    def default_port(self) -> int:
        """Return the port of a server with default settings, which several attacks share."""
        if self.port is not None:
            return self.port
        if self.shared is None or self.shared.process.poll() is not None:
            self.shared = self.start()
        return self.shared.port

    def cpu_seconds(self) -> float:
        """Return the CPU time of the shared server and its workers, 0 if it is not ours."""
        if self.shared is None:
            return 0.0
        ticks = sum(map(cpu_ticks, process_tree(self.shared.pid)))
        return ticks / os.sysconf("SC_CLK_TCK")

    def start(self, *options: str, files: int | None = None, **other: Any) -> ServerProcess:
        """Start a server of this attack alone."""
        limits = [(resource.RLIMIT_DATA, MEMORY)]
        if files is not None:
            limits.append((resource.RLIMIT_NOFILE, files))
        return ServerProcess(self.models, *options, limits=limits, **other)

    def start_with_first_model(self, *options: str, **other: Any) -> ServerProcess:
        """Start a server of one model, with two workers."""
        models, self.models = self.models, self.models[:1]
        try:
            return self.start("--workers", "2", *options, **other)
        finally:
            self.models = models

    def close(self) -> None:
        if self.shared is not None:
            self.shared.stop()


@contextmanager
def in_background(*calls: Callable[[], Any]) -> Iterator[list["Future[Any]"]]:
    """Run these calls in threads, and wait for them at the end."""
    with ThreadPoolExecutor(max(1, len(calls))) as threads:
        yield [threads.submit(call) for call in calls]


def typical_seconds(client: Client, text: str, **fields: Any) -> float:
    """Return the median time of three translations."""
    taken = []
    for _ in range(3):
        answer = client.translate(text, **fields)
        if answer.status != 200:
            raise SystemExit(f"an ordinary request failed: {answer.status} {answer.body[:200]!r}")
        taken.append(answer.seconds)
    return statistics.median(taken)


def sentences(number: int) -> str:
    """Return a text of different short sentences."""
    return "".join(f"第{n}の寺は京都にある有名な寺です。" for n in range(number))


def work_for_minutes() -> dict[str, Any]:
    """Return a request that keeps all workers busy until its deadline."""
    return {"text": [LONG + str(n) for n in range(400)], "beam": 20}


# The attacks, in the order of the table.


def endless_search(stage: Stage) -> Iterator[Finding]:
    """H1: texts on which the search finds no end."""
    port = stage.default_port()
    client = Client(port)
    alone = typical_seconds(client, ORDINARY)
    for name, (model, text) in ENDLESS.items():
        if model not in stage.models:
            continue
        before = stage.cpu_seconds()
        answer = Client(port).translate(text, model=model)
        spent = stage.cpu_seconds() - before
        if stage.shared is None:
            yield at_most(f"{name}, alone", answer.seconds, max(5.0, 20 * alone))
        else:  # unlike the time, it does not depend on what else the machine does
            yield at_most(f"{name}, CPU time", spent, 1.5)
        yield equal(f"{name}: status", answer.status, 200)
    attack = Client(port)
    with in_background(*[lambda: attack.translate("あ" * 32)] * 4):
        time.sleep(0.3)
        answer = Client(port).translate(SHORT)
    yield at_most("ordinary sentence beside four of 32 kana", answer.seconds, max(2.0, 20 * alone))
    yield equal("its status", answer.status, 200)
    with in_background(*[lambda: attack.translate("あ" * 190, timeout=1)] * 4) as asked:
        statuses = [each.result().status for each in asked]
    answer = Client(port).translate(SHORT)
    yield at_most(
        f"ordinary sentence after four of 190 kana were given up {statuses}",
        answer.seconds,
        max(2.0, 20 * alone),
    )


def wide_endless_search(stage: Stage) -> Iterator[Finding]:
    """H1: the widest beam on texts without an end, compared with normal lines of as many tokens."""
    port = stage.default_port()
    client = Client(port)
    clauses = {"ja-en": "第{}の寺は京都にある有名な寺で、", "zh-en": "第{}条所称主管机关为内政部，"}

    def measure(model: str, text: str) -> tuple[int, float]:
        """Return the tokens of a text, and the median CPU time of three translations."""
        spent = []
        for _ in range(3):
            before = stage.cpu_seconds()
            body = {"text": text, "model": model, "beam": 20, "return": ["tokens"]}
            answer = client.ask("/v1/translate", body)
            spent.append(stage.cpu_seconds() - before)
        [translation] = answer.json()["translations"]
        tokens = sum(len(sentence["source_tokens"]) for sentence in translation["sentences"])
        return tokens, statistics.median(spent)

    for name, (model, text) in WIDE.items():
        if model not in stage.models or stage.shared is None:
            continue
        tokens, spent = measure(model, text)
        clause_tokens = measure(model, clauses[model].format(1))[0]
        line = "".join(clauses[model].format(n) for n in range(round(tokens / clause_tokens)))
        usual_tokens, usual = measure(model, line)
        normal = f"a normal line, {usual_tokens} tokens: {usual:.2f} s"
        what = f"{name}: CPU time, {tokens} tokens; {normal}"
        yield at_most(what, spent, 1.5 * usual)


def beam_over_the_maximum(stage: Stage) -> Iterator[Finding]:
    """H1: the work of all that a request may ask for ends at its deadline."""
    port = stage.default_port()
    alone = typical_seconds(Client(port), SHORT)
    attack, texts = Client(port), [LONG + str(n) for n in range(8)]
    with in_background(*[lambda: attack.translate(texts, beam=20, timeout=1)] * 2) as asked:
        answers = [each.result() for each in asked]
    yield at_most("requests with a deadline of 1 s", max(a.seconds for a in answers), 5)
    answer = Client(port).translate(SHORT)
    yield at_most("ordinary sentence after them", answer.seconds, max(2.0, 20 * alone))


def documents_of_markup(stage: Stage) -> Iterator[Finding]:
    """D: documents that are nearly all markup, and terms that nearly occur everywhere."""
    permitted = {
        "comments": ("markdown", "x<!--" * 6_000),
        "images": ("markdown", "![x" * 6_000),
        "tables": ("markdown", "|x" * 3_000 + "|\n" + "|-" * 3_000 + "|\n" + "|\n" * 4_000),
        "lists": ("markdown", "- x\n" * 19_000),
        "elements": ("html", "<b>x</b> " * 9_000),
        "code": ("html", "<code>x</code> " * 9_000),
    }
    too_much = {
        "unclosed tags": ("html", "<b>" * 80_000),
        "nested elements": ("html", "<div>" * 40_000 + "x"),
        "brackets": ("markdown", "[" * 50_000),
        "emphasis": ("markdown", "*" * 100_000),
        "nested quotations": ("markdown", ">" * 50_000),
        "backticks": ("markdown", "`" * 100_000),
        "table rows": ("markdown", "|a|b|\n|-|-|\n" + "|x|y|\n" * 30_000),
    }
    terms = {"a" * (n % 199 + 1) + chr(0x4E00 + n): "x" for n in range(300)}
    port = stage.default_port()
    alone = typical_seconds(Client(port), SHORT)
    attack = Client(port)
    for name, (document_format, text) in too_much.items():
        answer = attack.translate(text, format=document_format, timeout=10)
        yield equal(f"{name}: status", answer.status, 413)
    bodies: list[dict[str, Any]] = [
        {"text": text, "format": kind, "timeout": 10} for kind, text in permitted.values()
    ]
    bodies.append({"text": "a" * 100_000, "terms": terms, "timeout": 10})
    calls = [partial(attack.ask, "/v1/translate", body) for body in bodies]
    slowest, ordinary = 0.0, 0.0
    with in_background(*calls) as asked:
        while not all(each.done() for each in asked):
            slowest = max(slowest, Client(port).ask("/healthz").seconds)
            ordinary = max(ordinary, Client(port).translate(SHORT).seconds)
        answers = [each.result() for each in asked]
    statuses = {answer.status for answer in answers}
    yield true("translated, or refused with a reason", statuses <= {200, 408, 413, 422}, statuses)
    yield at_most(
        "the latest of them, with a deadline of 10 s", max(a.seconds for a in answers), 12
    )
    yield at_most("health check beside them", slowest, 1)
    yield at_most("ordinary sentence beside them", ordinary, max(2.0, 20 * alone))
    with stage.start_with_first_model() as server:
        attack = Client(server.port)
        big = "|x" * 3_000 + "|\n" + "|-" * 3_000 + "|\n" + "|\n" * 4_000
        with in_background(*[lambda: attack.translate(big, format="markdown")] * 4):
            time.sleep(1)
            started = time.monotonic()
            server.signal(signal.SIGTERM)
            status = server.exit_status(60)
            yield at_most(
                "stopped after SIGTERM beside four of them", time.monotonic() - started, 35
            )
            yield equal("exit status", status, 0)


def hold_connections(stage: Stage) -> Iterator[Finding]:
    """H2: more half-sent requests than the server has file descriptors."""
    half_body = POST + b"Content-Length: 1000\r\n\r\n{"
    with stage.start_with_first_model(files=200) as server, ExitStack() as stack:
        attack, other = Client(server.port), Client(server.port)
        before = server.log_bytes()
        held = [stack.enter_context(attack.connect(b"GET /")) for _ in range(230)]
        slowest = 0.0
        end = time.monotonic() + 10
        while time.monotonic() < end:
            slowest = max(slowest, other.ask("/healthz", limit=20).seconds)
            time.sleep(0.2)
        yield at_most("health check of another address beside 230 sockets", slowest, 2)
        answer = other.translate(SHORT)
        yield equal("translation for another address", answer.status, 200)
        grown = (server.log_bytes() - before) / 2**20
        yield at_most("log grown by", grown, 0.1, "MiB")
        for each in held:
            each.close()
        time.sleep(0.5)
        kinds = {
            "nothing sent": b"",
            "half a header": b"GET /",
            "half a body": half_body,
            "a header, one byte a second": b"GET / HTTP/1.1\r\nX: ",
            "a body, one byte a second": half_body,
        }
        everything = {
            name: [stack.enter_context(Client(server.port).connect(data)) for _ in range(5)]
            for name, data in kinds.items()
        }
        drip = [each for name in kinds if "second" in name for each in everything[name]]
        started = time.monotonic()
        closed: dict[str, float] = {}
        while time.monotonic() < started + 70 and len(closed) < len(everything):
            time.sleep(1)
            for each in drip:
                with contextlib.suppress(OSError):
                    each.send(b"x")
            for name, group in everything.items():
                if name not in closed and all(map(is_closed, group)):
                    closed[name] = time.monotonic() - started
        for name in everything:
            yield at_most(f"{name}: closed after", closed.get(name, 999), 60)


def unread_answers(stage: Stage) -> Iterator[Finding]:
    """H2: clients that send request after request and read no answer."""
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with stage.start_with_first_model() as server, ExitStack() as stack:
        client = Client(server.port)
        before, memory = open_files(server.pid), resident_bytes(server.pid)
        # few answers fit into buffers of the system, many pause writing, others are in between
        for number in (20_000, 20_000, 10_000, 8_000, 6_000, 5_000, 4_000, 3_000, 2_000, 500):
            connection = stack.enter_context(client.connect(receive_buffer=4096))
            connection.settimeout(1)
            with contextlib.suppress(OSError):
                for _ in range(number):
                    connection.sendall(request)
        answer = Client(server.port).ask("/healthz")
        yield at_most("health check of another address", answer.seconds, 2)
        grown = (resident_bytes(server.pid) - memory) / 2**20
        yield at_most("server grown by", grown, 50, "MiB")
        started = time.monotonic()
        while open_files(server.pid) > before + 2 and time.monotonic() < started + 100:
            time.sleep(0.5)
        yield at_most("connections closed after", time.monotonic() - started, 90)


def is_closed(connection: socket.socket) -> bool:
    """Tell whether the other side has ended this connection."""
    connection.settimeout(0)
    try:
        while data := connection.recv(65536):
            pass
        return not data
    except BlockingIOError:
        return False
    except OSError:
        return True


def long_requests(port: int) -> list[Callable[[], Answer]]:
    """Return two requests: one keeps the workers busy for minutes, the other for seconds."""
    client = Client(port)
    return [
        lambda: client.ask("/v1/translate", work_for_minutes()),
        lambda: client.translate("あ" * 190),
    ]


def stop_under_load(stage: Stage) -> Iterator[Finding]:
    """M1, M2: SIGTERM while there is work for minutes."""
    with stage.start_with_first_model() as server:
        with in_background(*long_requests(server.port)) as asked:
            time.sleep(2)
            started = time.monotonic()
            server.signal(signal.SIGTERM)
            status = server.exit_status(60)
            yield at_most("stopped after SIGTERM", time.monotonic() - started, 35)
            yield equal("exit status", status, 0)
            server.stop(0)
            answers = [each.result() for each in asked]
        for answer in answers:
            content = answer.json()
            shown = f"{answer.status} {answer.body[:60]!r}"
            # the connection of a request that nobody answered must not have been just dropped
            yield true("its client got an answer in JSON", isinstance(content, dict), shown)
        yield equal("tracebacks in the log", server.log().count("Traceback"), 0)


def stop_when_idle(stage: Stage) -> Iterator[Finding]:
    """M2: SIGTERM without any work."""
    with stage.start_with_first_model() as server:
        server.signal(signal.SIGTERM)
        yield equal("exit status after SIGTERM", server.exit_status(40), 0)
    with stage.start_with_first_model() as server:
        os.killpg(server.pid, signal.SIGINT)
        yield equal("exit status after Ctrl-C", server.exit_status(40), 130)


def kill_the_server(stage: Stage) -> Iterator[Finding]:
    """M2: kill -9 of the server while its workers are busy."""
    with stage.start_with_first_model() as server, in_background(*long_requests(server.port)):
        time.sleep(2)
        family = process_tree(server.pid)
        server.signal(signal.SIGKILL)
        server.exit_status(10)
        started = time.monotonic()
        while (left := set(filter(is_running, family))) and time.monotonic() < started + 40:
            time.sleep(0.1)
        yield at_most("workers ended after", time.monotonic() - started, 10)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def large_answer(stage: Stage) -> Iterator[Finding]:
    """M3: more and more of the largest answers, up to those that are refused."""
    with stage.start_with_first_model() as server:
        before = resident_bytes(server.pid)
        slowest, most, largest, statuses = 0.0, before, 0, []
        attack, other = Client(server.port), Client(server.port)
        for number in (2, 4, 6, 8, 20):
            body = {"text": [LONG] * number, "beam": 20, "nbest": 20, "return": EVERYTHING}
            call = partial(attack.ask, "/v1/translate", body)
            with in_background(call) as [asked]:
                while not asked.done():
                    slowest = max(slowest, other.ask("/healthz").seconds)
                    most = max(most, resident_bytes(server.pid))
                    time.sleep(0.02)
                answer = asked.result()
            statuses.append(answer.status)
            largest = max(largest, len(answer.body))
        yield at_most(f"the largest answer {statuses}", largest / 2**20, 16, "MiB")
        yield true("answered, or refused as too large", {*statuses} == {200, 413}, statuses)
        yield at_most("health check beside the requests", slowest, 1)
        yield at_most("server grown by", (most - before) / 2**20, 200, "MiB")


def greedy_neighbor(stage: Stage) -> Iterator[Finding]:
    """M4: a short sentence beside two requests of 490 sentences."""
    port = stage.default_port()
    attack = Client(port)
    ordinary = [f"第{n}の{ORDINARY}" for n in range(490)]
    # what waits for one batch, however slow the machine is now
    bound = max(2.0, 3 * attack.translate("".join(ordinary[:64])).seconds)
    text = "".join(ordinary)
    big = [socket_of_request(attack, {"text": text}) for _ in range(2)]
    try:
        time.sleep(1)
        whose = {"another address": Client(port), "the same address": attack}
        calls = [lambda c=c: c.translate(SHORT).seconds for c in whose.values()]
        for attempt in (1, 2):
            with in_background(*calls) as asked:
                for who, seconds in zip(whose, asked, strict=True):
                    yield at_most(f"short sentence {attempt} of {who}", seconds.result(), bound)
        if any(map(is_closed, big)):
            yield true("the large requests are still at work", False)
    finally:
        for each in big:
            each.close()
    answer = Client(port).translate(SHORT)
    yield at_most("a short sentence after they hung up", answer.seconds, bound)


def socket_of_request(client: Client, body: object) -> socket.socket:
    """Send a request and return its connection, without reading the answer."""
    data = as_json(body)
    head = (
        "POST /v1/translate HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return client.connect(head.encode() + data)


def full_queue(stage: Stage) -> Iterator[Finding]:
    """M5: the answer to a client when the queue is full, after much heavier work."""
    with stage.start_with_first_model("--queue", "60") as server:
        port = server.port
        Client(port).translate([LONG] * 4, beam=20)
        long = "\n".join(f"{LONG}{n}" for n in range(30))
        requests = {
            "short": {"text": sentences(50)},
            "long": {"text": long},
            "with a check": {"text": sentences(50), "return": ["remarks"]},
        }
        for name, request in requests.items():
            calls = [lambda r=request: ask_until_accepted(Client(port), **r) for _ in range(6)]
            with in_background(*calls) as asked:
                results = [each.result() for each in asked]
            statuses = {status for status, _, _ in results}
            yield equal(f"{name}: status in the end", statuses, {200})
            refused = [(promise, waited) for _, promise, waited in results if promise is not None]
            yield true(f"{name}: refused", bool(refused), f"{len(refused)} of {len(calls)}")
            # all of them try again and again, so some wait for others too
            for promise, waited in refused:
                what = f"{name}: Retry-After, when {waited:.1f} s were needed"
                yield at_most(what, promise, min(60, 3 + 2 * waited))
                yield true("which is a number of seconds", promise >= 1, promise)


def ask_until_accepted(client: Client, **request: Any) -> tuple[int, int | None, float]:
    """Return the last status, the first Retry-After if there was one, and the seconds until then.

    The client tries more often than the answer says, to see when there really was room.
    """
    promise, started = None, time.monotonic()
    while True:
        began = time.monotonic()
        answer = client.ask("/v1/translate", request)
        if answer.status not in (429, 503) or began > started + PATIENCE:
            return answer.status, promise, began - started
        if promise is None:
            promise = int(answer.headers.get("retry-after", "0"))
        time.sleep(0.2)


def unread_log(stage: Stage) -> Iterator[Finding]:
    """M6: nobody reads the log."""
    with stage.start_with_first_model(log_unread=True) as server:
        client = Client(server.port)
        requests = 1500
        answered = 0
        while answered < requests and client.ask("/healthz", limit=10).status == 200:
            answered += 1
        yield equal("health checks answered", answered, requests)
        started = time.monotonic()
        server.signal(signal.SIGTERM)
        status = server.exit_status(40)
        yield at_most("stopped after SIGTERM", time.monotonic() - started, 35)
        yield equal("exit status", status, 0)


def stopped_workers(stage: Stage) -> Iterator[Finding]:
    """M7: workers that are alive and do nothing."""
    with stage.start_with_first_model("--timeout", "5") as server:
        client = Client(server.port)
        before, length = client.metrics(), len(server.log())
        for pid in server.workers():
            os.kill(pid, signal.SIGSTOP)
        started = time.monotonic()
        statuses = []
        while time.monotonic() < started + 60:
            statuses.append(client.translate(SHORT).status)
            if statuses[-1] == 200:
                break
        yield at_most(f"translates again, after {statuses}", time.monotonic() - started, 40)
        yield from traces(server, client, before, length)


def killed_workers(stage: Stage) -> Iterator[Finding]:
    """M8: workers that are killed."""
    with stage.start_with_first_model() as server:
        client = Client(server.port)
        before, length = client.metrics(), len(server.log())
        for pid in server.workers():
            os.kill(pid, signal.SIGKILL)
        answer = client.translate(SHORT)
        yield equal("translation", answer.status, 200)
        yield at_most("which took", answer.seconds, 30)
        time.sleep(2)
        yield from traces(server, client, before, length)
        yield equal("/readyz", client.ask("/readyz").status, 200)


def traces(
    server: ServerProcess, client: Client, before: dict[str, float], length: int
) -> Iterator[Finding]:
    """Find a log line and a metric about the worker processes."""
    lines = server.log()[length:].splitlines()
    about = [line for line in lines if re.search("worker|process", line) and '"path"' not in line]
    yield true("a line in the log", bool(about), about[0][:80] if about else "none")
    after = client.metrics()
    counted = [
        name
        for name, value in after.items()
        if re.search("restart|death|died|replaced", name) and value > before.get(name, 0)
    ]
    yield true("a metric counts it", bool(counted), counted[0] if counted else "none")


def libretranslate(stage: Stage) -> Iterator[Finding]:
    """M9: requests that clients of LibreTranslate send."""
    client = Client(stage.default_port())

    def translated(what: str, answer: Answer, test: Callable[[Any], bool] = bool) -> Finding:
        good, content = False, answer.json()
        with contextlib.suppress(LookupError, TypeError, AttributeError):
            good = answer.status == 200 and bool(content["translatedText"]) and test(content)
        return true(what, good, f"{answer.status} {answer.body[:90].decode(errors='replace')}")

    base = {"q": SHORT, "source": "ja", "target": "en"}
    ask = client.ask
    html = {**base, "q": f"<p>{SHORT} <b>{SHORT}</b></p>", "format": "html"}
    tags = ("<p>", "<b>", "</b>", "</p>")
    yield translated(
        "format=html keeps tags",
        ask("/translate", html),
        lambda content: all(tag in content["translatedText"] for tag in tags),
    )
    both = {**base, "source": "auto"}
    yield translated(
        "source=auto: Japanese",
        ask("/translate", both),
        lambda content: content["detectedLanguage"]["language"] == "ja",
    )
    chinese = "本法自公布日施行。"
    found = ask("/translate", {**both, "q": chinese})
    yield translated(
        "source=auto: Chinese",
        found,
        lambda content: content["detectedLanguage"]["language"].startswith("zh"),
    )
    three = ask("/translate", {**base, "alternatives": 3})
    yield translated("alternatives", three, lambda content: len(content["alternatives"]) == 3)
    boundary = "ba0f2c"
    parts = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in base.items()
    )
    kind = f"multipart/form-data; boundary={boundary}"
    form = f"{parts}--{boundary}--\r\n".encode()
    yield translated("multipart form", ask("/translate", form, kind=kind))
    for code in ("JA", "ja_JP", "ja-JP"):
        yield translated(f"source={code}", ask("/translate", {**base, "source": code}))
    traditional = {"q": chinese, "source": "zt", "target": "en"}
    yield translated("source=zt", ask("/translate", traditional))
    twice = b"q=%E3%81%82&q=%E3%81%84&source=ja&target=en"
    answer = ask("/translate", twice, kind="application/x-www-form-urlencoded")
    content = answer.json() or {}
    texts = content.get("translatedText")
    whole = answer.status == 400 or (isinstance(texts, list) and len(texts) == 2)
    yield true("q twice in a form: both or an error", whole, f"{answer.status} {texts}")
    answer = ask("/detect", {"q": SHORT})
    rows = answer.json()
    detected = isinstance(rows, list) and rows and rows[0].get("language")
    yield equal("/detect", detected or f"{answer.status}", "ja")
    languages = {row["code"]: row["name"] for row in ask("/languages").json()}
    yield equal("names in /languages", languages.get("ja"), "Japanese")
    yield equal("target in /languages", languages.get("en"), "English")
    settings = ask("/frontend/settings")
    limit = (settings.json() or {}).get("charLimit") is not None
    yield true("/frontend/settings", settings.status == 200 and limit, settings.status)


def text_of_another_field(stage: Stage) -> Iterator[Finding]:
    """M10: text that the models were not made for."""
    client = Client(stage.default_port())
    foreign = {
        "everyday Japanese": ("ja-en", "明日の天気はどうですか？", "unusual"),
        "Korean": ("ja-en", "내일 날씨가 어때요?", "script"),
        "English": ("ja-en", "How is the weather tomorrow?", "script"),
        "everyday Chinese": ("zh-en", "明天天气怎么样？", "unusual"),
        "Japanese to zh-en": ("zh-en", "明日の天気はどうですか？", "script"),
        "without an end": ("ja-en", "あ" * 60, "unfinished"),
    }
    for name, (model, text, kind) in foreign.items():
        if model not in stage.models:
            continue
        answer = client.translate(text, model=model).json() or {}
        kinds = [warning["kind"] for warning in answer.get("warnings", [])]
        yield true(f"{name}: warned", kind in kinds, kinds)
        html = client.translate(f"<p>{text}</p>", model=model, format="html").json() or {}
        kinds = [warning["kind"] for warning in html.get("warnings", [])]
        yield true(f"{name}, as HTML: warned", kind in kinds, kinds)
        events = client.ask("/v1/translate/stream", {"text": text, "model": model}).body
        last = events.decode().strip().rpartition("event: ")[2]
        yield true(f"{name}, as a stream: warned", f'"kind": "{kind}"' in last, last[:80])
    answer = client.translate(ORDINARY).json() or {}
    yield equal("warnings of ordinary text", answer.get("warnings"), [])


def small_faults(stage: Stage) -> Iterator[Finding]:
    """L: what monitoring and clients of HTTP expect."""
    port = stage.default_port()
    client = Client(port)
    for method in ("GET", "OPTIONS", "PUT"):
        answer = client.ask("/v1/translate", method=method)
        allowed = set(re.split(r",\s*", answer.headers.get("allow", "")))
        named = answer.status in (200, 204, 405) and "POST" in allowed and "GET" not in allowed
        yield true(f"{method} /v1/translate allows POST", named, f"{answer.status} {allowed}")
    yield equal("HEAD /v1/models", client.ask("/v1/models", method="HEAD").status, 200)
    if stage.port is None:
        yield from document_with_keys(stage)
    for path in ("/healthz", "/readyz"):
        first = client.raw(f"GET {path} HTTP/1.0\r\n\r\n".encode()).split(b"\r\n")[0]
        yield true(f"{path} by HTTP/1.0 without Host", b" 200 " in first, first.decode())
    client.translate(SHORT)
    buckets = [name for name in client.metrics() if "_seconds_bucket" in name]
    labeled = [name for name in buckets if "/v1/translate" in name]
    yield true("latency by path", bool(labeled), f"{len(labeled)} of {len(buckets)} samples")
    before = bad_requests(client)
    half = POST + b"Content-Length: 900\r\n\r\n{"
    for _ in range(20):
        with Client(port).connect(half + b" " * 100):
            time.sleep(0.01)
    time.sleep(1)
    yield equal("20 hang-ups counted as 400", bad_requests(client) - before, 0)
    answer = client.ask("/healthz")
    ids = {name: value for name, value in answer.headers.items() if "request-id" in name}
    yield true("request id", bool(ids), ids)
    answer = client.ask("/v1/translate", b"{", headers={"Content-Type": "application/json"})
    clear = answer.status in (400, 422) and b"(line 1, column 2)" in answer.body
    yield true("message about broken JSON", clear, answer.body.decode())


def document_with_keys(stage: Stage) -> Iterator[Finding]:
    """Find out whether the document of a server with a key says how to send it."""
    key = "a-secret-key"
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(f"{key}\n")
        file.flush()
        with stage.start_with_first_model("--api-key-file", file.name) as server:
            headers = {"Authorization": f"Bearer {key}"}
            document = Client(server.port).ask("/openapi.json", headers=headers).json()
    schemes = list(document["components"].get("securitySchemes", {}))
    yield true("securitySchemes in the OpenAPI document, with a key", bool(schemes), schemes)


def bad_requests(client: Client) -> float:
    """Return how many requests to translate were answered with 400."""
    return sum(
        value
        for name, value in client.metrics().items()
        if "requests_total" in name and '"/v1/translate"' in name and '"400"' in name
    )


def slow_stream_reader(stage: Stage) -> Iterator[Finding]:
    """L: an event stream whose reader is slower than its deadline."""
    client = Client(stage.default_port())
    text = sentences(400)
    body = {"text": text, "beam": 5, "return": EVERYTHING, "timeout": 8}
    data = as_json(body)
    head = (
        "POST /v1/translate/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    received = b""
    with client.connect(head.encode() + data, receive_buffer=4096) as connection:
        time.sleep(12)
        connection.settimeout(10)
        with contextlib.suppress(OSError):
            while block := connection.recv(65536):
                received += block
    last = re.findall(rb"event: (\w+)", received)[-1:]
    ended = last in ([b"done"], [b"error"]) and received.endswith(b"0\r\n\r\n")
    yield true("the stream ends with done or error", ended, f"{last} {received[-30:]!r}")


def interrupt_at_start(stage: Stage) -> Iterator[Finding]:
    """L: Ctrl-C at any moment of the start ends the server at once."""
    with stage.start_with_first_model() as server:
        whole = time.monotonic() - server.started
    chance = random.Random(1)
    slowest, statuses = 0.0, set()
    moments = [whole * (0.2 + 0.15 * n + 0.05 * chance.random()) for n in range(8)]
    for moment in moments:
        with stage.start_with_first_model(wait=False) as server:
            time.sleep(moment)
            started = time.monotonic()
            os.killpg(server.pid, signal.SIGINT)
            statuses.add(server.exit_status(20))
            slowest = max(slowest, time.monotonic() - started)
    yield at_most(f"ended after Ctrl-C at {len(moments)} moments, {statuses}", slowest, 10)
    yield true("exit status 130", statuses <= {130}, statuses)


@dataclass(frozen=True)
class Attack:
    row: str
    name: str
    run: Callable[[Stage], Iterator[Finding]]
    on_any_server: bool = False  # it needs neither a server of its own nor its log


ATTACKS = (
    Attack("H1", "search without end", endless_search, True),
    Attack("H1", "search without end, beam 20", wide_endless_search),
    Attack("H1", "work after the deadline", beam_over_the_maximum, True),
    Attack("D", "documents of markup", documents_of_markup),
    Attack("H2", "held connections", hold_connections),
    Attack("H2", "answers that nobody reads", unread_answers),
    Attack("M1", "stop under load", stop_under_load),
    Attack("M2", "stop when idle", stop_when_idle),
    Attack("M2", "server killed", kill_the_server),
    Attack("M3", "large answer", large_answer),
    Attack("M4", "greedy neighbor", greedy_neighbor, True),
    Attack("M5", "full queue", full_queue),
    Attack("M6", "log that nobody reads", unread_log),
    Attack("M7", "stopped workers", stopped_workers),
    Attack("M8", "killed workers", killed_workers),
    Attack("M9", "clients of LibreTranslate", libretranslate, True),
    Attack("M10", "text of another field", text_of_another_field, True),
    Attack("L", "small faults", small_faults, True),
    Attack("L", "slow reader of a stream", slow_stream_reader, True),
    Attack("L", "interrupted start", interrupt_at_start),
)


def attempt(attack: Attack, stage: Stage) -> dict[str, Any]:
    """Run an attack; what it could not finish does not hold."""
    started, findings = time.monotonic(), []
    try:
        for finding in attack.run(stage):
            findings.append(finding)
    except Exception as error:
        findings.append(Finding("the attack could run on", repr(error), "yes", False))
    return {
        "row": attack.row,
        "name": attack.name,
        "held": all(finding.held for finding in findings),
        "seconds": round(time.monotonic() - started, 1),
        "load_average": os.getloadavg()[0],
        "findings": [asdict(finding) for finding in findings],
    }


def print_result(result: dict[str, Any]) -> None:
    """Print an attack and a line for each figure."""
    verdict = {True: "held", False: "NOT HELD"}
    print(f"{result['row']:<4}{result['name']:<40}{verdict[result['held']]:<10}", end="")
    print(f"{result['seconds']:.0f} s")
    for finding in result["findings"]:
        seen = f"{finding['what']}: {finding['seen']} ({finding['should']})"
        print(f"    {verdict[finding['held']]:<10}{seen}", flush=True)


def main() -> None:
    """Attack, print what held, and write the result file."""
    parser = argument_parser(__doc__)
    parser.add_argument(
        "--model", action="append", help="model or NAME=DIR (default: ja-en, zh-en)"
    )
    parser.add_argument("--port", type=int, help="of a server that runs already on this machine")
    parser.add_argument("--rows", nargs="+", help="rows only, as H1 M4")
    arguments = parser.parse_args()
    stage = Stage(arguments.model or MODELS, arguments.port)
    results = []
    try:
        for attack in ATTACKS:
            if arguments.rows and attack.row not in arguments.rows:
                continue
            if arguments.port is not None and not attack.on_any_server:
                continue
            results.append(attempt(attack, stage))
            print_result(results[-1])
    finally:
        stage.close()
    save("abuse", {"settings": argument_values(arguments), "rows": results}, arguments)
    failed = [f"{row['row']} ({row['name']})" for row in results if not row["held"]]
    print(f"{len(results) - len(failed)} of {len(results)} attacks held", end="")
    print(f"; not held: {', '.join(failed)}" if failed else "")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
