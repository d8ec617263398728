"""Translate documents with a served model: markup stays, terms are required."""

import asyncio
from collections.abc import Sequence

from fastapi import Request

from covnmt.base.errors import UserError
from covnmt.inference.documents import DocumentBatch, TranslatedDocument
from covnmt.inference.terms import Terms
from covnmt.inference.translate import Translation, override_decoding
from covnmt.serve.monitoring import add_log_fields
from covnmt.serve.served_model import ServedModel
from covnmt.serve.service import TranslationService, gather_futures, numbered_prefixes
from covnmt.serve.work import TranslateWork
from covnmt.text.documents import DocumentFormat


async def translate_documents(
    service: TranslationService,
    request: Request,
    model: ServedModel,
    sources: Sequence[str],
    document_format: DocumentFormat,
    terms: Terms,
    beam: int | None = None,
) -> list[TranslatedDocument]:
    """Translate documents sentence by sentence; their markup is handled in another thread."""
    if (beam or 1) > service.settings.max_beam:
        raise UserError(f"beam may be {service.settings.max_beam} at most on this server")
    decode = override_decoding(model.decode, {"beam": beam})
    if service.settings.log_text:
        add_log_fields(request.scope, text=sources)
    batch = await asyncio.to_thread(DocumentBatch, sources, document_format, terms)
    translations: list[Translation] = []
    while sentences := await asyncio.to_thread(batch.advance, translations):
        service.check_size(request, model, len(sentences))
        work = [TranslateWork((sentence,), decode) for sentence in sentences]
        prefixes = numbered_prefixes("sentence", len(sentences))
        translations = await gather_futures(service.submit(request, model, work, prefixes))
    return batch.results()
