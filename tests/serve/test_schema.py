"""Anything that the OpenAPI document allows, and much that it does not: never a 5xx.

schemathesis makes the requests up from the document; the checks are ours to choose.
"""

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
    ("GET", "/v1/models"),
    ("POST", "/translate"),
    ("GET", "/languages"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
]


def test_the_document_has_these_operations(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    found = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    assert sorted(found) == sorted(OPERATIONS)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_input_is_a_server_error(running: Running, method: str, path: str) -> None:
    schema = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
    operation = schema[path][method]
    cases = operation.as_strategy() | operation.as_strategy(
        generation_mode=schemathesis.GenerationMode.NEGATIVE
    )

    @hypothesis.given(case=cases)
    @hypothesis.settings(
        max_examples=40 if method == "POST" else 5,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    def check(case: "schemathesis.Case[Any]") -> None:
        case.call_and_validate(checks=[not_a_server_error])

    check()
