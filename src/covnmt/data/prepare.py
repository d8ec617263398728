"""Parallel text files -> a prepared directory (see `corpus` for what it holds).

Every pair of files is a part of its own (see `parts`); several processes work on them. Memory
stays flat, however large the corpus is, and an interrupted call goes on where it was.
"""

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np

from covnmt.base import files
from covnmt.base.arrays import IntArray
from covnmt.base.config import require_same_settings
from covnmt.base.console import track
from covnmt.base.errors import UserError
from covnmt.base.processes import map_unordered
from covnmt.data.corpus import (
    CORPUS_FORMAT,
    DROP_REASONS,
    Corpus,
    DropReason,
    PrepareReport,
    SplitReport,
    format_dropped,
)
from covnmt.data.settings import SPLIT_NAMES, PrepareSettings, SplitName
from covnmt.data.tokenize_files import (
    EncodingTask,
    FilePair,
    add_token_counts,
    encode_file,
    tokenize_file_pair,
)
from covnmt.text.codec import SIDES, Codec, Side, vocabulary_fingerprint
from covnmt.text.tokenize import SentencePieceTokenizer, build_tokenizer, clean_line
from covnmt.text.vocabulary import (
    MAX_SUBWORD_LENGTH,
    MAX_SUBWORD_LENGTH_UNSPACED,
    Vocabulary,
    train_sentencepiece,
)

SHUFFLED_AT_ONCE = 1 << 21  # pairs; more of them are dealt to piles on disk first
ENDS_AT_A_TIME = 1 << 20


def prepare_corpus(
    settings: PrepareSettings, output: Path, overwrite: bool = False, workers: int = 1
) -> PrepareReport:
    """Tokenise, build vocabularies and write id arrays; streams, whatever the size of the text.

    So many processes work on the training files. What they make does not depend on their number.
    """
    inputs = {
        name: tuple(files.file_digest(path) for pair in pairs for path in pair)
        for name, pairs in settings.files().items()
    }
    if (output / "corpus.json").exists() and not overwrite:
        return _reuse(output, settings, inputs)
    if (output / "config.json").exists():
        raise UserError(f"{output}: holds a model, with its vocabularies; choose another directory")
    read = chain.from_iterable(chain(*settings.files().values()))
    files.check_distinct_paths((text for text, _ in _texts(settings, output)), read)
    work = output / ".prepare"
    _clear(output)
    splits, sizes = _fill(settings, inputs, output, work, workers)
    report = PrepareReport(
        version=CORPUS_FORMAT,
        settings=settings,
        inputs=inputs,
        splits=splits,
        vocabulary_sizes=sizes,
        fingerprint=vocabulary_fingerprint(output),
    )
    files.write_json(output / "corpus.json", report.model_dump(mode="json"))
    shutil.rmtree(work, ignore_errors=True)
    return report


def _reuse(
    output: Path, settings: PrepareSettings, inputs: Mapping[SplitName, tuple[str, ...]]
) -> PrepareReport:
    """The report of a directory made with the same settings from the same text."""
    corpus = Corpus.open(output)
    require_same_settings(
        _identity(corpus.report.settings, corpus.report.inputs),
        _identity(settings, inputs),
        f"{output}: already holds a corpus made",
        "choose another directory, or say --overwrite",
    )
    for name in corpus.report.splits:
        corpus.split(name)
    return corpus.report.model_copy(update={"reused": True})


def _identity(
    settings: PrepareSettings, inputs: Mapping[SplitName, tuple[str, ...]]
) -> dict[str, Any]:
    """Return all that the result depends on: the content of the text files, not their paths."""
    return settings.model_dump(mode="json") | {name: inputs.get(name) for name in SPLIT_NAMES}


def _clear(output: Path) -> None:
    """Take away the mark of completeness and the half-written files of a killed run."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        (output / "corpus.json").unlink(missing_ok=True)
        for leftover in chain.from_iterable(output.rglob(f".{name}.*.tmp") for name in SPLIT_NAMES):
            leftover.unlink()
    except OSError as error:
        raise UserError(f"{output}: cannot be written to ({error.strerror})") from None


def _fill(
    settings: PrepareSettings,
    inputs: Mapping[SplitName, tuple[str, ...]],
    output: Path,
    work: Path,
    workers: int,
) -> tuple[dict[SplitName, SplitReport], dict[Side, int]]:
    """Write everything but corpus.json; `work` holds what was made of each part."""
    models = _train_subwords(settings, work)
    parts = {
        name: [
            FilePair(name, k, paths, inputs[name][2 * k : 2 * k + 2], settings, models, work)
            for k, paths in enumerate(pairs)
        ]
        for name, pairs in settings.files().items()
    }
    # dev and test are too small to start a process for
    many = {name: workers if name == "train" else 1 for name in parts}
    tallies = {name: _tokenise(some, many[name]) for name, some in parts.items()}
    if not tallies["train"]["kept"]:
        faults = format_dropped(_dropped(tallies["train"]))
        raise UserError(
            f"no training pair is left ({faults}): check the text, max_length and max_ratio"
        )
    vocabularies = _write_codecs(settings, parts["train"], output)
    _write_order(output, tallies["train"]["kept"], settings.seed, work)
    for text, path in _texts(settings, output):
        files.write_lines(text, files.read_lines(path))
    splits = {
        name: _encode(some, vocabularies, tallies[name], output, many[name])
        for name, some in parts.items()
    }
    return splits, {side: len(vocabularies[side]) for side in SIDES}


def _tokenise(parts: Sequence[FilePair], workers: int) -> Counter[str]:
    """Tokenise all parts of a split; the pairs that are kept and dropped."""
    tally: Counter[str] = Counter()
    made = map_unordered(tokenize_file_pair, parts, workers)
    for found in track(made, len(parts), f"tokenising {parts[0].name}", "files"):
        tally.update(found)
    return tally


def _write_codecs(
    settings: PrepareSettings, parts: Sequence[FilePair], output: Path
) -> dict[Side, Vocabulary]:
    """Add up the counts of all parts, and write tokenizers and vocabularies."""
    counts: dict[Side, Counter[str]] = {side: Counter() for side in SIDES}
    if settings.joint:
        counts["target"] = counts["source"]
    for part in parts:
        for side in SIDES:
            add_token_counts(counts[side], part.file(f"{side}.counts"))
    vocabularies = {}
    for side, model in parts[0].models.items():
        vocabularies[side] = _build_vocabulary(counts[side], settings.vocabulary_size(side), model)
        tokenizer = build_tokenizer(settings.tokenizer(side), model)
        Codec(settings.tokenizer(side), tokenizer, vocabularies[side], model).save(output, side)
    return vocabularies


def _train_subwords(settings: PrepareSettings, work: Path) -> dict[Side, Path | None]:
    """A sentencepiece model for each side that wants one; joint sides share it."""
    models: dict[Side, Path | None] = {"source": None, "target": None}
    for side in SIDES:
        if settings.tokenizer(side).kind != "sentencepiece":
            continue
        if settings.joint and side == "target":
            models[side] = models["source"]
            continue
        models[side] = path = work / f"{side}.spm"
        text = _train_lines(settings, SIDES if settings.joint else (side,))
        text = track(text, None, f"reading {side} for sentencepiece")
        train_sentencepiece(
            text,
            path,
            settings.vocabulary_size(side),
            settings.sentencepiece,
            settings.seed,
            settings.open_vocabulary,
            MAX_SUBWORD_LENGTH_UNSPACED
            if settings.tokenizer(side).unspaced
            else MAX_SUBWORD_LENGTH,
        )
    return models


def _train_lines(settings: PrepareSettings, sides: Iterable[Side]) -> Iterator[str]:
    for side in sides:
        for pair in settings.train:
            for line in files.read_lines(pair[SIDES.index(side)]):
                yield clean_line(line, settings.tokenizer(side))


def _dropped(tally: Counter[str]) -> dict[DropReason, int]:
    return {fault: tally[fault] for fault in DROP_REASONS if tally[fault]}


def _build_vocabulary(counts: Mapping[str, int], size: int, model: Path | None) -> Vocabulary:
    if model is None:
        return Vocabulary.from_counts(counts, size)
    return Vocabulary(tuple(SentencePieceTokenizer(model).subwords()))


def _write_order(output: Path, pairs: int, seed: int, work: Path) -> None:
    with files.atomic_write(output / "train.order.npy") as stream:
        _write_header(stream, pairs)
        for part in shuffled(pairs, seed, work):
            stream.write(part.astype("<i8", copy=False).tobytes())


def _write_header(stream: IO[bytes], length: int) -> None:
    header = {"descr": "<i8", "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(stream, header)


def shuffled(number: int, seed: int, work: Path) -> Iterator[IntArray]:
    """All numbers below `number` in random order, some at a time.

    Too many for memory are first dealt to piles at random, and the piles are shuffled one by one:
    every order is then as likely as any other.
    """
    random = np.random.default_rng(seed)
    piles = -(-number // SHUFFLED_AT_ONCE)
    if piles == 1:
        yield random.permutation(number)
        return
    paths = [work / f"pile.{k}" for k in range(piles)]
    with ExitStack() as stack:
        streams = [stack.enter_context(path.open("wb")) for path in paths]
        for start in range(0, number, ENDS_AT_A_TIME):
            some = np.arange(start, min(start + ENDS_AT_A_TIME, number))
            dealt = random.integers(piles, size=len(some))
            for k, stream in enumerate(streams):
                some[dealt == k].tofile(stream)
    for path in paths:
        yield random.permutation(np.fromfile(path, np.int64))
        path.unlink()


def _texts(settings: PrepareSettings, output: Path) -> Iterator[tuple[Path, Path]]:
    """The raw lines of dev and test: where they go, and where they come from."""
    for name, pairs in settings.files().items():
        if name != "train":
            for side, path in zip(SIDES, pairs[0], strict=True):
                yield output / f"{name}.{side}.txt", path


def _encode(
    parts: Sequence[FilePair],
    vocabularies: Mapping[Side, Vocabulary],
    tally: Counter[str],
    output: Path,
    workers: int,
) -> SplitReport:
    """Turn the tokens of a split into id arrays."""
    name = parts[0].name
    tokens: Counter[Side] = Counter()
    unknown: Counter[Side] = Counter()
    jobs = [EncodingTask(part, side, vocabularies[side]) for side in SIDES for part in parts]
    for side, ids, unks in track(
        map_unordered(encode_file, jobs, workers), len(jobs), f"encoding {name}", "files"
    ):
        tokens[side] += ids
        unknown[side] += unks
    for side in SIDES:
        _assemble(parts, side, tally["kept"], output / f"{name}.{side}")
    return SplitReport(
        read=tally.total(),
        kept=tally["kept"],
        dropped=_dropped(tally),
        tokens={side: tokens[side] for side in SIDES},
        coverage={s: round(100 * (1 - unknown[s] / max(tokens[s], 1)), 2) for s in SIDES},
    )


def _assemble(parts: Iterable[FilePair], side: Side, number: int, stem: Path) -> None:
    """Put the parts of one side together: the ids of all sentences, and where each begins."""
    end = 0
    with (
        files.atomic_write(Path(f"{stem}.ids")) as ids_file,
        files.atomic_write(Path(f"{stem}.offsets.npy")) as offsets_file,
    ):
        _write_header(offsets_file, number + 1)
        offsets_file.write(np.zeros(1, "<i8").tobytes())
        for part in parts:
            with part.file(f"{side}.ids").open("rb") as stream:
                shutil.copyfileobj(stream, ids_file, 1 << 20)
            start = end
            with part.file(f"{side}.ends").open("rb") as stream:
                while len(ends := np.fromfile(stream, "<i8", ENDS_AT_A_TIME)):
                    offsets_file.write((start + ends).tobytes())
                    end = start + int(ends[-1])
