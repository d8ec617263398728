"""What requests and answers look like; OpenAPI shows these with their examples."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MAX_TEXTS = 500
MAX_BEAM = 100

Part = Literal["tokens", "alignment", "coverage", "fertility", "remarks"]
# control characters but tab and line breaks, and halves of surrogate pairs
FORBIDDEN = r"\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f"
CONTROLS = re.compile(rf"[{FORBIDDEN}\ud800-\udfff]")


def without_controls(text: str) -> str:
    """Refuse control characters; line breaks and tabs are text."""
    if found := CONTROLS.search(text):
        raise ValueError(f"control character U+{ord(found[0]):04X} in the text; remove it")
    return text


def with_words(text: str) -> str:
    """Refuse what is only blanks."""
    if not text.strip():
        raise ValueError("empty, there is nothing to align; leave the pair out")
    return text


Text = Annotated[
    str,
    AfterValidator(without_controls),
    Field(json_schema_extra={"pattern": f"^[^{FORBIDDEN}]*$"}),
]
Name = Annotated[str, Field(max_length=64)]
Seconds = Annotated[float, Field(ge=0.01, le=3600, allow_inf_nan=False)]


def first_problem(errors: Sequence[Any]) -> str:
    """What pydantic found wrong, and where, in words that repeat little of what was sent."""
    problem = next(filter(_in_list, errors), errors[0])
    whole = problem["loc"] == ("body",) and problem["type"] in ("model_attributes_type", "missing")
    if whole or problem["type"] == "json_invalid":
        return "send a JSON object, with the header Content-Type: application/json"
    where = ".".join(str(step) for step in problem["loc"] if _is_field(step))
    message = str(problem["msg"]).removeprefix("Value error, ")
    # a field may have been named by the client: only what can be printed is repeated
    return f"{where[:80].encode('ascii', 'replace').decode()}: {message}" if where else message


def _in_list(problem: Any) -> bool:
    """Is it one of a list of texts? Pydantic first complains that the list is not a single text."""
    inside = any(str(step).startswith("list[") for step in problem["loc"])
    return inside and problem["type"] != "list_type"


def _is_field(step: str | int) -> bool:
    """Not where in the request it stands, nor how the schema calls a type."""
    return step not in ("body", "str") and "[" not in str(step)


class Message(BaseModel):
    """Base of what is received: unknown fields are errors, types are not guessed."""

    model_config = ConfigDict(extra="forbid", strict=True)


class TranslateRequest(Message):
    """One text or several; each is split into sentences, and keeps its layout."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"text": "ze muye piro sire tuye"},
                {"text": ["a first text", "and another"], "beam": 5, "return": ["alignment"]},
            ]
        }
    )

    text: Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]
    model: Name | None = Field(None, description="one of /v1/models; the first if not given")
    beam: Annotated[int, Field(ge=1, le=MAX_BEAM)] | None = Field(
        None, description="hypotheses kept while searching; the model's own if not given"
    )
    nbest: Annotated[int, Field(ge=1, le=MAX_BEAM)] = Field(
        1, description="translations per sentence, at most `beam`"
    )
    parts: Annotated[list[Part], Field(max_length=10)] = Field(
        default_factory=list, alias="return", description="what else to tell about each sentence"
    )
    timeout: Seconds | None = Field(None, description="seconds after which to give up")

    def texts(self) -> list[str]:
        """Return the texts, be it one or several."""
        return [self.text] if isinstance(self.text, str) else self.text


class SentencePair(Message):
    """A sentence and its translation."""

    source: Annotated[Text, AfterValidator(with_words), Field(min_length=1)]
    target: Annotated[Text, AfterValidator(with_words), Field(min_length=1)]


def example_pair(source: str, target: str) -> ConfigDict:
    """For the document that describes a request with pairs."""
    return ConfigDict(
        json_schema_extra={"examples": [{"pairs": [{"source": source, "target": target}]}]}
    )


class AlignRequest(Message):
    """Pairs that the model is made to say: where does it look?"""

    model_config = example_pair(
        "ze muye piro sire tuye", "tuwem hinar rodib nohab sesikor eth tunosit"
    )

    pairs: Annotated[list[SentencePair], Field(min_length=1, max_length=MAX_TEXTS)]
    model: Name | None = Field(None, description="one of /v1/models; the first if not given")
    tokenized: bool = Field(False, description="words are what stands between spaces")
    timeout: Seconds | None = Field(None, description="seconds after which to give up")


class CheckPair(Message):
    """A sentence and what is to be checked."""

    source: Annotated[Text, Field(min_length=1)]
    target: Text = Field(description="a translation by whomever; an empty one leaves out all")


class CheckRequest(Message):
    """Pairs of a sentence and a translation: what does it leave out?"""

    model_config = example_pair(
        "金閣寺は京都にある有名な寺です。", "Kinkaku-ji is a famous temple."
    )

    pairs: Annotated[list[CheckPair], Field(min_length=1, max_length=MAX_TEXTS)]
    model: Name | None = Field(None, description="one of /v1/models; the first if not given")
    timeout: Seconds | None = Field(None, description="seconds after which to give up")


class Failure(BaseModel):
    """What went wrong."""

    error: str


class RemarkOut(BaseModel):
    """Something a reader should look at."""

    side: Literal["source", "target"]
    position: int
    kind: Literal["left out", "too much", "said twice"]
    reason: str


class SentenceOut(BaseModel):
    """A sentence; fields after `score` only where the request asks for them."""

    source: str
    text: str
    score: float
    source_tokens: list[str] | None = None
    tokens: list[str] | None = None
    alignment: list[list[float]] | None = Field(
        None, description="attention of every target word (rows) over the source words"
    )
    coverage: list[float] | None = Field(
        None, description="attention that each source word received, over its fertility if known"
    )
    fertility: list[float] | None = Field(None, description="target words expected of each")
    remarks: list[RemarkOut] | None = None
    nbest: list["SentenceOut"] | None = Field(None, description="the translations after the best")


class TextOut(BaseModel):
    """One of the texts."""

    text: str
    sentences: list[SentenceOut]


class TranslateResponse(BaseModel):
    """In the order of the request."""

    model: str
    translations: list[TextOut]


class AlignmentOut(BaseModel):
    """One of the pairs."""

    source_tokens: list[str]
    tokens: list[str]
    alignment: list[list[float]]
    fertility: list[float] | None
    log_prob: float


class AlignResponse(BaseModel):
    """In the order of the request."""

    model: str
    alignments: list[AlignmentOut]


class LeftOutWords(BaseModel):
    """Words in a row, or a sentence of several, that are probably left out: a hint, no proof."""

    text: str
    start: int = Field(description="the first of its tokens")
    end: int = Field(description="the one after the last")
    gain: float = Field(
        description="nats: how much more probable the translation is without one word, or all"
    )


class CheckOut(BaseModel):
    """One of the pairs."""

    source_tokens: list[str]
    own: str = Field(description="the translation that the model would give")
    left_out: list[LeftOutWords]


class CheckResponse(BaseModel):
    """In the order of the request."""

    model: str
    checks: list[CheckOut]


class ModelOut(BaseModel):
    """A model that can be asked for."""

    name: str
    source: str
    target: str
    coverage: str
    fertility: bool
    beam: int
    max_source: int


class ModelsResponse(BaseModel):
    """All models, the default first."""

    models: list[ModelOut]
