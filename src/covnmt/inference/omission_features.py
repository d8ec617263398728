"""What is measured of a part of the source to tell whether a translation leaves it out.

Two kinds of evidence: how well the words of the translation support the words of the part
(lexicon), and how the probability of the translation changes when the part is removed from the
source (forced decoding). A translated part takes the probability of its translation with it; an
omitted one does not.

Letters: J source and I target words of a pair.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from covnmt.base.arrays import DoubleArray, FloatArray
from covnmt.data.lexicon import Lexicon
from covnmt.inference.aligned_text import best_ranges_by_end
from covnmt.inference.text_units import TextUnits
from covnmt.text.codec import Codec

# A word that gets less support in the training text, in nats, cannot be judged: it has no
# translation of its own, as most particles and articles have none.
MIN_USUAL = 2.5
MIN_COPIED = 3  # words; fewer may be names or titles
MOSTLY = 0.8  # of the usual support is missing where a word counts as unsupported
UNSUPPORTED = 0.6  # of the usual support must be missing in the words of a phrase, on average
MIN_PHRASE_WORDS = 2

LEXICAL = (
    "unsupported share",
    "unsupported share of the rest",
    "unsupported share here only",
    "unsupported nats",
    "unsupported words",
    "best supported word",
    "share of the source",
    "length",
    "length without the part",
)
DECODED = (
    "gain per token",
    "gain",
    "largest rise",
    "share of the largest rise",
    "nats per target token",
    "attention per token",
    "gain per token in the field",
)
FEATURES = (*LEXICAL, *DECODED)
LINE = (
    "log odds of the most probable clause",
    "log odds of the phrase",
    "log odds of a probable part",
    "unsupported nats",
    "unsupported share",
    "unsupported share of the target",
    "unsupported words",
    "source words",
    "length",
    "nats per target token",
    "out of domain",
    "log odds of the clause out of domain",
    "log odds of the phrase out of domain",
    "unsupported nats out of domain",
)


@dataclass(frozen=True)
class Evidence:
    """The support of the words of one side by the other side, and which can be judged."""

    missing: DoubleArray  # [J] nats of support less than usual; 0 for what cannot be judged
    usual: DoubleArray  # [J] 0 for what cannot be judged

    @property
    def judged(self) -> int:
        """How many words can be judged."""
        return int((self.usual > 0).sum())

    @property
    def unsupported(self) -> int:
        """How many of these have nearly none of their usual support."""
        return int((self.missing > MOSTLY * self.usual).sum())

    @property
    def share(self) -> float:
        """The share of support that is missing in the whole line."""
        return float(self.missing.sum() / max(self.usual.sum(), 1.0))


def _is_copy(lines: tuple[str, str], words: Sequence[str], lexicon: Lexicon) -> bool:
    """Tell whether a line was copied though most of its words have translations."""
    if lines[0].strip() != lines[1].strip():
        return False
    usual, of_itself = lexicon.own_support(words)
    can_be_judged = usual >= MIN_USUAL
    translated = can_be_judged & (of_itself < (1 - MOSTLY) * usual)
    return bool(translated.sum() >= max(MIN_COPIED, can_be_judged.sum() / 2))


@dataclass(frozen=True)
class Pair:
    """A source line and a translation of it, in words."""

    source: TextUnits
    target: TextUnits
    evidence: Evidence  # on the source
    target_evidence: Evidence
    is_copy: bool = False  # the source was not translated

    @classmethod
    def from_lines(
        cls, lines: tuple[str, str], source: Codec, target: Codec, lexicon: Lexicon | None
    ) -> "Pair":
        """Tokenize both lines and look their words up."""
        x = TextUnits.from_line(lines[0], source, lexicon.source if lexicon else None)
        y = TextUnits.from_line(lines[1], target, lexicon.target if lexicon else None)
        if lexicon is None:
            first, second = (
                Evidence(np.zeros(n), np.zeros(n)) for n in (len(x.units), len(y.units))
            )
            return cls(x, y, first, second)
        flat = [[key for keys in side.keys for key in keys] for side in (x, y)]
        supports = lexicon.score_support(*flat)
        of_source, of_target = (
            _evidence(support.support, support.mean_support, side.keys)
            for side, support in zip((x, y), supports, strict=True)
        )
        return cls(x, y, of_source, of_target, _is_copy(lines, flat[0], lexicon))

    @cached_property
    def starts(self) -> list[int]:
        """The first token of each source word."""
        return [unit.start for unit in self.source.units]

    def words(self, tokens: range) -> slice:
        """Return the source words among these tokens."""
        first, last = np.searchsorted(self.starts, [tokens.start, tokens.stop])
        return slice(int(first), int(last))

    def judged_words(self, tokens: range) -> int:
        """Count the words among these tokens that can be judged."""
        return int((self.evidence.usual[self.words(tokens)] > 0).sum())

    def phrase(self) -> range | None:
        """Return the consecutive words of a sentence whose support is missing most, if any."""
        scores = self.evidence.missing - UNSUPPORTED * self.evidence.usual
        best, phrase = 0.0, None
        for sentence in self.source.sentences:
            words = self.words(sentence)
            units, weights = self.source.units[words], scores[words].tolist()
            for part, total in best_ranges_by_end(weights):
                tokens = range(units[part[0]].start, units[part[-1]].stop)
                ends_unsupported = weights[part[-1]] > 0
                is_long = self.judged_words(tokens) >= MIN_PHRASE_WORDS
                if total > best and ends_unsupported and is_long:
                    best, phrase = total, tokens
        return phrase


def _evidence(
    support: DoubleArray, usual: DoubleArray, keys: Sequence[tuple[str, ...]]
) -> Evidence:
    """Add up the words of the lexicon to the words of the line."""
    is_judged = np.nan_to_num(usual) >= MIN_USUAL
    usual = np.where(is_judged, usual, 0.0)
    missing = np.where(is_judged, np.maximum(usual - np.nan_to_num(support), 0.0), 0.0)
    owners = np.repeat(np.arange(len(keys)), [len(names) for names in keys])
    sums = (np.bincount(owners, values, minlength=len(keys)) for values in (missing, usual))
    return Evidence(*(total.astype(np.float64) for total in sums))


@dataclass(frozen=True)
class LengthRatio:
    """The logarithm of target words per source word, as it usually is."""

    mean: float = 0.0
    deviation: float = 0.5

    @classmethod
    def fit(cls, pairs: Sequence[Pair]) -> "LengthRatio":
        """Measure complete translations."""
        ratios = [log_length_ratio(len(p.source.units), len(p.target.units)) for p in pairs]
        return cls(float(np.mean(ratios)), max(float(np.std(ratios)), 0.05))

    def deviations(self, source: int, target: int) -> float:
        """Return how many standard deviations a translation is too long; negative: too short."""
        ratio = (log_length_ratio(source, target) - self.mean) / self.deviation
        return float(np.clip(ratio, -5, 5))


def log_length_ratio(source: int, target: int) -> float:
    """Return the logarithm of a ratio that short lines do not make extreme."""
    return float(np.log((target + 2) / (source + 2)))


def lexical_features(pair: Pair, span: range, ratio: LengthRatio) -> list[float]:
    """Return what the lexicon and the lengths say of a part of the source."""
    words, evidence = pair.words(span), pair.evidence
    missing, usual = evidence.missing[words], evidence.usual[words]
    rest_missing = evidence.missing.sum() - missing.sum()
    rest_usual = evidence.usual.sum() - usual.sum()
    judged = usual > 0
    shares = missing[judged] / usual[judged]
    share = missing.sum() / usual.sum() if judged.any() else 0.5
    rest = rest_missing / max(rest_usual, 1.0)
    supported = float(1 - shares.min()) if len(shares) else 0.5
    J, I, removed = len(pair.source.units), len(pair.target.units), words.stop - words.start
    with_part, without = ratio.deviations(J, I), ratio.deviations(J - removed, I)
    return [
        share,
        rest,
        max(share - rest, 0.0) if judged.any() else 0.0,
        min(float(np.sqrt(missing.sum())), 6.0),
        min(float((shares > MOSTLY).sum()), 6.0),
        supported,
        removed / max(J, 1),
        with_part,
        abs(without) - abs(with_part),
    ]


@dataclass(frozen=True)
class ForcedScores:
    """What forced decoding says of a translation, given the whole source or a part of it."""

    token_log_probs: FloatArray  # [tokens] of the target, end symbol included
    received: FloatArray = field(default_factory=lambda: np.zeros(0, np.float32))  # attention

    @property
    def mean_log_prob(self) -> float:
        """The mean log-probability."""
        return float(self.token_log_probs.mean())


def forced_features(whole: ForcedScores, without: ForcedScores, span: range) -> list[float]:
    """Return what removing a part of the source does to the probability of the translation."""
    rises = np.asarray(without.token_log_probs - whole.token_log_probs, np.float64)
    gain, largest = float(rises.sum()), float(rises.max(initial=0.0))
    upward = float(np.maximum(rises, 0).sum())
    per_token = gain / len(span)
    return [
        float(np.clip(per_token, -6, 3)),
        float(np.sign(gain) * np.log1p(abs(gain))),
        float(np.log1p(largest)),
        largest / upward if upward > 0.1 else 0.0,
        float(np.clip(whole.mean_log_prob, -8, 0)),
        float(np.log1p(whole.received[span.start : span.stop].mean())),
        float(np.clip(per_token, -6, 3) * _in_domain(whole)),
    ]


def _in_domain(whole: ForcedScores) -> float:
    """Return how much the model can be relied on, from 0 to 1: it finds the pair probable."""
    return float(1 / (1 + np.exp(-2 * (whole.mean_log_prob + 3.5))))


def line_features(
    pair: Pair, whole: ForcedScores, clause: float, phrase: float, ratio: LengthRatio
) -> list[float]:
    """Return the evidence that anything at all is omitted from a line.

    `clause` and `phrase` are the log odds of the most probable sentence or clause and of the
    phrase. Many small things that are missing add up, and what forced decoding says counts for less
    where the pair is unlike the training text.
    """
    J, I = len(pair.source.units), len(pair.target.units)
    missing = float(np.sqrt(pair.evidence.missing.sum()))
    unreliable = 1 - _in_domain(whole)
    return [
        clause,
        phrase,
        max(clause, phrase, 0.0),
        missing,
        pair.evidence.share,
        pair.target_evidence.share,
        float(np.sqrt(pair.evidence.unsupported)),
        float(np.log1p(J)),
        ratio.deviations(J, I),
        float(np.clip(whole.mean_log_prob, -8, 0)),
        unreliable,
        clause * unreliable,
        phrase * unreliable,
        missing * unreliable,
    ]
