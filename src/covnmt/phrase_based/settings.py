"""What a phrase-based system is made with, and the parts that each stage depends on."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from covnmt.base.config import Count, PositiveInt, Settings

AlignerKind = Literal["eflomal", "hmm", "fast_align", "ibm1", "ibm3", "ibm4"]
Symmetrization = Literal[
    "grow-diag-final-and", "grow-diag-final", "intersection", "union", "forward", "backward"
]


class AlignerSettings(Settings):
    """How words are linked."""

    kind: AlignerKind = Field("eflomal", description="Thot's aligner")
    samplers: PositiveInt = Field(3, description="independent chains, which vote (eflomal)")
    joining: Symmetrization = Field("grow-diag-final-and", description="of the two directions")
    seed: Count = Field(1234, description="of the samplers (eflomal)")


class PhraseBasedSettings(Settings):
    """How a system is built."""

    align: AlignerSettings = AlignerSettings()
    pairs: Count = Field(0, description="train on that many, in shuffled order; 0: all")
    max_phrase: Annotated[int, Field(gt=0, le=10)] = Field(7, description="words on either side")
    options: PositiveInt = Field(20, description="translations kept of a source phrase")
    order: Annotated[int, Field(gt=0, le=6)] = Field(4, description="words of an n-gram")

    @model_validator(mode="before")
    @classmethod
    def _without_engine(cls, values: Any) -> Any:
        """Accept models made when an installed Moses was the other choice of engine."""
        if isinstance(values, dict) and values.get("engine") == "covnmt":
            return {key: value for key, value in values.items() if key != "engine"}
        return values


class StackSearchSettings(Settings):
    """How the decoder searches."""

    reorder: Count = Field(6, description="source words that may be jumped over; 0: monotone")
    stack: PositiveInt = Field(100, description="hypotheses kept for each number of covered words")
    processes: PositiveInt = Field(1, description="sentences are shared among them")


class WeightTuningSettings(Settings):
    """How the weights are found."""

    search: StackSearchSettings = StackSearchSettings()
    iterations: PositiveInt = Field(8, description="rounds of translating the dev set, at most")
    nbest: PositiveInt = Field(100, description="translations of each sentence and round")
    restarts: Count = Field(8, description="random starts besides the weights so far")
    sentences: Count = Field(0, description="first ones of the dev set; 0: all")
    seed: Count = Field(1234, description="of starts and directions")
