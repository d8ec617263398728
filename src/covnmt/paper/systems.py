"""Which systems are run: the paper's six, a phrase-based one, and variants of our own."""

from dataclasses import dataclass

from covnmt.base.config import PAPER_SYSTEMS, flatten_keys
from covnmt.base.errors import UserError

# The phrase-based system, row 1 of the paper's Table 1 (there it is Moses); asked for by name.
PHRASE_BASED = "pbsmt"


@dataclass(frozen=True)
class Variant:
    """One of the six systems with something changed."""

    base: str
    changes: tuple[str, ...]
    what: str
    tuned: bool = False  # as the systems of experiments that are
    beside: str = ""  # a system to be read beside it, other than its base


# What training itself does not depend on: the search, and the averaging of weights beside it.
AFTER_TRAINING = ("decode.", "train.ema=")

# Asked for by name: the auxiliary objective (section 4), and ablations of our own.
VARIANTS: dict[str, Variant] = {
    "fertility-objective": Variant(
        "fertility", ("train.fertility_weight=1",), "with the auxiliary objective"
    ),
    "baseline-paper-order": Variant("baseline", ("model.order=paper",), "look, update, generate"),
    "gru10-paper-order": Variant("gru10", ("model.order=paper",), "look, update, generate"),
    "baseline-reset-after": Variant("baseline", ("model.cell=reset_after",), "cuDNN's cell"),
    "gru10-reset-after": Variant("gru10", ("model.cell=reset_after",), "cuDNN's cell"),
    "gru2": Variant("gru10", ("model.coverage.size=2",), "d = 2", beside="gru1"),
    "gru4": Variant("gru10", ("model.coverage.size=4",), "d = 4", beside="gru1"),
    "gru16": Variant("gru10", ("model.coverage.size=16",), "d = 16", beside="gru1"),
    "gru10-no-attention": Variant(
        "gru10", ("model.coverage.attention=false",), "does not see the attention"
    ),
    "gru10-no-annotation": Variant(
        "gru10", ("model.coverage.annotation=false",), "does not see the source word"
    ),
    "gru10-no-state": Variant(
        "gru10", ("model.coverage.state=false",), "does not see the decoder state"
    ),
    "gru10-previous-context": Variant(
        "gru10", ("model.coverage.previous_context=true",), "sees the previous context too"
    ),
    "gru10-current-context": Variant(
        "gru10", ("model.coverage.current_context=true",), "sees the current context too"
    ),
    "gru10-energies": Variant(
        "gru10", ("model.coverage.energies=true",), "sees attention before its softmax too"
    ),
    "baseline-no-length-rules": Variant(
        "baseline", ("decode.length_rules=false",), "any length in search"
    ),
    "gru10-no-length-rules": Variant(
        "gru10", ("decode.length_rules=false",), "any length in search"
    ),
    "baseline-length-penalty": Variant(
        "baseline", ("decode.length_penalty=1",), "with length normalisation"
    ),
    "gru10-length-penalty": Variant(
        "gru10", ("decode.length_penalty=1",), "with length normalisation"
    ),
    "baseline-coverage-penalty": Variant(
        "baseline", ("decode.coverage_penalty=0.7",), "with GNMT's penalty for words not covered"
    ),
    "gru10-coverage-penalty": Variant(
        "gru10", ("decode.coverage_penalty=0.7",), "with GNMT's penalty for words not covered"
    ),
    "gru10-modern": Variant(
        "gru10",
        (
            "data.batch_tokens=8192",
            "model.dropout=0.3",
            "train.label_smoothing=0.1",
            "train.ema=0.999",
            "train.schedule=cosine_in_time",
            "train.warmup=1500",
            "train.updates=40000",
        ),
        "trained and tuned as at scale modern",
        tuned=True,
    ),
    "baseline-no-dropout": Variant("baseline", ("model.dropout=0",), "without dropout"),
    "gru10-no-dropout": Variant("gru10", ("model.dropout=0",), "without dropout"),
    "gru10-no-smoothing": Variant("gru10", ("train.label_smoothing=0",), "without label smoothing"),
    "gru10-no-average": Variant(
        "gru10", ("train.ema=0",), "with the last weights, not averaged ones"
    ),
    "gru10-no-length-penalty": Variant(
        "gru10", ("decode.length_penalty=0",), "without length normalisation"
    ),
    "linguistic-subtract": Variant(
        "linguistic", ("model.coverage.accumulate=subtract",), "from 1 down"
    ),
    "fertility-subtract": Variant(
        "fertility", ("model.coverage.accumulate=subtract",), "from 1 down"
    ),
}


def base_system(system: str) -> str:
    """The system that a variant changes; empty for others."""
    return VARIANTS[system].base if system in VARIANTS else ""


def training_system(system: str) -> str:
    """The system whose training serves this one too: its base, if it is only used otherwise."""
    variant = VARIANTS.get(system)
    if variant and all(change.startswith(AFTER_TRAINING) for change in variant.changes):
        return variant.base
    return system


def recipe_overrides(system: str) -> list[str]:
    """What makes a system of the shared recipe, as overrides of it; `pbsmt` does not use it."""
    if system == PHRASE_BASED:
        return []
    variant = VARIANTS.get(system)
    base = variant.base if variant else system
    if base not in PAPER_SYSTEMS:
        known = ", ".join([*PAPER_SYSTEMS, *VARIANTS, PHRASE_BASED])
        raise UserError(f"{system}: no such system; choose from {known}")
    coverage = flatten_keys(
        {"model": {"coverage": PAPER_SYSTEMS[base].model_dump(exclude_defaults=True)}}
    )
    return [f"{key}={value}" for key, value in coverage.items()] + list(
        variant.changes if variant else ()
    )
