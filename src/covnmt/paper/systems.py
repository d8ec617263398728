"""Systems of the experiments: the paper's six, a phrase-based one, and our own variants."""

from dataclasses import dataclass

from covnmt.base.config import PAPER_SYSTEMS, flatten_keys
from covnmt.base.errors import UserError

# The phrase-based system, row 1 of the paper's Table 1 (there it is Moses); run only when named.
PHRASE_BASED = "pbsmt"
ALIGNER_PAIRS = 100_000  # training pairs that its aligner learns from when it is measured


@dataclass(frozen=True)
class Variant:
    """One of the paper's systems with changed settings."""

    base: str
    changes: tuple[str, ...]
    description: str
    tunes_length_penalty: bool = False  # even where the experiment does not
    compare_with: str = ""  # a system to show next to it, besides its base
    teacher: str = ""  # a system whose translations it is trained on (`distillation`)
    references: bool = True  # whether it then reads the original pairs, too


# Changes that training does not depend on: decoding, and the average of the weights.
AFTER_TRAINING = ("decode.", "train.ema=")


def _variants(
    bases: tuple[str, ...], ending: str, change: str, description: str
) -> dict[str, Variant]:
    """Make one change to each of some systems."""
    return {f"{base}-{ending}": Variant(base, (change,), description) for base in bases}


BASELINE_AND_GRU10 = ("baseline", "gru10")
MODERN = (
    "data.batch_tokens=8192",
    "model.dropout=0.3",
    "train.label_smoothing=0.1",
    "train.ema=0.999",
    "train.schedule=cosine_in_time",
    "train.warmup=1500",
    "train.updates=40000",
)
# From the paper's training towards ours, one change at a time. Attention forms early with the first
# two, so that there is something to see before the usual first validation.
EARLY_VALIDATION = "train.validate_from=10000"
ONE_CHANGE_VARIANTS = (
    ("modern-init", ("model.init=modern", EARLY_VALIDATION), "modern initialization"),
    (
        "adamw",
        (
            "train.optimizer=adamw",
            "train.learning_rate=1e-3",
            "train.epsilon=1e-8",
            "train.warmup=1000",
            EARLY_VALIDATION,
        ),
        "AdamW at a constant rate",
    ),
    ("token-batches", ("data.batching=tokens",), "reshuffled batches of up to 4,096 tokens"),
    ("dropout", ("model.dropout=0.2",), "dropout 0.2"),
    ("longer", ("train.updates=150000",), "twice the updates"),
)
TEACHER = (
    "model.embedding=620",
    "model.hidden=1000",
    "model.rank=620",
    "model.dropout=0.2",
    "train.learning_rate=1e-3",  # as in kftt-modern, which has this size
)
COVERAGE_INPUTS = (  # of the coverage network: ending, change, and what it says on the page
    ("no-attention", "attention=false", "without the attention"),
    ("no-annotation", "annotation=false", "without the annotation"),
    ("no-state", "state=false", "without the decoder state"),
    ("previous-context", "previous_context=true", "with the previous context"),
    ("current-context", "current_context=true", "with the current context"),
    ("energies", "energies=true", "with attention before its softmax"),
)
# Run only when named: the auxiliary objective (section 4), and our own ablations.
VARIANTS: dict[str, Variant] = {
    **_variants(
        ("fertility",), "objective", "train.fertility_weight=1", "with the auxiliary objective"
    ),
    **_variants(BASELINE_AND_GRU10, "paper-order", "model.order=paper", "attend, update, generate"),
    **_variants(BASELINE_AND_GRU10, "reset-after", "model.cell=reset_after", "cuDNN's GRU cell"),
    **{
        f"gru{d}": Variant("gru10", (f"model.coverage.size={d}",), f"d = {d}", compare_with="gru1")
        for d in (2, 4, 16)
    },
    **{
        f"gru10-{ending}": Variant(
            "gru10", (f"model.coverage.{change}",), f"coverage {description} as input"
        )
        for ending, change, description in COVERAGE_INPUTS
    },
    **_variants(
        BASELINE_AND_GRU10,
        "no-length-rules",
        "decode.length_rules=false",
        "beam search without length limits",
    ),
    **_variants(
        BASELINE_AND_GRU10, "length-penalty", "decode.length_penalty=1", "with length normalization"
    ),
    **_variants(
        BASELINE_AND_GRU10,
        "coverage-penalty",
        "decode.coverage_penalty=0.7",
        "with GNMT's coverage penalty",
    ),
    "gru10-modern": Variant(
        "gru10", MODERN, "trained and tuned as at scale modern", tunes_length_penalty=True
    ),
    **{
        f"{base}-{ending}": Variant(base, changes, description)
        for base in BASELINE_AND_GRU10
        for ending, changes, description in ONE_CHANGE_VARIANTS
    },
    **_variants(BASELINE_AND_GRU10, "no-dropout", "model.dropout=0", "without dropout"),
    **_variants(("gru10",), "no-smoothing", "train.label_smoothing=0", "without label smoothing"),
    **_variants(
        ("gru10",), "no-average", "train.ema=0", "with the final weights instead of their EMA"
    ),
    **_variants(
        ("gru10",), "no-length-penalty", "decode.length_penalty=0", "without length normalization"
    ),
    "gru10-teacher": Variant("gru10", TEACHER, "of the paper's size"),
    "gru10-distilled": Variant(
        "gru10",
        (),
        "trained on the original pairs and on translations by `gru10-teacher`",
        teacher="gru10-teacher",
    ),
    "gru10-distilled-only": Variant(
        "gru10",
        (),
        "trained on translations by `gru10-teacher` alone",
        teacher="gru10-teacher",
        references=False,
    ),
    **_variants(
        ("linguistic", "fertility"),
        "subtract",
        "model.coverage.accumulate=subtract",
        "coverage counts down from 1",
    ),
}


def training_system(system: str) -> str:
    """Return the system whose training serves this one: its base, if only decoding differs."""
    variant = VARIANTS.get(system)
    if variant is None or variant.teacher:
        return system
    only_decodes = all(change.startswith(AFTER_TRAINING) for change in variant.changes)
    return variant.base if only_decodes else system


def teacher_system(system: str) -> str:
    """Return the system whose translations this one is trained on; empty for most."""
    variant = VARIANTS.get(system)
    return variant.teacher if variant else ""


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
