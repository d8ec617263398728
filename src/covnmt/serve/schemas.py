"""Request and response bodies; the OpenAPI document describes them, with their examples.

Numbers in responses are rounded to four places.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from covnmt.base.errors import UserError
from covnmt.inference.align import Alignment
from covnmt.inference.documents import TranslatedDocument
from covnmt.inference.translate import Translation, rounded_list
from covnmt.metrics.adequacy import LOW_ATTENTION
from covnmt.serve.remarks import Remark, find_remarks, max_coverage, readable_tokens
from covnmt.serve.served_model import ServedModel
from covnmt.text.documents import DocumentFormat

JSON_HEADER = "Content-Type: application/json"
MAX_TEXTS = 500
MAX_BEAM = 100
MAX_TERMS = 1000

ResultPart = Literal["tokens", "readable_tokens", "alignment", "coverage", "fertility", "remarks"]
# control characters except tabs and line breaks; Python also accepts halves of surrogate pairs
CONTROL_CLASS = r"\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f"
CONTROL_CHARACTERS = re.compile(rf"[{CONTROL_CLASS}\ud800-\udfff]")


def reject_control_characters(text: str) -> str:
    """Reject control characters; line breaks and tabs are text."""
    if match := CONTROL_CHARACTERS.search(text):
        raise ValueError(f"control character U+{ord(match[0]):04X} in the text; remove it")
    return text


def reject_blank(text: str) -> str:
    """Reject text without words."""
    if not text.strip():
        raise ValueError("empty; leave it out")
    return text


Text = Annotated[
    str,
    AfterValidator(reject_control_characters),
    Field(json_schema_extra={"pattern": f"^[^{CONTROL_CLASS}]*$"}),
]


def accept_whole_float(number: Any) -> Any:
    """Take 5.0 for 5, which it is in JSON."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


WHOLE_FLOATS = BeforeValidator(accept_whole_float)
# a term may occur often, so that a long translation of it would make a huge answer
TermSource = Annotated[Text, AfterValidator(reject_blank), Field(min_length=1, max_length=200)]
TermTarget = Annotated[Text, Field(max_length=200)]


# By what Python's parser says of broken JSON.
JSON_ERRORS = {
    "Expecting value": "a value is missing or has no quotes",
    "Expecting property name enclosed in double quotes": "a name in double quotes is missing",
    "Illegal trailing comma": "a comma too many",
    "Expecting ',' delimiter": "a comma or a closing bracket is missing",
    "Expecting ':' delimiter": "a colon is missing",
    "Unterminated string starting at": "the string that begins here has no end",
    "Invalid control character at": "a control character in a string; write \\n for a line break",
    "Invalid \\escape": "a backslash before the wrong character",
    "Invalid \\uXXXX escape": "\\u without four hexadecimal digits",
    "Extra data": "something comes after the end",
}


def json_error_message(reason: str, document: str, position: int) -> str:
    """Say what is wrong with JSON, and where: lines and columns count from 1."""
    if not document.strip():
        return "the body is empty; send a JSON object, with the header " + JSON_HEADER
    messages = (ours for theirs, ours in JSON_ERRORS.items() if reason.startswith(theirs))
    before = document[:position]
    line, column = before.count("\n") + 1, position - before.rfind("\n")
    message = next(messages, "this cannot be read")
    return f"the body is not JSON: {message} (line {line}, column {column})"


def request_error_message(error: RequestValidationError) -> str:
    """Say what is wrong with a request."""
    first = error.errors()[0]
    if first["type"] == "json_invalid" and isinstance(error.body, str):
        return json_error_message(first["ctx"]["error"], error.body, first["loc"][-1])
    return first_error_message(error.errors())


def first_error_message(errors: Sequence[Any]) -> str:
    """Return what pydantic rejects first, and in which field; repeat little of the request."""
    error = next(filter(_in_list, errors), errors[0])
    no_object = error["loc"] == ("body",) and error["type"] in ("model_attributes_type", "missing")
    if no_object or error["type"] == "json_invalid":
        return f"send a JSON object, with the header {JSON_HEADER}"
    field = ".".join(str(step) for step in error["loc"] if _is_field(step))
    message = str(error["msg"]).removeprefix("Value error, ")
    # the client may have named the field: only what can be printed is repeated
    return f"{field[:80].encode('ascii', 'replace').decode()}: {message}" if field else message


def _in_list(error: Any) -> bool:
    """Tell whether one of several texts is wrong: before that, pydantic reports that a list is not
    a single text."""
    inside = any(str(step).startswith("list[") for step in error["loc"])
    return inside and error["type"] != "list_type"


def _is_field(step: str | int) -> bool:
    """Tell whether a step is a field or an index, not a part of the request or a type."""
    return step not in ("body", "str") and "[" not in str(step)


class RequestBody(BaseModel):
    """Base of request bodies: unknown fields are errors, and types are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ModelRequest(RequestBody):
    """What can be asked of a model, and for how long."""

    model: Annotated[str, Field(max_length=64)] | None = Field(
        None, description="one of /v1/models; the first if not given"
    )
    timeout: Annotated[float, Field(ge=0.01, le=3600, allow_inf_nan=False)] | None = Field(
        None, description="seconds after which to give up"
    )


class TranslateRequest(ModelRequest):
    """One text or several; each is split into sentences, and keeps its line breaks and spaces."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"text": "ze muye piro sire tuye"},
                {"text": ["a first text", "and another"], "beam": 5, "return": ["alignment"]},
                {"text": "<p>ze <b>muye</b></p>", "format": "html", "terms": {"muye": None}},
            ]
        }
    )

    text: Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]
    beam: Annotated[int, Field(ge=1, le=MAX_BEAM), WHOLE_FLOATS] | None = Field(
        None, description="hypotheses kept while searching; the model's own if not given"
    )
    nbest: Annotated[int, Field(ge=1, le=MAX_BEAM), WHOLE_FLOATS] = Field(
        1, description="translations per sentence, at most `beam`"
    )
    parts: Annotated[list[ResultPart], Field(max_length=10)] = Field(
        default_factory=list, alias="return", description="what else to return for each sentence"
    )
    format: DocumentFormat = Field(
        "text", description="markup stays as it is, and inline tags follow their words"
    )
    terms: Annotated[dict[TermSource, TermTarget | None], Field(max_length=MAX_TERMS)] = Field(
        default_factory=dict,
        description="terms and their required translations; with null they stay as they are",
    )

    @property
    def is_document(self) -> bool:
        """Whether there is more to do than to translate sentences."""
        return self.format != "text" or bool(self.terms)

    def refuse_sentence_options(self) -> None:
        """Refuse what a document cannot have."""
        if self.nbest > 1 or self.parts:
            raise UserError("nbest and return work only with format=text and without terms")


class SentencePair(RequestBody):
    """A sentence and its translation."""

    source: Annotated[Text, AfterValidator(reject_blank), Field(min_length=1)]
    target: Annotated[Text, AfterValidator(reject_blank), Field(min_length=1)]


def pair_example(source: str, target: str) -> ConfigDict:
    """Return the settings of a request with pairs: its example."""
    return ConfigDict(
        json_schema_extra={"examples": [{"pairs": [{"source": source, "target": target}]}]}
    )


class AlignRequest(ModelRequest):
    """Pairs of a sentence and a translation to align by forced decoding."""

    model_config = pair_example(
        "ze muye piro sire tuye", "tuwem hinar rodib nohab sesikor eth tunosit"
    )

    pairs: Annotated[list[SentencePair], Field(min_length=1, max_length=MAX_TEXTS)]
    tokenized: bool = Field(False, description="take the words between spaces as tokens")


class CheckPair(RequestBody):
    """A sentence and a translation to check."""

    source: Annotated[Text, Field(min_length=1)]
    target: Text = Field(description="any translation; an empty one leaves out everything")


class CheckRequest(ModelRequest):
    """Pairs of a sentence and a translation to check for omissions."""

    model_config = pair_example(
        "金閣寺は京都にある有名な寺です。", "Kinkaku-ji is a famous temple."
    )

    pairs: Annotated[list[CheckPair], Field(min_length=1, max_length=MAX_TEXTS)]


class Failure(BaseModel):
    """What is wrong, and what to do."""

    error: str


class SentenceOut(BaseModel):
    """A translated sentence; the fields after `score` are there if the request asks for them."""

    source: str
    text: str
    score: float
    finished: bool = Field(
        True, description="only present if false: the search gave up before the sentence ended"
    )
    source_tokens: list[str] | None = None
    tokens: list[str] | None = None
    readable_source_tokens: list[str] | None = Field(
        None, description="for display: without the signs of subwords, bytes as characters"
    )
    readable_tokens: list[str] | None = None
    alignment: list[list[float]] | None = Field(
        None, description="attention of every target token (rows) over the source tokens"
    )
    coverage: list[float] | None = Field(
        None, description="attention that each source token received, over its fertility if known"
    )
    fertility: list[float] | None = Field(
        None, description="target tokens expected of each source token"
    )
    remarks: list[Remark] | None = None
    unusual: bool | None = Field(
        None, description="with remarks: the sentence is unlike what the model was trained on"
    )
    nbest: list["SentenceOut"] | None = Field(None, description="the other hypotheses, best first")


class TermOut(BaseModel):
    """A term of a text."""

    source: str
    target: str
    inserted: bool = Field(
        description="the model lost it, and it was put where the attention was: check the sentence"
    )


class TextOut(BaseModel):
    """A translated text; `terms` are there if the request has some."""

    text: str
    sentences: list[SentenceOut]
    terms: list[TermOut] | None = None


class WarningOut(BaseModel):
    """Why not to rely on the translations."""

    kind: Literal["script", "unusual", "unfinished"]
    message: str


class TranslateResponse(BaseModel):
    """Results in the order of the request."""

    model: str
    translations: list[TextOut]
    warnings: list[WarningOut] = Field(
        description="the text is in a script that the model does not read (`script`), is unlike "
        "what the model was trained on (`unusual`), or the search gave up (`unfinished`)"
    )


class AlignmentOut(BaseModel):
    """An aligned pair."""

    source_tokens: list[str]
    tokens: list[str]
    alignment: list[list[float]]
    fertility: list[float] | None
    log_prob: float


class AlignResponse(BaseModel):
    """Results in the order of the request."""

    model: str
    alignments: list[AlignmentOut]


class LeftOutWords(BaseModel):
    """A part of the source that is probably left out: a hint, not proof."""

    text: str = Field(description="as the source has it")
    start: int = Field(description="first token")
    end: int = Field(description="after the last token")
    gain: float = Field(
        description="nats by which the translation is more probable without these words, or one"
    )
    probability: float = Field(description="that it is left out")
    kind: str = Field(description="line, sentence, clause, phrase or word")
    start_char: int = Field(description="first character (Unicode code point) of the source")
    end_char: int = Field(description="after the last character")


class CheckOut(BaseModel):
    """A checked pair."""

    source_tokens: list[str]
    own: Annotated[str, Field(description="the model's own translation")]
    left_out: list[LeftOutWords]
    unrelated: float = Field(description="probability that it is no translation of the source")
    incomplete: float = Field(description="probability that it leaves anything out")
    unusual: bool = Field(description="unlike what the model was trained on")
    words: int = Field(description="words of the source")
    judged: int = Field(description="words of the source that can be judged")


class CheckResponse(BaseModel):
    """Results in the order of the request."""

    model: str
    checks: list[CheckOut]


class ModelOut(BaseModel):
    """A model that requests can name."""

    name: str
    description: str | None = Field(description="languages and subject, if its README.md says them")
    source: str
    target: str
    plain_text: bool = Field(description="false: it takes words with spaces between them")
    coverage: str
    fertility: bool
    beam: int
    max_source: int
    min_attention: float = Field(
        description="a source token with less is remarked as left out, in what was not checked for "
        "omissions: sentences too long for the check, and n-best alternatives"
    )
    max_coverage: float = Field(description="a source token with more is remarked as too much")


class ModelsResponse(BaseModel):
    """All models, the default first."""

    models: list[ModelOut]


def sentence_json(translation: Translation, parts: Sequence[str]) -> dict[str, Any]:
    """Return a translated sentence with those parts alone that the request asks for."""
    answer: dict[str, Any] = {
        "source": translation.source,
        "text": translation.text,
        "score": finite_score(translation.score),
    }
    if not translation.finished:
        answer["finished"] = False
    if "tokens" in parts:
        answer["source_tokens"] = list(translation.source_tokens)
        answer["tokens"] = list(translation.tokens)
    if "readable_tokens" in parts:
        answer["readable_source_tokens"] = readable_tokens(translation.source_tokens)
        answer["readable_tokens"] = readable_tokens(translation.tokens)
    if "alignment" in parts:
        answer["alignment"] = rounded_list(translation.alignment)
    if "coverage" in parts:
        answer["coverage"] = rounded_list(translation.coverage)
    if "fertility" in parts:
        fertility = translation.fertility
        answer["fertility"] = None if fertility is None else rounded_list(fertility)
    if "remarks" in parts:
        answer["remarks"] = [asdict(remark) for remark in find_remarks(translation)]
        answer["unusual"] = translation.unusual
    if translation.alternatives:
        answer["nbest"] = [
            sentence_json(alternative, parts) for alternative in translation.alternatives
        ]
    return answer


def document_json(document: TranslatedDocument, with_terms: bool) -> dict[str, Any]:
    """Return a translated document."""
    answer: dict[str, Any] = {
        "text": document.text,
        "sentences": [
            {"source": s.source, "text": s.text, "score": finite_score(s.score)}
            for s in document.sentences
        ],
    }
    if with_terms:
        answer["terms"] = [asdict(term) for term in document.terms]
    return answer


def alignment_json(alignment: Alignment) -> dict[str, Any]:
    """Return an aligned pair."""
    fertility = alignment.fertility
    return {
        "source_tokens": list(alignment.source_tokens),
        "tokens": list(alignment.target_tokens),
        "alignment": rounded_list(alignment.matrix),
        "fertility": None if fertility is None else rounded_list(fertility),
        "log_prob": finite_score(alignment.log_prob),
    }


def finite_score(score: float) -> float:
    """Round a score; JSON has no infinity, so an impossible sentence gets the lowest number."""
    return round(max(score, -1e9), 4)


def model_json(model: ServedModel) -> dict[str, Any]:
    """Return what clients may know of a model."""
    coverage = model.properties.coverage_kind
    return {
        "name": model.spec.name,
        "description": model.spec.description,
        "source": model.spec.source,
        "target": model.spec.target,
        "plain_text": model.properties.plain_text,
        "coverage": coverage,
        "fertility": coverage == "fertility",
        "beam": model.decode.beam,
        "max_source": model.decode.max_source,
        "min_attention": LOW_ATTENTION,
        "max_coverage": max_coverage(coverage == "fertility"),
    }
