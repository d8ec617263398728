"""The synthetic language pair: a seeded grammar whose translations and alignments are known.

The source language puts the verb in the middle, adjectives before and relative clauses after their
noun; the target language does the reverse, with the verb last. The target is a function of the
source, and each target word except the object marker belongs to one source word. So AER, SAER
(paper, section 5.1), omissions and repetitions can be counted exactly. See docs/embedded-pair.md.

Links are (j, i): source word j, target word i, both from 0. All randomness comes from
`Random.random`, the only method that promises the same numbers on every Python.
"""

from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, cycle, islice
from pathlib import Path
from random import Random
from typing import Annotated, Literal, NamedTuple, TypeVar

from pydantic import Field

from covnmt.base.config import Count, Fraction, PositiveInt, Settings
from covnmt.base.console import track
from covnmt.base.errors import UserError
from covnmt.base.files import write_lines

T = TypeVar("T")
GoldLinks = frozenset[tuple[int, int]]
_NewWords = tuple[Iterator[str], Iterator[str]]  # of the source, of the target
WordCount = Annotated[int, Field(ge=2, le=800)]

# The only target word that translates no source word: it follows an object of gender 1.
OBJECT_MARKER = "eth"
MAX_REJECTED = 1_000  # sentences in a row that are too long or not new
TENSE_ENDINGS, GENDER_ENDINGS = ("em", "it"), ("an", "or")


class SyntheticSettings(Settings):
    """Settings of the languages, then of the sentences drawn from them."""

    language: Count = Field(1, description="seed of the lexicon: another number gives other words")
    nouns: WordCount = Field(140, description="source nouns")
    verbs: WordCount = Field(34, description="source verbs")
    adjectives: WordCount = Field(28, description="source adjectives")
    adverbs: WordCount = Field(20, description="source adverbs")
    fertilities: tuple[Literal[1, 2, 3], ...] = Field(
        (1, 1, 2, 1, 1, 3, 1),
        min_length=1,
        description="target words per noun, verb, adverb; by rank, in turn",
    )
    homonym_every: PositiveInt = Field(16, description="one noun in this many has two senses")
    zipf_shift: Annotated[float, Field(ge=0)] = Field(2.7, description="weights 1 / (rank + shift)")
    mean_clauses: Annotated[float, Field(ge=1)] = Field(
        2.7, description="mean number of clauses per sentence"
    )
    max_length: Annotated[int, Field(ge=10)] = Field(
        60, description="source words; longer sentences are drawn again"
    )
    repeat: Fraction = Field(0.25, description="chance that a clause repeats an earlier one")
    alter: Fraction = Field(
        0.5, description="chance that the repeated clause differs in a noun or verb"
    )
    subordinate: Fraction = Field(
        0.15, description="chance of a subordinator, whose clauses change places"
    )
    past: Fraction = Field(0.4, description="chance of the past particle in a clause")
    determiner: Fraction = Field(0.5, description="chance of a determiner per noun")
    adjective: Fraction = Field(0.25, description="chance of an adjective, then of another")
    relative: Fraction = Field(0.12, description="chance of a relative clause per noun")
    adverb: Fraction = Field(0.25, description="chance of an adverb per clause")
    place: Fraction = Field(0.2, description="chance of a preposition and noun per clause")
    degree: Fraction = Field(0.35, description="chance of one more degree word on a modifier")


DEFAULTS = SyntheticSettings()


@dataclass(frozen=True)
class SyntheticPair:
    """A sentence, its translation and its alignment; all sure links are possible too."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    sure: GoldLinks
    possible: GoldLinks

    def pharaoh(self) -> str:
        """Format the alignment: `j-i` for sure links, `jpi` for possible ones."""
        return " ".join(
            f"{j}{'-' if (j, i) in self.sure else 'p'}{i}" for j, i in sorted(self.possible)
        )


@dataclass(frozen=True)
class SyntheticWord:
    """A source word with its translations.

    `group` (0 or 1) is the gender of a noun or the inflection class of a verb. The second of two
    `forms` is that of a verb in the past, of an adjective whose noun has gender 1, and of a noun
    that follows a verb of class 1 in its clause.
    """

    text: str
    kind: str
    group: int
    forms: tuple[tuple[str, ...], ...]

    @property
    def fertility(self) -> int:
        """Return the number of target words, the same in every form."""
        return len(self.forms[0])


@lru_cache(maxsize=8)
def build_lexicon(
    settings: SyntheticSettings = DEFAULTS,
) -> Mapping[str, tuple[SyntheticWord, ...]]:
    """Return all source words by kind, the most frequent first."""
    rng = Random(settings.language)
    # Source words end in a vowel, target words in a consonant: the languages share no word.
    long = _invent_words(rng, "cvcv", "ptkmnlrsvyfz"), _invent_words(rng, "cvcvc", "bdgklnrsthmw")
    short = _invent_words(rng, "cv", "ptkmnlrsvyfz"), _invent_words(rng, "cvvc", "bdgklnrsthmw")

    def words(
        kind: str, fertilities: Iterable[int], new: _NewWords = short
    ) -> tuple[SyntheticWord, ...]:
        return tuple(
            SyntheticWord(
                next(new[0]), kind, int(rng.random() < 0.5), (tuple(islice(new[1], size)),)
            )
            for size in fertilities
        )

    def by_rank(size: int) -> Iterator[int]:
        return islice(cycle(settings.fertilities), size)

    nouns = list(words("noun", by_rank(settings.nouns), long))
    for k in range(settings.homonym_every // 2, len(nouns), settings.homonym_every):
        second = tuple(islice(long[1], nouns[k].fertility))
        nouns[k] = replace(nouns[k], forms=(*nouns[k].forms, second))
    return {
        "noun": tuple(nouns),
        "verb": _inflect(words("verb", by_rank(settings.verbs), long), TENSE_ENDINGS),
        "adjective": _inflect(words("adjective", [1] * settings.adjectives, long), GENDER_ENDINGS),
        "adverb": words("adverb", by_rank(settings.adverbs), long),
        "determiner": words("determiner", [0, 1, 0, 1, 2]),
        "degree": words("degree", [1, 1]),
        "preposition": words("preposition", [1, 1, 2, 1, 1, 1]),
        "connective": words("connective", [1, 1, 2, 1]),
        "subordinator": words("subordinator", [1, 1]),
        "relative": words("relative", [1]),
        "past": words("past", [0]),
    }


def _invent_words(rng: Random, shape: str, consonants: str) -> Iterator[str]:
    """Yield distinct pronounceable words: a consonant for every c, a vowel for every v."""
    letters = {"c": consonants, "v": "aeiou"}
    seen = set[str]()
    while True:
        text = "".join(_pick(rng, letters[sound]) for sound in shape)
        if text not in seen:
            seen.add(text)
            yield text


def _inflect(words: Iterable[SyntheticWord], endings: tuple[str, str]) -> tuple[SyntheticWord, ...]:
    """Give each word two forms, which differ in the ending of its last target word."""
    return tuple(
        replace(word, forms=tuple((*early, last + ending) for ending in endings))
        for word in words
        for *early, last in word.forms
    )


def _pick(rng: Random, items: Sequence[T]) -> T:
    return items[int(rng.random() * len(items))]


class _SentenceGenerator:
    """Draws source sentences at random, as lists of words."""

    def __init__(self, seed: int, settings: SyntheticSettings) -> None:
        self.rng = Random(seed)
        self.settings = settings
        self.words = build_lexicon(settings)
        self.weights = {
            kind: list(accumulate(1 / (r + settings.zipf_shift) for r, _ in enumerate(words, 1)))
            for kind, words in self.words.items()
        }

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def word(self, kind: str) -> SyntheticWord:
        weights = self.weights[kind]
        return self.words[kind][bisect(weights, self.rng.random() * weights[-1])]

    def optional_word(self, kind: str, probability: float) -> list[SyntheticWord]:
        return [self.word(kind)] if self.chance(probability) else []

    def modifier(self, kind: str) -> list[SyntheticWord]:
        degree, repetitions = self.word("degree"), 0
        while self.chance(self.settings.degree):
            repetitions += 1
        return [degree] * repetitions + [self.word(kind)]

    def noun(self, relative: float) -> list[SyntheticWord]:
        words = self.optional_word("determiner", self.settings.determiner)
        while self.chance(self.settings.adjective):
            words += self.modifier("adjective")
        words.append(self.word("noun"))
        if self.chance(relative):
            words += [self.word("relative"), self.word("verb"), *self.noun(relative=0)]
        return words

    def clause(self) -> list[SyntheticWord]:
        settings = self.settings
        words = self.optional_word("past", settings.past)
        words += [*self.noun(settings.relative), self.word("verb"), *self.noun(settings.relative)]
        if self.chance(settings.adverb):
            words += self.modifier("adverb")
        if self.chance(settings.place):
            words += [self.word("preposition"), *self.noun(settings.relative)]
        return words

    def repeated_clause(self, clauses: Sequence[list[SyntheticWord]]) -> list[SyntheticWord]:
        """Repeat an earlier clause, unchanged or with another noun or verb."""
        clause = list(_pick(self.rng, clauses))
        if self.chance(self.settings.alter):
            positions = [k for k, word in enumerate(clause) if word.kind in ("noun", "verb")]
            original = clause[k := _pick(self.rng, positions)]
            while clause[k] == original:
                clause[k] = self.word(original.kind)
        return clause

    def sentence(self) -> list[SyntheticWord]:
        clauses = [words := self.clause()]
        while self.chance(1 - 1 / self.settings.mean_clauses):
            swaps = self.chance(self.settings.subordinate)
            repeats = self.chance(self.settings.repeat)
            clauses.append(self.repeated_clause(clauses) if repeats else self.clause())
            joint = self.word("subordinator" if swaps else "connective")
            words = [*words, joint, *clauses[-1]]
        return words


class _TargetWord(NamedTuple):
    """A target word, with the source position it translates and those that decide its form."""

    text: str
    sure: int | None
    possible: tuple[int, ...] = ()


class _Translator:
    """Reads a source sentence from left to right; each method translates the words it reads."""

    def __init__(self, words: Sequence[SyntheticWord]) -> None:
        self.words = words
        self.j = 0

    def take(self, *kinds: str) -> list[int]:
        """Read the next words while they are of these kinds; returns their positions."""
        start = self.j
        while self.j < len(self.words) and self.words[self.j].kind in kinds:
            self.j += 1
        return list(range(start, self.j))

    def group(self, positions: Sequence[int]) -> int:
        """Return the group of the deciding word, 0 without one."""
        return self.words[positions[0]].group if positions else 0

    def translate_word(
        self, j: int, form: int = 0, deciders: Iterable[int] = ()
    ) -> list[_TargetWord]:
        return [_TargetWord(text, j, tuple(deciders)) for text in self.words[j].forms[form]]

    def translate_words(self, positions: Iterable[int]) -> list[_TargetWord]:
        return [word for j in positions for word in self.translate_word(j)]

    def translate_verb(
        self, verb: list[int], past: list[int]
    ) -> tuple[list[_TargetWord], list[_TargetWord]]:
        """Return the preverbs, which precede the object, and the inflected verb after it."""
        *preverbs, final = self.translate_word(verb[0], form=len(past))
        return preverbs, [final._replace(possible=tuple(past))]

    def sentence(self) -> list[_TargetWord]:
        """Clauses around a connective keep their order; those around a subordinator swap."""
        done, last = list[_TargetWord](), self.clause()
        for j in iter(lambda: self.take("connective", "subordinator"), []):
            if self.words[j[0]].kind == "subordinator":
                last = [*self.clause(), *self.translate_words(j), *last]
            else:
                done += last + self.translate_words(j)
                last = self.clause()
        return done + last

    def clause(self) -> list[_TargetWord]:
        """(past) subject verb object (adverb) (place) becomes subject ... object verb."""
        past = self.take("past")
        subject = self.noun(past, verb=())
        verb = self.take("verb")
        object_noun = self.noun(past, verb, is_object=True)
        adverb = self.modifiers(self.take("degree", "adverb"))
        preposition = self.take("preposition")
        place = self.noun(past, verb) if preposition else []
        preverbs, final = self.translate_verb(verb, past)
        return (
            subject
            + preverbs
            + adverb
            + place
            + self.translate_words(preposition)
            + object_noun
            + final
        )

    def noun(
        self, past: list[int], verb: Sequence[int], is_object: bool = False
    ) -> list[_TargetWord]:
        """(determiner) adjectives noun (relative) becomes relative determiner noun adjectives."""
        determiner = self.take("determiner")
        modifiers = self.take("degree", "adjective")
        (j,) = self.take("noun")
        relative = self.relative(past)
        # an article has no translation, but is a possible link of its noun
        articles = [k for k in determiner if self.words[k].fertility == 0]
        decider = verb if len(self.words[j].forms) == 2 else ()
        noun = self.translate_word(j, self.group(decider), [*articles, *decider])
        marker = (
            [_TargetWord(OBJECT_MARKER, None, (j, *verb))] if is_object and self.group([j]) else []
        )
        adjectives = self.modifiers(modifiers, noun=[j])
        return relative + self.translate_words(determiner) + noun + adjectives + marker

    def modifiers(self, positions: Iterable[int], noun: Sequence[int] = ()) -> list[_TargetWord]:
        """Degree words move behind their modifier; adjectives agree with their noun."""
        target, degrees = list[_TargetWord](), list[int]()
        for j in positions:
            if self.words[j].kind == "degree":
                degrees.append(j)
            else:
                target += self.translate_word(j, self.group(noun), noun)
                target += self.translate_words(degrees)
                degrees = []
        return target

    def relative(self, past: list[int]) -> list[_TargetWord]:
        """(mark verb object) becomes object verb mark, in the tense of its clause."""
        if not (mark := self.take("relative")):
            return []
        verb = self.take("verb")
        object_noun = self.noun(past, verb, is_object=True)
        preverbs, final = self.translate_verb(verb, past)
        return preverbs + object_noun + final + self.translate_words(mark)


def _translate(words: Sequence[SyntheticWord]) -> SyntheticPair:
    target = _Translator(words).sentence()
    sure = frozenset((word.sure, i) for i, word in enumerate(target) if word.sure is not None)
    return SyntheticPair(
        source=tuple(word.text for word in words),
        target=tuple(word.text for word in target),
        sure=sure,
        possible=sure | {(j, i) for i, word in enumerate(target) for j in word.possible},
    )


def generate_pairs(
    count: int, seed: int, settings: SyntheticSettings = DEFAULTS
) -> Iterator[SyntheticPair]:
    """Yield `count` pairs of the stream of a seed; no sentence occurs twice."""
    generator, seen, rejected = _SentenceGenerator(seed, settings), set[tuple[str, ...]](), 0
    while len(seen) < count:
        pair = _translate(generator.sentence())
        if len(pair.source) <= settings.max_length and pair.source not in seen:
            seen.add(pair.source)
            rejected = 0
            yield pair
        elif (rejected := rejected + 1) == MAX_REJECTED:
            raise UserError(
                f"these settings give hardly more than {len(seen)} different sentences: raise "
                "max_length or the numbers of words"
            )


def write_synthetic_corpus(
    directory: Path,
    seed: int = 1,
    *,
    train: int,
    dev: int,
    test: int,
    settings: SyntheticSettings = DEFAULTS,
) -> None:
    """Write train, dev and test (.src, .tgt, .align), lexicon.tsv and README.txt.

    No sentence occurs twice. Test and dev come first, so they do not depend on the size of train.
    """
    sizes = {"test": test, "dev": dev, "train": train}
    if empty := [split for split, size in sizes.items() if size < 1]:
        raise UserError(f"{' and '.join(empty)}: ask for at least one sentence")
    stream = generate_pairs(sum(sizes.values()), seed, settings)
    for split, size in sizes.items():
        pairs = list(track(islice(stream, size), size, f"{split} sentences"))
        write_lines(directory / f"{split}.src", (" ".join(pair.source) for pair in pairs))
        write_lines(directory / f"{split}.tgt", (" ".join(pair.target) for pair in pairs))
        write_lines(directory / f"{split}.align", (pair.pharaoh() for pair in pairs))
    write_lines(directory / "lexicon.tsv", _lexicon_rows(settings))
    provenance = f"Seed {seed}, settings {settings.model_dump_json()}"
    write_lines(directory / "README.txt", [*_README.format(**sizes).splitlines(), provenance])


def _lexicon_rows(settings: SyntheticSettings) -> Iterator[str]:
    yield "word\ttranslations\tfertility\tclass\tgroup"
    for words in build_lexicon(settings).values():
        for word in words:
            forms = " | ".join(" ".join(form) for form in word.forms)
            group = word.group if word.kind in ("noun", "verb") else "-"
            yield f"{word.text}\t{forms}\t{word.fertility}\t{word.kind}\t{group}"


_README = """\
Two synthetic languages: {train} training sentences, {dev} development, {test} test.

*.src, *.tgt  sentences and translations, line by line; no sentence occurs twice
*.align       gold links, source-target from 0: 3-5 is sure, 3p5 only possible
lexicon.tsv   source words with translations, fertility (target words), class and group; the second
              of two forms (after |) is used for a verb in the past, for an adjective whose noun is
              of group 1, and for a noun that follows a verb of group 1 in its clause

"""
