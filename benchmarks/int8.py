"""float32, int8 and shortlists on a real test set: BLEU, speed, memory, disk.

    python benchmarks/int8.py MODEL --test SOURCE REFERENCE --linked TRAIN_SOURCE TRAIN_TARGET \
        --name ja-en --work DIRECTORY

Exports the model in every format; each translates the test set in a separate process with one
thread. For the shortlist, the exported model aligns pairs sampled from the training text. Files
that are in the work directory are reused, so an interrupted run resumes.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import argument_parser, save

from covnmt.base.files import read_lines, read_parallel_lines, write_lines
from covnmt.decoding.onnx.export import ShortlistText, export_model
from covnmt.metrics.bleu import paper_bleu, sacre_bleu

LONGEST = 400  # characters; longer pairs are not aligned


def exports(model: Path, work: Path, linked: ShortlistText | None) -> dict[str, Path]:
    """Export the model in every format; return their directories, the trained model first."""
    forms = {"pytorch": model, "onnx-fp32": work / "onnx-fp32", "onnx-int8": work / "onnx-int8"}
    for name, precision in (("onnx-fp32", "fp32"), ("onnx-int8", "int8")):
        if not (forms[name] / "onnx.json").exists():
            export_model(model, forms[name], precision)  # type: ignore[arg-type]
    if linked is not None:
        forms["onnx-int8-shortlist"] = target = work / "onnx-int8-shortlist"
        if not linked.links.exists():
            command = [sys.executable, "-m", "covnmt", "align", linked.source, linked.target]
            options = ["--model", forms["onnx-int8"], "--output", linked.links]
            subprocess.run(list(map(str, [*command, *options])), check=True)
        if not (target / "onnx.json").exists():
            export_model(model, target, "int8", linked)
    return forms


def some_pairs(texts: tuple[Path, Path], number: int, work: Path) -> ShortlistText:
    """Sample pairs of the training text at equal distances and write them to files."""
    rows = [
        pair for pair in read_parallel_lines(*texts) if all(0 < len(s) <= LONGEST for s in pair)
    ]
    chosen = rows[:: max(len(rows) // number, 1)][:number]
    linked = ShortlistText(work / "linked.source", work / "linked.target", work / "linked.links")
    for path, lines in zip(linked, zip(*chosen, strict=True), strict=False):
        write_lines(path, lines)
    return linked


def translated(name: str, model: Path, source: Path, work: Path, beam: int) -> dict[str, Any]:
    """Translate with one format, or read the result of an earlier run."""
    result = work / f"{name}-beam{beam}.json"
    if not result.exists():
        command = [sys.executable, Path(__file__).with_name("int8_worker.py"), model, source, beam]
        run = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True)
        result.write_text(run.stdout, "utf-8")
    figures: dict[str, Any] = json.loads(result.read_text("utf-8"))
    return figures


def disk_mib(model: Path) -> float:
    """Return the size of the files that translating needs; a run directory holds more."""
    needed = ("model.safetensors", "config.json", "source.*", "target.*", "*onnx*", "*.bin")
    files = {path for pattern in (*needed, "shortlist.json") for path in model.glob(pattern)}
    return sum(path.stat().st_size for path in files) / 2**20


def row(name: str, model: Path, figures: dict[str, Any], reference: list[str]) -> dict[str, Any]:
    """Score one format and beam."""
    output = figures.pop("output")
    cased, paper = (score(output, [reference]) for score in (sacre_bleu, paper_bleu))
    scores = {
        "form": name,
        "bleu": cased.value,
        "bleu_signature": cased.signature,
        "bleu_paper": paper.value,
        "words_per_cpu_second": figures["words"] / figures["cpu_seconds"],
        "disk_mib": disk_mib(model),
        **figures,
    }
    shown = (f"{scores[key]:9.2f}" for key in ("bleu", "words_per_cpu_second", "peak_mib"))
    print(f"{name:20} {scores['beam']:4}", *shown, scores["changed_lines"], flush=True)
    return scores


def main() -> None:
    """Measure and write the result file."""
    parser = argument_parser(__doc__)
    parser.add_argument("model", type=Path, help="model directory, as `covnmt train` leaves it")
    parser.add_argument("--test", type=Path, nargs=2, required=True, help="source and reference")
    parser.add_argument("--linked", type=Path, nargs=2, help="training text, for a shortlist")
    parser.add_argument("--pairs", type=int, default=20_000, help="of the training text to align")
    parser.add_argument("--beam", type=int, nargs="+", default=[1, 10], help="beam sizes")
    parser.add_argument("--name", default="demo", help="suffix of the result file")
    parser.add_argument(
        "--work", type=Path, required=True, help="directory for exports and translations"
    )
    arguments = parser.parse_args()
    work = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    linked = None
    if arguments.linked:
        linked = some_pairs(arguments.linked, arguments.pairs, work)
    forms = exports(arguments.model, work, linked)
    source, reference = arguments.test
    expected = list(read_lines(reference))
    print(f"{'form':20} beam      BLEU words/CPUs  peak MiB lines changed")
    rows = []
    for beam in arguments.beam:
        exact: list[str] | None = None
        for name, model in forms.items():
            figures = translated(name, model, source, work, beam)
            exact = exact or figures["output"]
            changed = sum(map(str.__ne__, figures["output"], exact))
            rows.append(row(name, model, {**figures, "changed_lines": changed}, expected))
    settings = {"name": arguments.name, "pairs": arguments.pairs if linked else 0}
    content = {"settings": settings, "sentences": len(expected), "rows": rows}
    # the recorded command shows file names without their directories
    sys.argv = [word if word.startswith("-") else Path(word).name for word in sys.argv]
    save(f"int8-{arguments.name}", content, arguments)


if __name__ == "__main__":
    main()
