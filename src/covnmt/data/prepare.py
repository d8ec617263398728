"""Turn parallel text files into a prepared directory (see `corpus` for its files).

Several processes work on the pairs of files (see `tokenize_files`). Memory does not grow with the
corpus, and an interrupted call continues where it was.
"""

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from covnmt.base import files
from covnmt.base.arrays import IntArray
from covnmt.base.config import require_same_settings
from covnmt.base.console import log, track
from covnmt.base.errors import UserError
from covnmt.base.processes import map_unordered
from covnmt.data.corpus import (
    CORPUS_FORMAT,
    DROP_REASONS,
    REPORT_FILE,
    Corpus,
    DropReason,
    PrepareReport,
    SplitReport,
    format_dropped,
    npy_header,
    report_digest,
    split_files,
)
from covnmt.data.settings import SPLIT_NAMES, PrepareSettings, SplitName
from covnmt.data.tokenize_files import (
    EncodingTask,
    FilePairTask,
    add_token_counts,
    encode_file,
    tokenize_file_pair,
)
from covnmt.text.codec import SIDES, Codec, Side, vocabulary_fingerprint
from covnmt.text.tokenize import SentencePieceTokenizer, build_tokenizer, clean_line
from covnmt.text.vocabulary import (
    MAX_SUBWORD_LENGTH,
    MAX_SUBWORD_LENGTH_UNSPACED,
    SPECIAL_TOKENS,
    Vocabulary,
    train_sentencepiece,
)

SHUFFLED_IN_MEMORY = 1 << 21  # pairs; more of them are first distributed to files
NUMBERS_PER_CHUNK = 1 << 20
# A side with fewer different words, such as a synthetic language, has no unknown words either.
CLOSED_VOCABULARY = 1000


def prepare_corpus(
    settings: PrepareSettings, output: Path, overwrite: bool = False, workers: int = 1
) -> PrepareReport:
    """Tokenize, build vocabularies and write id arrays.

    The training files are shared among `workers` processes; the result does not depend on them.
    """
    inputs = {
        name: tuple(files.file_digest(path) for pair in pairs for path in pair)
        for name, pairs in settings.files().items()
    }
    with files.lock_directory(output):
        return _prepare(settings, inputs, output, overwrite, workers)


def _prepare(
    settings: PrepareSettings,
    inputs: dict[SplitName, tuple[str, ...]],
    output: Path,
    overwrite: bool,
    workers: int,
) -> PrepareReport:
    if (output / REPORT_FILE).exists() and not overwrite:
        return _reuse(output, settings, inputs)
    if (output / "config.json").exists():
        raise UserError(f"{output}: contains a model; choose another directory")
    inputs_read = chain.from_iterable(chain(*settings.files().values()))
    outputs = (output_path for output_path, _ in _untokenized_texts(settings, output))
    files.check_distinct_paths(outputs, inputs_read)
    work = output / ".prepare"
    _mark_incomplete(output)
    splits, sizes = _write_all(settings, inputs, output, work, workers)
    report = PrepareReport(
        version=CORPUS_FORMAT,
        settings=settings,
        inputs=inputs,
        splits=splits,
        vocabulary_sizes=sizes,
        fingerprint=vocabulary_fingerprint(output),
        checksums={
            file: files.file_digest(output / file) for name in splits for file in split_files(name)
        },
    )
    report.checksums[REPORT_FILE] = report_digest(report.model_dump(mode="json"))
    files.write_json(output / REPORT_FILE, report.model_dump(mode="json"))
    shutil.rmtree(work, ignore_errors=True)
    return report


def _reuse(
    output: Path, settings: PrepareSettings, inputs: Mapping[SplitName, tuple[str, ...]]
) -> PrepareReport:
    """Return the report of a directory if it was made with the same settings from the same text."""
    corpus = Corpus.open(output)
    require_same_settings(
        _settings_and_inputs(corpus.report.settings, corpus.report.inputs),
        _settings_and_inputs(settings, inputs),
        f"{output}: already contains a corpus made",
        "choose another directory, or use --overwrite",
    )
    for name in corpus.report.splits:  # opening a split and reading its text verifies the files
        split = corpus.split(name)
        if name != "train":
            for side in SIDES:
                split.text(side)
    return corpus.report.model_copy(update={"reused": True})


def _settings_and_inputs(
    settings: PrepareSettings, inputs: Mapping[SplitName, tuple[str, ...]]
) -> dict[str, Any]:
    """Return all that the result depends on: the content of the text files, not their paths."""
    return settings.model_dump(mode="json") | {name: inputs.get(name) for name in SPLIT_NAMES}


def _mark_incomplete(output: Path) -> None:
    """Remove corpus.json, and temporary files of a killed process."""
    try:
        (output / REPORT_FILE).unlink(missing_ok=True)
        for leftover in chain.from_iterable(output.rglob(f".{name}.*.tmp") for name in SPLIT_NAMES):
            leftover.unlink()
    except OSError as error:
        raise UserError(f"{output}: cannot be written to ({error.strerror})") from None


def _write_all(
    settings: PrepareSettings,
    inputs: Mapping[SplitName, tuple[str, ...]],
    output: Path,
    work: Path,
    workers: int,
) -> tuple[dict[SplitName, SplitReport], dict[Side, int]]:
    """Write everything but corpus.json; `work` has the results of each file pair."""
    models = _train_subwords(settings, work)
    pairs = {
        name: [
            FilePairTask(name, k, paths, inputs[name][2 * k : 2 * k + 2], settings, models, work)
            for k, paths in enumerate(split_paths)
        ]
        for name, split_paths in settings.files().items()
    }
    # dev and test are too small to start processes for
    processes = {name: workers if name == "train" else 1 for name in pairs}
    tallies = {name: _tokenize(pairs[name], processes[name]) for name in pairs}
    if not tallies["train"]["kept"]:
        reasons = format_dropped(_dropped(tallies["train"]))
        raise UserError(
            f"no training pair is left ({reasons}): check the text, max_length and max_ratio"
        )
    vocabularies = _write_codecs(settings, pairs["train"], output)
    _write_order(output, tallies["train"]["kept"], settings.seed, work)
    for output_path, path in _untokenized_texts(settings, output):
        files.write_lines(output_path, files.read_lines(path))
    splits = {
        name: _encode(pairs[name], vocabularies, tallies[name], output, processes[name])
        for name in pairs
    }
    return splits, {side: len(vocabularies[side]) for side in SIDES}


def _tokenize(pairs: Sequence[FilePairTask], workers: int) -> Counter[str]:
    """Tokenize a split; returns how many pairs are kept and dropped."""
    tally: Counter[str] = Counter()
    tallies = map_unordered(tokenize_file_pair, pairs, workers)
    for pair_tally in track(tallies, len(pairs), f"tokenizing {pairs[0].split}", "files"):
        tally.update(pair_tally)
    return tally


def _write_codecs(
    settings: PrepareSettings, pairs: Sequence[FilePairTask], output: Path
) -> dict[Side, Vocabulary]:
    """Add up the counts of all file pairs, and write tokenizers and vocabularies."""
    counts: dict[Side, Counter[str]] = {side: Counter() for side in SIDES}
    if settings.joint:
        counts["target"] = counts["source"]
    for pair in pairs:
        for side in SIDES:
            add_token_counts(counts[side], pair.file(f"{side}.counts"))
    vocabularies = {}
    for side, model in pairs[0].spm_models.items():
        if model:
            vocabularies[side] = Vocabulary(tuple(SentencePieceTokenizer(model).subwords()))
        else:
            frequent = _without_rare_words(counts[side], settings, side)
            size = settings.vocabulary_size(side)
            vocabularies[side] = Vocabulary.from_counts(frequent, size)
        tokenizer = build_tokenizer(settings.tokenizer_settings(side), model)
        Codec(settings.tokenizer_settings(side), tokenizer, vocabularies[side], model).save(
            output, side
        )
    return vocabularies


def _without_rare_words(
    counts: Mapping[str, int], settings: PrepareSettings, side: Side
) -> Mapping[str, int]:
    """Leave out words below `min_count`.

    If the vocabulary had room for all words of the training text, its UNK would never be trained,
    but read wherever other text has an unknown word. So words that occur once become UNK there,
    except in small closed languages.
    """
    fit = CLOSED_VOCABULARY < len(counts) <= settings.vocabulary_size(side) - len(SPECIAL_TOKENS)
    min_count = settings.min_count or (2 if fit else 1)
    if min_count == 1:
        return counts
    frequent = {token: count for token, count in counts.items() if count >= min_count}
    if not frequent:
        raise UserError(f"no {side} word occurs {min_count} times: lower --min-count")
    if not settings.min_count:
        log(
            f"{side}: the vocabulary would hold every training word, so that the unknown word "
            f"would stay untrained; {len(counts) - len(frequent):,} words that occur once become "
            "unknown words (--min-count 1 keeps them)"
        )
    return frequent


def _train_subwords(settings: PrepareSettings, work: Path) -> dict[Side, Path | None]:
    """Train a sentencepiece model for each side that needs one; joint sides share it."""
    models: dict[Side, Path | None] = {"source": None, "target": None}
    for side in SIDES:
        if settings.tokenizer_settings(side).kind != "sentencepiece":
            continue
        if settings.joint and side == "target":
            models[side] = models["source"]
            continue
        models[side] = path = work / f"{side}.spm"
        text = _read_training_lines(settings, SIDES if settings.joint else (side,))
        text = track(text, None, f"reading {side} for sentencepiece")
        train_sentencepiece(
            text,
            path,
            settings.vocabulary_size(side),
            settings.sentencepiece,
            settings.seed,
            settings.open_vocabulary,
            MAX_SUBWORD_LENGTH_UNSPACED
            if settings.tokenizer_settings(side).unspaced
            else MAX_SUBWORD_LENGTH,
        )
    return models


def _read_training_lines(settings: PrepareSettings, sides: Iterable[Side]) -> Iterator[str]:
    for side in sides:
        for pair in settings.train:
            for line in files.read_lines(pair[SIDES.index(side)]):
                yield clean_line(line, settings.tokenizer_settings(side))


def _dropped(tally: Counter[str]) -> dict[DropReason, int]:
    return {reason: tally[reason] for reason in DROP_REASONS if tally[reason]}


def _write_order(output: Path, pairs: int, seed: int, work: Path) -> None:
    with files.atomic_write(output / "train.order.npy") as stream:
        stream.write(npy_header(pairs))
        for chunk in shuffled_numbers(pairs, seed, work):
            stream.write(chunk.astype("<i8", copy=False).tobytes())


def shuffled_numbers(total: int, seed: int, work: Path) -> Iterator[IntArray]:
    """Yield all numbers below `total` in random order, in chunks.

    More than fit in memory are first distributed to files at random, which are then shuffled one
    by one: every order is equally likely.
    """
    random = np.random.default_rng(seed)
    piles = -(-total // SHUFFLED_IN_MEMORY)
    if piles == 1:
        yield random.permutation(total)
        return
    paths = [work / f"pile.{k}" for k in range(piles)]
    with ExitStack() as stack:
        streams = [stack.enter_context(path.open("wb")) for path in paths]
        for start in range(0, total, NUMBERS_PER_CHUNK):
            numbers = np.arange(start, min(start + NUMBERS_PER_CHUNK, total))
            pile = random.integers(piles, size=len(numbers))
            for k, stream in enumerate(streams):
                numbers[pile == k].tofile(stream)
    for path in paths:
        yield random.permutation(np.fromfile(path, np.int64))
        path.unlink()


def _untokenized_texts(settings: PrepareSettings, output: Path) -> Iterator[tuple[Path, Path]]:
    """Yield output and input paths of the untokenized lines of dev and test."""
    for name, pairs in settings.files().items():
        if name != "train":
            for side, path in zip(SIDES, pairs[0], strict=True):
                yield output / f"{name}.{side}.txt", path


def _encode(
    pairs: Sequence[FilePairTask],
    vocabularies: Mapping[Side, Vocabulary],
    tally: Counter[str],
    output: Path,
    workers: int,
) -> SplitReport:
    """Write the id arrays of a split."""
    name = pairs[0].split
    tokens: Counter[Side] = Counter()
    unknown: Counter[Side] = Counter()
    tasks = [EncodingTask(pair, side, vocabularies[side]) for side in SIDES for pair in pairs]
    encoded = map_unordered(encode_file, tasks, workers)
    for side, ids, unks in track(encoded, len(tasks), f"encoding {name}", "files"):
        tokens[side] += ids
        unknown[side] += unks
    for side in SIDES:
        _concatenate(pairs, side, tally["kept"], output / f"{name}.{side}")
    return SplitReport(
        read=tally.total(),
        kept=tally["kept"],
        dropped=_dropped(tally),
        tokens={side: tokens[side] for side in SIDES},
        percent_known={s: round(100 * (1 - unknown[s] / max(tokens[s], 1)), 2) for s in SIDES},
    )


def _concatenate(pairs: Iterable[FilePairTask], side: Side, number: int, stem: Path) -> None:
    """Write the ids of all sentences of one side, and where each begins."""
    end = 0
    with (
        files.atomic_write(Path(f"{stem}.ids")) as ids_file,
        files.atomic_write(Path(f"{stem}.offsets.npy")) as offsets_file,
    ):
        offsets_file.write(npy_header(number + 1))
        offsets_file.write(np.zeros(1, "<i8").tobytes())
        for pair in pairs:
            with pair.file(f"{side}.ids").open("rb") as stream:
                shutil.copyfileobj(stream, ids_file, 1 << 20)
            start = end
            with pair.file(f"{side}.ends").open("rb") as stream:
                while len(ends := np.fromfile(stream, "<i8", NUMBERS_PER_CHUNK)):
                    offsets_file.write((start + ends).tobytes())
                    end = start + int(ends[-1])
