"""How well `covnmt check` finds omissions, beside trivial baselines.

    python benchmarks/omissions.py --model zh-en --mqm mqm_ted_zhen.tsv.xz
    python benchmarks/omissions.py --model zh-en --zurich zurich.zh-en.dev.jsonl
    python benchmarks/omissions.py --model zh-en --pairs test.zh test.en --cut

--mqm reads translations by many systems in which experts marked errors (Freitag et al. 2021);
--zurich reads predictions of Vamvas and Sennrich (2022) that experts judged, so recall cannot be
measured on it; --pairs reads held-out text, out of which words, phrases, clauses and sentences are
cut (inference/synthetic_omissions.py). Lines are resampled with all that was made of their source.

Every score ranks lines, or the words of lines with a marked omission. Precision and recall of a
baseline are those at as many marked lines as the check marks. What forced decoding says is kept in
--cache, so that a new calibration is measured without decoding again.
"""

import hashlib
import json
import lzma
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness import argument_parser, argument_values, save
from numpy.typing import NDArray

from covnmt.base.files import read_parallel_lines, write_bytes
from covnmt.data.lexicon import Lexicon
from covnmt.inference.calibration import Calibration
from covnmt.inference.check_settings import MAX_TOKENS, MIN_PROBABILITY
from covnmt.inference.model import Model
from covnmt.inference.omission_features import ForcedScores, Pair
from covnmt.inference.omissions import OmissionChecker, OmissionReport, Removal
from covnmt.inference.synthetic_omissions import KINDS, synthetic_omissions
from covnmt.inference.text_units import TextUnits, token_text
from covnmt.metrics.bootstrap import confidence_interval, resample_counts
from covnmt.model.directory import LEXICON_FILE, find_model
from covnmt.text.codec import Codec

SAMPLES = 300  # of the bootstrap
FALSE_ALARMS = 0.02  # of complete lines, for recall on cuts
MARK = re.compile("</?v>")


class Item(NamedTuple):
    """A pair, whether something is omitted, and which characters of the source."""

    group: str  # lines of one source
    kind: str  # of a cut; none: a complete line; marked or unmarked: judged by experts
    source: str
    target: str
    omitted: frozenset[int]  # characters, without spaces
    faultless: bool = False


class Result(NamedTuple):
    """A checked item: scores of the line, and of its words."""

    item: Item
    marked: dict[str, bool]  # by mode
    line: dict[str, float]
    words: dict[str, list[float]]
    truth: list[bool]  # of each word


def read_mqm(path: Path) -> Iterator[Item]:
    """Yield every translation once, with the omissions that any rater marked."""
    rows = defaultdict(list)
    with lzma.open(path, "rt", encoding="utf-8") as stream:
        next(stream)
        for line in stream:
            system, _, _, segment, _, *rest = line.rstrip("\n").split("\t")
            rows[system, segment].append(rest)
    for (_, segment), errors in rows.items():
        marked = [source for source, _, category, _ in errors if category == "Accuracy/Omission"]
        yield Item(
            segment,
            "marked" if marked else "unmarked",
            MARK.sub("", errors[0][0]),
            MARK.sub("", errors[0][1]),
            frozenset(k for source in marked for k in marked_characters(source)),
            all(category == "No-error" for _, _, category, _ in errors),
        )


def marked_characters(source: str) -> Iterator[int]:
    """Yield the numbers of the characters inside <v> ... </v>, spaces not counted."""
    inside, number = False, 0
    for part in re.split("(</?v>)", source):
        if MARK.fullmatch(part):
            inside = part == "<v>"
            continue
        for _ in part.replace(" ", ""):
            if inside:
                yield number
            number += 1


def read_zurich(path: Path) -> Iterator[Item]:
    """Yield the segments that experts judged."""
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        kind = "marked" if row["has_omission_error_by_any_rater"] else "unmarked"
        yield Item(str(row["seg_id"]), kind, row["source"], row["target"], frozenset())


def cut_pairs(
    model: Model, source: Path, target: Path, lines: int, seed: int, unspaced: bool
) -> Iterator[Item]:
    """Yield cuts of some consecutive pairs of held-out text."""
    pairs = [
        ("".join(x.split()) if unspaced else x, y)
        for x, y in read_parallel_lines(source, target)
        if x.strip() and y.strip()
    ]
    first = random.Random(seed).randrange(max(1, len(pairs) - lines))
    examples = synthetic_omissions(pairs[first : first + lines], model.forced_decoder, seed)
    for example in examples:
        owners = character_tokens(example.source, model.source)
        omitted = frozenset(k for k, j in enumerate(owners) if j in example.omitted)
        yield Item(str(example.origin), example.kind, example.source, example.target, omitted, True)


class CachingChecker(OmissionChecker):
    """Keeps what forced decoding says in a file."""

    def __init__(self, model: Model, cache: Path, directory: Path) -> None:
        super().__init__(
            model.forced_decoder,
            Lexicon.load(directory / LEXICON_FILE),
            Calibration.load(directory),
        )
        self.path, self.entries = cache, dict[str, NDArray[Any]]()
        if cache.exists():
            with np.load(cache) as file:
                keys, values, ends = file["keys"], file["values"], file["ends"]
                self.entries = dict(zip(keys.tolist(), np.split(values, ends[:-1]), strict=True))

    def score_removals(self, removals: Sequence[Removal]) -> list[ForcedScores]:
        keys = [self._key(removal) for removal in removals]
        unknown = [k for k, key in enumerate(keys) if key not in self.entries]
        for k, decoded in zip(
            unknown, super().score_removals([removals[k] for k in unknown]), strict=True
        ):
            size = np.array([len(decoded.token_log_probs)], np.float16)
            row = np.concatenate([size, decoded.token_log_probs, decoded.received])
            self.entries[keys[k]] = row.astype(np.float16)
        rows = (self.entries[key].astype(np.float32) for key in keys)
        return [ForcedScores(row[1 : 1 + int(row[0])], row[1 + int(row[0]) :]) for row in rows]

    @staticmethod
    def _key(removal: Removal) -> str:
        text = f"{list(removal.source_ids())} {list(removal.pair.target.ids)}"
        return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()

    def save(self) -> None:
        """Write the file."""
        import io

        stream, rows = io.BytesIO(), list(self.entries.values())
        ends = np.cumsum([len(row) for row in rows])
        values = np.concatenate(rows)
        np.savez_compressed(stream, keys=np.array([*self.entries]), values=values, ends=ends)
        write_bytes(self.path, stream.getvalue())


def check(checker: OmissionChecker, items: Sequence[Item]) -> list[Result]:
    """Check all items, by parts alone and with words."""
    results = []
    pairs = [(item.source, item.target) for item in items]
    reports = [checker.reports(pairs, words=words) for words in (False, True)]
    for item, parts, words in zip(items, *reports, strict=True):
        pair = checker.read_pair((item.source, item.target))
        [whole] = checker.score_whole_lines([pair])
        results.append(result(checker, item, pair, whole, parts, words))
    return results


def character_tokens(line: str, codec: Codec) -> list[int]:
    """Return the token of each character, spaces not counted."""
    text, owners, _ = token_text(TextUnits.from_line(line, codec).tokens, codec)
    return [j for character, j in zip(text, owners, strict=True) if not character.isspace()]


def result(
    checker: OmissionChecker,
    item: Item,
    pair: Pair,
    whole: ForcedScores,
    parts: OmissionReport,
    words: OmissionReport,
) -> Result:
    """Collect the scores of a line and of its words."""
    units = pair.source.units
    received = [float(whole.received[unit.start : unit.stop].sum()) for unit in units]
    probable = [words.probabilities.get(unit, 0.0) for unit in units]
    by_part = [
        max((p for part, p in parts.probabilities.items() if unit.start in part), default=0.0)
        for unit in units
    ]
    owners = character_tokens(item.source, checker.source)
    truth: list[bool] = []
    if len(owners) == len("".join(item.source.split())):  # else the tokenizer changed letters
        tokens = {owners[k] for k in item.omitted if k < len(owners)}
        truth = [any(j in tokens for j in unit) for unit in units]
    lengths = len(pair.source.ids), len(pair.target.ids)
    unrelated = parts.unrelated
    return Result(
        item,
        {
            "check": bool(parts.omissions) or unrelated >= MIN_PROBABILITY,
            "check, words": bool(words.omissions) or unrelated >= MIN_PROBABILITY,
        },
        {
            "check": parts.incomplete,
            "check, words": words.incomplete,
            "lexicon alone": float(pair.evidence.missing.sum()),
            "source length": float(lengths[0]),
            "length ratio": lengths[0] / (lengths[1] + 1),
            "least attended word": -min(received, default=0.0),
            "nats per token": -whole.mean_log_prob,
        },
        {
            "check, words": [max(pair_) for pair_ in zip(probable, by_part, strict=True)],
            "lexicon alone": pair.evidence.missing.tolist(),
            "least attended word": [-value for value in received],
            "longest word": [float(len(unit)) for unit in units],
        },
        truth,
    )


Statistic = Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], float]


def average_precision(scores: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any]) -> float:
    """Return the mean precision over the positive examples; ties count as one group."""
    order = np.argsort(-scores, kind="stable")
    scores, positive, weight = scores[order], (labels * weights)[order], weights[order]
    last = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)
    found, marked = np.cumsum(positive)[last], np.cumsum(weight)[last]
    steps = np.diff(found, prepend=0.0)
    return float((steps * found / np.maximum(marked, 1e-9)).sum() / max(found[-1], 1e-9))


def area(scores: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any]) -> float:
    """Return the area under the ROC curve; ties count half."""
    order = np.argsort(scores, kind="stable")
    scores, positive, weight = scores[order], (labels * weights)[order], weights[order]
    negative = weight - positive
    first = np.append(0, np.flatnonzero(np.diff(scores)) + 1)
    p, n = np.add.reduceat(positive, first), np.add.reduceat(negative, first)
    below = np.cumsum(n) - n
    return float((p * (below + n / 2)).sum() / max(p.sum() * n.sum(), 1e-9))


def precision(marked: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any]) -> float:
    """Return the share of marked examples that are positive."""
    return float((weights * marked * labels).sum() / max((weights * marked).sum(), 1e-9))


def recall(marked: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any]) -> float:
    """Return the share of positive examples that are marked."""
    return float((weights * marked * labels).sum() / max((weights * labels).sum(), 1e-9))


class Sample:
    """Bootstrap over groups of lines."""

    def __init__(self, groups: Sequence[str]) -> None:
        _, self.rows = np.unique(groups, return_inverse=True)
        self.counts = resample_counts(
            int(self.rows.max()) + 1, SAMPLES, np.random.default_rng(1234)
        )

    def interval(
        self, statistic: Statistic, scores: NDArray[Any], labels: NDArray[Any]
    ) -> dict[str, Any]:
        """Return a statistic with its 95% interval."""
        value = statistic(scores, labels, np.ones(len(self.rows)))
        samples = [statistic(scores, labels, counts[self.rows]) for counts in self.counts]
        low, high = confidence_interval(np.array(samples))
        return {"value": round(value, 4), "low": round(low, 4), "high": round(high, 4)}


def rank_rows(
    results: Sequence[Result], positive: Callable[[Result], bool]
) -> dict[str, dict[str, Any]]:
    """Return the measures of every score of lines."""
    sample = Sample([r.item.group for r in results])
    labels = np.array([positive(r) for r in results], np.float64)
    table: dict[str, dict[str, Any]] = {}
    for name in results[0].line:
        scores = np.array([r.line[name] for r in results])
        table[name] = {
            "average precision": sample.interval(average_precision, scores, labels),
            "area": sample.interval(area, scores, labels),
        }
        marked = [r.marked.get(name) for r in results]
        if None in marked:  # a baseline marks as many lines
            count = sum(r.marked["check"] for r in results)
            chosen = set(np.argsort(-scores, kind="stable")[:count].tolist())
            marked = [k in chosen for k in range(len(results))]
        flags = np.array(marked, np.float64)
        faultless = np.array([r.item.faultless for r in results], np.float64)
        table[name] |= {
            "precision": sample.interval(precision, flags, labels),
            "recall": sample.interval(recall, flags, labels),
        }
        if faultless.any():
            table[name]["faultless marked"] = sample.interval(
                recall, flags, faultless * (1 - labels)
            )
        table[name]["precision at recall 0.3"] = precision_at(scores, labels, 0.3)
    return table


def precision_at(scores: NDArray[Any], labels: NDArray[Any], share: float) -> float:
    """Return the precision where this share of the positive lines is found."""
    order = np.argsort(-scores, kind="stable")
    found = np.cumsum(labels[order])
    k = int(np.searchsorted(found, share * labels.sum()))
    return round(float(found[k] / (k + 1)), 4)


def word_rows(results: Sequence[Result]) -> dict[str, dict[str, Any]]:
    """Return the measures of every score of words, in lines with an omission."""
    rows = [r for r in results if any(r.truth) and not all(r.truth)]
    if not rows:
        return {}
    sample = Sample([r.item.group for r in rows for _ in r.truth])
    labels = np.array([truth for r in rows for truth in r.truth], np.float64)
    table = {}
    for name in rows[0].words:
        scores = np.array([score for r in rows for score in r.words[name]])
        table[name] = {
            "average precision": sample.interval(average_precision, scores, labels),
            "area": sample.interval(area, scores, labels),
        }
        if name == "check, words":
            flags = scores >= MIN_PROBABILITY
            table[name] |= {
                "precision": sample.interval(precision, flags, labels),
                "recall": sample.interval(recall, flags, labels),
            }
    return table


def cut_rows(results: Sequence[Result]) -> dict[str, Any]:
    """Return, by kind of cut, recall as set, and at few false alarms."""
    complete = [r for r in results if r.item.kind == "none"]
    table: dict[str, Any] = {}
    for kind in KINDS[1:]:
        rows = [r for r in results if r.item.kind == kind]
        if not rows:
            continue
        sample = Sample([r.item.group for r in (*complete, *rows)])
        labels = np.array([0] * len(complete) + [1] * len(rows), np.float64)
        table[kind] = {"lines": len(rows)}
        for name in complete[0].line:
            scores = np.array([r.line[name] for r in (*complete, *rows)])
            limit = np.quantile(scores[labels == 0], 1 - FALSE_ALARMS)
            entry = {
                "area": sample.interval(area, scores, labels),
                "recall at 2% false alarms": sample.interval(recall, scores > limit, labels),
            }
            if name in complete[0].marked:
                flags = np.array([r.marked[name] for r in (*complete, *rows)], np.float64)
                entry["recall"] = sample.interval(recall, flags, labels)
            table[kind][name] = entry
    sample = Sample([r.item.group for r in complete])
    table["complete lines marked"] = {}
    for name in complete[0].marked:
        flags = np.array([r.marked[name] for r in complete], np.float64)
        table["complete lines marked"][name] = sample.interval(recall, flags, np.ones(len(flags)))
    return table


def show(title: str, table: dict[str, Any]) -> None:
    """Print a table of scores by their names."""
    print(f"\n{title}")
    for name, measures in table.items():
        if not isinstance(measures, dict):
            continue
        if "value" in measures:
            measures = {"": measures}
        texts = [
            f"{key} {m['value']:.3f} ({m['low']:.3f}-{m['high']:.3f})"
            if isinstance(m, dict)
            else f"{key} {m}"
            for key, m in measures.items()
            if not (isinstance(m, dict) and "value" not in m)
        ]
        print(f"  {name:22} {'; '.join(texts)}")
        for inner, row in measures.items():
            if isinstance(row, dict) and "value" not in row:
                show_row = {k: f"{v['value']:.3f}" for k, v in row.items()}
                print(f"      {inner:22} {show_row}")


def main() -> None:
    """Measure and write the result file."""
    parser = argument_parser(__doc__)
    parser.add_argument("--model", required=True, help="model name or directory")
    parser.add_argument("--mqm", type=Path, help="TSV of judged translations")
    parser.add_argument("--zurich", type=Path, help="JSON lines of judged predictions")
    parser.add_argument("--pairs", type=Path, nargs=2, help="source and target of held-out text")
    parser.add_argument("--unspaced", action="store_true", help="drop spaces from the source")
    parser.add_argument("--lines", type=int, default=1500, help="at most this many, at random")
    parser.add_argument("--seed", type=int, default=2, help="of the sample and of the cuts")
    parser.add_argument("--calibration", type=Path, help="directory with another check.json")
    parser.add_argument("--cache", type=Path, default=Path("omissions.npz"))
    parser.add_argument("--name", default="omissions", help="of the result file")
    options = parser.parse_args()
    model = Model.load(options.model, device="cpu", threads=1)
    directory = options.calibration or find_model(options.model)
    checker = CachingChecker(model, options.cache, directory)
    items = list(read_items(options, model))
    fits = [
        item
        for item in items
        if 0 < len(model.source.tokenize(item.source)) <= MAX_TOKENS
        and 0 < len(model.target.tokenize(item.target)) <= MAX_TOKENS
    ]
    chosen = random.Random(options.seed).sample(fits, min(options.lines, len(fits)))
    results = check(checker, chosen)
    checker.save()
    kinds = {r.item.kind for r in results}
    content: dict[str, Any] = {
        "settings": argument_values(
            options, leave_out=["mqm", "zurich", "pairs", "cache", "name", "calibration"]
        ),
        "lines": {kind: sum(r.item.kind == kind for r in results) for kind in sorted(kinds)},
        "left out as too long or empty": len(items) - len(fits),
    }
    if "none" in kinds:
        content["cuts"] = cut_rows(results)
        show("cuts", content["cuts"])
    else:
        content["by line"] = rank_rows(results, lambda r: r.item.kind == "marked")
        show("lines", content["by line"])
    if by_word := word_rows(results):
        content["by word"] = by_word
        show("words of lines with an omission", by_word)
    print(content["lines"])
    save(options.name, content, options)


def read_items(options: Any, model: Model) -> Iterator[Item]:
    """Yield the items of the set that was asked for."""
    if options.mqm:
        yield from read_mqm(options.mqm)
    if options.zurich:
        yield from read_zurich(options.zurich)
    if options.pairs:
        lines, seed = options.lines // 4, options.seed
        source, target = options.pairs
        yield from cut_pairs(model, source, target, lines, seed, options.unspaced)


if __name__ == "__main__":
    main()
