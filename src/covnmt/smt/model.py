"""A phrase-based model on disk, and the stages that make it (`covnmt smt train`).

    forward.npz backward.npz       each word's choice, one direction each
    links.npz                      the two joined
    bitext.npz phrases.npz         the training pairs as ids, every occurrence of a phrase pair
    lexicon.npz lexicon/           counts of linked words; the same as Thot reads it
    lm lm.weights                  the language model
    dev.source.txt dev.target.txt  what the weights are tuned on
    weights.json                   the tuned weights (`covnmt smt tune`)

next to the tokenizers and vocabularies of both sides. Each stage ends with a small JSON file that
says what it was made from, how long it took and what came out; a stage whose file says the same as
what is asked for is not done again.
"""

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covnmt.errors import UserError
from covnmt.files import read_json, write_json, write_lines
from covnmt.progress import console
from covnmt.smt import aligner, language_model, lexicon, phrases
from covnmt.smt.aligner import WordLinks
from covnmt.smt.bitext import Bitext, load_arrays, save_arrays
from covnmt.smt.lexicon import Lexicon
from covnmt.smt.phrases import Occurrences
from covnmt.smt.settings import TrainSettings
from covnmt.text.codec import Codec, Side, copy_codecs, read_settings
from covnmt.text.corpus import Corpus

Figures = dict[str, Any]
MODEL = "smt.json"
STAGES = ("forward", "backward", "links", "phrases", "language-model")
TABLES = "tm"  # the prefix of Thot's files


@dataclass(frozen=True)
class SmtModel:
    """A trained model; what is large is read when it is asked for."""

    directory: Path
    settings: TrainSettings

    @classmethod
    def open(cls, directory: Path) -> "SmtModel":
        """A directory made by `covnmt smt train`."""
        if not (directory / MODEL).exists():
            raise UserError(f"{directory}: holds no phrase-based model; make one: covnmt smt train")
        return cls(directory, read_settings(directory / MODEL, TrainSettings))

    def codec(self, side: Side) -> Codec:
        """The tokenizer and vocabulary of one side."""
        return Codec.load(self.directory, side)

    def bitext(self) -> Bitext:
        """The training pairs."""
        return Bitext.load(self.directory / "bitext.npz")

    def links(self) -> WordLinks:
        """Their word links."""
        return WordLinks.of(load_arrays(self.directory / "links.npz"))

    def occurrences(self) -> Occurrences:
        """Their phrase pairs."""
        return Occurrences.of(load_arrays(self.directory / "phrases.npz"))

    def lexicon(self) -> Lexicon:
        """Their linked words."""
        return Lexicon.of(load_arrays(self.directory / "lexicon.npz"))

    def identity(self) -> Figures:
        """What it was made from; weights belong to one identity."""
        stages = {name: noted["made_from"] for name, noted in self.figures().items()}
        return {"settings": self.settings.model_dump(mode="json"), "stages": stages}

    def figures(self) -> dict[str, Figures]:
        """What the stages noted."""
        paths = {name: self.directory / f"{name}.json" for name in STAGES}
        return {name: read_json(path) for name, path in paths.items() if path.exists()}


def build(corpus: Corpus, directory: Path, settings: TrainSettings) -> SmtModel:
    """Make a model from a prepared corpus; stages that are done are not done again."""
    builder = Builder(corpus, directory, settings)
    builder.take_texts()
    builder.link_words()
    asked = settings.model_dump(mode="json")
    phrase = {"align": asked["align"], "max_phrase": settings.max_phrase}
    ngram = {"order": settings.order, "min_count": settings.min_count}
    builder.stage("phrases", phrase, builder.collect_phrases)
    builder.stage("language-model", ngram, builder.count_ngrams)
    write_json(directory / MODEL, asked)
    return SmtModel(directory, settings)


@dataclass(frozen=True)
class Builder:
    """The stages, each of which leaves files in the directory and tells a few figures."""

    corpus: Corpus
    directory: Path
    settings: TrainSettings

    def stage(self, name: str, settings: Figures, make: Callable[[], Figures]) -> None:
        """Do a stage, unless it was done with the same settings on the same text."""
        made_from = {"data": self.corpus.identity(), "pairs": self.settings.pairs, **settings}
        note = self.directory / f"{name}.json"
        if note.exists() and read_json(note).get("made_from") == made_from:
            console.print(f"{name}: done already", highlight=False)
            return
        note.unlink(missing_ok=True)
        began = time.monotonic()
        figures = make()
        seconds = round(time.monotonic() - began, 1)
        known = {"made_from": made_from, **figures, "seconds": seconds, "peak_mib": peak_mib()}
        write_json(note, known)
        console.print(f"{name}: {seconds:,.0f} s", highlight=False)

    def bitext(self) -> Bitext:
        """The pairs to train on."""
        return Bitext.of(self.corpus.split("train"), self.settings.pairs)

    def take_texts(self) -> None:
        """Copy what the other commands need."""
        dev = self.corpus.split("dev")
        copy_codecs(self.corpus.directory, self.directory)
        write_lines(self.directory / "dev.source.txt", dev.source_text())
        write_lines(self.directory / "dev.target.txt", dev.target_text())

    def link_words(self) -> None:
        """The stages up to joined links."""
        align = self.settings.align.model_dump(mode="json")
        way = {key: value for key, value in align.items() if key != "joining"}
        bitext = self.bitext()
        self.stage("forward", way, lambda: self._one_way("forward", bitext))
        self.stage("backward", way, lambda: self._one_way("backward", bitext.turned()))
        self.stage("links", align, self._join)

    def _one_way(self, name: str, bitext: Bitext) -> Figures:
        choices = aligner.align_one_way(bitext, self.settings.align, name)
        save_arrays(self.directory / f"{name}.npz", {"choices": choices})
        return {"pairs": len(bitext), "linked": float((choices > 0).mean())}

    def _join(self) -> Figures:
        forward, backward = (
            load_arrays(self.directory / f"{name}.npz")["choices"]
            for name in ("forward", "backward")
        )
        links = aligner.join(forward, backward, self.bitext(), self.settings.align.joining)
        save_arrays(self.directory / "links.npz", links.arrays())
        return {"links": len(links.source)}

    def collect_phrases(self) -> Figures:
        """Occurrences of phrase pairs, and the lexicon."""
        bitext, rows = self.bitext(), self.corpus.report.rows
        links = WordLinks.of(load_arrays(self.directory / "links.npz"))
        bitext.save(self.directory / "bitext.npz")
        words = lexicon.count_links(bitext, links, rows["source"], rows["target"])
        save_arrays(self.directory / "lexicon.npz", words.arrays())
        prefix = self.directory / "lexicon" / TABLES
        direct, inverse = Path(f"{prefix}_invswm"), Path(f"{prefix}_swm")  # Thot's names
        lexicon.write_ibm1(direct, words, ("s", "t"), bitext.source, bitext.target)
        lexicon.write_ibm1(inverse, words.turned(), ("t", "s"), bitext.target, bitext.source)
        found = phrases.extract(bitext, links, self.settings.max_phrase)
        save_arrays(self.directory / "phrases.npz", found.arrays())
        return {"occurrences": len(found), "word_pairs": len(words.count)}

    def count_ngrams(self) -> Figures:
        """The language model."""
        ngrams = language_model.count_ngrams(
            self.bitext().target,
            self.corpus.report.rows["target"] - 1,
            self.settings.order,
            self.settings.min_count,
        )
        dev = self.corpus.split("dev").target_sentences
        weights = language_model.find_weights(ngrams, dev)
        language_model.write_language_model(self.directory / "lm", ngrams, weights)
        return {
            "ngrams": [len(order.word) for order in ngrams.orders],
            "dev_perplexity": language_model.perplexity(ngrams, weights, dev),
        }


def peak_mib() -> int:
    """The most memory that this process, or one that it has started and ended, has held so far."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    known = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(who).ru_maxrss for who in known) // unit
