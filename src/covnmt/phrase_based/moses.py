"""The engine `moses`: drives an installed Moses with the same text, links and dev set.

Words are linked by our aligner; Moses's own scripts make the phrase table, a lexicalised reordering
model and the language model, and tune the weights. It is looked for on the PATH, its scripts also
where they lie beside the decoder in Moses's own tree. MODEL/moses holds all its files.

Moses gives some words a meaning of their own (|||, <s>, <unk>), so it never sees the real ones:
source id 17 is `s17`, target id 17 is `t17`, and the unknown word of the training text `s1` or
`t1`. In a text to translate it is `u4` after its place in the sentence: what Moses cannot translate
it copies, so an output word that is no `t` word tells which source word it came from.
"""

import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from covnmt.base.errors import UserError
from covnmt.base.files import read_parallel, write_json, write_lines
from covnmt.data.corpus import Corpus
from covnmt.metrics.alignment import format_links, parse_links
from covnmt.phrase_based.bitext import Bitext
from covnmt.phrase_based.model import MODEL, Builder, Figures, SmtModel
from covnmt.phrase_based.settings import SearchSettings, TrainSettings, TuneSettings
from covnmt.phrase_based.translate import PhraseTranslation
from covnmt.phrase_based.tune_weights import DevSet
from covnmt.text.vocabulary import UNK, Vocabulary

LINKS = "aligned.grow-diag-final-and"  # where Moses expects links of that name
TUNED = Path("moses", "tuning", "moses.ini")
UNTUNED = Path("moses", "model", "moses.ini")


def build(corpus: Corpus, directory: Path, settings: TrainSettings, processes: int) -> SmtModel:
    """Make a model from a prepared corpus; stages that are done are not done again."""
    for name in ("moses", "lmplz", "train-model.perl"):
        find(name)
    builder = Builder(corpus, directory, settings)
    builder.take_texts()
    builder.link_words(processes)
    asked = settings.model_dump(mode="json", exclude={"options"})
    builder.stage("moses", asked, [str(UNTUNED)], lambda: _run_training(builder))
    write_json(directory / MODEL, settings.model_dump(mode="json"))
    return SmtModel(directory, settings)


def find(name: str) -> Path:
    """A program of Moses."""
    if path := shutil.which(name):
        return Path(path)
    decoder = shutil.which("moses")
    beside = Path(decoder).resolve().parents[1] / "scripts" / "training" if decoder else None
    if beside and (beside / name).exists():
        return beside / name
    raise UserError(
        f"{name}: no such program on the PATH; --engine moses needs an installed Moses with "
        "moses, lmplz, train-model.perl and mert-moses.pl; or leave --engine out to use our own"
    )


def run(*command: object, log: Path, into: Path | None = None, given: Path | None = None) -> None:
    """Run a program; what it tells goes to a log, which an error names."""
    log.parent.mkdir(parents=True, exist_ok=True)
    words = [str(word) for word in command]
    with log.open("ab") as told:
        source = given.open("rb") if given else None
        result = into.open("wb") if into else None
        done = subprocess.run(
            words,
            stdin=source or subprocess.DEVNULL,
            stdout=result or told,
            stderr=told,
            check=False,
        )
        for stream in (source, result):
            if stream:
                stream.close()
    if done.returncode:
        name = Path(words[0]).name
        raise UserError(f"{name} ended with code {done.returncode}; {log} says why")


def _run_training(builder: Builder) -> Figures:
    place, settings = (builder.directory / "moses").resolve(), builder.settings
    bitext, corpus, log = builder.bitext(), place / "corpus", place / "training.log"
    links = SmtModel(builder.directory, settings).links()
    (builder.directory / TUNED).unlink(missing_ok=True)  # the weights of another training
    write_lines(Path(f"{corpus}.source"), _text(bitext, "s"))
    write_lines(Path(f"{corpus}.target"), _text(bitext.turned(), "t"))
    write_lines(place / "model" / LINKS, (format_links(links[n]) for n in range(len(bitext))))
    order, arpa = settings.order, place / "lm.arpa"
    text = Path(f"{corpus}.target")
    run(find("lmplz"), "-o", order, "--discount_fallback", given=text, into=arpa, log=log)
    run(
        *(find("train-model.perl"), "-root-dir", place, "-corpus", corpus),
        *("-f", "source", "-e", "target", "-alignment", "grow-diag-final-and"),
        *("-first-step", 4, "-reordering", "msd-bidirectional-fe"),
        *("-max-phrase-length", settings.max_phrase, "-lm", f"0:{order}:{arpa}:8"),
        log=log,
    )
    return {"pairs": len(bitext)}


def _text(bitext: Bitext, letter: str) -> Iterator[str]:
    """The first side, in the words of `bitext`."""
    for n in range(len(bitext)):
        yield " ".join(f"{letter}{i}" for i in bitext.source[n].tolist())


def tune(model: SmtModel, settings: TuneSettings) -> Path:
    """Run MERT as Moses brings it; gives the tuned settings file."""
    place = (model.directory / "moses").resolve()
    dev = DevSet.of(model, settings.sentences)
    words = (source_words(tokens, model.codec("source").vocabulary) for tokens in dev.source)
    vocabulary = model.codec("target").vocabulary
    write_lines(place / "dev.source", map(" ".join, words))
    write_lines(place / "dev.target", (_target_words(line, vocabulary) for line in dev.target))
    flags = f"-threads {settings.search.processes} -distortion-limit {settings.search.reorder}"
    run(
        *(find("mert-moses.pl"), place / "dev.source", place / "dev.target", find("moses")),
        *(model.directory.resolve() / UNTUNED, "--working-dir", place / "tuning"),
        *("--nbest", settings.nbest, "--maximum-iterations", settings.iterations),
        *("--predictable-seeds", f"--decoder-flags={flags}"),
        log=place / "tuning.log",
    )
    return model.directory / TUNED


def _target_words(tokens: Sequence[str], vocabulary: Vocabulary) -> str:
    return " ".join(f"t{i}" for i in vocabulary.encode(tokens))


def translate(
    model: SmtModel, lines: Sequence[str], settings: SearchSettings
) -> Iterator[PhraseTranslation]:
    """Translate lines, in order; an empty line stays empty."""
    place = (model.directory / "moses").resolve()
    source, target = model.codec("source"), model.codec("target")
    tokens = [source.tokenize(line) for line in lines]
    words = [source_words(each, source.vocabulary) for each in tokens]
    given, into, links = (place / f"translate.{name}" for name in ("source", "target", "links"))
    write_lines(given, map(" ".join, words))
    ini = model.directory / (TUNED if (model.directory / TUNED).exists() else UNTUNED)
    run(
        *(find("moses"), "-f", ini.resolve(), "-threads", settings.processes),
        *("-distortion-limit", settings.reorder),
        *("-alignment-output-file", links),
        given=given,
        into=into,
        log=place / "translate.log",
    )
    outputs = list(read_parallel(into, links))
    if len(outputs) != len(lines):
        raise UserError(f"moses wrote {len(outputs)} lines for {len(lines)}: {place}/translate.log")
    for line, own, named, (text, linked) in zip(lines, tokens, words, outputs, strict=True):
        said = target_tokens(text.split(), named, own, target.vocabulary)
        found = parse_links(linked).sure
        yield PhraseTranslation(line, own, said, target.detokenize(said), 0.0, found)


def source_words(tokens: Sequence[str], vocabulary: Vocabulary) -> list[str]:
    """The words of one source sentence as Moses reads them."""
    ids = vocabulary.encode(tokens)
    return [f"u{place}" if i == UNK else f"s{i}" for place, i in enumerate(ids)]


def target_tokens(
    words: Iterable[str], source: Sequence[str], tokens: Sequence[str], vocabulary: Vocabulary
) -> list[str]:
    """Moses's output as tokens; a word it copied becomes the source token it stands for."""
    copied = dict(zip(source, tokens, strict=True))
    return [copied.get(word) or vocabulary.decode([int(word[1:])])[0] for word in words]
