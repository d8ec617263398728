"""What GET /metrics shows."""

from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from covnmt.serve.monitoring import ServerMetrics

from .server import Running, post

# names of samples and their labels, on which dashboards and alerts are built
SAMPLES: dict[str, set[str]] = {
    "covnmt_waiting_sentences": {"model"},
    "covnmt_requests_total": {"path", "status"},
    "covnmt_sentences_total": {"model"},
    "covnmt_workers_ready": {"model"},
    "covnmt_requests_in_flight": set(),
    "covnmt_connections": set(),
    "covnmt_dropped_log_lines_total": set(),
    "covnmt_build_info": {"version"},
    "covnmt_request_seconds_bucket": {"le", "path"},
    "covnmt_request_seconds_sum": {"path"},
    "covnmt_request_seconds_count": {"path"},
    **{
        f"covnmt_{name}_{kind}": labels
        for name in ("batch_sentences", "batch_seconds")
        for kind, labels in (("bucket", {"le"}), ("sum", set()), ("count", set()))
    },
}


def samples(client: httpx.Client) -> list[Any]:
    families = text_string_to_metric_families(client.get("/metrics").text)
    return [sample for family in families for sample in family.samples]


def test_names_and_labels_stay(client: httpx.Client, lines: list[str]) -> None:
    post(client, text=lines[0])
    found = {sample.name: set(sample.labels) for sample in samples(client)}
    events = ("covnmt_closed_connections_total", "covnmt_worker_restarts_total")
    ours = {n: v for n, v in found.items() if n.startswith("covnmt_") and n not in events}
    assert ours == SAMPLES
    assert {"process_start_time_seconds", "process_open_fds"} <= set(found)  # of every exporter


def test_every_model_has_its_own_counts(
    running: Running, client: httpx.Client, lines: list[str]
) -> None:
    def done() -> dict[str, float]:
        return {
            sample.labels["model"]: sample.value
            for sample in samples(client)
            if sample.name == "covnmt_sentences_total"
        }

    post(client, text=lines[0])
    before = done()
    post(client, text=lines[:3], model="tiny")
    assert done() == before | {"tiny": before["tiny"] + 3}


def test_servers_of_one_process_count_apart() -> None:
    first, second = ServerMetrics(), ServerMetrics()
    first.observe_batch("gru10", 3, 0.2)
    value = first.registry.get_sample_value("covnmt_sentences_total", {"model": "gru10"})
    assert value == 3
    assert second.registry.get_sample_value("covnmt_batch_sentences_count") == 0
