"""LibreTranslate's routes, so that its clients work unchanged.

A request is answered by the first model of its languages. With `auto`, the language of every text
is detected among those of the models.
"""

import json
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import parse_qsl

from fastapi import APIRouter, Request
from pydantic import BaseModel, BeforeValidator, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from covnmt.base.errors import UserError
from covnmt.data.lexicon import Lexicon
from covnmt.inference.terms import NO_TERMS
from covnmt.inference.translate import Translation
from covnmt.model.directory import LEXICON_FILE
from covnmt.serve.documents import translate_documents
from covnmt.serve.routes import ERROR_RESPONSES
from covnmt.serve.schemas import (
    MAX_BEAM,
    MAX_TEXTS,
    Text,
    first_error_message,
    json_error_message,
)
from covnmt.serve.security import RequestRefusedError, admit_with_key_in_body
from covnmt.serve.served_model import ModelSpec, ServedModel
from covnmt.serve.service import TranslationService, client_name, gather_futures
from covnmt.text.codec import SIDES, Codec
from covnmt.text.html import plain_text
from covnmt.text.languages import (
    LanguageDetector,
    LanguageEvidence,
    LanguageGuess,
    guess_among,
    language_name,
    primary_language,
)
from covnmt.text.sentences import SplitText

MAX_FIELDS = MAX_TEXTS + 20  # of a form

Body = TypeVar("Body", bound=BaseModel)
Texts = Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]


class LibreRequest(BaseModel):
    """A request of a LibreTranslate client; other fields are ignored."""

    q: Texts
    source: str = "auto"
    target: str
    format: Annotated[Literal["text", "html"], BeforeValidator(lambda given: given or "text")] = (
        "text"
    )
    alternatives: Annotated[int, Field(ge=0, lt=MAX_BEAM)] = 0
    api_key: str | None = None


class DetectRequest(BaseModel):
    """A text whose language is asked for."""

    q: Text
    api_key: str | None = None


def body_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """Describe a body that may be JSON or a form, for the OpenAPI document."""
    types = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
    content = {name: {"schema": kind.model_json_schema()} for name in types}
    return {"requestBody": {"content": content, "required": True}}


async def read_request(request: Request, kind: type[Body]) -> Body:
    """Read JSON or a form, as LibreTranslate accepts both, with the parameters of the address.

    A form with several `q` has several texts.
    """
    content_type = request.headers.get("content-type", "").lower()
    try:
        if "json" in content_type:
            return kind.model_validate(json.loads(await request.body()))
        if "multipart" in content_type:
            form = await request.form(max_files=0, max_fields=MAX_FIELDS)
            fields = [(key, str(value)) for key, value in form.multi_items()]
        else:
            body = (await request.body()).decode()
            fields = parse_qsl(body, keep_blank_values=True, max_num_fields=MAX_FIELDS)
        values: dict[str, Any] = {}
        for key, value in [*fields, *request.query_params.multi_items()]:
            values.setdefault(key, []).append(value)
        texts = values.pop("q", [])
        single = {key: found[0] for key, found in values.items()}
        if texts:
            single["q"] = texts if len(texts) > 1 else texts[0]
        return kind.model_validate(single)
    except json.JSONDecodeError as error:
        message = json_error_message(error.msg, error.doc, error.pos)
        raise RequestRefusedError(400, message) from None
    except ValidationError as error:
        message = first_error_message(error.errors(include_input=False))
        raise RequestRefusedError(400, message) from None
    except HTTPException as error:
        if error.status_code != 400:  # the body is too large
            raise
        raise RequestRefusedError(400, f"the form cannot be read: {error.detail}") from None
    except (ValueError, RecursionError):
        raise RequestRefusedError(400, "the body is neither JSON nor a form in UTF-8") from None


def language_evidence(spec: ModelSpec) -> Iterator[LanguageEvidence]:
    """Yield the evidence for the languages of a model; a joint vocabulary needs a lexicon."""
    codecs = {side: Codec.load(spec.directory, side) for side in SIDES}
    shared = codecs["source"].vocabulary == codecs["target"].vocabulary
    lexicon = Lexicon.load(spec.directory / LEXICON_FILE) if shared else None
    for side in SIDES:
        handicap = partial(lexicon.handicap, side=side) if lexicon else None
        yield LanguageEvidence(getattr(spec, side), codecs[side], handicap)


class LanguageDirectory:
    """The languages of the served models, and the models for a request."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.models = models
        self.pairs = [(model.spec.source, model.spec.target) for model in models]

    @cached_property
    def detector(self) -> LanguageDetector:
        """The detector of the languages on both sides of the models; it reads their files."""
        return LanguageDetector(
            evidence for model in self.models for evidence in language_evidence(model.spec)
        )

    def candidates(self, source: str, target: str) -> list[ServedModel]:
        """Return the models of these languages, whatever country or script: `zh-TW` is `zh`.

        Every source language fits `auto`.
        """
        source, target = primary_language(source), primary_language(target)
        models = [
            model
            for model, (source_language, target_language) in zip(
                self.models, self.pairs, strict=True
            )
            if source in ("auto", source_language) and target == target_language
        ]
        if not models:
            raise RequestRefusedError(400, "no model for these languages; see /languages")
        return models

    def detect(self, text: str) -> list[LanguageGuess]:
        """Return the languages that a text may have, the likeliest first."""
        return self.detector.detect(text)

    def choose(
        self, candidates: Sequence[ServedModel], text: str
    ) -> tuple[ServedModel | None, LanguageGuess]:
        """Detect the language of a text; return its model.

        There is none if the text is in the target language or has no letters.
        """
        languages = {model.spec.source: model for model in reversed(candidates)}
        target = candidates[0].spec.target
        if not has_letters(text):
            return None, LanguageGuess(target, 0.0)
        guesses = self.detect(text)
        likeliest = guess_among(guesses, [*languages, target])
        guess = guess_among(guesses, languages)
        if likeliest.language not in languages and likeliest.confidence > guess.confidence:
            return None, likeliest
        return languages[guess.language], guess

    def to_json(self) -> list[dict[str, Any]]:
        """List every language with what it can be translated into."""
        codes = [code for pair in self.pairs for code in pair]
        return [
            {
                "code": code,
                "name": language_name(code),
                "targets": sorted({target for source, target in self.pairs if source == code}),
            }
            for code in dict.fromkeys(codes)
        ]


def has_letters(text: str) -> bool:
    """Tell whether there is something to translate: not in numbers, times and emoji."""
    return any(map(str.isalpha, text))


def guess_json(guess: LanguageGuess) -> dict[str, Any]:
    """Return a guess as LibreTranslate does, whose confidence is a percentage."""
    return {"language": guess.language, "confidence": round(100 * guess.confidence, 1)}


def build_libretranslate_router(service: TranslationService) -> APIRouter:
    """Build the routes."""
    router = APIRouter()
    languages = LanguageDirectory(list(service.models.values()))

    @router.post("/translate", responses=ERROR_RESPONSES, openapi_extra=body_schema(LibreRequest))
    async def translate(request: Request) -> Response:
        """Translate as LibreTranslate does."""
        body = await read_request(request, LibreRequest)
        admit_with_key_in_body(request.scope, body.api_key)
        texts = [body.q] if isinstance(body.q, str) else body.q
        candidates = languages.candidates(body.source, body.target)
        models: list[ServedModel | None] = [
            candidates[0] if has_letters(text) else None for text in texts
        ]
        guesses: list[LanguageGuess] = []
        if body.source.lower() == "auto":
            readable = plain_text if body.format == "html" else str
            choosing = service.background.run(
                client_name(request),
                lambda: [languages.choose(candidates, readable(text)) for text in texts],
            )
            chosen = await service.finish(request, None, choosing)
            models, guesses = [model for model, _ in chosen], [guess for _, guess in chosen]
        translated = await _translate_texts(service, request, body, texts, models)
        answer: dict[str, Any] = {"translatedText": [text for text, _ in translated]}
        if guesses:
            answer["detectedLanguage"] = [guess_json(guess) for guess in guesses]
        if body.alternatives:
            answer["alternatives"] = [alternatives for _, alternatives in translated]
        if isinstance(body.q, str):
            answer = {key: values[0] for key, values in answer.items()}
        return JSONResponse(answer)

    @router.post("/detect", responses=ERROR_RESPONSES, openapi_extra=body_schema(DetectRequest))
    async def detect(request: Request) -> list[dict[str, Any]]:
        """Detect which language of the models a text is written in."""
        body = await read_request(request, DetectRequest)
        admit_with_key_in_body(request.scope, body.api_key)
        guesses = await service.background.run(client_name(request), languages.detect, body.q)
        return [guess_json(guess) for guess in guesses]

    @router.get("/languages")
    async def list_languages() -> list[dict[str, Any]]:
        """All languages, and what each can be translated into."""
        return languages.to_json()

    @router.get("/frontend/settings")
    async def frontend_settings() -> dict[str, Any]:
        """What LibreTranslate's page and clients ask of a server."""
        target = languages.pairs[0][1]
        settings = service.settings
        return {
            "apiKeys": bool(settings.api_keys),
            "charLimit": settings.max_body,
            "filesTranslation": False,
            "frontendTimeout": 500,
            "keyRequired": bool(settings.api_keys),
            "language": {
                "source": {"code": "auto", "name": "Auto Detect"},
                "target": {"code": target, "name": language_name(target)},
            },
            "suggestions": False,
            "supportedFilesFormat": [],
        }

    return router


async def _translate_texts(
    service: TranslationService,
    request: Request,
    body: LibreRequest,
    texts: Sequence[str],
    models: Sequence[ServedModel | None],
) -> list[tuple[str, list[str]]]:
    """Translate each text with its model; return translations and alternatives.

    A text without a model stays as it is.
    """
    results = [(text, list[str]()) for text in texts]
    for model in dict.fromkeys(models):
        if model is None:
            continue
        mine = [index for index, each in enumerate(models) if each is model]
        sources = [texts[index] for index in mine]
        try:
            translated = await _translate_with(service, request, body, model, sources)
        except UserError as error:
            raise RequestRefusedError(400, str(error)) from None
        for index, result in zip(mine, translated, strict=True):
            results[index] = result
    return results


async def _translate_with(
    service: TranslationService,
    request: Request,
    body: LibreRequest,
    model: ServedModel,
    sources: Sequence[str],
) -> list[tuple[str, list[str]]]:
    """Return translations and alternatives, which HTML has none of, as in LibreTranslate."""
    if body.format == "html":
        translating = translate_documents(service, request, model, sources, "html", NO_TERMS)
        documents, _ = await service.finish(request, None, translating)
        return [(document.text, []) for document in documents]
    nbest = 1 + body.alternatives
    beam = max(nbest, model.decode.beam) if body.alternatives else None
    submitted = await service.submit_texts(request, model, sources, beam, nbest)
    done = await service.finish(request, None, gather_futures(submitted.futures))
    results = []
    for layout, (text, sentences) in zip(submitted.layouts, submitted.join(done), strict=True):
        others = _alternative_texts(layout, sentences, body.alternatives)
        results.append((text, [other for other in others if other != text]))
    return results


def _alternative_texts(
    layout: SplitText, sentences: Sequence[Translation], number: int
) -> list[str]:
    """Return texts of the second translations of all sentences, of the third ones, and so on."""
    return list(
        dict.fromkeys(
            layout.join(
                [
                    sentence.alternatives[min(rank, len(sentence.alternatives)) - 1].text
                    if sentence.alternatives
                    else sentence.text
                    for sentence in sentences
                ]
            )
            for rank in range(1, number + 1)
        )
    )
