"""What the routes share: the models, the limits, and waiting for results while a client does."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request

from covnmt.base.errors import UserError
from covnmt.inference.translate import Translation, override_decoding
from covnmt.serve.access_log import CLIENT_CLOSED_REQUEST, add_log_fields
from covnmt.serve.model_pool import ServedModel, numbered_prefixes
from covnmt.serve.security import RequestRefusedError
from covnmt.serve.settings import ServeSettings
from covnmt.serve.work import ProgressCallback, TranslateWork
from covnmt.text.sentences import SplitText, split_into_sentences

P = TypeVar("P")
T = TypeVar("T")


@dataclass(frozen=True)
class SubmittedTexts:
    """Texts whose sentences are being translated."""

    layouts: list[SplitText]
    futures: "list[Future[Translation]]"

    def join(self, translations: Sequence[Translation]) -> list[tuple[str, list[Translation]]]:
        """Return every text put together again, and the translations of its sentences."""
        rest = iter(translations)
        texts = []
        for layout in self.layouts:
            sentences = [next(rest) for _ in layout.sentences]
            texts.append((layout.join([sentence.text for sentence in sentences]), sentences))
        return texts


class TranslationService:
    """The served models, and what a request may ask of them."""

    def __init__(self, models: dict[str, ServedModel], settings: ServeSettings) -> None:
        self.models, self.settings = models, settings

    def model(self, name: str | None) -> ServedModel:
        """Return the model of this name, by default the first; clients cannot open others."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            names = ", ".join(self.models)
            raise RequestRefusedError(404, f"no model of that name; there are: {names}")
        return self.models[name]

    def submit_texts(
        self,
        request: Request,
        model: ServedModel,
        texts: str | Sequence[str],
        beam: int | None = None,
        nbest: int | None = None,
        on_partial: ProgressCallback | None = None,
    ) -> SubmittedTexts:
        """Split one text or several into sentences and queue these for translation."""
        texts = [texts] if isinstance(texts, str) else texts
        if (beam or 1) > self.settings.max_beam:
            raise UserError(f"beam may be {self.settings.max_beam} at most on this server")
        layouts = [split_into_sentences(text) for text in texts]
        self.accept(request, model, sum(len(layout.sentences) for layout in layouts))
        decode = override_decoding(model.decode, {"beam": beam, "nbest": nbest})
        work, prefixes = [], []
        for text_prefix, layout in zip(numbered_prefixes("text", len(texts)), layouts, strict=True):
            sentence_prefixes = numbered_prefixes("sentence", len(layout.sentences))
            prefixes += [text_prefix + prefix for prefix in sentence_prefixes]
            work += [TranslateWork((sentence,), decode) for sentence in layout.sentences]
        futures = model.submit(work, prefixes, on_partial)
        if self.settings.log_text:
            add_log_fields(request.scope, text=texts)
        return SubmittedTexts(layouts, futures)

    def accept(self, request: Request, model: ServedModel, sentences: int) -> None:
        """Refuse more sentences than a request may have; log the model and their number."""
        limit = min(self.settings.max_sentences, self.settings.queue)
        if sentences > limit:
            message = f"{sentences:,} sentences; send {limit} at most in one request"
            raise RequestRefusedError(413, message)
        add_log_fields(request.scope, model=model.spec.name, sentences=sentences)

    def time_limit(self, requested: float | None) -> float:
        """Return the seconds that a request may take."""
        return min(requested or self.settings.timeout, self.settings.timeout)

    async def finish(
        self, request: Request, timeout: float | None, results: Coroutine[Any, Any, T]
    ) -> T:
        """Wait for results; they are cancelled when time is up or the client has gone."""
        seconds = self.time_limit(timeout)
        work = asyncio.ensure_future(results)
        disconnected = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait(
                {work, disconnected}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if work.done():
                return work.result()
            if disconnected.done():
                raise RequestRefusedError(CLIENT_CLOSED_REQUEST, "the client has gone")
            message = f"not done within {seconds:g} s; send less at once"
            raise RequestRefusedError(408, message)
        finally:
            work.cancel()
            disconnected.cancel()


async def gather_futures(futures: "Sequence[Future[T]]") -> list[T]:
    """Wait for all; the first failure, or being cancelled, cancels the others."""
    try:
        return list(await asyncio.gather(*map(asyncio.wrap_future, futures)))
    except BaseException:
        for future in futures:
            future.cancel()
        raise


async def submit_one_by_one(submit: "Callable[[P], Future[T]]", items: Sequence[P]) -> list[T]:
    """Submit each item when the one before it is done, so that others have their turn between."""
    return [result for item in items for result in await gather_futures([submit(item)])]


async def _disconnected(request: Request) -> None:
    """Return when the client hangs up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
