"""Counts and times for Prometheus, in its text format (version 0.0.4)."""

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)

Labels = tuple[tuple[str, str], ...]


class Counter:
    """Something that only grows, by its labels."""

    def __init__(self, name: str, meaning: str) -> None:
        self.name, self.meaning = name, meaning
        self.values: dict[Labels, float] = defaultdict(float)
        self.lock = threading.Lock()

    def add(self, amount: float = 1.0, **labels: str) -> None:
        """Count."""
        with self.lock:
            self.values[tuple(sorted(labels.items()))] += amount

    def lines(self) -> Iterator[str]:
        """As Prometheus reads it."""
        yield from _head(self.name, self.meaning, "counter")
        with self.lock:
            values = sorted(self.values.items())
        for labels, value in values:
            yield f"{self.name}{_labels(labels)} {_number(value)}"


class Histogram:
    """How often a figure lay below each bound."""

    def __init__(self, name: str, meaning: str, bounds: tuple[float, ...]) -> None:
        self.name, self.meaning, self.bounds = name, meaning, bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.lock = threading.Lock()

    def add(self, value: float) -> None:
        """Take one observation in."""
        with self.lock:
            self.counts[bisect_left(self.bounds, value)] += 1
            self.total += value

    def lines(self) -> Iterator[str]:
        """As Prometheus reads it."""
        yield from _head(self.name, self.meaning, "histogram")
        with self.lock:
            counts, total = list(self.counts), self.total
        below = 0
        for bound, count in zip((*map("{:g}".format, self.bounds), "+Inf"), counts, strict=True):
            below += count
            yield f'{self.name}_bucket{{le="{bound}"}} {below}'
        yield f"{self.name}_sum {_number(total)}"
        yield f"{self.name}_count {below}"


class Metrics:
    """All that the server measures."""

    def __init__(self) -> None:
        self.requests = Counter("covnmt_requests_total", "Requests by path and status")
        self.seconds = Histogram("covnmt_request_seconds", "Time to answer a request", SECONDS)
        self.sentences = Counter("covnmt_sentences_total", "Sentences done, by model")
        self.batch_sizes = Histogram("covnmt_batch_sentences", "Sentences of a batch", SIZES)
        self.batch_seconds = Histogram("covnmt_batch_seconds", "Time to do a batch", SECONDS)

    def observe_batch(self, model: str, size: int, seconds: float) -> None:
        """A batch was done."""
        self.sentences.add(size, model=model)
        self.batch_sizes.add(size)
        self.batch_seconds.add(seconds)

    def text(self, waiting: Mapping[str, int]) -> str:
        """Everything, with the sentences that wait for each model now."""
        name = "covnmt_waiting_sentences"
        lines = list(_head(name, "Sentences that wait, by model", "gauge"))
        lines += [f"{name}{_labels((('model', model),))} {n}" for model, n in waiting.items()]
        counted = (self.requests, self.seconds, self.sentences, self.batch_sizes)
        for each in (*counted, self.batch_seconds):
            lines += each.lines()
        return "\n".join(lines) + "\n"


def _head(name: str, meaning: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}."
    yield f"# TYPE {name} {kind}"


def _labels(labels: Labels) -> str:
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    """All digits: a count that is rounded beyond a million seems to stand still, then to jump."""
    return f"{value:.15g}"
