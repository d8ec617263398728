"""A phrase-based model on disk, and the stages that make it (`covnmt smt train`).

    forward-1.npz backward-1.npz   each word's choice, one chain and direction each
    links.npz                      all of them joined
    bitext.npz phrases.npz         the training pairs as ids, every occurrence of a phrase pair
    lexicon.npz                    counts of linked words
    lm/                            the language model
    dev.source.txt dev.target.txt  what the weights are tuned on
    weights.json                   the tuned weights (`covnmt smt tune`)

next to the tokenizers and vocabularies of both sides. Each stage ends with a small JSON file that
says what it was made from, how long it took and what came out; a stage whose file says the same as
what is asked for, and whose other files are there, is not done again. smt.json, the settings, is
there only while all stages belong together.
"""

import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from covnmt.base.config import read_if_made_from, read_settings
from covnmt.base.console import log
from covnmt.base.errors import UserError
from covnmt.base.files import read_json, write_json, write_lines
from covnmt.base.processes import map_unordered
from covnmt.data.corpus import Corpus
from covnmt.phrase_based import aligner, language_model, lexicon, phrases
from covnmt.phrase_based.aligner import AlignerChain, WordLinks
from covnmt.phrase_based.bitext import Bitext, load_arrays, save_arrays
from covnmt.phrase_based.language_model import LanguageModel
from covnmt.phrase_based.lexicon import Lexicon
from covnmt.phrase_based.phrases import PhraseOccurrences
from covnmt.phrase_based.settings import PhraseBasedSettings
from covnmt.text.codec import Codec, Side, copy_codecs

Figures = dict[str, Any]
MODEL_FILE = "smt.json"
LANGUAGE_MODEL_DIRECTORY = "lm"
PHRASE_FILES = ("bitext.npz", "lexicon.npz", "phrases.npz")
LANGUAGE_MODEL_FILES = tuple(
    f"{LANGUAGE_MODEL_DIRECTORY}/{each.name}.npy" for each in fields(LanguageModel)
)


@dataclass(frozen=True)
class PhraseBasedModel:
    """A trained model; what is large is read when it is asked for."""

    directory: Path
    settings: PhraseBasedSettings

    @classmethod
    def open(cls, directory: Path) -> "PhraseBasedModel":
        """A directory made by `covnmt smt train`."""
        if not (directory / MODEL_FILE).exists():
            raise UserError(f"{directory}: holds no phrase-based model; make one: covnmt smt train")
        return cls(directory, read_settings(directory / MODEL_FILE, PhraseBasedSettings))

    def codec(self, side: Side) -> Codec:
        """The tokenizer and vocabulary of one side."""
        return Codec.load(self.directory, side)

    def bitext(self) -> Bitext:
        """The training pairs."""
        return Bitext.load(self.directory / "bitext.npz")

    def links(self) -> WordLinks:
        """Their word links."""
        return WordLinks.of(load_arrays(self.directory / "links.npz"))

    def occurrences(self) -> PhraseOccurrences:
        """Their phrase pairs."""
        return PhraseOccurrences.of(load_arrays(self.directory / "phrases.npz"))

    def lexicon(self) -> Lexicon:
        """Their linked words."""
        return Lexicon.of(load_arrays(self.directory / "lexicon.npz"))

    def identity(self) -> Figures:
        """What it was made from; weights belong to one identity."""
        stages = {name: noted["made_from"] for name, noted in self.figures().items()}
        return {"settings": self.settings.model_dump(mode="json"), "stages": stages}

    def figures(self) -> dict[str, Figures]:
        """What the stages noted."""
        paths = {name: self.directory / f"{name}.json" for name in stage_names(self.settings)}
        return {name: read_json(path) for name, path in paths.items() if path.exists()}


def stage_names(settings: PhraseBasedSettings) -> list[str]:
    """The names of all stages, in order."""
    return [*map(str, aligner.list_chains(settings.align)), "links", "phrases", "language-model"]


def train_phrase_based(
    data: Path, directory: Path, settings: PhraseBasedSettings, processes: int = 1
) -> PhraseBasedModel:
    """Train on a prepared corpus; stages that are done are not done again.

    The alignment chains are shared among `processes`.
    """
    if (directory / "config.json").exists():
        raise UserError(f"{directory}: holds a neural model; choose another directory")
    builder = ModelBuilder(Corpus.open(data), directory, settings)
    builder.take_texts()
    builder.link_words(processes)
    asked = settings.model_dump(mode="json")
    phrase = {"align": asked["align"], "max_phrase": settings.max_phrase}
    builder.stage("phrases", phrase, PHRASE_FILES, builder.collect_phrases)
    order = {"order": settings.order}
    builder.stage("language-model", order, LANGUAGE_MODEL_FILES, builder.count_ngrams)
    write_json(directory / MODEL_FILE, asked)
    return PhraseBasedModel(directory, settings)


@dataclass(frozen=True)
class ModelBuilder:
    """The stages, each of which leaves files in the directory and tells a few figures."""

    corpus: Corpus
    directory: Path
    settings: PhraseBasedSettings

    def stage(
        self, name: str, settings: Figures, files: Sequence[str], make: Callable[[], Figures]
    ) -> None:
        """Do a stage, unless it was done with the same settings on the same text."""
        made_from = {"data": self.corpus.identity(), "pairs": self.settings.pairs, **settings}
        note = self.directory / f"{name}.json"
        if read_if_made_from(note, made_from, [self.directory / file for file in files]):
            log(f"{name}: done already")
            return
        note.unlink(missing_ok=True)
        began, cpu = time.monotonic(), cpu_seconds()
        figures = make()
        cost = {
            "seconds": round(time.monotonic() - began, 1),
            "cpu_seconds": round(cpu_seconds() - cpu, 1),
            "peak_mib": peak_mib(),
        }
        write_json(note, {"made_from": made_from, **figures, **cost})
        log(f"{name}: {cost['seconds']:,.0f} s")

    def bitext(self) -> Bitext:
        """The pairs to train on."""
        return Bitext.of(self.corpus.split("train"), self.settings.pairs)

    def take_texts(self) -> None:
        """Copy what the other commands need; this is no model until all stages are done."""
        dev = self.corpus.split("dev")
        (self.directory / MODEL_FILE).unlink(missing_ok=True)
        copy_codecs(self.corpus.directory, self.directory)
        write_lines(self.directory / "dev.source.txt", dev.source_text())
        write_lines(self.directory / "dev.target.txt", dev.target_text())

    def link_words(self, processes: int) -> None:
        """The stages up to joined links; chains are trained side by side."""
        align = self.settings.align.model_dump(mode="json")
        for _ in map_unordered(
            self.train_chain, aligner.list_chains(self.settings.align), processes
        ):
            pass
        self.stage("links", align, ["links.npz"], self.join_links)

    def train_chain(self, chain: AlignerChain) -> None:
        """One training of the aligner."""
        align = self.settings.align
        way = {"kind": align.kind, "seed": align.seed + chain.number}
        file = f"{chain}.npz"

        def make() -> Figures:
            bitext = self.bitext()
            choices = aligner.train_chain(bitext, align, chain)
            save_arrays(self.directory / file, {"choices": choices})
            return {"linked": float((choices > 0).mean())}

        self.stage(str(chain), way, [file], make)

    def join_links(self) -> Figures:
        """One set of links for both directions and all chains."""
        bitext, align = self.bitext(), self.settings.align
        found = {
            chain: load_arrays(self.directory / f"{chain}.npz")["choices"]
            for chain in aligner.list_chains(align)
        }
        links = aligner.combine_chains(found, bitext, align.joining)
        save_arrays(self.directory / "links.npz", links.arrays())
        return {"pairs": len(bitext), "links": len(links.source)}

    def collect_phrases(self) -> Figures:
        """PhraseOccurrences of phrase pairs, and the lexicon."""
        bitext, rows = self.bitext(), self.corpus.report.vocabulary_sizes
        links = WordLinks.of(load_arrays(self.directory / "links.npz"))
        bitext.save(self.directory / "bitext.npz")
        words = lexicon.count_links(bitext, links, rows["source"], rows["target"])
        save_arrays(self.directory / "lexicon.npz", words.arrays())
        found = phrases.extract_phrases(bitext, links, self.settings.max_phrase)
        save_arrays(self.directory / "phrases.npz", found.arrays())
        return {
            "occurrences": len(found),
            "word_pairs": len(words.count),
            "mib": size_mib(self.directory / "phrases.npz"),
        }

    def count_ngrams(self) -> Figures:
        """The language model."""
        end, longest = self.corpus.report.vocabulary_sizes["target"] - 1, self.settings.order
        orders = language_model.count_ngrams(self.bitext().target, end, longest)
        model = language_model.smooth_counts(orders)
        model.save(self.directory / LANGUAGE_MODEL_DIRECTORY)
        dev = self.corpus.split("dev").target_sentences
        return {
            "ngrams": [len(order.word) for order in orders],
            "dev_perplexity": model.perplexity(dev),
            "mib": sum(map(size_mib, (self.directory / LANGUAGE_MODEL_DIRECTORY).iterdir())),
        }


def size_mib(path: Path) -> float:
    """Of a file."""
    return round(path.stat().st_size / 2**20, 1)


def cpu_seconds() -> float:
    """Of this process so far, and of those that it has started and ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def peak_mib() -> int:
    """The most memory that this process, or one that it has started and ended, has held so far."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    known = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(who).ru_maxrss for who in known) // unit
