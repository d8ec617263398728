"""Settings as frozen, typed trees; those of a training run are data, model, train and decode.

The defaults are the paper's (section 5.1 and Bahdanau et al., 2015), so a recipe (see `recipe`)
contains only what differs.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from covnmt.base.errors import UserError
from covnmt.base.files import parse_json, read_bytes, read_json

LONGEST_SHOWN_VALUES = 60  # characters of a changed setting's two values in a message

Fraction = Annotated[float, Field(ge=0, lt=1)]
LayerSize = Annotated[int, Field(gt=0, le=10**6)]
PositiveInt = Annotated[int, Field(gt=0, le=10**9)]
BeamWidth = Annotated[int, Field(gt=0, le=1000)]
Count = Annotated[int, Field(ge=0, le=10**9)]

CellKind = Literal["exact", "reset_after"]
CoverageKind = Literal["none", "linguistic", "fertility", "tanh", "gru"]


class Settings(BaseModel):
    """Base of all settings: frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


AnySettings = TypeVar("AnySettings", bound=Settings)


class DataConfig(Settings):
    """Training data and batches."""

    directory: Path = Field(Path("data"), description="directory made by `covnmt prepare`")
    batching: Literal["paper", "tokens"] = Field(
        "paper",
        description="paper: `batch_size` pairs, sorted within pools, corpus order fixed; "
        "tokens: buckets of similar length up to `batch_tokens`, reshuffled every epoch",
    )
    batch_size: PositiveInt = Field(80, description="pairs per batch (paper batching)")
    pool: PositiveInt = Field(
        20, description="batches read and sorted together (paper batching; Marian: maxi-batch)"
    )
    batch_tokens: PositiveInt = Field(
        4096,
        description="largest batch in tokens of the longer side, padding included (token batching)",
    )
    max_length: PositiveInt = Field(
        80,
        description="pairs with more tokens on a side are skipped in training, if `covnmt prepare` "
        "has not dropped them already",
    )


class CoverageConfig(Settings):
    """The coverage model (paper, section 3)."""

    kind: CoverageKind = Field("none", description="none is the attention baseline")
    size: Annotated[int, Field(ge=1, le=64)] = Field(
        1, description="coverage units d per source token (tanh and gru)"
    )
    max_fertility: Annotated[float, Field(gt=0)] = Field(
        2.0, description="N, maximum number of target tokens per source token (fertility)"
    )
    accumulate: Literal["add", "subtract"] = Field(
        "add", description="start at 0 and add, or at 1 and subtract (linguistic, fertility)"
    )
    bias: bool = Field(False, description="give the coverage network biases (tanh and gru)")
    attention: bool = Field(
        True, description="input of the coverage network: alpha_ij (tanh and gru)"
    )
    annotation: bool = Field(True, description="input of the coverage network: h_j (tanh and gru)")
    state: bool = Field(
        True, description="input of the coverage network: t, the state that attends (tanh and gru)"
    )
    previous_context: bool = Field(
        False, description="input of the coverage network: s_{i-1} (tanh and gru)"
    )
    current_context: bool = Field(
        False, description="input of the coverage network: s_i (tanh and gru)"
    )
    energies: bool = Field(
        False, description="input of the coverage network: e_ij, before softmax (tanh and gru)"
    )

    @model_validator(mode="after")
    def _options_fit_kind(self) -> "CoverageConfig":
        for option, field in type(self).model_fields.items():
            if option in ("kind", "max_fertility") or getattr(self, option) == field.default:
                continue
            kinds = ("linguistic", "fertility") if option == "accumulate" else ("tanh", "gru")
            if self.kind not in kinds:
                value = str(getattr(self, option)).lower()
                raise ValueError(
                    f"{option} = {value} needs kind = {' or '.join(kinds)}, not {self.kind}"
                )
        return self


class ModelConfig(Settings):
    """The network (paper, sections 2 and 3)."""

    embedding: LayerSize = Field(620, description="embedding size m")
    hidden: LayerSize = Field(1000, description="units n of each recurrent layer; even")
    order: Literal["code", "paper"] = Field(
        "code",
        description="code (as released by the authors): attend, generate, update; paper: attend, "
        "update, generate (docs/paper-to-code.md, section 1.2)",
    )
    cell: CellKind = Field(
        "exact", description="reset gate before (the paper) or after (cuDNN) the product"
    )
    output: Literal["factorised", "full"] = Field(
        "factorised", description="output layer through `rank` units, or straight from maxout"
    )
    rank: LayerSize = Field(
        620,
        description="width q of the factorized output layer: units between maxout and vocabulary",
    )
    tie_target: bool = Field(False, description="share the target embeddings with the output layer")
    dropout: Fraction = Field(0.0, description="on embeddings, annotations and the readout")
    init: Literal["paper", "modern"] = Field(
        "paper",
        description="initial weights; paper: docs/paper-to-code.md, section 1.3; modern: Glorot "
        "uniform, orthogonal recurrences",
    )
    coverage: CoverageConfig = Field(default_factory=lambda: CoverageConfig())

    @model_validator(mode="after")
    def _sizes_fit(self) -> "ModelConfig":
        if self.hidden % 2:
            raise ValueError(f"hidden = {self.hidden} must be even: maxout takes pairs of units")
        width = self.rank if self.output == "factorised" else self.hidden // 2
        if self.tie_target and width != self.embedding:
            raise ValueError(
                f"tie_target needs the layer before the output ({width}) as wide as "
                f"embedding ({self.embedding})"
            )
        return self


class TrainConfig(Settings):
    """Training (docs/paper-to-code.md, section 1.4; the paper's section 4)."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        1234, description="seed of initialization, dropout and batch order"
    )
    updates: PositiveInt = Field(200_000, description="maximum number of updates")
    epochs: Count = Field(0, description="maximum number of passes over the corpus; 0: no limit")
    minutes: Annotated[float, Field(ge=0)] = Field(
        0.0, description="maximum minutes of training in this call; 0: no limit"
    )
    optimizer: Literal["adadelta", "adamw"] = Field(
        "adadelta", description="adadelta: the paper; adamw: the modern recipes"
    )
    learning_rate: Annotated[float, Field(gt=0, le=1e6)] = Field(
        1.0, description="learning rate; 1 for Adadelta"
    )
    rho: Fraction = Field(0.95, description="decay of Adadelta")
    epsilon: Annotated[float, Field(gt=0)] = Field(1e-6, description="epsilon of Adadelta or AdamW")
    betas: tuple[Fraction, Fraction] = Field((0.9, 0.98), description="beta1 and beta2 of AdamW")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="weight decay of AdamW")
    schedule: Literal["constant", "cosine", "cosine_in_time", "inverse_sqrt"] = Field(
        "constant",
        description="learning rate after `warmup`; cosine is zero at `updates`, cosine_in_time "
        "also at `minutes`, whichever comes first",
    )
    warmup: Count = Field(0, description="updates until the full learning rate")
    clip: Annotated[float, Field(ge=0)] = Field(1.0, description="global gradient norm; 0: off")
    loss: Literal["sum", "token_mean"] = Field(
        "sum", description="loss that is minimized: summed over the batch, or per target token"
    )
    label_smoothing: Fraction = Field(
        0.0, description="share of each target distribution spread over the vocabulary"
    )
    fertility_weight: Annotated[float, Field(ge=0)] = Field(
        0.0, description="lambda of the auxiliary objective (section 4 of the paper)"
    )
    fertility_detach: bool = Field(
        False, description="no gradient of the auxiliary objective through the attention"
    )
    accumulate: PositiveInt = Field(1, description="batches per update")
    precision: Literal["fp32", "bf16", "auto"] = Field(
        "fp32", description="auto: bf16 where the hardware has it"
    )
    ema: Fraction = Field(0.0, description="decay of the averaged weights; 0: off")
    report_every: PositiveInt = Field(100, description="updates between log lines")
    validate_every: PositiveInt = Field(10_000, description="updates between validations")
    validate_from: Count = Field(0, description="no validation before this update, except the last")
    validate_bleu: bool = Field(True, description="also translate the dev set and score it")
    validate_beam: BeamWidth = Field(10, description="beam width when translating the dev set")
    validate_lines: Count = Field(0, description="only this many dev lines; 0: all")
    select: Literal["bleu", "loss"] = Field(
        "bleu",
        description="the best model is that with the highest BLEU on the dev set, with equal BLEU "
        "the lower loss; or that with the lowest loss",
    )
    patience: Count = Field(0, description="stop after this many validations without gain; 0: off")
    checkpoint_every: PositiveInt = Field(1_000, description="updates between checkpoints")
    keep: Count = Field(
        0, description="number of last checkpoints whose weights are kept for `covnmt average`"
    )
    tensorboard: bool = Field(False, description="also write curves for TensorBoard (extra)")

    @model_validator(mode="after")
    def _selection_is_measured(self) -> "TrainConfig":
        if self.select == "bleu" and not self.validate_bleu:
            raise ValueError("select = bleu needs validate_bleu = true; or set select = loss")
        return self


class DecodeConfig(Settings):
    """Decoding (docs/paper-to-code.md, section 1.5)."""

    beam: BeamWidth = Field(10, description="beam size; 1 is greedy search")
    nbest: BeamWidth = Field(
        1, description="translations per sentence, at most as many as the beam is wide"
    )
    length_rules: bool = Field(
        True, description="require half to three times as many target tokens as the source has"
    )
    max_length: PositiveInt = Field(
        500, description="maximum number of target tokens where length_rules is off"
    )
    retry: bool = Field(True, description="widen the beam where no hypothesis ends")
    max_retry_beam: PositiveInt = Field(
        200, description="widest beam of a retry; more than 200 changes nothing"
    )
    stop_loops: bool = Field(
        False,
        description="stop the search of a sentence whose hypotheses all repeat a few tokens, with "
        "the best one unfinished; ignored on a GPU",
    )
    length_penalty: Annotated[float, Field(ge=0, le=10)] = Field(
        0.0, description="scores are divided by length to this power; 0: off"
    )
    coverage_penalty: Annotated[float, Field(ge=0, le=1000)] = Field(
        0.0,
        description="weight of the coverage penalty of GNMT, which favors output that covers all "
        "source tokens; 0: off",
    )
    forbid_unk: bool = Field(False, description="never generate the unknown token")
    replace_unk: bool = Field(
        False,
        description="replace each unknown token by the source token it attends to most, or by the "
        "dictionary's entry for it",
    )
    batch_size: PositiveInt = Field(32, description="sentences translated together")
    max_source: PositiveInt = Field(
        200,
        description="maximum number of source tokens; longer sentences are cut with a warning, or "
        "split on request",
    )

    @model_validator(mode="after")
    def _nbest_fits_beam(self) -> "DecodeConfig":
        if self.nbest > self.beam:
            raise ValueError(f"nbest = {self.nbest} is more than beam = {self.beam}")
        return self


class Config(Settings):
    """All settings of a training run."""

    data: DataConfig = Field(default_factory=lambda: DataConfig())
    model: ModelConfig = Field(default_factory=lambda: ModelConfig())
    train: TrainConfig = Field(default_factory=lambda: TrainConfig())
    decode: DecodeConfig = Field(default_factory=lambda: DecodeConfig())


# The paper's six systems, in the order of its Table 1.
PAPER_SYSTEMS: dict[str, CoverageConfig] = {
    "baseline": CoverageConfig(),
    "linguistic": CoverageConfig(kind="linguistic"),
    "fertility": CoverageConfig(kind="fertility"),
    "tanh1": CoverageConfig(kind="tanh", size=1),
    "gru1": CoverageConfig(kind="gru", size=1),
    "gru10": CoverageConfig(kind="gru", size=10),
}


def flatten_keys(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested settings into `{"model.hidden": 1000, ...}`."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        nested = isinstance(value, dict)
        flat |= flatten_keys(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return flat


def describe_keys(
    settings_class: type[Settings] = Config, prefix: str = ""
) -> list[tuple[str, str, str, str]]:
    """Return every key with its choices or type, default and meaning."""
    rows = []
    for name, field in settings_class.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, Settings):
            rows += describe_keys(type(default), prefix=f"{prefix}{name}.")
            continue
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        type_name = "path" if isinstance(default, Path) else type(default).__name__
        values = " | ".join(map(str, choices)) or type_name
        default_json = json.dumps(default, default=str)
        rows.append((f"{prefix}{name}", values, default_json, field.description or ""))
    return rows


def validate_settings(
    settings_class: type[AnySettings],
    values: Any,
    describe_origin: Callable[[Sequence[str]], str] = lambda location: "",
) -> AnySettings:
    """Build settings from values; one error lists every problem with its key.

    `describe_origin` begins each line: given the location of the problem, it says where the value
    comes from.
    """
    try:
        return settings_class.model_validate(values)
    except ValidationError as error:
        problems = []
        for problem in error.errors():
            location = [str(key) for key in problem["loc"]]
            message = _explain(dict(problem), ".".join(location), settings_class)
            problems.append(describe_origin(location) + message)
        raise UserError("\n".join(problems)) from None


def read_settings(
    path: Path, settings_class: type[AnySettings], remedy: str = "make it again"
) -> AnySettings:
    """Read settings from JSON; an error names file, key and remedy."""
    return parse_settings(read_bytes(path, remedy), path, settings_class, remedy)


def parse_settings(
    content: bytes, path: Path, settings_class: type[AnySettings], remedy: str
) -> AnySettings:
    """Read settings from the content of a JSON file."""
    tree = parse_json(content, path)
    try:
        return validate_settings(settings_class, tree, lambda location: f"{path}: damaged: ")
    except UserError as error:
        raise UserError(f"{error}; {remedy}") from None


def _explain(problem: dict[str, Any], key: str, settings_class: type[Settings]) -> str:
    """Put a problem that pydantic found into one line."""
    if problem["type"] == "extra_forbidden":
        nearest = _nearest_key(key, settings_class, group=isinstance(problem["input"], dict))
        list_keys = "; `covnmt recipe keys` lists them all" if settings_class is Config else ""
        return f"unknown key {key}{f'; did you mean {nearest}?' if nearest else list_keys}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    value = "" if isinstance(problem["input"], dict) else f", not {problem['input']!r}"
    return f"{key + ': ' if key else ''}{message}{value}"


def _nearest_key(key: str, settings_class: type[Settings], group: bool) -> str | None:
    """Guess which key, or group of keys, was meant; the last part counts most."""
    candidates = [name for name, *_ in describe_keys(settings_class)]
    if group:
        candidates = sorted({name.rpartition(".")[0] for name in candidates})

    def similarity(name: str) -> float:
        ends = name.split(".")[-1], key.split(".")[-1]
        whole = SequenceMatcher(None, name, key).ratio()
        return (whole + 2 * SequenceMatcher(None, *ends).ratio()) / 3

    best = max(candidates, key=similarity, default=key)
    return best if best != key and similarity(best) > 0.6 else None


def changed_settings(
    before: Settings | Mapping[str, Any], now: Settings | Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Return the settings whose values differ, by dotted key, each with both values."""
    old, new = (
        flatten_keys(
            settings.model_dump(mode="json") if isinstance(settings, Settings) else settings
        )
        for settings in (before, now)
    )
    return {key: (old.get(key), new.get(key)) for key in new | old if old.get(key) != new.get(key)}


def require_same_settings(
    before: Settings | Mapping[str, Any],
    now: Settings | Mapping[str, Any],
    made: str,
    remedy: str,
    may_change: tuple[str, ...] = (),
) -> None:
    """Refuse to continue what was made with other settings; the error names each difference.

    `made` begins the message, such as "run1: holds a run", and keys that begin with one of
    `may_change` do not count.
    """
    changes = []
    for key, (old, new) in changed_settings(before, now).items():
        if not key.startswith(may_change):
            values = f"{old!r} before, {new!r} now"
            changes.append(f"{key}: {values}" if len(values) < LONGEST_SHOWN_VALUES else key)
    if changes:
        raise UserError(f"{made} with other settings ({'; '.join(changes)}); {remedy}")


def read_if_made_from(
    record: Path, made_from: Mapping[str, Any], outputs: Iterable[Path] = ()
) -> dict[str, Any] | None:
    """Return the JSON record of an earlier run if its inputs are unchanged and its outputs exist.

    The record has its inputs under "made_from" and is written last.
    """
    if not all(path.exists() for path in (record, *outputs)):
        return None
    content = read_json(record)
    same = isinstance(content, dict) and content.get("made_from") == made_from
    return content if same else None
