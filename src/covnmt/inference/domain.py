"""Is text like what a model was trained on? Quantiles on its dev set, and the writing system.

A model translates text from outside its domain fluently and wrongly, so the user must be warned.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from pydantic import Field

from covnmt.base.config import Settings
from covnmt.base.console import warn
from covnmt.inference.translate import Translation
from covnmt.text.tokenize import is_byte_token
from covnmt.text.vocabulary import UNK_ID, Vocabulary

USUAL_LINES = 0.98  # of the dev set are on the usual side of each limit
USUAL_OWN = 0.95  # of the probability of own translations, which distinguishes domains best
MIN_SCRIPT_SHARE = 0.005  # of the letters of the dev set
MAX_FOREIGN_LETTERS = 0.3  # of a line
WARN_SHARE = 0.2  # of the lines
# by the first word of the names of characters, where it is not the script
SCRIPT_NAMES = {
    "CJK": "HAN",
    "IDEOGRAPHIC": "HAN",
    "HIRAGANA": "KANA",
    "KATAKANA": "KANA",
    "KATAKANA-HIRAGANA": "KANA",
}


class DomainStatistics(Settings):
    """What usual input looks like: limits that nearly all lines of the dev set keep."""

    name: str = Field("", description="the domain, for messages: laws")
    source_scripts: tuple[str, ...] = Field((), description="writing systems of the source")
    target_scripts: tuple[str, ...] = ()
    max_unknown: float = Field(1.0, description="unknown words and bytes, share of source tokens")
    max_rank: float = Field(1e9, description="mean logarithm of the ranks of source tokens")
    min_characters: float = Field(0.0, description="characters per source token")
    min_own_log_prob: float = Field(
        -1e9, description="nats per token of the model's own translation"
    )
    min_given_log_prob: float = Field(-1e9, description="nats per token of a given translation")

    def has_rare_tokens(self, tokens: Sequence[str], vocabulary: Vocabulary) -> bool:
        """Tell whether the tokens of a line are too rare for this domain."""
        if not tokens:
            return False
        return (
            unknown_share(tokens, vocabulary) > self.max_unknown
            or mean_log_rank(tokens, vocabulary) > self.max_rank
            or characters_per_token(tokens) < self.min_characters
        )

    def is_unusual(
        self, translation: Translation, vocabulary: Vocabulary, length_penalty: float
    ) -> bool:
        """Tell whether a source is unlike this domain; its translation by a model counts too."""
        return (
            has_foreign_script(translation.source, self.source_scripts)
            or self.has_rare_tokens(translation.source_tokens, vocabulary)
            or mean_own_log_prob(translation, length_penalty) < self.min_own_log_prob
        )


def unknown_share(tokens: Sequence[str], vocabulary: Vocabulary) -> float:
    """Return the share of tokens that are unknown or spelled as byte tokens."""
    ids = vocabulary.encode(tokens)
    unknown = sum(n == UNK_ID or is_byte_token(t) for n, t in zip(ids, tokens, strict=True))
    return unknown / max(len(tokens), 1)


def mean_log_rank(tokens: Sequence[str], vocabulary: Vocabulary) -> float:
    """Return the mean logarithm of the ids of tokens: the rarer a token, the higher its id."""
    return float(np.mean(np.log(np.array(vocabulary.encode(tokens)) + 1)))


def characters_per_token(tokens: Sequence[str]) -> float:
    """Return the mean length of tokens: what a vocabulary was not made for falls into pieces."""
    characters = sum(1 if is_byte_token(token) else len(token) for token in tokens)
    return characters / max(len(tokens), 1)


def mean_own_log_prob(translation: Translation, length_penalty: float) -> float:
    """Return about the mean log-probability of the tokens of a model's own translation.

    It is the score before other penalties, divided by what is left of the length.
    """
    sentences = max(len(translation.blocks), 1)
    length = len(translation.tokens) / sentences
    score = translation.log_prob / sentences / (length + translation.finished) ** length_penalty
    return float(score * max(length, 1.0) ** (length_penalty - 1))


@cache
def script_of(character: str) -> str:
    """Return the writing system of a letter, as its Unicode name begins; nothing for others."""
    if not character.isalpha():
        return ""
    name = unicodedata.name(character, "").split()[:1]
    script = name[0] if name else ""
    return SCRIPT_NAMES.get(script, script)


def count_scripts(lines: Sequence[str]) -> Counter[str]:
    """Count the letters of each writing system."""
    return Counter(script for line in lines for script in map(script_of, line) if script)


def usual_scripts(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the writing systems of text, the most frequent first."""
    counts = count_scripts(lines)
    return tuple(name for name, n in counts.most_common() if n >= MIN_SCRIPT_SHARE * counts.total())


def has_foreign_script(line: str, scripts: Sequence[str]) -> bool:
    """Tell whether many letters of a line belong to other writing systems."""
    counts = count_scripts([line])
    foreign = sum(n for name, n in counts.items() if name not in scripts)
    return bool(scripts) and foreign > MAX_FOREIGN_LETTERS * counts.total()


@dataclass
class DomainMonitor:
    """Counts lines of other kinds than the model was trained on, for one warning at the end."""

    statistics: DomainStatistics
    model: str
    where: str = ""  # before the message: a file
    unit: str = "line"  # what a message calls a line
    lines: int = 0
    unusual: int = 0
    foreign: int = 0
    foreign_letters: Counter[str] = field(default_factory=Counter)

    def add(self, line: str, is_unusual: bool) -> None:
        """Count a line."""
        if not any(map(str.isalpha, line)):
            return
        self.lines += 1
        if has_foreign_script(line, self.statistics.source_scripts):
            self.foreign += 1
            self.foreign_letters.update(count_scripts([line]))
        elif is_unusual:
            self.unusual += 1

    def watch(self, translations: Iterable[Translation]) -> Iterator[Translation]:
        """Count translations and pass them on; warn at the end."""
        for translation in translations:
            self.add(translation.source, translation.unusual)
            yield translation
        self.warn()

    def add_all(self, translations: Iterable[Translation]) -> None:
        """Count the sources of translations."""
        for translation in translations:
            self.add(translation.source, translation.unusual)

    def warn(self) -> None:
        """Warn if many lines were not usual."""
        if message := self.message():
            warn(message)

    def is_foreign(self) -> bool:
        """Tell whether many lines are in another script."""
        return self.foreign > 0 and self.foreign >= WARN_SHARE * self.lines

    def message(self) -> str | None:
        """Return a warning if many lines were not usual."""
        before = f"{self.where}: " if self.where else ""
        scripts = " and ".join(map(str.capitalize, self.statistics.source_scripts[:2]))
        if self.is_foreign():
            script = self.foreign_letters.most_common(1)[0][0].capitalize()
            return (
                f"{before}{self._of(self.foreign)} in {script} script, which {self.model} was not "
                f"trained to read (it reads {scripts}): expect nonsense"
            )
        if self.unusual and self.unusual >= WARN_SHARE * self.lines:
            trained = f" ({self.statistics.name})" if self.statistics.name else ""
            return (
                f"{before}{self._of(self.unusual)} unlike what {self.model} was trained on"
                f"{trained}: do not rely on the result"
            )
        return None

    def _of(self, count: int) -> str:
        verb = "s are" if self.lines > 1 else " is"
        return f"{count:,} of {self.lines:,} {self.unit}{verb}"
