"""Parallel text files -> a prepared directory (see `corpus` for what it holds).

Streams: tokenises once, counts words on the way, then writes ids; memory stays flat, however
large the corpus is.
"""

import hashlib
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from covnmt import files
from covnmt.errors import UserError
from covnmt.progress import track
from covnmt.text.codec import SIDES, Codec, Side, fingerprint
from covnmt.text.corpus import (
    FAULTS,
    SPLITS,
    VERSION,
    Corpus,
    Fault,
    PathPair,
    PrepareReport,
    PrepareSettings,
    SplitName,
    SplitReport,
    id_type,
    in_words,
)
from covnmt.text.tokenize import (
    SentencePieceTokenizer,
    Tokenizer,
    build_tokenizer,
    clean,
)
from covnmt.text.vocab import UNK, Vocabulary, most_frequent, train_sentencepiece

TokenPair = tuple[list[str], list[str]]

TYPES_IN_MEMORY = 1_000_000  # of each side, while counting; the rarest go when there are more
LINES_AT_A_TIME = 10_000


def prepare(settings: PrepareSettings, output: Path, overwrite: bool = False) -> PrepareReport:
    """Tokenise, build vocabularies and write id arrays; streams, whatever the size of the text."""
    inputs = {name: _digests(pairs) for name, pairs in settings.files().items()}
    if (output / "corpus.json").exists() and not overwrite:
        return _reuse(output, settings, inputs)
    work = output / ".prepare"
    _clear(output, work)
    try:
        splits, rows = _fill(settings, output, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    report = PrepareReport(
        version=VERSION,
        settings=settings,
        inputs=inputs,
        splits=splits,
        rows=rows,
        fingerprint=fingerprint(output),
    )
    files.write_json(output / "corpus.json", report.model_dump(mode="json"))
    return report


def _digests(pairs: Iterable[PathPair]) -> tuple[str, ...]:
    digests = []
    for path in chain.from_iterable(pairs):
        try:
            with path.open("rb") as stream:
                digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    return tuple(digests)


def _reuse(
    output: Path, settings: PrepareSettings, inputs: Mapping[SplitName, tuple[str, ...]]
) -> PrepareReport:
    """The report of a directory made with the same settings from the same text."""
    corpus = Corpus.open(output)
    old = _identity(corpus.report.settings, corpus.report.inputs)
    new = _identity(settings, inputs)
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if changed:
        raise UserError(
            f"{output}: already holds a corpus made with other settings or text "
            f"({', '.join(changed)}); choose another directory, or overwrite this one"
        )
    for name in corpus.report.splits:
        corpus.split(name)
    return corpus.report.model_copy(update={"reused": True})


def _identity(
    settings: PrepareSettings, inputs: Mapping[SplitName, tuple[str, ...]]
) -> dict[str, Any]:
    """What the result depends on: not where the text lies, but what it says."""
    return settings.model_dump() | {name: inputs.get(name) for name in SPLITS}


def _clear(output: Path, work: Path) -> None:
    """Take away the mark of completeness and whatever a killed run left behind."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        (output / "corpus.json").unlink(missing_ok=True)
        shutil.rmtree(work, ignore_errors=True)
        for leftover in chain.from_iterable(output.glob(f".{name}.*.tmp") for name in SPLITS):
            leftover.unlink()
    except OSError as error:
        raise UserError(f"{output}: cannot be written to ({error.strerror})") from None


def _fill(
    settings: PrepareSettings, output: Path, work: Path
) -> tuple[dict[SplitName, SplitReport], dict[Side, int]]:
    """Write everything but corpus.json; `work` holds the tokens between the two passes."""
    models = _train_subwords(settings, work)
    tokenizers = {side: build_tokenizer(settings.tokenizer(side), models[side]) for side in SIDES}
    counts: dict[Side, Counter[str]] = {side: Counter() for side in SIDES}
    if settings.joint:
        counts["target"] = counts["source"]
    tallies = {
        name: _tokenise(settings, name, tokenizers, counts, work) for name in settings.files()
    }
    vocabularies = {}
    for side, model in models.items():
        vocabularies[side] = _build_vocabulary(counts[side], settings.size(side), model)
        codec = Codec(settings.tokenizer(side), tokenizers[side], vocabularies[side], model)
        codec.save(output, side)
    _write_order(output, tallies["train"]["kept"], settings.seed)
    _write_texts(settings, output)
    splits = {name: _encode(name, vocabularies, tallies[name], work, output) for name in tallies}
    return splits, {side: len(vocabularies[side]) for side in SIDES}


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
        train_sentencepiece(text, path, settings.size(side), settings.sentencepiece, settings.seed)
    return models


def _train_lines(settings: PrepareSettings, sides: Iterable[Side]) -> Iterator[str]:
    for side in sides:
        for pair in settings.train:
            for line in files.read_lines(pair[SIDES.index(side)]):
                yield clean(line, settings.tokenizer(side).lowercase)


def _tokenise(
    settings: PrepareSettings,
    name: SplitName,
    tokenizers: Mapping[Side, Tokenizer],
    counts: Mapping[Side, Counter[str]],
    work: Path,
) -> Counter[str]:
    """Write the tokens of a split to `work`, and tally the pairs that are kept and dropped.

    Only training pairs are dropped, and only those that stay count for the vocabulary.
    """
    tally: Counter[str] = Counter()
    pairs = track(_token_pairs(settings.files()[name], tokenizers), None, f"tokenising {name}")
    if name == "train":
        pairs = _counted(_filtered(pairs, settings, tally), counts)
    with (
        files.atomic_text(work / f"{name}.source") as source_file,
        files.atomic_text(work / f"{name}.target") as target_file,
    ):
        for source, target in pairs:
            source_file.write(" ".join(source) + "\n")
            target_file.write(" ".join(target) + "\n")
            tally["kept"] += 1
    if not tally["kept"]:
        faults = in_words(_dropped(tally))
        raise UserError(
            f"no training pair is left ({faults}): check the text, max_length and max_ratio"
        )
    return tally


def _dropped(tally: Counter[str]) -> dict[Fault, int]:
    return {fault: tally[fault] for fault in FAULTS if tally[fault]}


def _token_pairs(
    paths: Iterable[PathPair], tokenizers: Mapping[Side, Tokenizer]
) -> Iterator[TokenPair]:
    for source_path, target_path in paths:
        empty = True
        for source, target in files.read_parallel(source_path, target_path):
            empty = False
            yield tokenizers["source"].tokenize(source), tokenizers["target"].tokenize(target)
        if empty:
            raise UserError(
                f"{source_path} and {target_path} are empty; "
                "name files with a sentence on each line"
            )


def _filtered(
    pairs: Iterable[TokenPair], settings: PrepareSettings, tally: Counter[str]
) -> Iterator[TokenPair]:
    for source, target in pairs:
        if fault := _fault(len(source), len(target), settings):
            tally[fault] += 1
        else:
            yield source, target


def _fault(source: int, target: int, settings: PrepareSettings) -> Fault | None:
    """Why a pair of these lengths is of no use for training, if it is not."""
    shorter, longer = sorted((source, target))
    if not shorter:
        return "empty"
    if longer > settings.max_length:
        return "too_long"
    if settings.max_ratio and longer > settings.max_ratio * shorter:
        return "ratio"
    return None


def _counted(
    pairs: Iterable[TokenPair], counts: Mapping[Side, Counter[str]]
) -> Iterator[TokenPair]:
    for source, target in pairs:
        _count(counts["source"], source)
        _count(counts["target"], target)
        yield source, target


def _count(counts: Counter[str], tokens: list[str]) -> None:
    """Count, forgetting the rarer half of the types whenever there are too many of them."""
    counts.update(tokens)
    if len(counts) > TYPES_IN_MEMORY:
        frequent = most_frequent(counts, TYPES_IN_MEMORY // 2)
        counts.clear()
        counts.update(frequent)


def _build_vocabulary(counts: Mapping[str, int], size: int, model: Path | None) -> Vocabulary:
    if model is None:
        return Vocabulary.from_counts(counts, size)
    return Vocabulary(tuple(SentencePieceTokenizer(model).pieces()))


def _write_order(output: Path, pairs: int, seed: int) -> None:
    with files.atomic_write(output / "train.order.npy") as stream:
        np.save(stream, np.random.default_rng(seed).permutation(pairs))


def _write_texts(settings: PrepareSettings, output: Path) -> None:
    for name, pairs in settings.files().items():
        if name != "train":
            for side, path in zip(SIDES, pairs[0], strict=True):
                files.write_lines(output / f"{name}.{side}.txt", files.read_lines(path))


def _encode(
    name: SplitName,
    vocabularies: Mapping[Side, Vocabulary],
    tally: Counter[str],
    work: Path,
    output: Path,
) -> SplitReport:
    """Turn the tokens in `work` into id arrays."""
    tokens, coverage = {}, {}
    for side, vocabulary in vocabularies.items():
        stem = f"{name}.{side}"
        lines = track(files.read_lines(work / stem), tally["kept"], f"encoding {stem}")
        tokens[side], unknown = _write_ids(lines, tally["kept"], vocabulary, output / stem)
        coverage[side] = round(100 * (1 - unknown / max(tokens[side], 1)), 2)
    return SplitReport(
        read=tally.total(),
        kept=tally["kept"],
        dropped=_dropped(tally),
        tokens=tokens,
        coverage=coverage,
    )


def _write_ids(
    lines: Iterator[str], number: int, vocabulary: Vocabulary, stem: Path
) -> tuple[int, int]:
    """Append the ids of each line to one file, where it ends to another; count ids and UNKs."""
    end = unknown = 0
    with (
        files.atomic_write(Path(f"{stem}.ids")) as ids_file,
        files.atomic_write(Path(f"{stem}.offsets.npy")) as offsets_file,
    ):
        header = {"descr": "<i8", "fortran_order": False, "shape": (number + 1,)}
        np.lib.format.write_array_header_1_0(offsets_file, header)
        offsets_file.write(np.zeros(1, "<i8").tobytes())
        while chunk := list(islice(lines, LINES_AT_A_TIME)):
            rows = [vocabulary.encode(line.split()) for line in chunk]
            ids = np.fromiter(chain.from_iterable(rows), id_type(len(vocabulary)))
            ends = end + np.cumsum([len(row) for row in rows], dtype="<i8")
            ids_file.write(ids.tobytes())
            offsets_file.write(ends.tobytes())
            end = int(ends[-1])
            unknown += int(np.count_nonzero(ids == UNK))
    return end, unknown
