"""Translate lines: translations with their phrases, word links and features.

Inside a phrase each target word is linked to the source word that most probably produced it, by the
lexicon; a copied word, and the only source word of a phrase, need no lexicon. So links are hard and
never leave a phrase.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from covnmt.base.arrays import DoubleArray
from covnmt.base.errors import UserError
from covnmt.base.files import read_json
from covnmt.metrics.alignment import Links, link_matrix
from covnmt.phrase_based.decode import open_decoder
from covnmt.phrase_based.lexicon import LinkCounts
from covnmt.phrase_based.model import ModelIdentity, PhraseBasedModel
from covnmt.phrase_based.nbest import PhraseHypothesis, PhraseSpan
from covnmt.phrase_based.settings import StackSearchSettings
from covnmt.phrase_based.stack import FEATURES, INITIAL_WEIGHTS
from covnmt.text.codec import Codec
from covnmt.text.vocabulary import UNK_ID, Vocabulary

T = TypeVar("T")

WEIGHTS_FILE = "weights.json"
MAX_CHUNK_TOKENS = 100  # longer sentences are translated in chunks


class SentenceChunk(NamedTuple):
    """A chunk of a sentence, as tokens and as their ids."""

    tokens: Sequence[str]
    ids: Sequence[int]


@dataclass(frozen=True)
class PhraseTranslation:
    """The translation of one line; `links` are (source token, target token)."""

    source: str
    source_tokens: list[str]
    tokens: list[str]
    text: str
    score: float
    links: Links

    def to_json(self) -> dict[str, Any]:
        """Return the record of `covnmt translate --json`: alignment is 0 or 1, coverage its sum."""
        matrix = link_matrix(self.links, (len(self.tokens), len(self.source_tokens)))  # [I, J]
        return {
            "source": self.source,
            "source_tokens": self.source_tokens,
            "text": self.text,
            "tokens": self.tokens,
            "score": self.score,
            "alignment": matrix.tolist(),
            "coverage": matrix.sum(axis=0).tolist(),
            "fertility": None,
        }


class TuningInputs(BaseModel):
    """The model that weights were tuned for, and the settings of tuning."""

    model_config = ConfigDict(frozen=True)

    model: ModelIdentity
    tune: dict[str, Any]


class TunedWeights(BaseModel):
    """weights.json: the best weights, and the course of tuning."""

    model_config = ConfigDict(frozen=True)

    made_from: TuningInputs
    weights: dict[str, float]
    dev_bleu: float = 0.0
    rounds: list[tuple[list[float], float]]  # weights and dev BLEU
    converged: bool = False
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    phrase_pairs: int = 0  # of the phrase table of the dev set
    peak_mib: int = 0

    @field_validator("weights", mode="before")
    @classmethod
    def _numbers_for_all_features(cls, weights: Any) -> Any:
        complete = isinstance(weights, dict) and all(
            isinstance(weights.get(name), int | float) for name in FEATURES
        )
        if not complete:
            raise ValueError("incomplete")
        return weights

    @classmethod
    def read(cls, path: Path) -> "TunedWeights":
        """Read weights, which people edit."""
        try:
            return cls.model_validate(read_json(path))
        except ValidationError:
            raise UserError(
                f"{path}: damaged: it must hold a number for each of {', '.join(FEATURES)}; "
                "restore it from a copy, or remove it and run `covnmt smt tune` again"
            ) from None


def load_feature_weights(model: PhraseBasedModel) -> DoubleArray:
    """Read the tuned weights; before tuning, return the initial ones."""
    path = model.directory / WEIGHTS_FILE
    if not path.exists():
        return INITIAL_WEIGHTS
    tuned = TunedWeights.read(path)
    if tuned.made_from.model != model.identity():
        raise UserError(
            f"{path}: the model was trained anew since it was tuned; run `covnmt smt tune "
            f"{model.directory}` again, or remove the file to use the initial weights"
        )
    return np.array([tuned.weights[name] for name in FEATURES])


def translate_phrase_based(
    model: PhraseBasedModel, lines: Sequence[str], settings: StackSearchSettings
) -> Iterator[PhraseTranslation]:
    """Translate lines, in order; an empty line stays empty."""
    source, target = model.codec("source"), model.codec("target")
    line_tokens = [source.tokenize(line) for line in lines]
    line_ids = [source.vocabulary.encode(tokens) for tokens in line_tokens]
    lexical_table, weights = model.lexicon(), load_feature_weights(model)
    line_chunks = [
        [
            SentenceChunk(*chunk)
            for chunk in zip(split_long_sentence(tokens), split_long_sentence(ids), strict=True)
        ]
        for tokens, ids in zip(line_tokens, line_ids, strict=True)
    ]
    with open_decoder(model, line_ids, settings) as decoder:
        chunk_ids = [chunk.ids for chunks in line_chunks for chunk in chunks]
        nbest_lists = decoder.nbest_lists(chunk_ids, weights, 1, "translating")
        for line, chunks in zip(lines, line_chunks, strict=True):
            translated = [(chunk, next(nbest_lists)) for chunk in chunks]
            yield _join_chunks(line, translated, lexical_table, target, weights)


def split_long_sentence(tokens: Sequence[T]) -> list[Sequence[T]]:
    """Split a sentence into chunks of nearly equal length; most sentences are one chunk."""
    number = max(1, -(-len(tokens) // MAX_CHUNK_TOKENS))
    cuts = [len(tokens) * k // number for k in range(number + 1)]
    return [tokens[a:b] for a, b in pairwise(cuts)]


def hypothesis_tokens(
    hypothesis: PhraseHypothesis, source: Sequence[str], target: Vocabulary
) -> list[str]:
    """Return the tokens of a translation; a copied word is its source token."""
    tokens = target.decode(hypothesis.target_ids)
    for phrase in hypothesis.phrases:
        if hypothesis.target_ids[phrase.target] == UNK_ID:
            tokens[phrase.target] = source[phrase.source]
    return tokens


def link_words(
    phrases: Sequence[PhraseSpan],
    source_ids: Sequence[int],
    target_ids: Sequence[int],
    lexical_table: LinkCounts,
) -> Links:
    """Link each target word to the source word of its phrase with the highest w(t | s)."""
    source, target = np.array(source_ids), np.array(target_ids)
    links: set[tuple[int, int]] = set()
    for phrase in phrases:
        span = slice(phrase.target, phrase.target_end)
        weight = lexical_table.weight(
            *np.broadcast_arrays(source[phrase.source : phrase.source_end, None], target[span])
        )
        linked = (weight.max(axis=0) > 0) | (len(weight) == 1)
        j = phrase.source + weight.argmax(axis=0)
        i = np.arange(phrase.target, phrase.target_end)
        links.update(zip(j[linked].tolist(), i[linked].tolist(), strict=True))
    return frozenset(links)


def _join_chunks(
    line: str,
    chunks: Sequence[tuple[SentenceChunk, list[PhraseHypothesis]]],
    lexical_table: LinkCounts,
    target: Codec,
    weights: DoubleArray,
) -> PhraseTranslation:
    """Join the translations of a line's chunks; an empty chunk has no hypothesis."""
    source: list[str] = []
    tokens: list[str] = []
    links: set[tuple[int, int]] = set()
    score = 0.0
    for chunk, nbest in chunks:
        for best in nbest:
            chunk_links = link_words(best.phrases, chunk.ids, best.target_ids, lexical_table)
            links |= {(len(source) + j, len(tokens) + i) for j, i in chunk_links}
            tokens += hypothesis_tokens(best, chunk.tokens, target.vocabulary)
            score += float(np.dot(weights, best.features))
        source += chunk.tokens
    text = target.detokenize(tokens)
    return PhraseTranslation(line, source, tokens, text, score, frozenset(links))
