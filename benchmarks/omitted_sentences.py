"""How well `covnmt check` finds an omitted sentence in a line of several.

    python benchmarks/omitted_sentences.py --model ja-en --data DATA --files test.ja test.en

DATA holds the two files, one sentence per line. Two to four consecutive short sentences are joined
into a line, and the translation of one of them, chosen at random, is omitted. A sentence counts as
reported if reports cover at least half of its letters. What is reported of a complete translation
may really be missing: translations in a corpus are free.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from pathlib import Path
from statistics import fmean as mean
from typing import Any, NamedTuple
from unicodedata import normalize

from harness import argument_parser, save

from covnmt.base.files import read_parallel_lines
from covnmt.inference.model import Model
from covnmt.inference.omissions import MAX_TOKENS, MIN_GAIN, OmissionReport, SkippedPair

LETTERS = range(8, 41)  # of a source sentence
SENTENCES = (2, 3, 4)  # of a line
FULL_STOP = "。"


class Line(NamedTuple):
    """Sentences, the translation of each, and the index of the omitted one."""

    source: list[str]
    target: list[str]
    omitted: int

    def pair(self, whole: bool) -> tuple[str, str]:
        """Return source and translation, complete or with the omission."""
        kept = [text for k, text in enumerate(self.target) if whole or k != self.omitted]
        return "".join(self.source), " ".join(kept)


def lines(pairs: Sequence[tuple[str, str]], seed: int) -> Iterator[Line]:
    """Join all sentences in order into lines; then again, with other lengths, without end."""
    rng = random.Random(seed)
    while True:
        start = 0
        while (size := rng.choice(SENTENCES)) <= len(pairs) - start:
            source, target = zip(*pairs[start : start + size], strict=True)
            yield Line([*source], [*target], rng.randrange(size))
            start += size


def short_sentences(source: Path, target: Path) -> list[tuple[str, str]]:
    """Return pairs of one short sentence that ends with the only full stop, and a translation."""
    texts = [("".join(x.split()), y) for x, y in read_parallel_lines(source, target)]
    return [
        (normalize("NFKC", x), y)
        for x, y in texts
        if len(x) in LETTERS and x.find(FULL_STOP) == len(x) - 1 and any(map(str.isalpha, y))
    ]


def shares(line: Line, check: OmissionReport | SkippedPair) -> list[float] | None:
    """Return the reported share of each sentence's letters; None if the tokenizer changed some."""
    if isinstance(check, SkippedPair):
        return None
    tokens = [token.replace("▁", "") for token in check.source_tokens]
    if "".join(tokens) != "".join(line.source):
        return None
    ends = list(accumulate(map(len, tokens), initial=0))
    covered = {
        at for omission in check.omissions for at in range(ends[omission.start], ends[omission.end])
    }
    rows, start = [], 0
    for text in line.source:
        letters = {start + k for k, letter in enumerate(text) if letter.isalnum()}
        rows.append(len(letters & covered) / len(letters))
        start += len(text)
    return rows


def measure(checker: Model, chosen: Sequence[Line]) -> dict[str, Any]:
    """Return the shares of omitted and of translated sentences that are reported."""
    parts, wholes = (
        checker.check_stream([line.pair(whole) for line in chosen], MIN_GAIN, MAX_TOKENS)
        for whole in (False, True)
    )
    omitted: list[float] = []
    kept: list[float] = []
    whole: list[list[float]] = []
    as_one: list[bool] = []
    for line, part, full in zip(chosen, parts, wholes, strict=True):
        cut, uncut = shares(line, part), shares(line, full)
        if isinstance(part, SkippedPair) or cut is None or uncut is None:
            continue
        as_one.append(line.source[line.omitted] in [omission.text for omission in part.omissions])
        omitted.append(cut.pop(line.omitted))
        kept += cut
        whole.append(uncut)
    flat = [share for row in whole for share in row]
    return {
        "lines": len(omitted),
        "sentences": len(flat),
        "gone_reported": mean(map(reported, omitted)),
        "gone_reported_as_one": mean(as_one),
        "gone_letters": mean(omitted),
        "kept_reported": mean(map(reported, kept)),
        "kept_letters": mean(kept),
        "whole_reported": mean(map(reported, flat)),
        "whole_letters": mean(flat),
        "whole_lines_reported": mean(any(map(reported, row)) for row in whole),
        "whole_lines_with_words": mean(any(row) for row in whole),
    }


def reported(share: float) -> bool:
    """Return whether a sentence counts as reported."""
    return share >= 0.5


def main() -> None:
    """Measure and write the result file."""
    parser = argument_parser(__doc__)
    parser.add_argument("--model", required=True, help="model name or directory")
    parser.add_argument("--data", type=Path, required=True, help="directory of the files")
    parser.add_argument("--files", nargs=2, required=True, help="source and target, in DATA")
    parser.add_argument("--lines", type=int, default=250, help="lines to check")
    parser.add_argument("--seed", type=int, default=2, help="of the omissions")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--name", default="check-sentences", help="of the result file")
    options = parser.parse_args()
    pairs = short_sentences(*(options.data / name for name in options.files))
    chosen = list(islice(lines(pairs, options.seed), options.lines))
    row = measure(Model.load(options.model, device="cpu", threads=options.threads), chosen)
    for key, value in row.items():
        print(f"{key:22} {value:,.3f}" if isinstance(value, float) else f"{key:22} {value:,}")
    settings = {k: str(v) for k, v in vars(options).items() if k in ("model", "lines", "seed")}
    save(options.name, {"settings": settings, "row": row}, options)


if __name__ == "__main__":
    main()
