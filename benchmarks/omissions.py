"""How well `covnmt check` finds omitted words, in hand-aligned pairs with a part cut out.

    python benchmarks/omissions.py --model ja-en --data DATA --unspaced --name check-ja-en
    python benchmarks/omissions.py --model RUN --data DATA      # words as in the gold files

DATA holds gold.source.txt, gold.target.txt and gold.links, as `covnmt reproduce` prepares them. In
each pair, one to three consecutive source words are chosen at random, and the target words that
are linked to them and to nothing else are cut out of the translation. What is reported of a
complete translation may really be missing: translations in a corpus are free.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np
from harness import argument_parser, argument_values, save
from sacremoses import MosesDetokenizer

from covnmt.base.files import read_parallel_lines
from covnmt.evaluation.alignment_files import read_links
from covnmt.inference.model import Model
from covnmt.inference.omissions import OmissionReport
from covnmt.paper.experiments import GOLD_FILES, VISIBLE_SPACE

LENGTHS = range(5, 61)  # source words
LONGEST = 3  # omitted source words
SHORTEST = 4  # letters of the longest target word that is cut
MOST = 0.4  # of the target words


class Cut(NamedTuple):
    """A pair with its complete translation and with one from which words were cut."""

    words: list[str]  # of the source
    omitted: frozenset[int]  # indices of source words whose translation was cut
    source: str
    complete: str
    part: str


def cuts(data: Path, unspaced: bool, seed: int) -> Iterator[Cut]:
    """Yield one random cut for each pair that has one."""
    rng, moses = random.Random(seed), MosesDetokenizer("en")
    texts = read_parallel_lines(data / GOLD_FILES[0], data / GOLD_FILES[1])
    for (source, target), gold in zip(texts, read_links(data / GOLD_FILES[2]), strict=True):
        words = source.replace(VISIBLE_SPACE, "").split()
        words = [normalize("NFKC", word) for word in words] if unspaced else words
        choices = list(possible_cuts(source.split(), target.split(), gold.possible))
        if len(source.split()) not in LENGTHS or not choices or len(words) != len(source.split()):
            continue
        omitted, cut = rng.choice(choices)
        left = [word for i, word in enumerate(target.split()) if i not in cut]
        join = moses.detokenize if unspaced else " ".join
        text = "".join(words) if unspaced else source
        yield Cut(words, omitted, text, join(target.split()), join(left))


def possible_cuts(
    source: Sequence[str], target: Sequence[str], links: frozenset[tuple[int, int]]
) -> Iterator[tuple[frozenset[int], set[int]]]:
    """Yield source words and the target words that are linked to them and to nothing else."""
    for length in range(1, LONGEST + 1):
        for start in range(len(source) - length + 1):
            omitted = frozenset(range(start, start + length))
            cut = {i for j, i in links if j in omitted}
            exclusive = all(j in omitted for j, i in links if i in cut)
            linked = omitted <= {j for j, _ in links}
            long = any(sum(map(str.isalpha, target[i])) >= SHORTEST for i in cut)
            if exclusive and linked and long and len(cut) <= MOST * len(target):
                yield omitted, cut


def truth(cut: Cut, check: OmissionReport) -> list[bool] | None:
    """Return whether each unit contains an omitted word; None if the tokenizer changed letters."""
    owners = [number for number, word in enumerate(cut.words) for _ in word]
    tokens = [token.lstrip("▁") for token in check.source_tokens]
    if "".join(tokens) != "".join(cut.words):
        return None
    ends = np.cumsum([0, *map(len, tokens)])
    return [
        any(owners[at] in cut.omitted for at in range(ends[unit.start], ends[unit.stop]))
        for unit in check.units
    ]


def area(scores: Sequence[float], true: Sequence[bool]) -> float:
    """Return the area under the ROC curve: how often an omitted word scores above another."""
    order = np.argsort(np.argsort(scores)) + 1
    positive = np.array(true)
    p, n = positive.sum(), (~positive).sum()
    return float((order[positive].sum() - p * (p + 1) / 2) / (p * n))


def flagged(check: OmissionReport) -> list[bool]:
    """Return whether each unit is reported as omitted."""
    return [any(f.start <= unit.start < f.end for f in check.omissions) for unit in check.units]


def measure(model: str, chosen: Sequence[Cut], threads: int) -> dict[str, Any]:
    """Return precision, recall and area under the ROC curve."""
    opened = Model.load(model, device="cpu", threads=threads)
    partial = opened.check((cut.source, cut.part) for cut in chosen)
    complete = opened.check((cut.source, cut.complete) for cut in chosen)
    alignments = opened.align((cut.source, cut.part) for cut in chosen)
    true: list[bool] = []
    flags: list[bool] = []
    gains: list[float] = []
    attention: list[float] = []
    found_pairs = []
    for cut, check, alignment in zip(chosen, partial, alignments, strict=True):
        if (omitted := truth(cut, check)) is None:
            continue
        reported = flagged(check)
        received = alignment.matrix.sum(axis=0)
        attention += [-float(received[list(unit)].mean()) for unit in check.units]
        gains += check.gain.tolist()
        true, flags = true + omitted, flags + reported
        found_pairs.append(any(a and b for a, b in zip(omitted, reported, strict=True)))
    true_positives = sum(a and b for a, b in zip(true, flags, strict=True))
    return {
        "pairs": len(found_pairs),
        "units": len(true),
        "gone": sum(true),
        "precision": true_positives / sum(flags),
        "recall": true_positives / sum(true),
        "pairs_found": sum(found_pairs) / len(found_pairs),
        "area": area(gains, true),
        "area_of_attention": area(attention, true),
        "whole_pairs_flagged": sum(bool(report.omissions) for report in complete) / len(complete),
        "whole_units_flagged": sum(map(sum, map(flagged, complete)))
        / sum(len(report.units) for report in complete),
    }


def main() -> None:
    """Measure and write the result file."""
    parser = argument_parser(__doc__)
    parser.add_argument("--model", required=True, help="model name or directory")
    parser.add_argument("--data", type=Path, required=True, help="directory of the gold files")
    parser.add_argument("--unspaced", action="store_true", help="a language without spaces")
    parser.add_argument("--pairs", type=int, help="at most this many")
    parser.add_argument("--seed", type=int, default=2, help="of the cuts")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--name", default="check", help="of the result file")
    options = parser.parse_args()
    chosen = list(cuts(options.data, options.unspaced, options.seed))
    row = measure(options.model, chosen[: options.pairs], options.threads)
    for key, value in row.items():
        print(f"{key:22} {value:,.3f}" if isinstance(value, float) else f"{key:22} {value:,}")
    settings = argument_values(options, leave_out=["data", "name"])
    save(options.name, {"settings": settings, "row": row}, options)


if __name__ == "__main__":
    main()
