"""How long the sign test takes: 5,000 sentences, each swapped in by itself.

    python benchmarks/measures.py

Two parts: the n-gram counts of both systems, and the test itself, whose swaps cost the same however
large the corpus is. CPU seconds, median of several repetitions.
"""

import argparse
import random
import time
from pathlib import Path

from machine import save, summary

from covnmt.metrics.bleu import bleu_statistics
from covnmt.metrics.significance import sign_test


def sentences(count: int, noise: float) -> tuple[list[str], list[str]]:
    """References of random words, and a system that gets some of them wrong."""
    rng = random.Random(1)
    words = [f"w{k}" for k in range(5000)]
    references = [[rng.choice(words) for _ in range(rng.randint(5, 50))] for _ in range(count)]
    wrong = random.Random(noise)
    outputs = [[w if wrong.random() > noise else "x" for w in line] for line in references]
    return [" ".join(line) for line in references], [" ".join(line) for line in outputs]


def main() -> None:
    """Measure and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="directory of the result file")
    arguments = parser.parse_args()
    references, baseline = sentences(arguments.sentences, 0.30)
    _, system = sentences(arguments.sentences, 0.25)
    counting, testing = [], []
    for _ in range(arguments.repeats):
        began = time.process_time()
        counts = [bleu_statistics(output, [references]) for output in (baseline, system)]
        counted = time.process_time()
        sign_test(counts[0], counts[1])
        counting.append(counted - began)
        testing.append(time.process_time() - counted)
    found = {"count_seconds": summary(counting), "test_seconds": summary(testing)}
    print(found)
    save("measures", {"sentences": arguments.sentences, **found}, arguments.out)


if __name__ == "__main__":
    main()
