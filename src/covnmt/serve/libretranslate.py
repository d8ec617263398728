"""`/translate` and `/languages` as LibreTranslate has them, so that its clients work unchanged.

The languages are those that the models were given on the command line; a request is answered by
the first model of its pair. Only plain text is translated, HTML is refused.
"""

from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, ValidationError
from starlette.responses import JSONResponse, Response

from covnmt.base.errors import UserError
from covnmt.serve.routes import ERROR_RESPONSES
from covnmt.serve.schemas import MAX_TEXTS, Text, first_error_message
from covnmt.serve.security import RequestRefusedError, api_key_from_headers, check_api_key
from covnmt.serve.served_model import ServedModel
from covnmt.serve.service import TranslationService, gather_futures


class LibreRequest(BaseModel):
    """A request of a LibreTranslate client; other fields are ignored."""

    q: Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]
    source: str = "auto"
    target: str
    format: Annotated[str, Field(json_schema_extra={"enum": ["text"]})] = "text"
    api_key: str | None = None


BODIES = {
    kind: {"schema": LibreRequest.model_json_schema()}
    for kind in ("application/json", "application/x-www-form-urlencoded")
}


async def read_request(request: Request) -> LibreRequest:
    """Read JSON or an HTML form, as LibreTranslate accepts both."""
    body, kind = await request.body(), request.headers.get("content-type", "").lower()
    if "multipart" in kind:
        raise RequestRefusedError(400, "send JSON, or a form as application/x-www-form-urlencoded")
    try:
        if "json" in kind:
            return LibreRequest.model_validate_json(body)
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=20)
        return LibreRequest.model_validate({key: values[-1] for key, values in fields.items()})
    except ValidationError as error:
        raise RequestRefusedError(
            400, first_error_message(error.errors(include_input=False))
        ) from None
    except ValueError:
        raise RequestRefusedError(400, "the body is neither JSON nor a form in UTF-8") from None


def find_model_for_languages(service: TranslationService, source: str, target: str) -> ServedModel:
    """Return the first model of these languages, whatever country or script: `zh-TW` is `zh`.

    `auto` works only if a single source language fits; there is no language detection.
    """
    source, target = (code.partition("-")[0] for code in (source, target))
    candidates = [
        model
        for model in service.models.values()
        if source in ("auto", model.spec.source) and target == model.spec.target
    ]
    if not candidates:
        raise RequestRefusedError(400, "no model for these languages; see /languages")
    if len(codes := {model.spec.source for model in candidates}) > 1:
        names = ", ".join(sorted(codes))
        raise RequestRefusedError(400, f"source: name the language of the text, one of {names}")
    return candidates[0]


def build_libretranslate_router(service: TranslationService) -> APIRouter:
    """Build the two routes."""
    router = APIRouter()

    @router.post(
        "/translate",
        responses=ERROR_RESPONSES,
        openapi_extra={"requestBody": {"content": BODIES, "required": True}},
    )
    async def translate(request: Request) -> Response:
        """Translate as LibreTranslate does."""
        body = await read_request(request)
        check_api_key(
            service.settings.api_key, api_key_from_headers(request.headers) or body.api_key
        )
        if body.format != "text":
            raise RequestRefusedError(400, "only format=text can be translated")
        model = find_model_for_languages(service, body.source, body.target)
        try:
            submitted = service.submit_texts(request, model, body.q)
            done = await service.finish(request, None, gather_futures(submitted.futures))
        except UserError as error:
            raise RequestRefusedError(400, str(error)) from None
        translated = [text for text, _ in submitted.join(done)]
        answer = translated[0] if isinstance(body.q, str) else translated
        return JSONResponse({"translatedText": answer})

    @router.get("/languages")
    async def languages() -> list[dict[str, Any]]:
        """The source languages, and what each can be translated into."""
        pairs = [(model.spec.source, model.spec.target) for model in service.models.values()]
        return [
            {"code": code, "name": code, "targets": sorted({t for s, t in pairs if s == code})}
            for code in dict.fromkeys(source for source, _ in pairs)
        ]

    return router
