"""Answers as plain values, from what the models give."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from covnmt.inference.align import Alignment
from covnmt.inference.translate import Translation, rounded_list
from covnmt.serve.model_pool import ServedModel
from covnmt.serve.remarks import find_remarks
from covnmt.text.sentences import SplitText


class SubmittedTexts:
    """Texts whose sentences are being translated."""

    def __init__(self, layouts: list[SplitText], futures: "list[Future[Translation]]") -> None:
        self.layouts, self.futures = layouts, futures

    def joined(self, done: Sequence[Translation]) -> list[tuple[str, list[Translation]]]:
        """Every text put together again, with its sentences."""
        rest = iter(done)
        texts = []
        for layout in self.layouts:
            mine = [next(rest) for _ in layout.sentences]
            texts.append((layout.join([each.text for each in mine]), mine))
        return texts


def sentence_json(translation: Translation, parts: Sequence[str]) -> dict[str, Any]:
    """A sentence with the parts asked for."""
    full = translation.to_json()
    answer = {key: full[key] for key in ("source", "text")} | {
        "score": finite_score(translation.score)
    }
    if "tokens" in parts:
        answer |= {key: full[key] for key in ("source_tokens", "tokens")}
    answer |= {key: full[key] for key in ("alignment", "coverage", "fertility") if key in parts}
    if "remarks" in parts:
        answer["remarks"] = [remark.to_json() for remark in find_remarks(translation)]
    if translation.alternatives:
        answer["nbest"] = [sentence_json(each, parts) for each in translation.alternatives]
    return answer


def alignment_json(alignment: Alignment) -> dict[str, Any]:
    """A pair, numbers to four places."""
    fertility = alignment.fertility
    return {
        "source_tokens": list(alignment.source_tokens),
        "tokens": list(alignment.target_tokens),
        "alignment": rounded_list(alignment.matrix),
        "fertility": None if fertility is None else rounded_list(fertility),
        "log_prob": finite_score(alignment.log_prob),
    }


def finite_score(score: float) -> float:
    """JSON has no infinity; a sentence that the model cannot say at all gets the lowest score."""
    return round(max(score, -1e9), 4)


def model_json(engine: ServedModel) -> dict[str, Any]:
    """What there is to know about a model before asking it."""
    return {
        "name": engine.spec.name,
        "source": engine.spec.source,
        "target": engine.spec.target,
        "coverage": engine.card.coverage,
        "fertility": engine.card.coverage == "fertility",
        "beam": engine.decode.beam,
        "max_source": engine.decode.max_source,
    }
