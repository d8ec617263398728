"""The OpenAPI document of a server."""

from pathlib import Path

import httpx
import pytest

from covnmt.serve.settings import ApiKey, ServeSettings

from .server import serving


def test_the_document_has_the_models_and_limits_of_the_server(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    for kind in ("TranslateRequest", "AlignRequest", "CheckRequest"):
        schema = document["components"]["schemas"][kind]
        assert schema["examples"]
        assert schema["properties"]["model"]["enum"] == ["tiny", "twin", None]
    beam = document["components"]["schemas"]["TranslateRequest"]["properties"]["beam"]
    assert beam["anyOf"][0]["maximum"] == ServeSettings().max_beam
    for content in document["paths"]["/translate"]["post"]["requestBody"]["content"].values():
        properties = content["schema"]["properties"]
        assert properties["source"]["enum"] == ["auto", "source", "aa"]
        assert properties["target"]["enum"] == ["target", "bb"]


@pytest.mark.parametrize("several", [False, True])
def test_the_document_says_how_to_send_the_key(
    tiny_model: Path, client: httpx.Client, several: bool
) -> None:
    """Where it is needed; a server without one has no security schemes."""
    assert "securitySchemes" not in client.get("/openapi.json").json()["components"]
    settings = ServeSettings(rate=0, api_keys=(ApiKey(key="a-secret-key"),))
    if several:
        keys = tuple(ApiKey(key=key, name=key) for key in ("another-key", "a-secret-key"))
        settings = ServeSettings(rate=0, api_keys=keys)
    with serving({"tiny:aa-bb": tiny_model}, settings) as guarded, guarded.client() as guest:
        document = guest.get("/openapi.json", headers={"x-api-key": "a-secret-key"}).json()
        schemes = document["components"]["securitySchemes"]
        assert schemes["bearer"] == {"type": "http", "scheme": "bearer"}
        assert schemes["header"] == {"type": "apiKey", "in": "header", "name": "X-API-Key"}
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                refused = (
                    guest.request(method, path, json={"q": "a", "target": "bb"}).status_code == 401
                )
                assert refused == ("security" in operation), path


def test_a_whole_number_may_be_written_with_a_point(client: httpx.Client) -> None:
    """JSON Schema takes 2.0 for an integer."""
    assert client.post("/v1/translate", json={"text": "a", "beam": 2.0}).status_code == 200
    assert client.post("/v1/translate", json={"text": "a", "beam": 2.5}).status_code == 422
    assert client.post("/v1/translate", json={"text": "a", "beam": "2"}).status_code == 422
