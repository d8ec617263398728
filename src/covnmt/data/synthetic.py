"""The embedded language pair: a seeded grammar whose translations and alignments are known.

The source language puts the verb in the middle, adjectives before and relative clauses after their
noun; the target language does the reverse, with the verb last. The target is a function of the
source, and each target word but the object marker belongs to one source word, so AER, SAER (paper,
section 5.1) and over- and under-translation need no human labels. More in docs/embedded-pair.md.

Links are (j, i): source word j, target word i, both from 0. Only `Random.random` is drawn from: of
the standard generator's methods it alone promises the same numbers on every Python.
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
Links = frozenset[tuple[int, int]]
_Shape = tuple[Iterator[str], Iterator[str]]
WordCount = Annotated[int, Field(ge=2, le=800)]

# The only target word that translates no source word: it follows an object of gender 1.
OBJECT_MARKER = "eth"
MOST_MISSES = 1_000  # sentences in a row that are too long or not new
TENSE_ENDINGS, GENDER_ENDINGS = ("em", "it"), ("an", "or")


class SyntheticSettings(Settings):
    """The knobs: first those of the languages, then those of what is said in them."""

    language: Count = Field(1, description="seed of the lexicon; another number, other words")
    nouns: WordCount = Field(140, description="source nouns")
    verbs: WordCount = Field(34, description="source verbs")
    adjectives: WordCount = Field(28, description="source adjectives")
    adverbs: WordCount = Field(20, description="source adverbs")
    fertilities: tuple[Literal[1, 2, 3], ...] = Field(
        (1, 1, 2, 1, 1, 3, 1),
        min_length=1,
        description="of nouns, verbs, adverbs; by rank, in turn",
    )
    homonym_every: PositiveInt = Field(16, description="one noun in so many has two senses")
    zipf_shift: Annotated[float, Field(ge=0)] = Field(2.7, description="weights 1 / (rank + shift)")
    mean_clauses: Annotated[float, Field(ge=1)] = Field(2.7, description="in a sentence")
    max_length: Annotated[int, Field(ge=10)] = Field(60, description="longer ones are redrawn")
    repeat: Fraction = Field(0.25, description="chance that a clause says an earlier one again")
    alter: Fraction = Field(0.5, description="chance that it then changes a noun or verb")
    subordinate: Fraction = Field(0.15, description="chance that a joint swaps its clauses")
    past: Fraction = Field(0.4, description="chance of the past particle in a clause")
    determiner: Fraction = Field(0.5, description="chance per noun")
    adjective: Fraction = Field(0.25, description="chance of an adjective, then of another")
    relative: Fraction = Field(0.12, description="chance of a relative clause per noun")
    adverb: Fraction = Field(0.25, description="chance per clause")
    place: Fraction = Field(0.2, description="chance of a preposition and noun per clause")
    degree: Fraction = Field(0.35, description="chance of one more degree word on a modifier")


DEFAULTS = SyntheticSettings()


@dataclass(frozen=True)
class SyntheticPair:
    """A sentence, its translation and its alignment; sure links are among the possible ones."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    sure: Links
    possible: Links

    def pharaoh(self) -> str:
        """The alignment as text: `j-i` for sure links, `jpi` for those that are only possible."""
        return " ".join(
            f"{j}{'-' if (j, i) in self.sure else 'p'}{i}" for j, i in sorted(self.possible)
        )


@dataclass(frozen=True)
class Word:
    """A source word with its translations.

    `group` (0 or 1) is the gender of a noun and the temper of a verb. The second of two `forms` is
    said by a verb in the past, an adjective of a noun of gender 1, a noun after a verb of temper 1.
    """

    text: str
    kind: str
    group: int
    forms: tuple[tuple[str, ...], ...]

    @property
    def fertility(self) -> int:
        """Target words it becomes, in every form."""
        return len(self.forms[0])


@lru_cache(maxsize=8)
def build_lexicon(settings: SyntheticSettings = DEFAULTS) -> Mapping[str, tuple[Word, ...]]:
    """All source words by kind, the most frequent first."""
    rng = Random(settings.language)
    # Source words end in a vowel, target words in a consonant: the languages share no word.
    long = _coin(rng, "cvcv", "ptkmnlrsvyfz"), _coin(rng, "cvcvc", "bdgklnrsthmw")
    short = _coin(rng, "cv", "ptkmnlrsvyfz"), _coin(rng, "cvvc", "bdgklnrsthmw")

    def words(kind: str, fertilities: Iterable[int], shape: _Shape = short) -> tuple[Word, ...]:
        return tuple(
            Word(next(shape[0]), kind, int(rng.random() < 0.5), (tuple(islice(shape[1], size)),))
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


def _coin(rng: Random, shape: str, consonants: str) -> Iterator[str]:
    """New pronounceable words, each once: a consonant for every c, a vowel for every v."""
    letters = {"c": consonants, "v": "aeiou"}
    seen = set[str]()
    while True:
        text = "".join(_pick(rng, letters[sound]) for sound in shape)
        if text not in seen:
            seen.add(text)
            yield text


def _inflect(words: Iterable[Word], endings: tuple[str, str]) -> tuple[Word, ...]:
    """Give each word two forms; only the last of its target words shows which."""
    return tuple(
        replace(word, forms=tuple((*early, last + ending) for ending in endings))
        for word in words
        for *early, last in word.forms
    )


def _pick(rng: Random, items: Sequence[T]) -> T:
    return items[int(rng.random() * len(items))]


class _Speaker:
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

    def word(self, kind: str) -> Word:
        weights = self.weights[kind]
        return self.words[kind][bisect(weights, self.rng.random() * weights[-1])]

    def maybe(self, kind: str, probability: float) -> list[Word]:
        return [self.word(kind)] if self.chance(probability) else []

    def modifier(self, kind: str) -> list[Word]:
        degree, times = self.word("degree"), 0
        while self.chance(self.settings.degree):
            times += 1
        return [degree] * times + [self.word(kind)]

    def noun(self, relative: float) -> list[Word]:
        said = self.maybe("determiner", self.settings.determiner)
        while self.chance(self.settings.adjective):
            said += self.modifier("adjective")
        said.append(self.word("noun"))
        if self.chance(relative):
            said += [self.word("relative"), self.word("verb"), *self.noun(relative=0)]
        return said

    def clause(self) -> list[Word]:
        settings = self.settings
        said = self.maybe("past", settings.past)
        said += [*self.noun(settings.relative), self.word("verb"), *self.noun(settings.relative)]
        if self.chance(settings.adverb):
            said += self.modifier("adverb")
        if self.chance(settings.place):
            said += [self.word("preposition"), *self.noun(settings.relative)]
        return said

    def again(self, clauses: Sequence[list[Word]]) -> list[Word]:
        """An earlier clause, as it was or with one noun or verb changed."""
        clause = list(_pick(self.rng, clauses))
        if self.chance(self.settings.alter):
            places = [k for k, word in enumerate(clause) if word.kind in ("noun", "verb")]
            before = clause[k := _pick(self.rng, places)]
            while clause[k] == before:
                clause[k] = self.word(before.kind)
        return clause

    def sentence(self) -> list[Word]:
        clauses = [said := self.clause()]
        while self.chance(1 - 1 / self.settings.mean_clauses):
            swaps = self.chance(self.settings.subordinate)
            repeats = self.chance(self.settings.repeat)
            clauses.append(self.again(clauses) if repeats else self.clause())
            joint = self.word("subordinator" if swaps else "connective")
            said = [*said, joint, *clauses[-1]]
        return said


class _Said(NamedTuple):
    """A target word: the source position it translates, and those that only had a say in it."""

    text: str
    sure: int | None
    possible: tuple[int, ...] = ()


class _Translator:
    """Reads a source sentence from left to right; each method translates what it reads."""

    def __init__(self, words: Sequence[Word]) -> None:
        self.words = words
        self.j = 0

    def take(self, *kinds: str) -> list[int]:
        """Step over the words of these kinds that come next; their positions."""
        start = self.j
        while self.j < len(self.words) and self.words[self.j].kind in kinds:
            self.j += 1
        return list(range(start, self.j))

    def group(self, positions: Sequence[int]) -> int:
        """The group of the word that decides, 0 where there is none."""
        return self.words[positions[0]].group if positions else 0

    def say(self, j: int, form: int = 0, because: Iterable[int] = ()) -> list[_Said]:
        return [_Said(text, j, tuple(because)) for text in self.words[j].forms[form]]

    def say_all(self, positions: Iterable[int]) -> list[_Said]:
        return [said for j in positions for said in self.say(j)]

    def say_verb(self, verb: list[int], past: list[int]) -> tuple[list[_Said], list[_Said]]:
        """The preverbs, which keep ahead of the object, and the inflected verb after it."""
        *early, final = self.say(verb[0], form=len(past))
        return early, [final._replace(possible=tuple(past))]

    def sentence(self) -> list[_Said]:
        """Connectives stay between their clauses; around a subordinator the two change places."""
        done, last = list[_Said](), self.clause()
        for j in iter(lambda: self.take("connective", "subordinator"), []):
            if self.words[j[0]].kind == "subordinator":
                last = [*self.clause(), *self.say_all(j), *last]
            else:
                done += last + self.say_all(j)
                last = self.clause()
        return done + last

    def clause(self) -> list[_Said]:
        """(past) subject verb object (adverb) (place) becomes subject ... object verb."""
        past = self.take("past")
        subject = self.noun(past, verb=())
        verb = self.take("verb")
        theme = self.noun(past, verb, theme=True)
        adverb = self.modifiers(self.take("degree", "adverb"))
        preposition = self.take("preposition")
        place = self.noun(past, verb) if preposition else []
        early, final = self.say_verb(verb, past)
        return subject + early + adverb + place + self.say_all(preposition) + theme + final

    def noun(self, past: list[int], verb: Sequence[int], theme: bool = False) -> list[_Said]:
        """(determiner) adjectives noun (relative) becomes relative determiner noun adjectives."""
        determiner = self.take("determiner")
        modifiers = self.take("degree", "adjective")
        (j,) = self.take("noun")
        relative = self.relative(past)
        # an article is not translated: at most, it may be said to hide in its noun
        articles = [k for k in determiner if self.words[k].fertility == 0]
        decider = verb if len(self.words[j].forms) == 2 else ()
        noun = self.say(j, self.group(decider), [*articles, *decider])
        marker = [_Said(OBJECT_MARKER, None, (j, *verb))] if theme and self.group([j]) else []
        adjectives = self.modifiers(modifiers, noun=[j])
        return relative + self.say_all(determiner) + noun + adjectives + marker

    def modifiers(self, positions: Iterable[int], noun: Sequence[int] = ()) -> list[_Said]:
        """The degree words before each go after it; adjectives agree with their noun."""
        said, degrees = list[_Said](), list[int]()
        for j in positions:
            if self.words[j].kind == "degree":
                degrees.append(j)
            else:
                said += self.say(j, self.group(noun), noun) + self.say_all(degrees)
                degrees = []
        return said

    def relative(self, past: list[int]) -> list[_Said]:
        """(mark verb object) becomes object verb mark; it shares the tense of its clause."""
        if not (mark := self.take("relative")):
            return []
        verb = self.take("verb")
        theme = self.noun(past, verb, theme=True)
        early, final = self.say_verb(verb, past)
        return early + theme + final + self.say_all(mark)


def _translate(words: Sequence[Word]) -> SyntheticPair:
    target = _Translator(words).sentence()
    sure = frozenset((said.sure, i) for i, said in enumerate(target) if said.sure is not None)
    return SyntheticPair(
        source=tuple(word.text for word in words),
        target=tuple(said.text for said in target),
        sure=sure,
        possible=sure | {(j, i) for i, said in enumerate(target) for j in said.possible},
    )


def generate_pairs(
    count: int, seed: int, settings: SyntheticSettings = DEFAULTS
) -> Iterator[SyntheticPair]:
    """The first `count` pairs of the stream that `seed` stands for; no sentence comes twice."""
    speaker, seen, misses = _Speaker(seed, settings), set[tuple[str, ...]](), 0
    while len(seen) < count:
        pair = _translate(speaker.sentence())
        if len(pair.source) <= settings.max_length and pair.source not in seen:
            seen.add(pair.source)
            misses = 0
            yield pair
        elif (misses := misses + 1) == MOST_MISSES:
            raise UserError(f"after {len(seen)} sentences, these settings make hardly a new one")


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

    No sentence comes twice. Test and dev come first: they do not change with the size of train.
    """
    sizes = {"test": test, "dev": dev, "train": train}
    if small := [part for part, size in sizes.items() if size < 1]:
        raise UserError(f"{' and '.join(small)}: ask for at least one sentence")
    stream = generate_pairs(sum(sizes.values()), seed, settings)
    for part, size in sizes.items():
        pairs = list(track(islice(stream, size), size, f"{part} sentences"))
        write_lines(directory / f"{part}.src", (" ".join(pair.source) for pair in pairs))
        write_lines(directory / f"{part}.tgt", (" ".join(pair.target) for pair in pairs))
        write_lines(directory / f"{part}.align", (pair.pharaoh() for pair in pairs))
    write_lines(directory / "lexicon.tsv", _lexicon_rows(settings))
    origin = f"Seed {seed}, settings {settings.model_dump_json()}"
    write_lines(directory / "README.txt", [*_README.format(**sizes).splitlines(), origin])


def _lexicon_rows(settings: SyntheticSettings) -> Iterator[str]:
    yield "word\ttranslations\tfertility\tclass\tgroup"
    for words in build_lexicon(settings).values():
        for word in words:
            forms = " | ".join(" ".join(form) for form in word.forms)
            group = word.group if word.kind in ("noun", "verb") else "-"
            yield f"{word.text}\t{forms}\t{word.fertility}\t{word.kind}\t{group}"


_README = """\
Two invented languages: {train} sentences to train on, {dev} to develop on, {test} to test on.

*.src, *.tgt  sentences and translations, line by line; no sentence comes twice
*.align       gold links, source-target from 0: 3-5 is sure, 3p5 only possible
lexicon.tsv   source words with translations, fertility (target words), class and group; the second
              of two forms (after |) is said by a verb in the past, by an adjective whose noun is
              of group 1, and by a noun that comes after a verb of group 1 in its clause

"""
