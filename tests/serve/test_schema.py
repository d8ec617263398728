"""No request, whether the OpenAPI document allows it or not, gets a 5xx.

schemathesis generates the requests from the document.
"""

from collections import Counter
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck

pytest.importorskip("schemathesis", reason="pip install schemathesis: skipped")

import httpx
import schemathesis
from schemathesis.checks import not_a_server_error

from .server import Running

OPERATIONS = [
    ("POST", "/v1/translate"),
    ("POST", "/v1/translate/stream"),
    ("POST", "/v1/align"),
    ("POST", "/v1/check"),
    ("GET", "/v1/models"),
    ("POST", "/translate"),
    ("POST", "/detect"),
    ("GET", "/languages"),
    ("GET", "/frontend/settings"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
]


def test_the_document_has_these_operations(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    found = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    assert sorted(found) == sorted(OPERATIONS)


@pytest.mark.parametrize(("method", "path"), [each for each in OPERATIONS if each[0] == "POST"])
def test_no_input_is_a_server_error(running: Running, method: str, path: str) -> None:
    found = statuses(running, method, path, schemathesis.GenerationMode.NEGATIVE)
    assert max(found) < 500


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_requests_that_the_document_allows_succeed(
    running: Running, method: str, path: str
) -> None:
    """Some fail: no schema says that nbest is at most beam, or what documents exclude."""
    found = statuses(running, method, path, schemathesis.GenerationMode.POSITIVE)
    assert max(found) < 500
    in_time = found.total() - found[408]  # requests may allow themselves less time than it takes
    assert found[200] > 0.25 * in_time, found


def statuses(
    running: Running, method: str, path: str, mode: schemathesis.GenerationMode
) -> Counter[int]:
    """Count the statuses of the responses to generated requests."""
    operation = schemathesis.openapi.from_url(f"{running.url}/openapi.json")[path][method]
    found: Counter[int] = Counter()

    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    @hypothesis.settings(
        max_examples=60 if method == "POST" else 5,
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: "schemathesis.Case[Any]") -> None:
        answer = case.call_and_validate(checks=[not_a_server_error])
        found[answer.status_code] += 1

    ask()
    return found
