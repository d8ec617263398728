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
from covnmt.serve.model_pool import ServedModel
from covnmt.serve.routes import ERROR_RESPONSES, TranslationService, gather_futures
from covnmt.serve.schemas import MAX_TEXTS, Text, first_problem
from covnmt.serve.security import RequestRefusedError, api_key_from_headers, check_api_key


class LibreRequest(BaseModel):
    """What their clients send; more fields than these are passed over."""

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
    """JSON or an HTML form, as they take both."""
    body, kind = await request.body(), request.headers.get("content-type", "").lower()
    if "multipart" in kind:
        raise RequestRefusedError(400, "send JSON, or a form as application/x-www-form-urlencoded")
    try:
        if "json" in kind:
            return LibreRequest.model_validate_json(body)
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=20)
        return LibreRequest.model_validate({key: values[-1] for key, values in fields.items()})
    except ValidationError as error:
        raise RequestRefusedError(400, first_problem(error.errors(include_input=False))) from None
    except ValueError:
        raise RequestRefusedError(400, "the body is neither JSON nor a form in UTF-8") from None


def find_model_for_languages(desk: TranslationService, source: str, target: str) -> ServedModel:
    """The first model of this pair of languages, whatever country or script: `zh-TW` is `zh`.

    `auto` is the one source that the target has; which of several a text is in, nobody here knows.
    """
    source, target = (code.partition("-")[0] for code in (source, target))
    suited = [
        engine
        for engine in desk.engines.values()
        if source in ("auto", engine.spec.source) and target == engine.spec.target
    ]
    if not suited:
        raise RequestRefusedError(400, "no model for these languages; see /languages")
    if len(codes := {engine.spec.source for engine in suited}) > 1:
        known = ", ".join(sorted(codes))
        raise RequestRefusedError(400, f"source: name the language of the text, one of {known}")
    return suited[0]


def build_router(desk: TranslationService) -> APIRouter:
    """The two routes."""
    router = APIRouter()

    @router.post(
        "/translate",
        responses=ERROR_RESPONSES,
        openapi_extra={"requestBody": {"content": BODIES, "required": True}},
    )
    async def translate(request: Request) -> Response:
        """Translate as LibreTranslate does."""
        body = await read_request(request)
        check_api_key(desk.settings.api_key, api_key_from_headers(request.headers) or body.api_key)
        if body.format != "text":
            raise RequestRefusedError(400, "only format=text can be translated")
        texts = [body.q] if isinstance(body.q, str) else body.q
        engine = find_model_for_languages(desk, body.source, body.target)
        try:
            accepted = desk.submit(request, engine, texts)
            done = await desk.finish(request, None, gather_futures(accepted.futures))
        except UserError as error:
            raise RequestRefusedError(400, str(error)) from None
        made = [text for text, _ in accepted.joined(done)]
        return JSONResponse({"translatedText": made[0] if isinstance(body.q, str) else made})

    @router.get("/languages")
    async def languages() -> list[dict[str, Any]]:
        """The source languages, and what each can be translated into."""
        pairs = [(engine.spec.source, engine.spec.target) for engine in desk.engines.values()]
        codes = dict.fromkeys(source for source, _ in pairs)
        return [
            {"code": code, "name": code, "targets": sorted({t for s, t in pairs if s == code})}
            for code in codes
        ]

    return router
