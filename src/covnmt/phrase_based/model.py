"""A phrase-based model on disk, and the stages that train it (`covnmt smt train`).

    forward-1.npz backward-1.npz   links of each chain and direction, as source positions
    links.npz                      links of all chains, symmetrized
    bitext.npz phrases.npz         the training pairs as ids, every occurrence of a phrase pair
    lexicon.npz                    counts of linked words
    lm/                            the language model
    dev.source.txt dev.target.txt  the text that weights are tuned on
    weights.json                   the tuned weights (`covnmt smt tune`)

next to the tokenizers and vocabularies of both sides. Each stage ends with a small JSON record:
what it was made from, how long it took and what came out. A stage is skipped if its record fits the
settings asked for and its files are there. smt.json, the settings, exists only while all stages
belong together.
"""

import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from covnmt.base.config import read_if_made_from, read_settings
from covnmt.base.console import log
from covnmt.base.errors import UserError
from covnmt.base.files import read_json, write_json, write_lines
from covnmt.base.processes import map_unordered
from covnmt.data.corpus import Corpus, Split
from covnmt.phrase_based import aligner, language_model, lexicon, phrases
from covnmt.phrase_based.aligner import AlignerChain, WordLinks
from covnmt.phrase_based.bitext import Bitext, load_arrays, save_arrays
from covnmt.phrase_based.lexicon import LinkCounts
from covnmt.phrase_based.phrases import PhraseOccurrences
from covnmt.phrase_based.settings import PhraseBasedSettings
from covnmt.text.codec import Codec, Side, copy_codecs

MODEL_FILE = "smt.json"
LANGUAGE_MODEL_DIRECTORY = "lm"
PHRASE_FILES = ("bitext.npz", "lexicon.npz", "phrases.npz")
LANGUAGE_MODEL_FILES = tuple(
    f"{LANGUAGE_MODEL_DIRECTORY}/{file}" for file in language_model.ARRAY_FILES.values()
)


class StageRecord(BaseModel):
    """The JSON record of a stage; its further keys say what came out."""

    model_config = ConfigDict(frozen=True, extra="allow")

    made_from: dict[str, Any]
    seconds: float
    cpu_seconds: float
    peak_mib: int


class ModelIdentity(BaseModel):
    """Settings and inputs of a model; tuned weights belong to one identity."""

    model_config = ConfigDict(frozen=True)

    settings: PhraseBasedSettings
    stages: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class PhraseBasedModel:
    """A trained model; large parts are read when they are asked for."""

    directory: Path
    settings: PhraseBasedSettings

    @classmethod
    def open(cls, directory: Path) -> "PhraseBasedModel":
        """Open a directory made by `covnmt smt train`."""
        if not (directory / MODEL_FILE).exists():
            raise UserError(f"{directory}: holds no phrase-based model; make one: covnmt smt train")
        return cls(directory, read_settings(directory / MODEL_FILE, PhraseBasedSettings))

    def codec(self, side: Side) -> Codec:
        """Load the tokenizer and vocabulary of one side."""
        return Codec.load(self.directory, side)

    def bitext(self) -> Bitext:
        """Load the training pairs."""
        return Bitext.load(self.directory / "bitext.npz")

    def occurrences(self) -> PhraseOccurrences:
        """Load the phrase pairs of the training pairs."""
        return PhraseOccurrences.load(self.directory / "phrases.npz")

    def lexicon(self) -> LinkCounts:
        """Load the linked words of the training pairs."""
        return LinkCounts.load(self.directory / "lexicon.npz")

    def identity(self) -> ModelIdentity:
        """Return what the model was made from."""
        stages = {name: record.made_from for name, record in self.stage_records().items()}
        return ModelIdentity(settings=self.settings, stages=stages)

    def stage_records(self) -> dict[str, StageRecord]:
        """Read the records of the finished stages."""
        paths = {name: self.directory / f"{name}.json" for name in stage_names(self.settings)}
        return {name: read_stage(path) for name, path in paths.items() if path.exists()}


def read_stage(path: Path) -> StageRecord:
    """Read the record of a stage."""
    try:
        return StageRecord.model_validate(read_json(path))
    except ValidationError:
        raise UserError(f"{path}: damaged; remove it and run `covnmt smt train` again") from None


def stage_names(settings: PhraseBasedSettings) -> list[str]:
    """List all stages, in order."""
    return [*map(str, aligner.list_chains(settings.align)), "links", "phrases", "language-model"]


def train_phrase_based(
    data: Path, directory: Path, settings: PhraseBasedSettings, processes: int = 1
) -> PhraseBasedModel:
    """Train on a prepared corpus; finished stages are not repeated.

    The alignment chains are shared among `processes`.
    """
    if (directory / "config.json").exists():
        raise UserError(f"{directory}: holds a neural model; choose another directory")
    builder = ModelBuilder(Corpus.open(data), directory, settings)
    dev = builder.corpus.split("dev")
    (directory / MODEL_FILE).unlink(missing_ok=True)  # until all stages are done
    builder.copy_texts(dev)
    builder.align_words(processes)
    dumped = settings.model_dump(mode="json")
    phrase_settings = {"align": dumped["align"], "max_phrase": settings.max_phrase}
    builder.stage("phrases", phrase_settings, PHRASE_FILES, builder.extract_phrases)
    order = {"order": settings.order}
    builder.stage("language-model", order, LANGUAGE_MODEL_FILES, builder.estimate_language_model)
    write_json(directory / MODEL_FILE, dumped)
    return PhraseBasedModel(directory, settings)


@dataclass(frozen=True)
class ModelBuilder:
    """The stages: each leaves files in the directory and returns figures for its record."""

    corpus: Corpus
    directory: Path
    settings: PhraseBasedSettings

    def stage(
        self,
        name: str,
        settings: dict[str, Any],
        files: Sequence[str],
        run: Callable[[], dict[str, Any]],
    ) -> None:
        """Run a stage, unless it was run with the same settings on the same text."""
        made_from = {"data": self.corpus.identity(), "pairs": self.settings.pairs, **settings}
        path = self.directory / f"{name}.json"
        if read_if_made_from(path, made_from, [self.directory / file for file in files]):
            log(f"{name}: done already")
            return
        path.unlink(missing_ok=True)
        began, cpu_before = time.monotonic(), cpu_seconds()
        figures = run()
        cost = {
            "seconds": round(time.monotonic() - began, 1),
            "cpu_seconds": round(cpu_seconds() - cpu_before, 1),
            "peak_mib": peak_mib(),
        }
        write_json(path, {"made_from": made_from, **figures, **cost})
        log(f"{name}: {cost['seconds']:,.0f} s")

    def bitext(self) -> Bitext:
        """Return the pairs to train on."""
        return Bitext.from_split(self.corpus.split("train"), self.settings.pairs)

    def copy_texts(self, dev: Split) -> None:
        """Copy the tokenizers, vocabularies and text that later commands need."""
        copy_codecs(self.corpus.directory, self.directory)
        write_lines(self.directory / "dev.source.txt", dev.text("source"))
        write_lines(self.directory / "dev.target.txt", dev.text("target"))

    def align_words(self, processes: int) -> None:
        """Run the stages up to symmetrized links; chains are trained side by side."""
        settings = self.settings.align.model_dump(mode="json")
        chains = aligner.list_chains(self.settings.align)
        for _ in map_unordered(self.train_chain, chains, processes):
            pass
        self.stage("links", settings, ["links.npz"], self.symmetrize_links)

    def train_chain(self, chain: AlignerChain) -> None:
        """Run the stage of one training of the aligner."""
        settings = self.settings.align
        file = f"{chain}.npz"

        def run() -> dict[str, Any]:
            positions = aligner.train_chain(self.bitext(), settings, chain)
            save_arrays(self.directory / file, {"choices": positions})
            return {"linked": float((positions > 0).mean())}

        chain_settings = {"kind": settings.kind, "seed": settings.seed + chain.number}
        self.stage(str(chain), chain_settings, [file], run)

    def symmetrize_links(self) -> dict[str, Any]:
        """Merge the links of all chains and both directions."""
        bitext, settings = self.bitext(), self.settings.align
        chains = {
            chain: load_arrays(self.directory / f"{chain}.npz")["choices"]
            for chain in aligner.list_chains(settings)
        }
        links = aligner.combine_chains(chains, bitext, settings.joining)
        links.save(self.directory / "links.npz")
        return {"pairs": len(bitext), "links": len(links.source)}

    def extract_phrases(self) -> dict[str, Any]:
        """Find all occurrences of phrase pairs, and count the lexicon."""
        bitext, sizes = self.bitext(), self.corpus.report.vocabulary_sizes
        links = WordLinks.load(self.directory / "links.npz")
        bitext.save(self.directory / "bitext.npz")
        word_pairs = lexicon.count_links(bitext, links, sizes["source"], sizes["target"])
        word_pairs.save(self.directory / "lexicon.npz")
        occurrences = phrases.extract_phrases(bitext, links, self.settings.max_phrase)
        occurrences.save(self.directory / "phrases.npz")
        return {
            "occurrences": len(occurrences),
            "word_pairs": len(word_pairs.count),
            "mib": size_mib(self.directory / "phrases.npz"),
        }

    def estimate_language_model(self) -> dict[str, Any]:
        """Count n-grams and smooth them."""
        end, order = self.corpus.report.vocabulary_sizes["target"] - 1, self.settings.order
        counts = language_model.count_ngram_orders(self.bitext().target, end, order)
        model = language_model.smooth_counts(counts)
        model.save(self.directory / LANGUAGE_MODEL_DIRECTORY)
        dev = self.corpus.split("dev").target
        return {
            "ngrams": [len(ngrams.word) for ngrams in counts],
            "dev_perplexity": model.perplexity(dev),
            "mib": sum(map(size_mib, (self.directory / LANGUAGE_MODEL_DIRECTORY).iterdir())),
        }


def size_mib(path: Path) -> float:
    """Return the size of a file."""
    return round(path.stat().st_size / 2**20, 1)


def cpu_seconds() -> float:
    """Return the CPU time of this process and of the child processes that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def peak_mib() -> int:
    """Return the peak memory of this process, or of the largest child that has ended."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    scopes = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(scope).ru_maxrss for scope in scopes) // unit
