"""The OpenAPI document of a server."""

import httpx

from covnmt.serve.settings import ServeSettings


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
