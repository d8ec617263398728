"""Translate documents: their texts sentence by sentence, with terms; tags go where attention says.

`translate_document` leaves the translating to its caller, as a command and the server do it in
different ways: it is a generator that yields sentences and is sent their translations.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import numpy as np

from covnmt.base.arrays import BoolArray, FloatArray
from covnmt.base.console import track, warn
from covnmt.base.files import is_file_path, read_input_lines
from covnmt.base.processes import chunked
from covnmt.inference.aligned_text import AlignedText, Span, best_range
from covnmt.inference.parallel import CHUNK_BATCHES, TranslationJob, map_lines
from covnmt.inference.terms import (
    NO_TERMS,
    RequiredText,
    TermReport,
    Terms,
    find_required,
    has_stray_number,
    insert_required,
    mask_required,
)
from covnmt.inference.translate import Translation
from covnmt.text.documents import DocumentFormat, parse_document
from covnmt.text.markup import Document, InlineMark, MarkedText
from covnmt.text.sentences import SplitText, split_into_sentences

# yields sentences, receives their translations, returns the document
Translating = Generator[list[str], Sequence[Translation] | None, "TranslatedDocument"]


@dataclass(frozen=True)
class TranslatedSentence:
    """A sentence of a document and its translation, both as a reader sees them."""

    source: str
    text: str
    score: float


@dataclass(frozen=True)
class TranslatedDocument:
    """A translated document, its sentences in order, and what became of its terms."""

    text: str
    sentences: tuple[TranslatedSentence, ...]
    terms: tuple[TermReport, ...]


@dataclass
class _Sentence:
    """A sentence with what is required of its translation; `start` is its place in a text."""

    text: str
    start: int
    required: list[RequiredText]  # in order, by positions in the sentence
    aligned: AlignedText
    # of the required texts, in the translation without placeholders
    required_spans: list[Span | None] = field(default_factory=list)
    positions: list[Span] = field(default_factory=list)  # of the required texts in the translation
    score: float = 0.0
    done: bool = False
    inserted: list[bool] = field(default_factory=list)  # which of them the translation lacked

    def use_unchanged(self) -> None:
        """Leave a sentence without words as it is, apart from its terms."""
        spans = [requirement.span for requirement in self.required]
        self._finish(AlignedText.unchanged(self.text), spans, spans)

    def use_translation(self, translation: Translation) -> None:
        """Use the translation if it has all that is required."""
        self.aligned = AlignedText.from_translation(self.text, translation)
        self.score = translation.score
        self.required_spans = find_required(translation.text, self.required)
        if None not in self.required_spans:
            self._finish_without_placeholders()

    def mask(self) -> tuple[str, list[RequiredText]]:
        """Return the sentence with placeholders for what the translation lacks."""
        return mask_required(self.text, self.required, [not span for span in self.required_spans])

    def use_masked(self, masked: str, sought: list[RequiredText], translation: Translation) -> None:
        """Use the translation with placeholders, unless the one without has as many terms."""
        positions = find_required(translation.text, sought)
        better = sum(map(bool, positions)) > sum(map(bool, self.required_spans))
        if better and not has_stray_number(self.text, translation.text, positions):
            self.score = translation.score
            aligned = AlignedText.from_translation(masked, translation)
            self._finish(aligned, [text.span for text in sought], positions)
        else:
            self._finish_without_placeholders()

    def _finish_without_placeholders(self) -> None:
        self._finish(self.aligned, [text.span for text in self.required], self.required_spans)

    def _finish(
        self, aligned: AlignedText, sources: Sequence[Span], positions: Sequence[Span | None]
    ) -> None:
        aligned, self.positions = insert_required(aligned, sources, self.required, positions)
        spans = [_original_span(span, sources, self.required) for span in aligned.source_spans]
        self.aligned = replace(aligned, source_spans=tuple(spans))
        self.inserted = [position is None for position in positions]
        self.done = True


def _original_span(span: Span, masked: Sequence[Span], required: Sequence[RequiredText]) -> Span:
    """Return the span of the sentence for one of the sentence with placeholders."""
    shift = 0
    for (start, end), requirement in zip(masked, required, strict=True):
        if start < span[1] and span[0] < end:
            return requirement.span
        if end <= span[0]:
            shift = requirement.end - end
    return span[0] + shift, span[1] + shift


def translate_document(document: Document, terms: Terms = NO_TERMS) -> Translating:
    """Yield the sentences of a document and receive their translations; return the document.

    Sentences whose translations lack terms are yielded again, with placeholders for the terms.
    """
    texts = [_TextInProgress(text, terms) for text in document if isinstance(text, MarkedText)]
    sentences = [sentence for text in texts for sentence in text.sentences]
    waiting = [sentence for sentence in sentences if not sentence.done]
    translations = (yield [sentence.text for sentence in waiting]) if waiting else []
    for sentence, translation in zip(waiting, translations or (), strict=True):
        sentence.use_translation(translation)
    retries = [(sentence, *sentence.mask()) for sentence in waiting if not sentence.done]
    translations = (yield [masked for _, masked, _ in retries]) if retries else []
    for (sentence, masked, sought), translation in zip(retries, translations or (), strict=True):
        sentence.use_masked(masked, sought, translation)
    in_order = iter(texts)
    return TranslatedDocument(
        "".join(item if isinstance(item, str) else next(in_order).render() for item in document),
        tuple(TranslatedSentence(s.text, s.aligned.text, s.score) for s in sentences),
        tuple(
            TermReport(sentence.text[term.start : term.end], term.text, inserted)
            for sentence in sentences
            for term, inserted in zip(sentence.required, sentence.inserted, strict=True)
            if term.is_term
        ),
    )


class DocumentBatch:
    """Documents that are being translated together, in two rounds at most.

    while sentences := batch.advance(translations): ...
    """

    def __init__(
        self, sources: Sequence[str], document_format: DocumentFormat, terms: Terms = NO_TERMS
    ) -> None:
        documents = [parse_document(source, document_format) for source in sources]
        self._running = [translate_document(document, terms) for document in documents]
        self._sizes: list[int | None] = [0] * len(sources)  # of the last round; None: it is done
        self._results: dict[int, TranslatedDocument] = {}
        self._begun = False

    def advance(self, translations: Sequence[Translation] = ()) -> list[str]:
        """Take the translations of the last sentences, and return the next: none if all is done."""
        sentences, remaining = list[str](), iter(translations)
        for number, (running, size) in enumerate(zip(self._running, self._sizes, strict=True)):
            if size is None:
                continue
            try:
                more = running.send([next(remaining) for _ in range(size)] if self._begun else None)
                sentences += more
                self._sizes[number] = len(more)
            except StopIteration as done:
                self._results[number] = done.value
                self._sizes[number] = None
        self._begun = True
        return sentences

    def results(self) -> list[TranslatedDocument]:
        """Return the translated documents, once there are no more sentences."""
        return [self._results[number] for number in range(len(self._running))]


def translate_document_input(
    job: TranslationJob,
    path: Path | str | None,
    document_format: DocumentFormat,
    terms: Terms,
    workers: int,
) -> TranslatedDocument:
    """Translate a document, sentence by sentence; long sentences are split.

    Warn if many sentences are unlike what the model was trained on.
    """
    job = replace(job, overlong="split", split_sentences=False)
    if not workers and is_file_path(path):
        workers = job.loader.default_workers
    batch = DocumentBatch(["\n".join(read_input_lines(path))], document_format, terms)
    size, translations = CHUNK_BATCHES * job.decode.batch_size, list[Translation]()
    name = str(path) if is_file_path(path) else ""
    monitor = job.loader.domain_monitor(name, "sentence")
    model = None
    while sentences := batch.advance(translations):
        if workers > 1 and len(sentences) > size:
            chunks = chunked(sentences, size)
            translated = map_lines(job.loader, job.translate, chunks, workers)
        else:
            model = model or job.loader.load()
            translated = job.translate(model, sentences)
        translations = list(track(translated, len(sentences), "translating", "sentences"))
        if monitor:
            monitor.add_all(translations)
    if monitor:
        monitor.warn()
    [document] = batch.results()
    for term in dict.fromkeys(term for term in document.terms if term.inserted):
        warn(
            f"{term.source}: {term.target} was not in the translation, and was inserted where the "
            "attention was; check those sentences"
        )
    return document


class _TextInProgress:
    """A marked text whose sentences are being translated."""

    def __init__(self, marked: MarkedText, terms: Terms) -> None:
        self.marked = marked
        kept = [
            RequiredText(text.start, text.end, marked.text[text.start : text.end], is_term=False)
            for text in marked.kept
            if not marked.text[text.start : text.end].isspace()
        ]
        in_kept = bytearray(len(marked.text))  # 1 for characters that stay anyway
        for stays in kept:
            in_kept[slice(*stays.span)] = b"\1" * (stays.end - stays.start)
        found_terms = [t for t in terms.find(marked.text) if 1 not in in_kept[slice(*t.span)]]
        required = sorted(kept + found_terms, key=lambda requirement: requirement.start)
        self.layout = split_around(marked.text, [requirement.span for requirement in required])
        self.sentences: list[_Sentence] = []
        position, remaining = len(self.layout.gaps[0]), iter([*required, None])
        requirement = next(remaining)
        for text, gap in zip(self.layout.sentences, self.layout.gaps[1:], strict=True):
            inside = []
            while requirement is not None and requirement.start < position + len(text):
                start, end = requirement.start - position, requirement.end - position
                inside.append(replace(requirement, start=start, end=end))
                requirement = next(remaining)
            self.sentences.append(_Sentence(text, position, inside, AlignedText.unchanged(text)))
            position += len(text) + len(gap)
        for sentence in self.sentences:
            if not has_words_outside(sentence.text, sentence.required):
                sentence.use_unchanged()

    def render(self) -> str:
        """Return the translation with its markup."""
        pieces = self.layout.pieces([sentence.aligned.text for sentence in self.sentences])
        if not self.marked.marks and not self.marked.kept:
            return self.marked.finish(self.marked.escape("".join(pieces)))
        renderer = _Renderer(self.marked, self.sentences, pieces)
        return self.marked.finish(renderer.render())


def split_around(text: str, spans: Sequence[Span]) -> SplitText:
    """Split a text into sentences, but nowhere inside these spans, which are in order."""
    layout = split_into_sentences(text)
    sentences, gaps, position = list[str](), [layout.gaps[0]], len(layout.gaps[0])
    number, joining = 0, False
    for sentence, gap in zip(layout.sentences, layout.gaps[1:], strict=True):
        if joining:
            sentences[-1] += gaps.pop() + sentence
        else:
            sentences.append(sentence)
        gaps.append(gap)
        end = position + len(sentence)
        position = end + len(gap)
        while number < len(spans) and spans[number][1] <= end:
            number += 1
        joining = number < len(spans) and spans[number][0] < position
        joining = joining and position < len(text)
    return SplitText(tuple(sentences), tuple(gaps))


def has_words_outside(text: str, required: Sequence[RequiredText]) -> bool:
    """Tell whether a text has letters or digits beside what is required."""
    edges = [0, *(edge for requirement in required for edge in requirement.span), len(text)]
    outside = zip(edges[::2], edges[1::2], strict=True)
    return any(character.isalnum() for start, end in outside for character in text[start:end])


@dataclass(frozen=True)
class _Node:
    """An element or a single mark, and what is inside."""

    mark: InlineMark
    children: "list[_Node]"


def _build_tree(marks: Sequence[InlineMark], length: int) -> _Node:
    """Nest marks, which are in the order of their openings, in an element around the text."""
    root = _Node(InlineMark(0, length, "", "", -1), [])
    path = [root]
    for mark in marks:
        node = _Node(mark, [])
        while path[-1].mark.depth >= mark.depth:
            path.pop()
        path[-1].children.append(node)
        if mark.closing:
            path.append(node)
    return root


class _Renderer:
    """Puts the markup of a text into its translation.

    An element goes around the run of words with most attention to its own words; elements inside
    the same element never overlap, and each is there exactly once.
    """

    def __init__(
        self,
        marked: MarkedText,
        sentences: Sequence[_Sentence],
        pieces: Sequence[str],
    ) -> None:
        self.marked, self.sentences = marked, sentences
        self.text = "".join(pieces)
        starts = list(accumulate(map(len, pieces), initial=0))
        self.gap_starts, self.sentence_starts = starts[:-1:2], starts[1:-1:2]
        self.source_starts = [sentence.start for sentence in sentences]
        self.words: list[Span] = []
        self.word_bounds = [0]  # of every sentence
        self.kept: list[tuple[int, int, str]] = []  # in the translation
        markup = {text.start: text.markup for text in marked.kept}
        for sentence, start in zip(sentences, self.sentence_starts, strict=True):
            self.words += [(start + a, start + b) for a, b in sentence.aligned.words]
            self.word_bounds.append(len(self.words))
            for requirement, (a, b) in zip(sentence.required, sentence.positions, strict=True):
                if not requirement.is_term:
                    shown = markup.pop(sentence.start + requirement.start)
                    self.kept.append((start + a, start + b, shown))
        for position, shown in markup.items():  # line breaks, between sentences
            if (gap := self._gap_position(position)) is not None:
                self.kept.append((gap, gap + 1, shown))
        self.kept.sort()

    def render(self) -> str:
        """Return the translation with its markup."""
        root = _build_tree(self.marked.marks, len(self.marked.text))
        return self._render(root, (0, len(self.text)), (0, len(self.words)))

    def _render(self, node: _Node, span: Span, words: Span) -> str:
        """Return the text of an element, which has this span of the translation."""
        places: list[tuple[Span, int, str]] = []  # span, order, markup
        taken = np.zeros(words[1] - words[0], dtype=np.bool_)
        order = {id(child): number for number, child in enumerate(node.children)}
        elements = [child for child in node.children if child.mark.start < child.mark.end]
        for child in sorted(elements, key=lambda child: child.mark.end - child.mark.start):
            place, inside = self._place_element(child.mark, node.mark, span, words, taken)
            markup = self._render(child, place, inside)
            shown = f"{child.mark.opening}{markup}{child.mark.closing}"
            places.append((place, order[id(child)], shown))
        spans = sorted((place, number) for place, number, _ in places)
        placed = {number for _, number in spans}
        for number, child in enumerate(node.children):
            if number not in placed:
                position = self._place_single(child.mark, node, span, spans)
                inner = "".join(_markup(inside) for inside in child.children)
                shown = f"{child.mark.opening}{inner}{child.mark.closing}"
                places.append(((position, position), number, shown))
        text, position = "", span[0]
        for (start, end), _, shown in sorted(places):
            text += self._plain(position, start) + shown
            position = end
        return text + self._plain(position, span[1])

    def _place_element(
        self, mark: InlineMark, parent: InlineMark, span: Span, words: Span, taken: BoolArray
    ) -> tuple[Span, Span]:
        """Return the characters and words of the translation that an element is put around."""
        if mark.start <= parent.start and parent.end <= mark.end and not taken.any():
            taken[:] = True
            return span, words
        first = max(0, bisect_right(self.source_starts, mark.start) - 1)
        last = bisect_left(self.source_starts, mark.end)  # exclusive
        low = max(words[0], self.word_bounds[first])
        high = min(words[1], self.word_bounds[last])
        rows = [self._weights(mark, number) for number in range(first, last)]
        weights = np.concatenate([*rows, np.zeros(0, dtype=np.float32)])
        weights = weights[low - self.word_bounds[first] : high - self.word_bounds[first]]
        weights = np.where(taken[low - words[0] : high - words[0]], -np.inf, weights)
        if not np.isfinite(weights).any():
            position = span[0] if mark.start <= parent.start else span[1]
            gap = self._gap_position(mark.start)
            position = position if gap is None else gap
            position = min(max(position, span[0]), span[1])
            return (position, position), (low, low)
        begin, end, _ = best_range(weights)
        begin, end = begin + low, end + low
        taken[begin - words[0] : end - words[0]] = True
        return (self.words[begin][0], self.words[end - 1][1]), (begin, end)

    def _weights(self, mark: InlineMark, number: int) -> FloatArray:
        """Return for the words of a sentence whether they translate what is inside an element."""
        sentence = self.sentences[number]
        inside = mark.start - sentence.start, mark.end - sentence.start
        if inside[0] <= 0 and inside[1] >= len(sentence.text):
            return np.ones(len(sentence.aligned.words), dtype=np.float32)
        return sentence.aligned.weights(inside)

    def _place_single(
        self, mark: InlineMark, parent: _Node, span: Span, siblings: Sequence[tuple[Span, int]]
    ) -> int:
        """Return where a single mark goes: before the word that follows it in the source."""
        if mark.start <= parent.mark.start:
            position: int | None = span[0]
        elif mark.start >= parent.mark.end:
            position = span[1]
        else:
            position = self._gap_position(mark.start)
        if position is None:
            position = self._position_before(mark.start)
        position = min(max(position, span[0]), span[1])
        if index := bisect_left(siblings, ((position, -1), -1)):
            (start, end), number = siblings[index - 1]
            if start < position < end:
                after = parent.children[number].mark.start < mark.start
                position = end if after else start
        return position

    def _gap_position(self, position: int) -> int | None:
        """Return where a position between two sentences is in the translation; None inside one."""
        number = bisect_right(self.source_starts, position)  # of the sentence after it
        if number and self.source_starts[number - 1] == position:
            number -= 1  # right before a sentence
            return self.sentence_starts[number]
        previous = self.sentences[number - 1] if number else None
        gap_start = previous.start + len(previous.text) if previous else 0
        return None if position < gap_start else self.gap_starts[number] + position - gap_start

    def _position_before(self, position: int) -> int:
        """Return where the word begins that the source has after this position."""
        number = bisect_right(self.source_starts, position) - 1
        sentence, start = self.sentences[number], self.sentence_starts[number]
        inside = position - sentence.start
        after = [k for k, (a, _) in enumerate(sentence.aligned.source_spans) if a >= inside]
        if not after or not sentence.aligned.words:
            return start + len(sentence.aligned.text)
        word = int(sentence.aligned.attention[:, after[0]].argmax())
        return start + sentence.aligned.words[word][0]

    def _plain(self, start: int, end: int) -> str:
        """Return a part of the translation, with the markup of what is kept in it."""
        text, position = "", start
        first = bisect_left(self.kept, (start,))
        for kept_start, kept_end, markup in self.kept[first : bisect_left(self.kept, (end,))]:
            text += self.marked.escape(self.text[position:kept_start]) + markup
            position = kept_end
        return text + self.marked.escape(self.text[position : max(position, end)])


def _markup(node: _Node) -> str:
    return (
        node.mark.opening + "".join(_markup(child) for child in node.children) + node.mark.closing
    )
