"""Translate documents with a served model: markup stays, terms are required."""

from collections.abc import Sequence

from fastapi import Request

from covnmt.inference.documents import DocumentBatch, TranslatedDocument
from covnmt.inference.terms import Terms
from covnmt.inference.translate import Translation
from covnmt.serve.security import RequestRefusedError
from covnmt.serve.served_model import ServedModel
from covnmt.serve.service import (
    TranslationService,
    client_name,
    gather_futures,
    numbered_prefixes,
)
from covnmt.serve.warnings import find_warnings
from covnmt.serve.work import TranslateWork
from covnmt.text.documents import DocumentFormat, markup_size


async def translate_documents(
    service: TranslationService,
    request: Request,
    model: ServedModel,
    sources: Sequence[str],
    document_format: DocumentFormat,
    terms: Terms,
    beam: int | None = None,
) -> tuple[list[TranslatedDocument], list[dict[str, str]]]:
    """Translate documents sentence by sentence; their markup is handled in other threads.

    Also return warnings about them.
    """
    markup = sum(markup_size(source, document_format) for source in sources)
    limit = service.settings.max_markup
    if markup > limit:
        message = f"{markup:,} tags, signs and lines of {document_format}; send {limit:,} at most"
        raise RequestRefusedError(413, message)
    decode = service.decoding(model, beam)
    service.log_text(request, sources)
    run, client = service.background.run, client_name(request)
    batch = await run(client, DocumentBatch, sources, document_format, terms)
    translations, first = list[Translation](), list[Translation]()
    while sentences := await run(client, batch.advance, translations):
        service.check_size(request, model, len(sentences))
        work = [TranslateWork((sentence,), decode) for sentence in sentences]
        prefixes = numbered_prefixes("sentence", len(sentences))
        translations = await gather_futures(service.submit(request, model, work, prefixes))
        first = first or translations  # later ones have placeholders in them
    return batch.results(), find_warnings(model.spec.name, model.properties.domain, first)
