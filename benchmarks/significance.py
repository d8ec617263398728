"""Speed of the sign test on 5,000 sentences, each of which is swapped separately.

    python benchmarks/significance.py

CPU seconds of the n-gram counts of both systems and of the test itself, whose cost per swap does
not depend on the corpus size; median of several repetitions.
"""

import random
import time

from harness import argument_parser, save, summary

from covnmt.metrics.bleu import bleu_statistics
from covnmt.metrics.significance import sign_test


def sentences(count: int, noise: float) -> tuple[list[str], list[str]]:
    """Return references of random words, and outputs with some of them wrong."""
    rng = random.Random(1)
    words = [f"w{k}" for k in range(5000)]
    references = [[rng.choice(words) for _ in range(rng.randint(5, 50))] for _ in range(count)]
    wrong = random.Random(noise)
    outputs = [[w if wrong.random() > noise else "x" for w in line] for line in references]
    return [" ".join(line) for line in references], [" ".join(line) for line in outputs]


def main() -> None:
    """Measure and write the result file."""
    parser = argument_parser(__doc__)
    parser.add_argument("--sentences", type=int, default=5000, help="of the corpus")
    parser.add_argument("--repeats", type=int, default=5, help="repetitions")
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
    timings = {"count_seconds": summary(counting), "test_seconds": summary(testing)}
    print(timings)
    save("measures", {"sentences": arguments.sentences, **timings}, arguments)


if __name__ == "__main__":
    main()
