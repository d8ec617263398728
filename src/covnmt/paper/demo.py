"""The demo: train the attention baseline and a coverage model, and compare them.

It runs on the embedded pair, whose gold alignment says exactly which words a translation omits or
repeats. Everything shown comes from this very run. A second call resumes, or only shows it again.
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
from covnmt.evaluation.alignment_files import load_matrices, save_matrices
from covnmt.evaluation.evaluate import Comparison, compare
from covnmt.evaluation.figures import draw_heat_maps
from covnmt.evaluation.html import attention_heat_maps, write_report
from covnmt.evaluation.system_output import combine_output_lines, read_outputs
from covnmt.evaluation.tables import comparison_table, length_table
from covnmt.evaluation.test_set import load_evaluation_set
from covnmt.inference.model import load
from covnmt.inference.translate import format_translations
from covnmt.model.directory import bundled_models
from covnmt.paper.experiments import EXAMPLE_LENGTHS, example_sentences, find_experiment
from covnmt.text.tokenize import UNSPACED_LANGUAGES
from covnmt.training.loop import train

SYSTEMS = ("baseline", "gru10")
EXAMPLES = slice(1, 3)  # sentences for each bundled model
# A translation without a clause of its source, for `check`.
CHECKING_MODEL = "de-en"
CHECKED_PAIR = (
    "Der Minister trat zurück, weil er das Vertrauen des Parlaments verloren hatte.",
    "The minister resigned.",
)


def run_demo(directory: Path) -> Iterator[RenderableType]:
    """Train, translate and compare in `directory`; yields what there is to see."""
    began = time.monotonic()
    text, data = directory / "text", directory / "data"
    find_experiment("embedded").prepare(None, data)  # writes the text next to the data
    for system in SYSTEMS:
        train_demo_system(system, data, directory / system)
        translate_test(text, directory / system)
    gold = text / "test.align"
    test_set = load_evaluation_set(
        [text / "test.tgt"], text / "test.src", gold, 0, unique_reference=True
    )
    systems = {system: read_outputs(directory / system / "test.jsonl") for system in SYSTEMS}
    attention = {system: load_matrices(directory / system / "test.npz") for system in SYSTEMS}
    outputs = {
        system: combine_output_lines(systems[system], attention[system]) for system in SYSTEMS
    }
    comparison = compare(outputs, test_set)
    yield comparison_table(comparison, "The synthetic pair, test set")
    yield length_table(comparison.systems, "By source length")
    sentence = most_improved_sentence(comparison)
    if sentence is not None:
        picture = directory / "heat-maps.png"
        draw_heat_maps(attention_heat_maps(systems, sentence), picture)
        yield f"Test sentence {sentence + 1}, where coverage corrects most words: {picture}"
    page = write_report(directory / "report", "covnmt demo", test_set, systems, attention)
    yield f"Report: {page}"
    yield from translate_examples()
    yield from check_example()
    yield f"Took {time.monotonic() - began:.0f} seconds."


def train_demo_system(system: str, data: Path, run: Path) -> None:
    """Train with the demo's recipe, or resume."""
    log(f"training {system}")
    config = load_recipe(find_recipe(f"demo/{system}"), [f"data.directory={toml_string(data)}"])
    outcome = train(config, run, torch.device("cpu"))
    if outcome.interrupted:
        raise KeyboardInterrupt


def translate_test(text: Path, run: Path) -> None:
    """Translate the test set, and force-decode its references."""
    if (run / "test.npz").exists():
        return
    pairs = list(read_parallel_lines(text / "test.src", text / "test.tgt"))
    model = load(run, device="cpu")
    translations = model.translate_stream(source for source, _ in pairs)
    tracked = track(translations, len(pairs), "translating", "sentences")
    write_lines(run / "test.jsonl", format_translations(tracked, as_json=True, nbest=1))
    aligned = model.align((source, target) for source, target in pairs)
    save_matrices(run / "test.npz", [pair.matrix for pair in aligned])


def most_improved_sentence(comparison: Comparison) -> int | None:
    """Find the test sentence where coverage corrects most omitted and repeated words, if any."""
    before, after = (
        [len(errors.omitted) + len(errors.repeated) for errors in system.word_errors]
        for system in (comparison.systems[name] for name in SYSTEMS)
    )
    sentences = enumerate(comparison.systems[SYSTEMS[0]].word_errors)
    readable = [k for k, errors in sentences if errors.source_length in EXAMPLE_LENGTHS]
    best = max(readable, key=lambda k: before[k] - after[k])
    return best if before[best] > after[best] else None


def translate_examples() -> Iterator[Text]:
    """Translate sentences of our own with the bundled models."""
    for name in bundled_models():
        language, _, _ = name.partition("-")
        lines = example_sentences(language)[EXAMPLES]
        if language in UNSPACED_LANGUAGES:  # the examples are split into words
            lines = [line.replace(" ", "") for line in lines]
        for translation in load(name).translate(lines):
            yield Text(f"{name}  {translation.source}\n       {translation.text}")


def check_example() -> Iterator[Text]:
    """Find what a translation leaves out with a bundled model."""
    if CHECKING_MODEL in bundled_models():
        source, target = CHECKED_PAIR
        [report] = load(CHECKING_MODEL).check([CHECKED_PAIR])
        for omission in report.omissions:
            finding = f"omission ({omission.probability:.2f}): {omission.text}"
            yield Text(f"check  {source}\n       {target}\n       {finding}")
