"""Translations with known omissions, made from complete ones."""

from typing import cast

import numpy as np

from covnmt.data.padding import PaddedIds
from covnmt.decoding.engines import Engine, ForcedDecoding
from covnmt.inference.forced_decoding import ForcedDecoder
from covnmt.inference.synthetic_omissions import Example, synthetic_omissions
from covnmt.text.codec import Codec
from covnmt.text.tokenize import TokenizerSettings, WhitespaceTokenizer
from covnmt.text.vocabulary import Vocabulary

LETTERS = "abcdefgh"
CODEC = Codec(
    TokenizerSettings(kind="whitespace"), WhitespaceTokenizer(), Vocabulary((*LETTERS, ",", "。"))
)
PAIRS = [("a b c , d e f 。", "f e d , c b a ."), ("g h 。", "h g ."), ("a 。", "a .")]


class SameWord:
    """Attends to the source word that is the same as the target word."""

    device = "cpu"

    def force_decode(self, source: PaddedIds, target: PaddedIds) -> ForcedDecoding:
        alpha = (target.ids[:, :, None] == source.ids[:, None, :]).astype(np.float32)
        zeros = np.zeros(target.ids.shape, np.float32)
        return ForcedDecoding(alpha, zeros.sum(axis=1), None, zeros)


def examples(seed: int = 1) -> list[Example]:
    decoder = ForcedDecoder(cast(Engine, SameWord()), CODEC, CODEC)
    return list(synthetic_omissions(PAIRS, decoder, seed))


def test_exactly_the_translation_of_the_omitted_words_is_cut() -> None:
    kinds = set()
    for seed in range(5):
        for example in examples(seed):
            kinds.add(example.kind)
            tokens = example.source.split()
            omitted = {tokens[j] for j in example.omitted} & set(LETTERS)
            kept = set(tokens) & set(LETTERS) - omitted
            assert set(example.target.split()) & set(LETTERS) == kept
            assert bool(omitted) == (example.kind != "none")
    assert kinds == {"none", "word", "phrase", "clause", "sentence"}


def test_complete_pairs_are_there_as_they_are() -> None:
    complete = [(e.source, e.target) for e in examples() if e.kind == "none"]
    assert complete[: len(PAIRS)] == PAIRS


def test_the_same_seed_gives_the_same_omissions() -> None:
    assert examples(3) == examples(3)
    assert any(examples(seed) != examples(3) for seed in range(4, 8))
