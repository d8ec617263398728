"""Lines -> translations with their phrases, word links and features.

The phrase table is made for the lines at hand. Inside a phrase each target word is linked to the
source word that most probably gave it, by the lexicon; a word that was copied, or the only source
word of a phrase, needs no lexicon. So links are hard and never leave a phrase.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np

from covnmt.base.arrays import DoubleArray
from covnmt.base.errors import UserError
from covnmt.base.files import read_json
from covnmt.metrics.alignment import Links, link_matrix
from covnmt.phrase_based.bitext import concatenate_sentences
from covnmt.phrase_based.decode import DecoderInputs, NBestDecoder, open_decoder
from covnmt.phrase_based.features import FEATURES, INITIAL_WEIGHTS
from covnmt.phrase_based.lexicon import Lexicon
from covnmt.phrase_based.model import LANGUAGE_MODEL_DIRECTORY, Figures, PhraseBasedModel
from covnmt.phrase_based.nbest import PhraseHypothesis, PhraseSpan
from covnmt.phrase_based.phrase_table import build_phrase_table
from covnmt.phrase_based.settings import StackSearchSettings
from covnmt.text.codec import SIDES, Codec
from covnmt.text.vocabulary import UNK_ID, Vocabulary

WEIGHTS_FILE = "weights.json"
MAX_CHUNK_TOKENS = 100  # longer sentences are translated in pieces


@dataclass(frozen=True)
class PhraseTranslation:
    """One line; `links` are (source token, target token)."""

    source: str
    source_tokens: list[str]
    tokens: list[str]
    text: str
    score: float
    links: Links

    def to_json(self) -> dict[str, Any]:
        """As `covnmt translate --json` tells it; the alignment is 0 or 1, coverage its sum."""
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


def load_weights(model: PhraseBasedModel) -> DoubleArray:
    """The tuned weights, or the usual ones before tuning."""
    path = model.directory / WEIGHTS_FILE
    if not path.exists():
        return INITIAL_WEIGHTS
    known = read_tuned(path)
    if known["made_from"]["model"] != model.identity():
        raise UserError(
            f"{path}: the model was trained anew since it was tuned; give `covnmt smt tune "
            f"{model.directory}` again, or remove the file to use the usual weights"
        )
    return np.array([known["weights"][name] for name in FEATURES])


def read_tuned(path: Path) -> Figures:
    """What tuning wrote; people edit weights, so these are looked at."""
    known = read_json(path)
    weights = known.get("weights") if isinstance(known, dict) else None
    numbers = isinstance(weights, dict) and all(
        isinstance(weights.get(name), int | float) for name in FEATURES
    )
    if not numbers or not {"made_from", "rounds"} <= known.keys():
        raise UserError(
            f"{path}: damaged: it must hold a number for each of {', '.join(FEATURES)}; restore "
            "it from a copy, or remove it and give `covnmt smt tune` again"
        )
    known["made_from"].get("model", {}).get("settings", {}).pop("engine", None)  # of older models
    return cast(Figures, known)


def translate_phrase_based(
    model: PhraseBasedModel, lines: Sequence[str], settings: StackSearchSettings
) -> Iterator[PhraseTranslation]:
    """Translate lines, in order; an empty line stays empty."""
    source, target = model.codec("source"), model.codec("target")
    tokens = [source.tokenize(line) for line in lines]
    linker, weights = WordLinker(model.lexicon()), load_weights(model)
    with open_decoder_for(model, tokens, settings) as (decoder, _):
        pieces = [
            source.vocabulary.encode(piece)
            for each in tokens
            for piece in split_long_sentence(each)
        ]
        best = decoder.nbest(pieces, weights, 1, "translating")
        for line, each in zip(lines, tokens, strict=True):
            parts = [(piece, next(best)) for piece in split_long_sentence(each)]
            yield _put_together(line, parts, linker, (source, target), weights)


def split_long_sentence(tokens: Sequence[str]) -> list[Sequence[str]]:
    """A sentence in pieces of nearly equal length, none very long; mostly just one."""
    number = max(1, -(-len(tokens) // MAX_CHUNK_TOKENS))
    cuts = [len(tokens) * k // number for k in range(number + 1)]
    return [tokens[a:b] for a, b in pairwise(cuts)]


@contextmanager
def open_decoder_for(
    model: PhraseBasedModel, tokens: Sequence[Sequence[str]], settings: StackSearchSettings
) -> Iterator[tuple[NBestDecoder, int]]:
    """A decoder with the phrase table of these sentences, and how many pairs the table has."""
    vocabulary = model.codec("source").vocabulary
    text = concatenate_sentences([vocabulary.encode(each) for each in tokens])
    made = model.settings
    with TemporaryDirectory(prefix="covnmt-smt-") as place:
        known = model.bitext(), model.occurrences(), model.lexicon()
        _check_vocabularies(model, known[-1])
        table = build_phrase_table(*known, text, made.max_phrase, made.options)
        file, pairs = Path(place) / "table.npz", len(table)
        table.save(file)
        del known, table
        lm = model.directory / LANGUAGE_MODEL_DIRECTORY
        with open_decoder(DecoderInputs(file, lm, made.max_phrase, settings)) as decoder:
            yield decoder, pairs


def _check_vocabularies(model: PhraseBasedModel, lexicon: Lexicon) -> None:
    rows = {"source": lexicon.source_rows, "target": lexicon.target_rows}
    for side in SIDES:
        found = len(model.codec(side).vocabulary)
        if found != rows[side]:
            raise UserError(
                f"{model.directory / side}.vocab: has {found:,} rows in place of {rows[side]:,}; "
                "give `covnmt smt train` again"
            )


def hypothesis_tokens(
    found: PhraseHypothesis, source: Sequence[str], target: Vocabulary
) -> list[str]:
    """The tokens of a translation; a copied word is its source token."""
    tokens = target.decode(found.words)
    for phrase in found.phrases:
        if found.words[phrase.target] == UNK_ID:
            tokens[phrase.target] = source[phrase.source]
    return tokens


@dataclass(frozen=True)
class WordLinker:
    """Links words inside phrases."""

    lexicon: Lexicon

    def links(
        self, phrases: Sequence[PhraseSpan], source: Sequence[int], words: Sequence[int]
    ) -> Links:
        """Of each target word to the source word of its phrase that most probably gave it."""
        j, i = np.array(source), np.array(words)
        found: set[tuple[int, int]] = set()
        for phrase in phrases:
            inside = slice(phrase.target, phrase.target_end)
            weight = self.lexicon.weight(
                *np.broadcast_arrays(j[phrase.source : phrase.source_end, None], i[inside])
            )
            linked = (weight.max(axis=0) > 0) | (len(weight) == 1)
            best = phrase.source + weight.argmax(axis=0)
            places = np.arange(phrase.target, phrase.target_end)
            found.update(zip(best[linked].tolist(), places[linked].tolist(), strict=True))
        return frozenset(found)


def _put_together(
    line: str,
    parts: Sequence[tuple[Sequence[str], list[PhraseHypothesis]]],
    linker: WordLinker,
    codecs: tuple[Codec, Codec],
    weights: DoubleArray,
) -> PhraseTranslation:
    """The pieces of a line as one translation."""
    source: list[str] = []
    tokens: list[str] = []
    links: set[tuple[int, int]] = set()
    score = 0.0
    for piece, found in parts:
        for best in found:
            ids = codecs[0].vocabulary.encode(piece)
            own = linker.links(best.phrases, ids, best.words)
            links |= {(len(source) + j, len(tokens) + i) for j, i in own}
            tokens += hypothesis_tokens(best, piece, codecs[1].vocabulary)
            score += float(np.dot(weights, best.features))
        source += piece
    text = codecs[1].detokenize(tokens)
    return PhraseTranslation(line, source, tokens, text, score, frozenset(links))
