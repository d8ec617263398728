"""Sequence-level knowledge distillation (Kim and Rush, 2016).

A large teacher translates the source of the training text, and a small student is trained on its
translations: they vary less than those of people, so a small model can learn them better.

The translations are kept in chunks, in the shuffled order of the training pairs. So an interrupted
job resumes, and where time ends it, what has been translated is a random sample.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from covnmt.base.arrays import IntArray
from covnmt.base.console import log, track
from covnmt.base.errors import UserError
from covnmt.base.files import atomic_write, file_digest, lock_directory, read_json, write_json
from covnmt.data.corpus import (
    REPORT_FILE,
    Corpus,
    Split,
    TokenIds,
    id_dtype,
    npy_header,
    report_digest,
    split_files,
)
from covnmt.data.padding import map_in_batches, pad_ids
from covnmt.inference.model import Model
from covnmt.model.checkpoint import BEST_WEIGHTS, load_tensors
from covnmt.paper.results import Distillation
from covnmt.text.codec import SIDES, Side

# Shares of the minutes of a job that are for training; the student has the rest.
TEACHER_SHARE, TRANSLATING_SHARE = 0.45, 0.1
STUDENT_SHARE = 1 - TEACHER_SHARE - TRANSLATING_SHARE
TRANSLATIONS = "translations"  # folder in the model directory of the teacher
RECORD = "distillation.json"  # in the data directory of the student
CHUNK_PAIRS = 65_536
# A retry takes the slow search, with beams of up to 200; pairs without an end are left out instead.
DECODING = {"beam": 5, "batch_size": 256, "length_penalty": 0.6, "retry": False}


def distill(
    prepared: Path,
    teacher: Path,
    output: Path,
    references: bool,
    device: str = "auto",
    minutes: float = 0.0,
) -> None:
    """Translate the training source for at most so many minutes, and write the student's corpus.

    `references` says whether the student reads the original pairs, too. 0 minutes is no limit.
    """
    if (output / REPORT_FILE).exists():
        return
    corpus = Corpus.open(prepared)
    split = corpus.split("train")
    model = Model.load(teacher, device=device)
    seconds = translate_chunks(model, split, teacher / TRANSLATIONS, 60 * minutes)
    translated = list(read_translations(split, teacher / TRANSLATIONS))
    limit = corpus.report.settings.max_length
    kept = [(pair, ids) for pair, ids in translated if 0 < len(ids) <= limit]
    if not (kept or references):
        raise UserError(
            f"{teacher}: none of its {len(translated):,} translations ended; it has to be "
            "trained for longer: delete the directory, and give --minutes more"
        )
    _, best = load_tensors(teacher / BEST_WEIGHTS)
    record = Distillation(
        teacher=teacher.name,
        teacher_update=int(best["update"]),
        teacher_bleu=best["bleu"],
        beam=DECODING["beam"],
        translated=len(translated),
        kept=len(kept),
        references=references,
        seconds=round(seconds, 1),
    )
    log(f"{len(kept):,} of {len(split):,} training pairs have a translation by {teacher.name}")
    with lock_directory(output):
        write_json(output / RECORD, record.model_dump(mode="json"))
        write_corpus(corpus, kept, output, references)


def read_distillation(output: Path) -> Distillation:
    """Read how the corpus of a student was made."""
    return Distillation.model_validate(read_json(output / RECORD))


def translate_chunks(model: Model, split: Split, folder: Path, limit: float) -> float:
    """Translate the pairs of a split, in their shuffled order, until `limit` seconds have passed.

    Returns the seconds that all chunks took, those of earlier calls included.
    """
    settings = {**DECODING, "max_source": int(split.source.lengths().max()) + 1}
    decode, end_id = model.decode.model_copy(update=settings), split.source_end_id

    def translate_batch(indices: list[int]) -> list[tuple[int, ...]]:
        result = model.engine.search(pad_ids([ids[k] for k in indices], end_id), decode, None)
        best = [hypotheses[0] for hypotheses in result.hypotheses]
        return [h.token_ids if h.finished else () for h in best]

    seconds, chunks = 0.0, _chunks(split, folder)
    for path, pairs in track(chunks, len(chunks), "translating", "chunks"):
        if not path.exists():
            if limit and seconds >= limit:
                break
            began = time.monotonic()
            ids = [split.source[i] for i in pairs]
            outputs = map_in_batches(translate_batch, list(map(len, ids)), decode.batch_size)
            write_chunk(path, outputs, time.monotonic() - began)
        with np.load(path) as chunk:
            seconds += float(chunk["seconds"])
    return seconds


def write_chunk(path: Path, outputs: Sequence[Sequence[int]], seconds: float) -> None:
    """Write token ids; an empty output stands for a search that did not end."""
    lengths = np.array([len(output) for output in outputs], np.int64)
    ids = np.fromiter((k for output in outputs for k in output), np.uint32, lengths.sum())
    with atomic_write(path) as stream:
        np.savez(stream, ids=ids, lengths=lengths, seconds=seconds)


def read_translations(split: Split, folder: Path) -> Iterator[tuple[int, TokenIds]]:
    """Yield each pair that has been translated, with its translation."""
    for path, pairs in _chunks(split, folder):
        if not path.exists():
            return
        with np.load(path) as chunk:
            ends = np.cumsum(chunk["lengths"])
            yield from zip(pairs.tolist(), np.split(chunk["ids"], ends[:-1]), strict=True)


def _chunks(split: Split, folder: Path) -> list[tuple[Path, IntArray]]:
    """Return a file for the translations of each chunk of pairs."""
    starts = range(0, len(split), CHUNK_PAIRS)
    return [
        (folder / f"{number:05d}.npz", split.order[start : start + CHUNK_PAIRS])
        for number, start in enumerate(starts)
    ]


def write_corpus(
    corpus: Corpus, kept: Sequence[tuple[int, TokenIds]], output: Path, references: bool
) -> None:
    """Write a prepared directory with translated targets; all but its training pairs is linked."""
    split = corpus.split("train")
    pairs = [*range(len(split))] * references
    sides: dict[Side, list[TokenIds]] = {
        "source": [split.source[i] for i in [*pairs, *(i for i, _ in kept)]],
        "target": [*(split.target[i] for i in pairs), *(ids for _, ids in kept)],
    }
    for path in corpus.directory.iterdir():
        if path.is_file() and path.name not in (REPORT_FILE, *split_files("train")):
            link = output / path.name
            link.unlink(missing_ok=True)
            link.hardlink_to(path)
    total, report = len(sides["source"]), corpus.report
    for side in SIDES:
        dtype = id_dtype(report.vocabulary_sizes[side])
        ids = np.concatenate(sides[side]).astype(dtype)
        offsets = np.cumsum([0, *map(len, sides[side])])
        with atomic_write(output / f"train.{side}.ids") as stream:
            stream.write(ids.tobytes())
        _write_numbers(output / f"train.{side}.offsets.npy", offsets)
    order = np.random.default_rng(report.settings.seed).permutation(total)
    _write_numbers(output / "train.order.npy", order)
    content = report.model_dump(mode="json")
    tokens = {side: sum(map(len, sides[side])) for side in SIDES}
    content["splits"]["train"] |= {"read": total, "kept": total, "dropped": {}, "tokens": tokens}
    checksums = {name: file_digest(output / name) for name in split_files("train")}
    content["checksums"] |= checksums
    content["checksums"][REPORT_FILE] = report_digest(content)
    write_json(output / REPORT_FILE, content)


def _write_numbers(path: Path, numbers: IntArray) -> None:
    with atomic_write(path) as stream:
        stream.write(npy_header(len(numbers)))
        stream.write(numbers.astype("<i8").tobytes())
