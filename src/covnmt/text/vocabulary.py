"""Vocabularies (docs/paper-to-code.md, section 1.1), and training of sentencepiece models.

    id 0          padding
    id 1          UNK, every token that is not in the vocabulary
    id 2 ...      tokens: words with the most frequent first, subwords in their model's order
    the last id   the end symbol

A vocabulary of the paper's size 30,000 has 29,998 tokens and 30,001 ids.
"""

import io
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Literal, TypeVar

from covnmt.base.errors import UserError
from covnmt.base.files import decode_lines, write_bytes, write_lines

T = TypeVar("T")

PAD_ID = 0
UNK_ID = 1
SPECIAL_TOKENS = ("PAD", "UNK")  # how ids 0 and 1 are decoded

# Sample size for training a sentencepiece model: enough for any usual vocabulary, and small enough
# that the suffix array stays below half a GiB for text without spaces.
SPM_SENTENCES = 200_000

# Characters per subword. Without spaces between words, whole phrases with numbers in them would
# become one subword, and slightly different sentences would share none.
MAX_SUBWORD_LENGTH, MAX_SUBWORD_LENGTH_UNSPACED = 16, 5

# A constant, not the number of cores: the trained model depends on it.
SPM_THREADS = 8


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of one side; `len` is the vocabulary size, with special ids."""

    tokens: tuple[str, ...]

    @classmethod
    def from_counts(cls, counts: Mapping[str, int], size: int) -> "Vocabulary":
        """Take the `size - 2` most frequent tokens; ties are broken alphabetically."""
        return cls(tuple(most_frequent(counts, size - len(SPECIAL_TOKENS))))

    @classmethod
    def parse(cls, content: bytes, path: Path) -> "Vocabulary":
        """Read the content of a vocabulary file, which has one token per line."""
        line_numbers: dict[str, int] = {}
        for number, token in enumerate(decode_lines(io.BytesIO(content), str(path)), 1):
            if not token or token.split() != [token]:
                raise UserError(f"{path}, line {number}: {token!r} is not one token; {_REMEDY}")
            if token in line_numbers:
                raise UserError(
                    f"{path}, line {number}: {token!r} is in line {line_numbers[token]} too; "
                    f"{_REMEDY}"
                )
            line_numbers[token] = number
        if not line_numbers:
            raise UserError(f"{path}: has no tokens; {_REMEDY}")
        return cls(tuple(line_numbers))

    def save(self, path: Path) -> None:
        """Write one token per line."""
        write_lines(path, self.tokens)

    def __len__(self) -> int:
        return len(SPECIAL_TOKENS) + len(self.tokens) + 1

    @property
    def end_id(self) -> int:
        """Return the id of the end symbol."""
        return len(self) - 1

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Return one id per token, without an end symbol."""
        index = self._index
        return [index.get(token, UNK_ID) for token in tokens]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return one token per id, up to the end symbol if there is one."""
        special, end = len(SPECIAL_TOKENS), self.end_id
        return [
            self.tokens[i - special] if i >= special else SPECIAL_TOKENS[i]
            for i in takewhile(lambda i: i != end, ids)
        ]

    @cached_property
    def _index(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens, len(SPECIAL_TOKENS))}


_REMEDY = "the vocabulary is damaged: make it again with `covnmt prepare`"


def most_frequent(counts: Mapping[str, int], number: int) -> dict[str, int]:
    """Return the most frequent tokens with their counts; ties are in alphabetic order."""
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
    """Train subwords on a sample of the sentences, at most `size` of them with reserved ids.

    The same sentences and seed give the same model, byte for byte. An open vocabulary has subwords
    for all bytes, so no character is unknown, and splits numbers into digits.
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
            hard_vocab_limit=False,  # a small corpus may have fewer
            normalization_rule_name="identity",
            bos_id=-1,
            eos_id=-1,
            num_threads=SPM_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2]  # without the line of its source
        raise UserError(
            f"no sentencepiece vocabulary of size {size} can be made from this text ({reason}); "
            "try another size"
        ) from None
    write_bytes(path, model.getvalue())


def reservoir_sample(items: Iterable[T], size: int, seed: int) -> Sequence[T]:
    """Sample at most `size` items uniformly, in one pass over the stream."""
    draw = random.Random(seed)
    kept: list[T] = []
    for number, item in enumerate(items):
        if number < size:
            kept.append(item)
        elif (position := draw.randrange(number + 1)) < size:
            kept[position] = item
    return kept
