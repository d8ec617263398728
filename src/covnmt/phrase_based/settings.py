"""Settings of a phrase-based system, stage by stage; descriptions are the --help of options."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from covnmt.base.config import Count, PositiveInt, Settings

AlignerKind = Literal["eflomal", "hmm", "fast_align", "ibm1", "ibm3", "ibm4"]
AlignerSymmetrization = Literal[
    "grow-diag-final-and", "grow-diag-final", "intersection", "union", "forward", "backward"
]


class AlignerSettings(Settings):
    """Word alignment."""

    kind: AlignerKind = Field("eflomal", description="alignment model of Thot")
    samplers: PositiveInt = Field(3, description="independent chains, which vote (eflomal only)")
    joining: AlignerSymmetrization = Field(
        "grow-diag-final-and", description="symmetrization of the two directions"
    )
    seed: Count = Field(1234, description="random seed of the chains (eflomal only)")


class PhraseBasedSettings(Settings):
    """Training: alignment, phrase extraction and language model."""

    align: AlignerSettings = AlignerSettings()
    pairs: Count = Field(
        0, description="train on this many pairs, in the shuffled order; 0: on all"
    )
    max_phrase: Annotated[int, Field(gt=0, le=10)] = Field(
        7, description="longest phrase, in words of either side"
    )
    options: PositiveInt = Field(20, description="translations kept for each source phrase")
    order: Annotated[int, Field(gt=0, le=6)] = Field(
        4, description="order of the n-gram language model"
    )

    @model_validator(mode="before")
    @classmethod
    def _without_engine(cls, values: Any) -> Any:
        """Accept models made when an installed Moses was the other choice of engine."""
        if isinstance(values, dict) and values.get("engine") == "covnmt":
            return {key: value for key, value in values.items() if key != "engine"}
        return values


class StackSearchSettings(Settings):
    """Stack decoding."""

    reorder: Count = Field(6, description="distortion limit in source words; 0: monotone")
    stack: PositiveInt = Field(
        100, description="hypotheses kept for each number of covered source words"
    )
    processes: PositiveInt = Field(1, description="processes that share the sentences")


class WeightTuningSettings(Settings):
    """Minimum error rate training on the dev set."""

    search: StackSearchSettings = StackSearchSettings()
    iterations: PositiveInt = Field(8, description="rounds of decoding the dev set, at most")
    nbest: PositiveInt = Field(100, description="translations of each sentence in each round")
    restarts: Count = Field(8, description="random starting points in each round")
    sentences: Count = Field(0, description="tune on the first sentences of dev only; 0: on all")
    seed: Count = Field(1234, description="random seed of starting points and directions")
