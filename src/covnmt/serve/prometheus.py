"""The counts and times of GET /metrics."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)

# The time at which each metric was created would be a metric of its own.
disable_created_metrics()  # type: ignore[no-untyped-call]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SENTENCES = (1, 2, 4, 8, 16, 32, 64)


class ServerMetrics:
    """What one server measures; the registry is its own, so a process may have several."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.waiting = Gauge(
            "covnmt_waiting_sentences",
            "Sentences that wait, by model.",
            ["model"],
            registry=registry,
        )
        self.requests = Counter(
            "covnmt_requests", "Requests by path and status.", ["path", "status"], registry=registry
        )
        self.request_seconds = Histogram(
            "covnmt_request_seconds",
            "Time to answer a request.",
            registry=registry,
            buckets=SECONDS,
        )
        self.sentences = Counter(
            "covnmt_sentences", "Sentences done, by model.", ["model"], registry=registry
        )
        self.batch_sentences = Histogram(
            "covnmt_batch_sentences", "Sentences of a batch.", registry=registry, buckets=SENTENCES
        )
        self.batch_seconds = Histogram(
            "covnmt_batch_seconds", "Time to do a batch.", registry=registry, buckets=SECONDS
        )

    def observe_request(self, path: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self.requests.labels(path, status).inc()
        self.request_seconds.observe(seconds)

    def observe_batch(self, model: str, size: int, seconds: float) -> None:
        """Count a batch that was run."""
        self.sentences.labels(model).inc(size)
        self.batch_sentences.observe(size)
        self.batch_seconds.observe(seconds)
