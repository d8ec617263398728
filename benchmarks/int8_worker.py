"""One model format translates a file in a separate process, for int8.py.

    python int8_worker.py MODEL SOURCE BEAM

Prints the translations and their cost as JSON. Imports only what the format needs.
"""

import json
import sys
import time
from pathlib import Path

from cpu_worker import cpu_seconds, peak_mib

from covnmt.base.files import read_lines
from covnmt.inference.model import Model


def main() -> None:
    """Translate with one thread."""
    model, source, beam = sys.argv[1:]
    lines = list(read_lines(Path(source)))
    began = time.perf_counter()
    translator = Model.load(model, device="cpu", threads=1)
    ready = time.perf_counter()
    decode = translator.decode.model_copy(update={"beam": int(beam), "batch_size": 32})
    translator.translate(lines[:4], decode)
    started, used = time.perf_counter(), cpu_seconds()
    translations = translator.translate(lines, decode)
    answer = {
        "beam": int(beam),
        "words": sum(len(translation.tokens) for translation in translations),
        "cpu_seconds": cpu_seconds() - used,
        "wall_seconds": time.perf_counter() - started,
        "ready_seconds": ready - began,
        "peak_mib": peak_mib(),
        "output": [translation.text for translation in translations],
    }
    print(json.dumps(answer, ensure_ascii=False))


if __name__ == "__main__":
    main()
