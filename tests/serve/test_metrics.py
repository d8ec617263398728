"""What GET /metrics shows."""

from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from covnmt.serve.monitoring import ServerMetrics

from .server import Running, post, wait_until

# names of samples and their labels, on which dashboards and alerts are built
SAMPLES: dict[str, set[str]] = {
    "covnmt_waiting_sentences": {"model"},
    "covnmt_requests_total": {"path", "status"},
    "covnmt_sentences_total": {"model"},
    "covnmt_workers_ready": {"model"},
    "covnmt_requests_in_flight": set(),
    "covnmt_connections": set(),
    "covnmt_closed_connections_total": {"reason"},
    "covnmt_worker_restarts_total": {"model", "reason"},
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
    ours = {name: labels for name, labels in found.items() if name.startswith("covnmt_")}
    assert ours == SAMPLES
    assert {"process_start_time_seconds", "process_open_fds"} <= set(found)  # of every exporter


def test_times_are_measured_by_path(client: httpx.Client, lines: list[str]) -> None:
    def answered() -> dict[str, float]:
        return {
            sample.labels["path"]: sample.value
            for sample in samples(client)
            if sample.name == "covnmt_request_seconds_count"
        }

    post(client, text=lines[0])
    client.get("/healthz")
    wait_until(lambda: {"/v1/translate", "/healthz"} <= set(answered()))
    before = answered()
    post(client, text=lines[0])
    wait_until(lambda: answered()["/v1/translate"] > before["/v1/translate"])
    assert answered()["/healthz"] == before["/healthz"]


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


def test_counters_of_failures_begin_at_zero(running: Running, client: httpx.Client) -> None:
    restarts = {
        (sample.labels["model"], sample.labels["reason"])
        for sample in samples(client)
        if sample.name == "covnmt_worker_restarts_total"
    }
    assert restarts == {
        (model, reason) for model in running.models for reason in ("died", "stalled", "overdue")
    }


def test_an_unloaded_model_has_no_ready_workers(running: Running, client: httpx.Client) -> None:
    def ready() -> dict[str, float]:
        return {
            sample.labels["model"]: sample.value
            for sample in samples(client)
            if sample.name == "covnmt_workers_ready"
        }

    workers = running.models["twin"].workers
    assert ready()["twin"] == len(workers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers[0], "unloaded", True)
        assert ready() == {"tiny": len(workers), "twin": len(workers) - 1}
        assert client.get("/readyz").status_code == 200


def test_servers_of_one_process_count_apart() -> None:
    first, second = ServerMetrics(), ServerMetrics()
    first.observe_batch("gru10", 3, 0.2)
    value = first.registry.get_sample_value("covnmt_sentences_total", {"model": "gru10"})
    assert value == 3
    assert second.registry.get_sample_value("covnmt_batch_sentences_count") == 0
