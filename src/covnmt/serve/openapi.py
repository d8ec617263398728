"""The OpenAPI document of one server: with the models, languages and limits that it has."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from covnmt.serve.model_pool import ModelSpec
from covnmt.serve.settings import ServeSettings


def build_openapi_document(
    app: FastAPI, specs: Sequence[ModelSpec], settings: ServeSettings
) -> dict[str, Any]:
    """What FastAPI knows of the routes, and what only this server knows."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas = document["components"]["schemas"]
    names = [spec.name for spec in specs]
    for kind in ("TranslateRequest", "AlignRequest", "CheckRequest"):
        properties = schemas[kind]["properties"]
        properties["model"] |= {"enum": [*names, None], "examples": names}
    limits = schemas["TranslateRequest"]["properties"]["beam"]["anyOf"][0]
    limits["maximum"] = min(limits["maximum"], settings.max_beam)
    form = document["paths"]["/translate"]["post"]["requestBody"]["content"]
    for content in form.values():
        content["schema"] = _with_languages(content["schema"], specs)
    return document


def _with_languages(schema: dict[str, Any], specs: Sequence[ModelSpec]) -> dict[str, Any]:
    sources = list(dict.fromkeys(["auto", *(spec.source for spec in specs)]))
    targets = list(dict.fromkeys(spec.target for spec in specs))
    properties = schema["properties"]
    languages = {
        "source": properties["source"] | {"enum": sources},
        "target": properties["target"] | {"enum": targets},
    }
    first = {"q": "ze muye piro sire tuye", "source": specs[0].source, "target": specs[0].target}
    return schema | {"properties": properties | languages, "examples": [first]}
