"""The worked example that the page opens with: what the bundled model answers about one sentence.

python -m tests.serve.worked_example    writes it anew (scripts/update-docs does the same)
"""

from pathlib import Path
from typing import Any

import covnmt
from covnmt.base.files import write_json
from covnmt.metrics.adequacy import LOW_ATTENTION
from covnmt.serve.remarks import max_coverage
from covnmt.serve.schemas import sentence_json

PATH = Path(covnmt.__file__).parent / "serve/page/example.json"
# the pieces of the sentence, and what a dictionary says of them
GLOSS = [
    ("Die Regierung ", "the government"),
    ("hat ", "has"),
    ("am Montag ", "on Monday"),
    ("neue Maßnahmen ", "new measures"),
    ("gegen die Arbeitslosigkeit ", "against unemployment"),
    ("angekündigt.", "announced"),
]
TRANSLATION = "On Monday, the government announced new measures."


def worked_example() -> dict[str, Any]:
    """Return the sentence, a translation that leaves something out, and the model's answers."""
    source = "".join(text for text, _ in GLOSS)
    model = covnmt.load("de-en", device="cpu")
    [translation] = model.translate([source])
    [report] = model.check([(source, TRANSLATION)], words=True)
    return {
        "languages": {"source": "de", "target": "en"},
        "bounds": {"min_attention": LOW_ATTENTION, "max_coverage": max_coverage(False)},
        "gloss": GLOSS,
        "translation": TRANSLATION,
        "sentence": sentence_json(translation, ["tokens", "alignment", "coverage", "fertility"]),
        "check": report.to_json(),
    }


if __name__ == "__main__":
    write_json(PATH, worked_example())
