"""What the OpenAPI document says beyond the routes: models, languages, limits, API keys."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from covnmt.serve.security import PROTECTED_PATHS
from covnmt.serve.served_model import ModelSpec
from covnmt.serve.settings import ServeSettings

WITHOUT_KEY = ("/languages",)
SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def build_document(
    app: FastAPI, specs: Sequence[ModelSpec], settings: ServeSettings
) -> dict[str, Any]:
    """Build the OpenAPI document with the models, languages and limits of this server."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas = document["components"]["schemas"]
    names = [spec.name for spec in specs]
    for kind in ("TranslateRequest", "AlignRequest", "CheckRequest"):
        properties = schemas[kind]["properties"]
        properties["model"] |= {"enum": [*names, None], "examples": names}
    beam = schemas["TranslateRequest"]["properties"]["beam"]["anyOf"][0]
    beam["maximum"] = min(beam["maximum"], settings.max_beam)
    sources = list(dict.fromkeys(["auto", *(spec.source for spec in specs)]))
    targets = list(dict.fromkeys(spec.target for spec in specs))
    example = {"q": "ze muye piro sire tuye", "source": specs[0].source, "target": specs[0].target}
    contents = document["paths"]["/translate"]["post"]["requestBody"]["content"]
    for content in contents.values():
        schema = content["schema"]
        properties = schema["properties"] | {
            "source": schema["properties"]["source"] | {"enum": sources},
            "target": schema["properties"]["target"] | {"enum": targets},
        }
        content["schema"] = schema | {"properties": properties, "examples": [example]}
    if settings.api_keys:
        describe_security(document)
    return document


def describe_security(document: dict[str, Any]) -> None:
    """Say which operations of a server with API keys need one, and how to send it."""
    document["components"]["securitySchemes"] = SCHEMES
    for path, operations in document["paths"].items():
        protected = path.startswith("/v1/") or path in PROTECTED_PATHS
        if protected and path not in WITHOUT_KEY:
            for operation in operations.values():
                operation["security"] = [{scheme: []} for scheme in SCHEMES]
