"""The demo: train the attention baseline and a coverage model, and look at the difference.

Everything is an ordinary command of covnmt run in a row on the embedded language pair, whose gold
alignment says exactly which words a translation leaves out or says twice. All that is shown comes
from this very run. A second call finds everything done and only shows it again.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import RenderableType
from rich.text import Text

from covnmt.base.console import log, track
from covnmt.base.files import read_parallel_lines, write_lines
from covnmt.base.recipe import find_recipe, load_recipe, toml_string
from covnmt.data.prepare import prepare_corpus
from covnmt.data.settings import PrepareSettings
from covnmt.data.synthetic import write_synthetic_corpus
from covnmt.evaluation.alignment_files import load_matrices, save_matrices
from covnmt.evaluation.evaluate import Comparison, compare
from covnmt.evaluation.figures import draw_heat_maps
from covnmt.evaluation.html import attention_heat_maps, write_report
from covnmt.evaluation.system_output import read_outputs
from covnmt.evaluation.tables import comparison_table, length_table
from covnmt.evaluation.test_set import EvaluationSet, combine_output_lines, load_evaluation_set
from covnmt.inference.model import load
from covnmt.inference.translate import format_translations
from covnmt.model.directory import bundled_models
from covnmt.paper.experiments import example_sentences
from covnmt.text.tokenize import TokenizerSettings
from covnmt.training.loop import train

SYSTEMS = ("baseline", "gru10")
TRAIN, DEV, TEST = 20_000, 300, 600
# A sentence fit for a picture: long enough to get lost in, short enough to read.
PICTURE_LENGTHS = range(12, 26)
EXAMPLES = 3  # for each model that comes along


def run_demo(directory: Path) -> Iterator[RenderableType]:
    """Do it all in `directory`, telling what there is to see."""
    began = time.monotonic()
    text, data = directory / "text", directory / "data"
    make_data(text, data)
    for system in SYSTEMS:
        train_system(system, data, directory / system)
        translate_test(text, directory / system)
    on = load_evaluation_set([text / "test.tgt"], text / "test.src", text / "test.align", 0, True)
    systems = {system: read_outputs(directory / system / "test.jsonl") for system in SYSTEMS}
    forced = {system: load_matrices(directory / system / "test.npz") for system in SYSTEMS}
    outputs = {system: combine_output_lines(systems[system], forced[system]) for system in SYSTEMS}
    comparison = compare(outputs, on)
    yield comparison_table(comparison, "The embedded pair, test set")
    yield length_table(comparison.systems, "By source length")
    sentence = most_improved_sentence(comparison, on)
    picture = directory / "heat-maps.png"
    draw_heat_maps(attention_heat_maps(systems, sentence), picture)
    page = write_report(directory / "report", "covnmt demo", on, systems, forced)
    yield f"Test sentence {sentence + 1}, where coverage mends the most words: {picture}"
    yield f"Report: {page}"
    yield from translate_examples()
    yield f"Took {time.monotonic() - began:.0f} seconds."


def make_data(text: Path, data: Path) -> None:
    """Write and prepare the embedded pair."""
    if not (data / "corpus.json").exists():
        write_synthetic_corpus(text, train=TRAIN, dev=DEV, test=TEST)
    words = TokenizerSettings(kind="whitespace")
    pairs = {
        part: (text / f"{part}.src", text / f"{part}.tgt") for part in ("train", "dev", "test")
    }
    settings = PrepareSettings(
        source=words, target=words, train=(pairs["train"],), dev=pairs["dev"], test=pairs["test"]
    )
    prepare_corpus(settings, data)


def train_system(system: str, data: Path, run: Path) -> None:
    """Train by the demo's recipe, or go on where an earlier call stopped."""
    log(f"training {system}")
    config = load_recipe(find_recipe(f"demo/{system}"), [f"data.directory={toml_string(data)}"])
    outcome = train(config, run, torch.device("cpu"))
    if outcome.interrupted:
        raise KeyboardInterrupt


def translate_test(text: Path, run: Path) -> None:
    """Translate the test set, and align its reference by forced decoding."""
    if (run / "test.npz").exists():
        return
    pairs = list(read_parallel_lines(text / "test.src", text / "test.tgt"))
    model = load(run, device="cpu")
    done = model.translate_stream(source for source, _ in pairs)
    shown = track(done, len(pairs), "translating", "sentences")
    write_lines(run / "test.jsonl", format_translations(shown, as_json=True, nbest=1))
    aligned = model.align((source, target) for source, target in pairs)
    save_matrices(run / "test.npz", [pair.matrix for pair in aligned])


def most_improved_sentence(comparison: Comparison, on: EvaluationSet) -> int:
    """The test sentence in which coverage mends the most words left out or said twice."""
    before, after = (
        [
            len(words.omitted) + len(words.repeated)
            for words in comparison.systems[system].word_errors
        ]
        for system in SYSTEMS
    )
    fit = [k for k, (length, _) in enumerate(on.lengths()) if length in PICTURE_LENGTHS]
    return max(fit, key=lambda k: before[k] - after[k])


def translate_examples() -> Iterator[Text]:
    """Sentences of our own, as one would type them, by the models that come along."""
    for name in bundled_models():
        language, _, _ = name.partition("-")
        lines = [line.replace(" ", "") for line in example_sentences(language)[:EXAMPLES]]
        for translation in load(name).translate(lines):
            yield Text(f"{name}  {translation.source}\n       {translation.text}")
