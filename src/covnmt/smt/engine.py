"""The two engines behind one set of commands: Thot, which comes with the extra `smt`, and Moses."""

from collections.abc import Sequence
from pathlib import Path

from covnmt.smt import model as thot_model
from covnmt.smt import moses
from covnmt.smt.model import SmtModel
from covnmt.smt.settings import SearchSettings, TrainSettings, TuneSettings
from covnmt.smt.translate import PhraseTranslation
from covnmt.smt.translate import translate as thot_translate
from covnmt.smt.tune import tune as thot_tune
from covnmt.text.corpus import Corpus


def train(data: Path, directory: Path, settings: TrainSettings) -> SmtModel:
    """Make a model from a prepared corpus."""
    build = moses.build if settings.engine == "moses" else thot_model.build
    return build(Corpus.open(data), directory, settings)


def tune(directory: Path, settings: TuneSettings) -> str:
    """Tune a model's weights; gives what came out, in words."""
    model = SmtModel.open(directory)
    if model.settings.engine == "moses":
        return f"{directory}: tuned: {moses.tune(model, settings)}"
    rounds = thot_tune(model, settings)
    scores = [bleu for _, bleu in rounds]
    return (
        f"{directory}: dev BLEU {max(scores):.2f} (round {scores.index(max(scores)) + 1} of "
        f"{len(scores)}; {scores[0]:.2f} before tuning)"
    )


def translate(
    directory: Path, lines: Sequence[str], settings: SearchSettings
) -> list[PhraseTranslation]:
    """Translate lines, in order."""
    model = SmtModel.open(directory)
    run = moses.translate if model.settings.engine == "moses" else thot_translate
    return list(run(model, lines, settings))
