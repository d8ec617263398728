"""JSON for the results of the models, numbers to four places."""

from collections.abc import Sequence
from typing import Any

from covnmt.inference.align import Alignment
from covnmt.inference.translate import Translation, rounded_list
from covnmt.serve.model_pool import ServedModel
from covnmt.serve.remarks import find_remarks


def sentence_json(translation: Translation, parts: Sequence[str]) -> dict[str, Any]:
    """Return a translated sentence with those parts alone that the request asks for."""
    answer: dict[str, Any] = {
        "source": translation.source,
        "text": translation.text,
        "score": finite_score(translation.score),
    }
    if "tokens" in parts:
        answer["source_tokens"] = list(translation.source_tokens)
        answer["tokens"] = list(translation.tokens)
    if "alignment" in parts:
        answer["alignment"] = rounded_list(translation.alignment)
    if "coverage" in parts:
        answer["coverage"] = rounded_list(translation.coverage)
    if "fertility" in parts:
        fertility = translation.fertility
        answer["fertility"] = None if fertility is None else rounded_list(fertility)
    if "remarks" in parts:
        answer["remarks"] = [remark.to_json() for remark in find_remarks(translation)]
    if translation.alternatives:
        answer["nbest"] = [
            sentence_json(alternative, parts) for alternative in translation.alternatives
        ]
    return answer


def alignment_json(alignment: Alignment) -> dict[str, Any]:
    """Return an aligned pair."""
    fertility = alignment.fertility
    return {
        "source_tokens": list(alignment.source_tokens),
        "tokens": list(alignment.target_tokens),
        "alignment": rounded_list(alignment.matrix),
        "fertility": None if fertility is None else rounded_list(fertility),
        "log_prob": finite_score(alignment.log_prob),
    }


def finite_score(score: float) -> float:
    """Round a score; JSON has no infinity, so an impossible sentence gets the lowest number."""
    return round(max(score, -1e9), 4)


def model_json(model: ServedModel) -> dict[str, Any]:
    """Return what clients may know of a model."""
    return {
        "name": model.spec.name,
        "source": model.spec.source,
        "target": model.spec.target,
        "coverage": model.properties.coverage,
        "fertility": model.properties.coverage == "fertility",
        "beam": model.decode.beam,
        "max_source": model.decode.max_source,
    }
