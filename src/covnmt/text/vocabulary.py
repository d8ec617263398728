"""Tokens <-> ids (SPEC 1.1), and the training of sentencepiece models.

    id 0          padding, never a word
    id 1          UNK, every token that is not in the vocabulary
    id 2 ...      words, the most frequent first
    the last id   the end symbol

A vocabulary of the paper's size 30,000 holds 29,998 words and has 30,001 rows.
"""

import io
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeVar

from covnmt.base.errors import UserError
from covnmt.base.files import atomic_write, read_lines, write_lines

T = TypeVar("T")

PAD_ID = 0
UNK_ID = 1
SPECIAL_TOKENS = ("PAD", "UNK")  # how these two look in decoded text

# Sentences that a sentencepiece model is trained on: enough for any usual size, and small
# enough that its suffix array stays below half a GiB for text without spaces.
SPM_SENTENCES = 200_000

# Characters of a subword. Where no spaces end words, whole phrases would become one, numbers in
# them and all, and a sentence that is only a little different would share nothing with them.
MAX_SUBWORD_LENGTH, MAX_SUBWORD_LENGTH_UNSPACED = 16, 5

# The result depends on the number of threads, so it must not depend on the machine.
SPM_THREADS = 8


@dataclass(frozen=True)
class Vocabulary:
    """The words of one side; `len` is the number of embedding rows."""

    tokens: tuple[str, ...]

    @classmethod
    def from_counts(cls, counts: Mapping[str, int], size: int) -> "Vocabulary":
        """The `size - 2` most frequent words; ties are broken alphabetically."""
        return cls(tuple(most_frequent(counts, size - len(SPECIAL_TOKENS))))

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Read one word per line."""
        words: dict[str, int] = {}
        for number, word in enumerate(read_lines(path), 1):
            if not word or word.split() != [word]:
                raise UserError(f"{path}, line {number}: {word!r} is not one word; {_REMEDY}")
            if word in words:
                raise UserError(
                    f"{path}, line {number}: {word!r} stands in line {words[word]} too; {_REMEDY}"
                )
            words[word] = number
        if not words:
            raise UserError(f"{path}: holds no words; {_REMEDY}")
        return cls(tuple(words))

    def save(self, path: Path) -> None:
        """Write one word per line."""
        write_lines(path, self.tokens)

    def __len__(self) -> int:
        return len(SPECIAL_TOKENS) + len(self.tokens) + 1

    @property
    def end_id(self) -> int:
        """The id of the end symbol."""
        return len(self) - 1

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """One id per token, without an end symbol."""
        index = self._index
        return [index.get(token, UNK_ID) for token in tokens]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """One token per id, up to the end symbol if there is one."""
        tokens = []
        for i in ids:
            if i == self.end_id:
                break
            tokens.append(
                self.tokens[i - len(SPECIAL_TOKENS)]
                if i >= len(SPECIAL_TOKENS)
                else SPECIAL_TOKENS[i]
            )
        return tokens

    @cached_property
    def _index(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.tokens, len(SPECIAL_TOKENS))}


_REMEDY = "the vocabulary is damaged: make it again with `covnmt prepare`"


def most_frequent(counts: Mapping[str, int], number: int) -> dict[str, int]:
    """The most frequent types with their counts, in that order, then alphabetically."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return dict(ranked[:number])


def train_sentencepiece(
    sentences: Iterable[str],
    path: Path,
    size: int,
    kind: Literal["unigram", "bpe"] = "unigram",
    seed: int = 1234,
    open_vocabulary: bool = False,
    longest: int = MAX_SUBWORD_LENGTH,
) -> None:
    """Train subwords on a sample of the sentences, so that their vocabulary has at most `size`.

    The same sentences and seed give the same model, byte for byte. An open
    vocabulary has pieces for all bytes, hence no unknown characters, and numbers in digits.
    """
    import sentencepiece

    sample = reservoir_sample(filter(None, sentences), SPM_SENTENCES, seed)
    if not sample:
        raise UserError(
            f"no sentencepiece vocabulary of size {size} can be made of empty lines: check the text"
        )
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=model,
            model_type=kind,
            vocab_size=size - 1,  # its own unknown symbol is one of them
            max_sentencepiece_length=longest,
            byte_fallback=open_vocabulary,
            split_digits=open_vocabulary,
            hard_vocab_limit=False,  # a small corpus may not have that many
            normalization_rule_name="identity",
            bos_id=-1,
            eos_id=-1,
            num_threads=SPM_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2]  # less the place in its source
        raise UserError(
            f"no sentencepiece vocabulary of size {size} can be made from this text ({reason}); "
            "try another size"
        ) from None
    with atomic_write(path) as stream:
        stream.write(model.getvalue())


def reservoir_sample(items: Iterable[T], size: int, seed: int) -> Sequence[T]:
    """At most `size` items, every one with the same chance, in one pass over the stream."""
    draw = random.Random(seed)
    kept: list[T] = []
    for number, item in enumerate(items):
        if number < size:
            kept.append(item)
        elif (place := draw.randrange(number + 1)) < size:
            kept[place] = item
    return kept
