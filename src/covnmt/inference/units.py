"""What can be taken out of a line: its sentences, and the words and numbers in them.

All are ranges of tokens. Words and numbers, which may have several tokens, are called units.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

from covnmt.text.characters import is_grapheme_extension
from covnmt.text.codec import Codec
from covnmt.text.sentences import split_into_sentences
from covnmt.text.tokenize import SPACE_SYMBOL, UNSPACED_LANGUAGES, is_continuation_byte

UnitScores = dict[range, float]  # of parts of a line


@dataclass(frozen=True)
class SourceUnits:
    """A line, and what can be taken out of it."""

    line: str
    texts: tuple[str, ...]  # its sentences
    tokens: tuple[str, ...]
    ids: list[int]
    sentences: list[range]  # as the tokens of each
    units: list[range]

    @classmethod
    def of(cls, line: str, codec: Codec) -> "SourceUnits":
        """As the model reads it, sentence by sentence."""
        texts = split_into_sentences(line).sentences
        parts = [_tokens_after(before, text, codec) for before, text in pairwise(["", *texts])]
        tokens = tuple(token for part in parts for token in part)
        sentences = [range(*pair) for pair in pairwise(accumulate(map(len, parts), initial=0))]
        units = [
            range(sentence.start + unit.start, sentence.start + unit.stop)
            for sentence, part in zip(sentences, parts, strict=True)
            for unit in find_units(part, codec)
        ]
        return cls(line, texts, tokens, codec.encode(tokens), sentences, units)

    def words(self, part: range) -> list[range]:
        """The units of a part of it."""
        return [unit for unit in self.units if unit.start in part]

    def words_without(self, parts: Iterable[range]) -> list[range]:
        """Those that stay when these parts are taken out."""
        gone = set(chain.from_iterable(parts))
        return [unit for unit in self.units if unit.start not in gone]

    def most(self, nats: UnitScores, part: range) -> float:
        """Of the units of a part of it."""
        return max(nats[unit] for unit in self.words(part))

    def others(self, sentence: range) -> list[range]:
        """The sentences beside this one."""
        return [each for each in self.sentences if each != sentence]


def _tokens_after(before: str, text: str, codec: Codec) -> list[str]:
    """Of a sentence that follows another.

    By itself it would begin with the space that subwords set before a line. In a language without
    spaces there is none inside a line, and models hardly heed what stands after one.
    """
    if before and codec.settings.unspaced:
        ahead, whole = codec.tokenize(before), codec.tokenize(before + text)
        if whole[: len(ahead)] == ahead:
            return whole[len(ahead) :]
    return codec.tokenize(text)


def find_units(tokens: Sequence[str], codec: Codec) -> list[range]:
    """Words and numbers, as ranges of tokens; punctuation is none.

    Subwords make up words where spaces part them; elsewhere each is a word of its own, with the
    marks on its last letter, and so is a character that is spelt in bytes.
    """
    borders = [0, *(j for j, pair in enumerate(pairwise(tokens), 1) if _parts(*pair, codec))]
    ranges = [range(*pair) for pair in pairwise([*borders, len(tokens)])]
    return [each for each in ranges if _is_word(tokens[each.start : each.stop], codec)]


def _is_word(tokens: Sequence[str], codec: Codec) -> bool:
    return any(letter.isalnum() for letter in codec.detokenize(tokens))


def _parts(before: str, token: str, codec: Codec) -> bool:
    """Whether a unit begins between these two tokens."""
    if codec.settings.kind != "sentencepiece":
        return True
    if codec.settings.unspaced or codec.settings.language in UNSPACED_LANGUAGES:
        number = before[-1].isdecimal() and token[0].isdecimal()
        return not (number or is_continuation_byte(token) or is_grapheme_extension(token[0]))
    return token.startswith(SPACE_SYMBOL)
