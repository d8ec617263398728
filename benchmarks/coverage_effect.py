"""What coverage does inside trained models: attention with the coverage and, each step, without it.

    python benchmarks/coverage_effect.py MODEL... --source FILE --target FILE --name coverage-ja-en

The models force-decode the pairs. Words are grouped at every step by the attention that they have
received before, divided by fertility where the model predicts it. Changes are in nats.
"""

from dataclasses import asdict
from itertools import islice
from pathlib import Path

from harness import argument_parser, argument_values, save

from covnmt.base.files import read_parallel_lines
from covnmt.evaluation.coverage_effect import measure_coverage_effect
from covnmt.inference.model import load


def main() -> None:
    """Measure every model on the same pairs."""
    parser = argument_parser(__doc__)
    parser.add_argument("models", nargs="+", help="model directory, or bundled model by name")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=0, help="only so many pairs; 0: all")
    parser.add_argument("--unspaced", action="store_true", help="remove spaces from the source")
    parser.add_argument("--name", default="coverage-effect", help="of the result file")
    arguments = parser.parse_args()
    texts = read_parallel_lines(arguments.source, arguments.target)
    pairs = list(islice(texts, arguments.pairs or None))
    if arguments.unspaced:
        pairs = [(source.replace(" ", ""), target) for source, target in pairs]
    rows = []
    for name in arguments.models:
        model = load(name)
        effect = measure_coverage_effect(model, ((source, target) for source, target in pairs))
        label = Path(name).name
        rows.append({"model": label, "coverage": model.config.coverage.kind, **asdict(effect)})
        print(
            f"{label}: {effect.uncovered.change:+.3f} not yet covered, "
            f"{effect.partly.change:+.3f} partly, {effect.covered.change:+.3f} covered, "
            f"difference {effect.difference:+.3f}"
            + ("" if effect.attended is None else f", by attention received {effect.attended:+.3f}")
        )
    settings = argument_values(arguments, leave_out=("models", "source", "target", "name"))
    save(arguments.name, {"settings": settings | {"pairs": len(pairs)}, "rows": rows}, arguments)


if __name__ == "__main__":
    main()
