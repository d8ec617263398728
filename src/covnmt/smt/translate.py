"""Lines -> translations with their phrases, word links and features.

The phrase table is made for the lines at hand. Inside a phrase each target word is linked to the
source word that most probably gave it, by the lexicon; a word that was copied, or the only source
word of a phrase, needs no lexicon. So links are hard and never leave a phrase.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from covnmt.errors import UserError
from covnmt.files import read_json
from covnmt.metrics.alignment import Links, link_matrix
from covnmt.smt.bitext import lay_out, source_words, target_tokens
from covnmt.smt.decode import (
    FEATURES,
    START,
    Decoder,
    Floats,
    Hypothesis,
    Phrase,
    Search,
    open_decoder,
    write_phrase_table,
)
from covnmt.smt.lexicon import Lexicon
from covnmt.smt.model import TABLES, SmtModel
from covnmt.smt.phrases import make_table
from covnmt.smt.settings import SearchSettings
from covnmt.text.codec import Codec
from covnmt.text.vocab import Vocabulary

WEIGHTS = "weights.json"
MAX_WORDS = 100  # longer sentences are translated in pieces


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


def load_weights(model: SmtModel) -> Floats:
    """The tuned weights, or equal ones before tuning."""
    path = model.directory / WEIGHTS
    if not path.exists():
        return START
    known = read_json(path)
    if known["made_from"]["model"] != model.identity():
        raise UserError(
            f"{path}: the model was trained anew since it was tuned; give `covnmt smt tune "
            f"{model.directory}` again, or remove the file to use equal weights"
        )
    return np.array([known["weights"][name] for name in FEATURES])


def translate(
    model: SmtModel, lines: Sequence[str], settings: SearchSettings
) -> Iterator[PhraseTranslation]:
    """Translate lines, in order; an empty line stays empty."""
    source, target = model.codec("source"), model.codec("target")
    tokens = [source.tokenize(line) for line in lines]
    linker = WordLinker(model.lexicon(), source.vocabulary)
    weights = load_weights(model)
    with prepared_decoder(model, tokens, settings) as decoder:
        pieces = [piece for each in tokens for piece in split(each)]
        words = [source_words(piece, source.vocabulary) for piece in pieces]
        best = decoder.nbest(words, weights, 1, "translating")
        for line, each in zip(lines, tokens, strict=True):
            parts = [(piece, next(best)) for piece in split(each)]
            yield _put_together(line, parts, linker, target, weights)


def split(tokens: Sequence[str]) -> list[Sequence[str]]:
    """A sentence in pieces of nearly equal length that Thot can take; mostly just one."""
    number = max(1, -(-len(tokens) // MAX_WORDS))
    cuts = [len(tokens) * k // number for k in range(number + 1)]
    return [tokens[a:b] for a, b in pairwise(cuts)]


@contextmanager
def prepared_decoder(
    model: SmtModel, tokens: Sequence[Sequence[str]], settings: SearchSettings
) -> Iterator[Decoder]:
    """A decoder with the phrase table of these sentences, which is gone afterwards."""
    vocabulary = model.codec("source").vocabulary
    text = lay_out([vocabulary.encode(each) for each in tokens])
    bitext, made = model.bitext(), model.settings
    table = make_table(bitext, model.occurrences(), text, made.max_phrase, made.options)
    with TemporaryDirectory(prefix="covnmt-smt-") as place:
        tables = Path(place) / TABLES
        for path in (model.directory / "lexicon").iterdir():
            (tables.parent / path.name).symlink_to(path.resolve())
        write_phrase_table(tables, bitext, table, made.lexical)
        del bitext, table
        lm = model.directory / "lm"
        with open_decoder(Search(tables, lm, made.max_phrase, made.options, settings)) as decoder:
            yield decoder


@dataclass(frozen=True)
class WordLinker:
    """Links words inside phrases."""

    lexicon: Lexicon
    source: Vocabulary

    @cached_property
    def _probability(self) -> dict[tuple[int, int], float]:
        known = self.lexicon
        rows = zip(known.source.tolist(), known.target.tolist(), strict=True)
        return dict(zip(rows, known.probabilities().tolist(), strict=True))

    def links(
        self, phrases: Sequence[Phrase], source: Sequence[str], words: Sequence[str]
    ) -> Links:
        """Of each target word to the source word of its phrase that most probably gave it."""
        ids = self.source.encode(source)
        found = set()
        for phrase in phrases:
            inside = range(phrase.source, phrase.source_end)
            for i in range(phrase.target, phrase.target_end):
                weights = [self._weight(ids[j], words[i]) for j in inside]
                if len(weights) == 1 or max(weights) > 0:
                    found.add((phrase.source + int(np.argmax(weights)), i))
        return frozenset(found)

    def _weight(self, source: int, word: str) -> float:
        return self._probability.get((source, int(word[1:])), 0.0) if word[0] == "t" else 0.0


def _put_together(
    line: str,
    parts: Sequence[tuple[Sequence[str], list[Hypothesis]]],
    linker: WordLinker,
    target: Codec,
    weights: Floats,
) -> PhraseTranslation:
    """The pieces of a line as one translation."""
    source: list[str] = []
    tokens: list[str] = []
    links: set[tuple[int, int]] = set()
    score = 0.0
    for piece, found in parts:
        for best in found:
            own = linker.links(best.phrases, piece, best.words)
            links |= {(len(source) + j, len(tokens) + i) for j, i in own}
            words = source_words(piece, linker.source)
            tokens += target_tokens(best.words, words, piece, target.vocabulary)
            score += float(np.dot(weights, best.features))
        source += piece
    text = target.detokenize(tokens)
    return PhraseTranslation(line, source, tokens, text, score, frozenset(links))
