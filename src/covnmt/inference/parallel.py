"""Many files, or one in pieces, translated by several processes or by a cluster of machines.

Of many, every file is a shard. Its translation is a file of the same name in the output directory:
one line for each line, in order. It appears there as a whole when it is done, so whatever dies on
the way, a shard that is there is not done again, and one that is not is done from its beginning.

On a CPU two processes with a thread each are faster than one with two threads: the steps of a
search are small, and most of what two threads gain they lose waiting for each other.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal

from covnmt.base import processes as pool
from covnmt.base import ray_cluster
from covnmt.base.config import DecodeConfig, require_same_settings
from covnmt.base.console import track
from covnmt.base.errors import UserError
from covnmt.base.files import (
    file_digest,
    is_file_path,
    read_json,
    read_lines,
    write_json,
    write_lines,
)
from covnmt.base.processes import Chunk
from covnmt.decoding.engines import default_processes, is_exported
from covnmt.inference.input_lines import input_chunks
from covnmt.inference.translate import WINDOW_BATCHES, Translation, Translator, format_translations

CORES_PER_WORKER = 2
CHUNK_BATCHES = 8  # of a piece: enough to sort its lines by length
WEIGHTS = ("model.safetensors", "encoder.onnx", "step.onnx", "weights.bin", "shortlist.json")
SETTINGS_FILE = ".translate.json"  # how the files of an output directory were made


@dataclass(frozen=True)
class TranslationJob:
    """How to translate, the same for all workers."""

    models: tuple[Path, ...]
    decode: DecodeConfig
    overlong: Literal["cut", "split"] = "cut"
    as_json: bool = False
    dictionary: Path | None = None
    device: str = "auto"
    threads: int = 0  # of all workers of a machine together; 0: one per core
    split_sentences: bool = False  # of a line, translated one by one

    def identity(self) -> dict[str, Any]:
        """All that the translations depend on."""
        return {
            "models": [file_digest(path) for model in self.models for path in _weights(model)],
            "decode": self.decode.model_dump(mode="json"),
            "overlong": self.overlong,
            "sentences": self.split_sentences,
            "json": self.as_json,
            "dictionary": file_digest(self.dictionary) if self.dictionary else None,
        }


@dataclass(frozen=True)
class Shard:
    """A file, and the one that its translation goes to."""

    source: Path
    target: Path

    def __str__(self) -> str:
        return str(self.source)


@dataclass(frozen=True)
class TranslationSummary:
    """What a call did."""

    directory: Path
    files: int
    lines: int
    before: int  # files that were there already

    def __str__(self) -> str:
        had = f"; {self.before:,} were there already" if self.before else ""
        return f"{self.directory}: {self.files:,} files, {self.lines:,} lines{had}"


def translate_files(
    job: TranslationJob,
    inputs: Sequence[Path],
    directory: Path | None,
    workers: int,
    ray: str | None = None,
) -> TranslationSummary:
    """Translate all files that have no translation yet; so many at a time, or on a Ray cluster."""
    if not inputs or directory is None:
        raise UserError("--shards names the files to translate, --out their directory: give both")
    if job.decode.nbest > 1 and not job.as_json:
        raise UserError("--shards gives one line for each line: with --nbest say --json")
    shards = plan_shards(inputs, directory)
    check_same_settings(job, directory)
    workers = workers or count_gpus(job) or max(1, pool.available_cpus() // CORES_PER_WORKER)
    waiting = [shard for shard in shards if not shard.target.exists()]
    # the largest first, so that no worker is left alone with it in the end
    waiting.sort(key=lambda shard: -shard.source.stat().st_size)
    _open.cache_clear()
    made: Iterator[int]
    if ray is None:
        made = pool.map_unordered(
            partial(translate_shard, job), waiting, min(workers, len(waiting))
        )
    else:
        models = tuple(path.absolute() for path in job.models)  # wherever a worker runs
        job = replace(job, models=models, threads=job.threads or CORES_PER_WORKER)
        made = ray_cluster.map_on_cluster(
            partial(translate_shard, job), waiting, ray, CORES_PER_WORKER
        )
    lines = sum(track(made, len(waiting), "translating", "files"))
    return TranslationSummary(directory, len(waiting), lines, len(shards) - len(waiting))


def plan_shards(inputs: Sequence[Path], directory: Path) -> list[Shard]:
    """The files, those of directories too, and where their translations go."""
    sources: list[Path] = []
    for path in inputs:
        if not path.exists():
            raise UserError(f"{path}: no such file or directory")
        inside = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
        sources += [p for p in inside if not p.name.startswith(".")]
    if not sources:
        raise UserError(f"{inputs[0]}: holds no files to translate")
    shards: dict[Path, Shard] = {}
    for source in sources:
        name = source.stem if source.suffix in (".gz", ".xz") else source.name
        shard = Shard(source.absolute(), directory.absolute() / name)
        if shard.target in shards:
            other = shards[shard.target].source
            raise UserError(f"{source} and {other} would both go to {shard.target}; rename one")
        if shard.target.resolve() == source.resolve():
            raise UserError(f"{source}: its translation would replace it; choose another --out")
        shards[shard.target] = shard
    return list(shards.values())


def check_same_settings(job: TranslationJob, directory: Path) -> None:
    """A directory holds translations of one kind."""
    path, now = directory / SETTINGS_FILE, job.identity()
    if not path.exists() or all(each.name.startswith(".") for each in directory.iterdir()):
        write_json(path, now)  # nothing is made yet
        return
    before = read_json(path)
    require_same_settings(
        before if isinstance(before, dict) else {},
        now,
        f"{directory}: holds translations made",
        "choose another --out, or the old settings",
    )


def _weights(model: Path) -> list[Path]:
    """The files that make a model what it is."""
    return sorted(path for path in model.iterdir() if path.name in WEIGHTS)


def translate_shard(job: TranslationJob, shard: Shard) -> int:
    """Translate one file; gives the number of its lines."""
    done = _stream(job, read_lines(shard.source))
    lines, written = format_translations(done, job.as_json, job.decode.nbest), count()
    write_lines(shard.target, (line for line, _ in zip(lines, written)))  # noqa: B905 (endless)
    return next(written)


def translate_text(job: TranslationJob, path: Path | None, workers: int) -> Iterator[Translation]:
    """Translations of a file or of standard input, in order.

    Without a wish, a file has as many processes as suit.
    """
    if not workers and is_file_path(path):
        workers = default_processes(job.models[0], job.threads)
    _open.cache_clear()
    if workers <= 1:
        _open(job)  # before anybody types
    size = (CHUNK_BATCHES if workers > 1 else WINDOW_BATCHES) * job.decode.batch_size
    return chain.from_iterable(_answers(job, input_chunks(path, size), workers))


def _answers(
    job: TranslationJob, pieces: Iterator[Chunk[str]], workers: int
) -> Iterator[Iterable[Translation]]:
    """Those of each piece. Other processes begin when there is more than one piece at a time."""
    for piece in pieces:
        if piece.paused:
            yield translate_chunk(job, piece)
        else:
            yield from pool.map_in_order(
                partial(translate_chunk, job), chain([piece], pieces), workers
            )


def translate_lines(
    job: TranslationJob, lines: Iterable[str], workers: int, batches: int
) -> Iterator[Translation]:
    """Translations of lines, in order, by so many processes, a few batches at a time."""
    _open.cache_clear()
    size = batches * job.decode.batch_size
    return pool.map_chunks(partial(translate_chunk, job), lines, size, workers)


def translate_chunk(job: TranslationJob, piece: Chunk[str]) -> list[Translation]:
    """Translate some lines; warnings name them by their place in the text."""
    return list(_stream(job, piece.lines, piece.first))


def _stream(job: TranslationJob, lines: Iterable[str], first: int = 0) -> Iterator[Translation]:
    translator = _open(job)
    return translator.stream(
        lines, job.decode, job.overlong, split_sentences=job.split_sentences, first=first
    )


@lru_cache(maxsize=1)
def _open(job: TranslationJob) -> Translator:
    """The translator of this process; every worker takes a GPU of its own where there are some.

    It is kept for the rest of a call, not for the next one: the files of a model may change.
    """
    seat, device, threads = pool.worker_rank(), job.device, job.threads
    if seat.workers > 1:
        threads = max(1, (threads or pool.available_cpus()) // seat.workers)
        if found := count_gpus(job):
            device = f"cuda:{seat.rank % found}"
    return Translator.load(*job.models, device=device, dictionary=job.dictionary, threads=threads)


def count_gpus(job: TranslationJob) -> int:
    """GPUs that this job can use; exported models use none."""
    if job.device not in ("auto", "cuda") or is_exported(job.models[0]):
        return 0
    import torch

    return torch.cuda.device_count()
