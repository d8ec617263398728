"""Systems of the experiments: the paper's six, a phrase-based one, and our own variants."""

from dataclasses import dataclass

from covnmt.base.config import PAPER_SYSTEMS, flatten_keys
from covnmt.base.errors import UserError

# The phrase-based system, row 1 of the paper's Table 1 (there it is Moses); run only when named.
PHRASE_BASED = "pbsmt"


@dataclass(frozen=True)
class Variant:
    """One of the paper's systems with changed settings."""

    base: str
    changes: tuple[str, ...]
    description: str
    tunes_length_penalty: bool = False  # even where the experiment does not
    compare_with: str = ""  # a system to show next to it, besides its base


# Changes that training does not depend on: decoding, and the average of the weights.
AFTER_TRAINING = ("decode.", "train.ema=")

# Run only when named: the auxiliary objective (section 4), and our own ablations.
VARIANTS: dict[str, Variant] = {
    "fertility-objective": Variant(
        "fertility", ("train.fertility_weight=1",), "with the auxiliary objective"
    ),
    "baseline-paper-order": Variant("baseline", ("model.order=paper",), "attend, update, generate"),
    "gru10-paper-order": Variant("gru10", ("model.order=paper",), "attend, update, generate"),
    "baseline-reset-after": Variant("baseline", ("model.cell=reset_after",), "cuDNN's GRU cell"),
    "gru10-reset-after": Variant("gru10", ("model.cell=reset_after",), "cuDNN's GRU cell"),
    "gru2": Variant("gru10", ("model.coverage.size=2",), "d = 2", compare_with="gru1"),
    "gru4": Variant("gru10", ("model.coverage.size=4",), "d = 4", compare_with="gru1"),
    "gru16": Variant("gru10", ("model.coverage.size=16",), "d = 16", compare_with="gru1"),
    "gru10-no-attention": Variant(
        "gru10", ("model.coverage.attention=false",), "coverage without the attention as input"
    ),
    "gru10-no-annotation": Variant(
        "gru10", ("model.coverage.annotation=false",), "coverage without the annotation as input"
    ),
    "gru10-no-state": Variant(
        "gru10", ("model.coverage.state=false",), "coverage without the decoder state as input"
    ),
    "gru10-previous-context": Variant(
        "gru10",
        ("model.coverage.previous_context=true",),
        "coverage with the previous context as input",
    ),
    "gru10-current-context": Variant(
        "gru10",
        ("model.coverage.current_context=true",),
        "coverage with the current context as input",
    ),
    "gru10-energies": Variant(
        "gru10",
        ("model.coverage.energies=true",),
        "coverage with attention before its softmax as input",
    ),
    "baseline-no-length-rules": Variant(
        "baseline", ("decode.length_rules=false",), "beam search without length limits"
    ),
    "gru10-no-length-rules": Variant(
        "gru10", ("decode.length_rules=false",), "beam search without length limits"
    ),
    "baseline-length-penalty": Variant(
        "baseline", ("decode.length_penalty=1",), "with length normalization"
    ),
    "gru10-length-penalty": Variant(
        "gru10", ("decode.length_penalty=1",), "with length normalization"
    ),
    "baseline-coverage-penalty": Variant(
        "baseline", ("decode.coverage_penalty=0.7",), "with GNMT's coverage penalty"
    ),
    "gru10-coverage-penalty": Variant(
        "gru10", ("decode.coverage_penalty=0.7",), "with GNMT's coverage penalty"
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
        tunes_length_penalty=True,
    ),
    "baseline-no-dropout": Variant("baseline", ("model.dropout=0",), "without dropout"),
    "gru10-no-dropout": Variant("gru10", ("model.dropout=0",), "without dropout"),
    "gru10-no-smoothing": Variant("gru10", ("train.label_smoothing=0",), "without label smoothing"),
    "gru10-no-average": Variant(
        "gru10", ("train.ema=0",), "with the last weights instead of their average"
    ),
    "gru10-no-length-penalty": Variant(
        "gru10", ("decode.length_penalty=0",), "without length normalization"
    ),
    "linguistic-subtract": Variant(
        "linguistic", ("model.coverage.accumulate=subtract",), "coverage counts down from 1"
    ),
    "fertility-subtract": Variant(
        "fertility", ("model.coverage.accumulate=subtract",), "coverage counts down from 1"
    ),
}


def base_system(system: str) -> str:
    """Return the system that a variant changes; empty for others."""
    return VARIANTS[system].base if system in VARIANTS else ""


def training_system(system: str) -> str:
    """Return the system whose training serves this one: its base, if only decoding differs."""
    variant = VARIANTS.get(system)
    if variant and all(change.startswith(AFTER_TRAINING) for change in variant.changes):
        return variant.base
    return system


def recipe_overrides(system: str) -> list[str]:
    """Return what makes a system of the shared recipe; `pbsmt` does not use the recipe."""
    if system == PHRASE_BASED:
        return []
    variant = VARIANTS.get(system)
    base = variant.base if variant else system
    if base not in PAPER_SYSTEMS:
        systems = ", ".join([*PAPER_SYSTEMS, *VARIANTS, PHRASE_BASED])
        raise UserError(f"{system}: no such system; choose from {systems}")
    coverage = PAPER_SYSTEMS[base].model_dump(exclude_defaults=True)
    keys = flatten_keys({"model": {"coverage": coverage}})
    changes = variant.changes if variant else ()
    return [*(f"{key}={value}" for key, value in keys.items()), *changes]
