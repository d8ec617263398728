"""A line of text as what can be taken out of it: sentences, clauses, words.

Units are ranges of the tokens that a model reads. A word is one or several tokens: subwords are
joined to words, digits to numbers. With a lexicon the words are those of its entries; without one,
each subword of a language without spaces is a word.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain, groupby, pairwise
from operator import itemgetter

from covnmt.data.lexicon import LexiconSide
from covnmt.inference.aligned_text import Span, token_spans
from covnmt.text.characters import is_grapheme_extension
from covnmt.text.codec import Codec
from covnmt.text.sentences import split_into_sentences
from covnmt.text.tokenize import (
    SPACE_SYMBOL,
    UNSPACED_LANGUAGES,
    is_byte_token,
    is_continuation_byte,
)

MIN_CLAUSE_WORDS = 2
_CLAUSE_END = re.compile(r"[,;:、，；：—–]")
# Before the Japanese comma 、 these end a clause; after a noun it only separates items of a list.
_VERB_ENDING = re.compile("[てでがしりきちにいみびぎえけせねめれげべばらとはもずくう]$")
_NOT_VERB_ENDING = re.compile("(?:など|[ァ-ヺー一-鿿]と)$")
_ALWAYS_APART = ("moses", "whitespace")  # tokenizers whose tokens are separated by spaces


@dataclass(frozen=True)
class TextUnits:
    """A source line, and what can be taken out of it: sentences, and words and numbers in them."""

    line: str
    tokens: tuple[str, ...]
    ids: list[int]
    sentences: list[range]  # tokens of each sentence
    units: list[range]  # tokens of each word or number
    clauses: list[range] = field(default_factory=list)  # tokens of each part of a sentence
    keys: list[tuple[str, ...]] = field(default_factory=list)  # of each unit, in the lexicon

    @classmethod
    def from_line(cls, line: str, codec: Codec, lexicon: LexiconSide | None = None) -> "TextUnits":
        """Split a line into sentences, and each sentence as the model reads it."""
        texts = split_into_sentences(line).sentences
        tokenized = [_tokens_after(before, text, codec) for before, text in pairwise(["", *texts])]
        tokens = tuple(chain.from_iterable(tokenized))
        ends = accumulate(map(len, tokenized), initial=0)
        sentences = [range(*pair) for pair in pairwise(ends)]
        units: list[range] = []
        clauses: list[range] = []
        keys: list[tuple[str, ...]] = []
        for sentence, sentence_tokens in zip(sentences, tokenized, strict=True):
            sentence_units = find_units(sentence_tokens, codec)
            names: list[tuple[str, ...]] = [() for _ in sentence_units]
            if lexicon:
                sentence_units, names = _lexicon_words(
                    sentence_tokens, sentence_units, codec, lexicon
                )
            keys += names
            units += _shift(sentence_units, sentence.start)
            clauses += _shift(find_clauses(sentence_tokens, sentence_units), sentence.start)
        ids = codec.vocabulary.encode(tokens)
        return cls(line, tokens, ids, sentences, units, clauses, keys)

    @cached_property
    def _token_spans(self) -> list[Span]:
        return token_spans(self.tokens, self.line)

    def characters(self, tokens: range) -> Span:
        """Return where tokens are in the line as it was given, without spaces around them."""
        spans = self._token_spans[tokens.start : tokens.stop]
        spans = [span for span in spans if self.line[slice(*span)].strip()]
        return (spans[0][0], spans[-1][1]) if spans else (0, 0)

    def units_without(self, sentences: Iterable[range]) -> list[range]:
        """Return the units that remain when these sentences are taken out."""
        removed = set(chain.from_iterable(sentences))
        return [unit for unit in self.units if unit.start not in removed]


def _tokens_after(before: str, text: str, codec: Codec) -> list[str]:
    """Tokenize a sentence as it reads after another one.

    By itself it would begin with the space that sentencepiece puts before a line. In a language
    without spaces no line has one inside, and models hardly heed what stands after one.
    """
    if before and codec.settings.unspaced:
        prefix, both = codec.tokenize(before), codec.tokenize(before + text)
        if both[: len(prefix)] == prefix:
            return both[len(prefix) :]
    return codec.tokenize(text)


def find_units(tokens: Sequence[str], codec: Codec) -> list[range]:
    """Return words and numbers as ranges of tokens, without punctuation.

    Subwords form words where spaces separate them. Elsewhere each is a unit of its own, together
    with the marks on its last letter; so is a character that is spelled as bytes.
    """
    starts = [j for j, pair in enumerate(pairwise(tokens), 1) if _starts_unit(*pair, codec)]
    ranges = [range(*pair) for pair in pairwise([0, *starts, len(tokens)])]
    return [
        unit
        for unit in ranges
        if any(letter.isalnum() for letter in codec.detokenize(tokens[unit.start : unit.stop]))
    ]


def _starts_unit(before: str, token: str, codec: Codec) -> bool:
    """Tell whether a unit begins between these two tokens."""
    if codec.settings.kind != "sentencepiece":
        return True
    if codec.settings.unspaced or codec.settings.language in UNSPACED_LANGUAGES:
        number = before[-1].isdecimal() and token[0].isdecimal()
        return not (number or is_continuation_byte(token) or is_grapheme_extension(token[0]))
    return token.startswith(SPACE_SYMBOL)


def _shift(ranges: Iterable[range], by: int) -> list[range]:
    return [range(r.start + by, r.stop + by) for r in ranges]


def find_clauses(tokens: Sequence[str], units: Sequence[range]) -> list[range]:
    """Split a sentence after commas, colons and semicolons, unless few words remain.

    Commas inside numbers and between the items of a list in Chinese or Japanese (、) are none.
    """
    clauses, start = [], 0
    for k, token in enumerate(tokens[:-1], 1):
        if not _ends_clause("".join(tokens[max(start, k - 3) : k - 1]), token, tokens[k]):
            continue
        before = sum(start <= unit.start < k for unit in units)
        after = sum(unit.start >= k for unit in units)
        inside = any(unit.start < k < unit.stop for unit in units)
        if min(before, after) >= MIN_CLAUSE_WORDS and not inside:
            clauses.append(range(start, k))
            start = k
    return [*clauses, range(start, len(tokens))] if tokens else []


def _ends_clause(before: str, token: str, after: str) -> bool:
    """Tell whether a token has a mark that ends a clause; `before` is the text that precedes it."""
    text = before + token
    for mark in _CLAUSE_END.finditer(text, len(before)):
        preceding, following = text[: mark.start()], (text[mark.end() :] + after)[:1]
        if preceding[-1:].isdecimal() and following.isdecimal():
            continue
        if mark[0] != "、" or (
            _VERB_ENDING.search(preceding) and not _NOT_VERB_ENDING.search(preceding)
        ):
            return True
    return False


def _lexicon_words(
    tokens: Sequence[str], units: Sequence[range], codec: Codec, lexicon: LexiconSide
) -> tuple[list[range], list[tuple[str, ...]]]:
    """Join units until no word of the lexicon lies in several; return them with their words."""
    surface, starts, stops = token_text(tokens, codec)
    words = [
        (starts[word.start], stops[word.end - 1], word.key)
        for word in lexicon.splitter.words(surface)
    ]
    inside_words = {k for start, stop, _ in words for k in range(start + 1, stop)}
    ends = {k for unit in units for k in (unit.start, unit.stop)} - inside_words
    of_words = [(first, last) for first, last, _ in words]
    of_units = [(unit.start, unit.stop) for unit in units]
    joined: list[range] = []
    names: list[tuple[str, ...]] = []
    for start, stop in pairwise(sorted(ends)):
        inside = tuple(key for *_, key in words[_overlapping(of_words, start, stop)])
        if inside and of_units[_overlapping(of_units, start, stop)]:
            joined.append(range(start, stop))
            names.append(inside)
    return joined, names


def _overlapping(spans: Sequence[Span], start: int, stop: int) -> slice:
    """Return which spans, in order, share something with those from `start` to `stop`."""
    first = bisect_right(spans, start, key=itemgetter(1))
    return slice(first, bisect_left(spans, stop, key=itemgetter(0)))


def token_text(tokens: Sequence[str], codec: Codec) -> tuple[str, list[int], list[int]]:
    """Return the text of tokens; for each character its first token, and the one after the last."""
    text, starts, stops, k = "", [], [], 0
    apart = codec.settings.kind in _ALWAYS_APART
    for is_bytes, group in groupby(tokens, is_byte_token):
        run = list(group)
        for piece_tokens in [run] if is_bytes else [[token] for token in run]:
            piece = (
                codec.detokenize(piece_tokens)
                if is_bytes
                else piece_tokens[0].replace(SPACE_SYMBOL, " ")
            )
            piece = " " + piece if apart else piece
            text += piece
            starts += [k] * len(piece)
            k += len(piece_tokens)
            stops += [k] * len(piece)
    return text, starts, stops
