"""Settings of `covnmt prepare`.

They have a module of their own, without NumPy: the command line makes its options from them.
"""

from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from covnmt.base.config import Count, PositiveInt, Settings
from covnmt.text.codec import Side
from covnmt.text.tokenize import IS_OFF, TokenizerSettings

SplitName = Literal["train", "dev", "test"]
SPLIT_NAMES: tuple[SplitName, ...] = get_args(SplitName)
PathPair = tuple[Path, Path]


class PrepareSettings(Settings):
    """The text to prepare, and how."""

    source: TokenizerSettings
    target: TokenizerSettings
    train: tuple[PathPair, ...] = Field(min_length=1, description="parallel files, concatenated")
    dev: PathPair | None = Field(
        None, description="parallel files for validation; no pair is dropped"
    )
    test: PathPair | None = Field(
        None, description="parallel files for the final score; no pair is dropped"
    )
    source_size: Annotated[int, Field(ge=3)] = Field(
        30_000, description="vocabulary size: words or subwords, 2 reserved ones included"
    )
    target_size: Annotated[int, Field(ge=3)] = Field(
        30_000, description="vocabulary size: words or subwords, 2 reserved ones included"
    )
    min_count: Count = Field(
        0,
        exclude_if=IS_OFF,
        description="least occurrences of a word of the vocabulary; 0: automatic: 1, or 2 if "
        "the unknown word would otherwise never be trained",
    )
    max_length: PositiveInt = Field(
        80, description="training pairs with more tokens on a side are dropped"
    )
    max_ratio: Annotated[float, Field(ge=0)] = Field(
        0.0, description="longer side over shorter side of a training pair; 0: any"
    )
    seed: Count = Field(
        1234, description="random seed of the shuffle and of the sample for sentencepiece"
    )
    sentencepiece: Literal["unigram", "bpe"] = Field("unigram", description="kind of subwords")
    open_vocabulary: bool = Field(
        False,
        description="raw text: sentencepiece with byte fallback and split digits; full-width "
        "characters become half-width",
    )
    joint: bool = Field(False, description="one vocabulary (and subword model) for both sides")

    @model_validator(mode="after")
    def _joint_sides_agree(self) -> "PrepareSettings":
        kinds, sizes = (self.source.kind, self.target.kind), (self.source_size, self.target_size)
        for what, (source, target) in {"kind": kinds, "size": sizes}.items():
            if self.joint and source != target:
                raise ValueError(f"joint needs the same {what}, not {source} and {target}")
        return self

    def tokenizer_settings(self, side: Side) -> TokenizerSettings:
        """Return the tokenizer settings of one side."""
        return self.source if side == "source" else self.target

    def vocabulary_size(self, side: Side) -> int:
        """Return the vocabulary size of one side."""
        return self.source_size if side == "source" else self.target_size

    def files(self) -> dict[SplitName, tuple[PathPair, ...]]:
        """Return the parallel files of each split."""
        splits: dict[SplitName, tuple[PathPair, ...]] = {"train": self.train}
        if self.dev:
            splits["dev"] = (self.dev,)
        if self.test:
            splits["test"] = (self.test,)
        return splits
