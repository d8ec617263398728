"""Fit the calibration of a model's omission check on pairs that the model was not trained on."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from covnmt.base.console import track
from covnmt.base.errors import UserError
from covnmt.base.files import read_parallel_lines
from covnmt.data.lexicon import Lexicon, train_lexicon
from covnmt.inference.calibration import PRIOR, Calibration, Logistic
from covnmt.inference.domain import (
    USUAL_LINES,
    USUAL_OWN,
    DomainStatistics,
    characters_per_token,
    mean_log_rank,
    mean_own_log_prob,
    unknown_share,
    usual_scripts,
)
from covnmt.inference.model import Model
from covnmt.inference.omission_features import (
    FEATURES,
    LEXICAL,
    LINE,
    ForcedScores,
    LengthRatio,
    Pair,
)
from covnmt.inference.omissions import UNRELATED_FEATURES, OmissionChecker
from covnmt.inference.synthetic_omissions import Example, synthetic_omissions
from covnmt.model.directory import LEXICON_FILE, find_own_model
from covnmt.text.codec import Codec
from covnmt.text.tokenize import UNSPACED_LANGUAGES, clean_line

MIN_PAIRS = 50
MAX_PAIRS = 400  # of a dev set
OWN_TRANSLATIONS = 100
LENGTHS = range(4, 61)  # tokens
WINDOW = 64
OMITTED = 0.7  # of the judged words of a part must be cut for it to count as omitted
UNRELATED_PRIOR = 0.01
LINE_PRIOR = 0.2  # probability that anything is omitted from a line


class _Rows(NamedTuple):
    """Features of parts and whether they are omitted."""

    features: list[list[float]]
    labels: list[bool]


class _Line(NamedTuple):
    """A line, whether anything is omitted from it, and the features of its parts."""

    pair: Pair
    forced: ForcedScores
    label: bool
    parts: dict[range, list[float]]


def calibrate_model(
    name: Path | str,
    own_dev: tuple[Path, Path],
    other_dev: Sequence[tuple[Path, Path]] = (),
    train: Sequence[tuple[Path, Path]] = (),
    domain: str = "",
    limit: int = MAX_PAIRS,
) -> Calibration:
    """Fit the calibration of a model directory and write it there; with `train` a lexicon first.

    Of each dev set at most `limit` pairs that follow each other are used.
    """
    directory = find_own_model(name, "calibrate the copy")
    model = Model.load(directory, device="cpu")
    if train:
        lexicon = lexicon_from_files(train, model.source, model.target)
        lexicon.save(directory / LEXICON_FILE)
    plain = OmissionChecker(model.forced_decoder, Lexicon.load(directory / LEXICON_FILE))
    blocks = [dev_pairs(model, files, limit) for files in (own_dev, *other_dev)]
    own_translations = model.translate([source for source, _ in blocks[0][:OWN_TRANSLATIONS]])
    usual = domain_statistics(
        plain,
        blocks[0],
        [mean_own_log_prob(t, model.decode.length_penalty) for t in own_translations],
        domain,
    )
    made_from = ", ".join(f"{len(block)} pairs" for block in blocks)
    calibration = calibrate(plain, [pair for block in blocks for pair in block], usual, made_from)
    calibration.save(directory)
    return calibration


def lexicon_from_files(files: Sequence[tuple[Path, Path]], source: Codec, target: Codec) -> Lexicon:
    """Train a lexicon on the lines of pairs of files, as the model reads them."""
    pairs = [
        (clean_line(x, source.settings), clean_line(y, target.settings))
        for paths in files
        for x, y in read_parallel_lines(*paths)
    ]
    first, second = (
        codec.settings.unspaced or codec.settings.language in UNSPACED_LANGUAGES
        for codec in (source, target)
    )
    return train_lexicon([pair for pair in pairs if all(pair)], (first, second))


def dev_pairs(model: Model, files: tuple[Path, Path], limit: int) -> list[tuple[str, str]]:
    """Return pairs from the middle of a dev set, without very short and very long ones."""
    pairs = [
        (x, y)
        for x, y in read_parallel_lines(*files)
        if len(model.source.tokenize(x)) in LENGTHS and len(model.target.tokenize(y)) in LENGTHS
    ]
    first = max(0, len(pairs) - limit) // 2
    return pairs[first : first + limit]


def calibrate(
    checker: OmissionChecker,
    pairs: Sequence[tuple[str, str]],
    usual: DomainStatistics,
    made_from: str = "",
    seed: int = 1,
) -> Calibration:
    """Return a calibration of this checker, whose own one is not used.

    `usual` is what `domain_statistics` found in the model's own dev set.
    """
    if len(pairs) < MIN_PAIRS:
        raise UserError(f"{len(pairs)} pairs are too few to calibrate with; give {MIN_PAIRS}")
    lengths = LengthRatio.fit([checker.read_pair(pair) for pair in pairs])
    checker = OmissionChecker(checker.decoder, checker.lexicon)
    checker.ratio, checker.target_scripts = lengths, usual.target_scripts
    examples = list(synthetic_omissions(pairs, checker.decoder, seed))
    parts, words, lines = _Rows([], []), _Rows([], []), list[_Line]()
    windows = [examples[k : k + WINDOW] for k in range(0, len(examples), WINDOW)]
    for window in track(windows, len(windows), "calibrating", "windows"):
        lines += _add_window(checker, window, parts, words)
    if not (any(parts.labels) and any(words.labels)):
        raise UserError(
            "no parts to omit in these pairs: give lines with several clauses or sentences"
        )
    unrelated = _unrelated_rows(checker, pairs, seed)
    whole = checker.unrelated_features(
        [line.pair for line in lines], [line.forced for line in lines]
    )
    negatives = [*whole, *unrelated[0]]
    lexical = [row[: len(LEXICAL)] for row in parts.features]
    odds = PRIOR / (1 - PRIOR)
    parts_logistic = Logistic.fit(FEATURES, parts.features, parts.labels, odds)
    return Calibration(
        lexical=Logistic.fit(LEXICAL, lexical, parts.labels, odds),
        parts=parts_logistic,
        words=Logistic.fit(FEATURES, words.features, words.labels, odds),
        lines=_fit_lines(checker, lines, parts_logistic),
        unrelated=Logistic.fit(
            UNRELATED_FEATURES,
            [*negatives, *unrelated[1]],
            [False] * len(negatives) + [True] * len(unrelated[1]),
            UNRELATED_PRIOR / (1 - UNRELATED_PRIOR),
        ),
        length_mean=round(lengths.mean, 4),
        length_deviation=round(lengths.deviation, 4),
        domain=usual,
        made_from=made_from,
    )


def domain_statistics(
    checker: OmissionChecker,
    pairs: Sequence[tuple[str, str]],
    own: Sequence[float],
    name: str = "",
) -> DomainStatistics:
    """Measure what is usual in a model's dev set; `own` are nats per token of its translations."""
    read = [checker.read_pair(pair) for pair in pairs]
    given = [forced.mean_log_prob for forced in checker.score_whole_lines(read)]
    vocabulary = checker.source.vocabulary
    tokens = [pair.source.tokens for pair in read if pair.source.tokens]

    def upper_limit(values: Sequence[float]) -> float:
        return round(float(np.quantile(values, USUAL_LINES)), 4)

    def lower_limit(values: Sequence[float]) -> float:
        return round(float(np.quantile(values, 1 - USUAL_LINES)), 4)

    return DomainStatistics(
        name=name,
        source_scripts=usual_scripts([source for source, _ in pairs]),
        target_scripts=usual_scripts([target for _, target in pairs]),
        max_unknown=upper_limit([unknown_share(row, vocabulary) for row in tokens]),
        max_rank=upper_limit([mean_log_rank(row, vocabulary) for row in tokens]),
        min_characters=lower_limit([characters_per_token(row) for row in tokens]),
        min_own_log_prob=round(float(np.quantile(own, 1 - USUAL_OWN)), 4),
        min_given_log_prob=lower_limit(given),
    )


def _add_window(
    checker: OmissionChecker, window: Sequence[Example], parts: _Rows, words: _Rows
) -> list[_Line]:
    """Add the features of all parts and doubtful words; return the lines."""
    pairs = [checker.read_pair((example.source, example.target)) for example in window]
    wholes = checker.score_whole_lines(pairs)
    lines = [
        _Line(pair, whole, example.kind != "none", {})
        for pair, whole, example in zip(pairs, wholes, window, strict=True)
    ]
    for rows, find in ((parts, checker.candidate_parts), (words, checker.doubtful_words)):
        tasks = []
        labels: list[list[bool | None]] = []
        for example, line in zip(window, lines, strict=True):
            if rows is words and example.kind in ("clause", "sentence"):
                continue
            spans = find(line.pair)
            tasks.append((line.pair, line.forced, (), spans))
            labels.append([_label(span, example, line.pair) for span in spans])
        features = checker.part_features(tasks)
        for group, group_labels in zip(features, labels, strict=True):
            for row, label in zip(group, group_labels, strict=True):
                if label is not None:
                    rows.features.append(row)
                    rows.labels.append(label)
        if rows is parts:
            for line, (*_, spans), group in zip(lines, tasks, features, strict=True):
                line.parts.update(zip(spans, group, strict=True))
    return lines


def _fit_lines(checker: OmissionChecker, lines: Sequence[_Line], parts: Logistic) -> Logistic:
    """Fit what judges whole lines; the more words a line has, the likelier is an omission."""
    rows = []
    for line in lines:
        probabilities = parts.probabilities(list(line.parts.values())).tolist()
        by_part = dict(zip(line.parts, probabilities, strict=True))
        rows.append(checker.line_features(line.pair, line.forced, by_part))
    labels = [line.label for line in lines]
    words = np.array([len(line.pair.source.units) for line in lines], np.float64)
    importance = np.where(labels, words / max(words[np.array(labels)].mean(), 1.0), 1.0)
    return Logistic.fit(LINE, rows, labels, LINE_PRIOR / (1 - LINE_PRIOR), importance.tolist())


def _label(span: range, example: Example, pair: Pair) -> bool | None:
    """Tell whether a part is omitted; None if only some of it is."""
    units = pair.source.units[pair.words(span)]
    cut = [unit.start in example.omitted for unit in units]
    share = sum(cut) / max(len(cut), 1)
    if share >= OMITTED:
        return True
    return None if share > 1 - OMITTED else False


def _unrelated_rows(
    checker: OmissionChecker, pairs: Sequence[tuple[str, str]], seed: int
) -> tuple[list[list[float]], list[list[float]]]:
    """Return features of pairs and of sources beside the translations of other ones."""
    order = sorted(range(len(pairs)), key=lambda k: len(pairs[k][0]))
    rng, last = random.Random(seed), len(order) - 1
    others = []
    for n, k in enumerate(order):  # beside the translation of a source of similar length
        other = order[min(max(n + rng.choice([-3, -2, -1, 1, 2, 3]), 0), last)]
        others.append((pairs[k][0], pairs[other][1]))
    true_pairs = set(pairs)
    others = [pair for pair in others if pair not in true_pairs]
    others += [(source, source) for source, _ in pairs[:: len(pairs) // 20 or 1]]
    rows = []
    for lines in (pairs, others):
        read = [checker.read_pair(pair) for pair in lines]
        rows.append(checker.unrelated_features(read, checker.score_whole_lines(read)))
    return rows[0], rows[1]
