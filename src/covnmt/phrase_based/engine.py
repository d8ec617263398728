"""The two engines behind one set of commands: our own, and an installed Moses."""

from collections.abc import Sequence
from pathlib import Path

from covnmt.base.errors import UserError
from covnmt.data.corpus import Corpus
from covnmt.phrase_based import model as own_model
from covnmt.phrase_based import moses
from covnmt.phrase_based.model import SmtModel
from covnmt.phrase_based.settings import SearchSettings, TrainSettings, TuneSettings
from covnmt.phrase_based.translate import PhraseTranslation
from covnmt.phrase_based.translate import translate as own_translate
from covnmt.phrase_based.tune_weights import tune as own_tune


def train(data: Path, directory: Path, settings: TrainSettings, processes: int = 1) -> SmtModel:
    """Make a model from a prepared corpus; the chains of the aligner are shared among processes."""
    if (directory / "config.json").exists():
        raise UserError(f"{directory}: holds a neural model; choose another directory")
    build = moses.build if settings.engine == "moses" else own_model.build
    return build(Corpus.open(data), directory, settings, processes)


def tune(directory: Path, settings: TuneSettings) -> str:
    """Tune a model's weights; gives what came out, in words."""
    model = SmtModel.open(directory)
    if model.settings.engine == "moses":
        return f"{directory}: tuned: {moses.tune(model, settings)}"
    rounds = own_tune(model, settings)
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
    run = moses.translate if model.settings.engine == "moses" else own_translate
    return list(run(model, lines, settings))
