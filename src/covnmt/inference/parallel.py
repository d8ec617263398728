"""Run a model over many lines or files, in several processes or on a cluster of machines.

On a CPU, two processes with one thread each are faster than one with two threads: decoding steps
are small, and most of what two threads gain they lose waiting for each other.

Each of many files is a shard. Its translation is a file of the same name in the output directory,
with a line for each line, in order. It is written atomically when it is complete, so whatever
fails on the way, finished shards are not translated again, and others start from their beginning.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal, TypeVar

from covnmt.base import processes, ray_cluster
from covnmt.base.config import DecodeConfig, require_same_settings
from covnmt.base.console import log_detail, track
from covnmt.base.cpus import available_cpus
from covnmt.base.errors import UserError
from covnmt.base.files import (
    file_digest,
    is_file_path,
    read_json,
    read_lines,
    read_parallel_lines,
    remove_abandoned_files,
    write_json,
    write_lines,
)
from covnmt.base.processes import Chunk, chunked
from covnmt.decoding.onnx.format import GRAPH_FILES, SHORTLIST_FILE, is_exported
from covnmt.inference import align, forced_decoding
from covnmt.inference.align import Alignment, EmptySideError
from covnmt.inference.input_lines import input_chunks
from covnmt.inference.model import WINDOW_BATCHES, Model, ModelLoader
from covnmt.inference.translate import Translation, format_translations
from covnmt.text.codec import vocabulary_fingerprint

T = TypeVar("T")
R = TypeVar("R")
# Applied to lines, or pairs of them; the last argument is the index of the first one.
ChunkFunction = Callable[[Model, list[T], int], Iterable[R]]

CORES_PER_WORKER = 2
CHUNK_BATCHES = 8  # per chunk for one of several processes: enough to sort its lines by length
ALIGNMENT_CHUNK_PAIRS = 4 * forced_decoding.BATCH_SIZE  # per chunk for one of several processes
WEIGHTS = ("model.safetensors", *GRAPH_FILES, SHORTLIST_FILE)
SETTINGS_FILE = ".translate.json"  # how the files of an output directory were made


def map_lines(
    loader: ModelLoader,
    function: ChunkFunction[T, R],
    chunks: Iterable[Chunk[T]],
    workers: int,
) -> Iterator[R]:
    """Apply a function to chunks of lines, in order, and yield its results one by one.

    One worker means this process, which opens the model before it reads any lines. Several are
    processes that each open the model once; they start with the first chunk that is not followed
    by a pause of the input.
    """
    log_detail(f"processes: {max(workers, 1)}; CPUs: {available_cpus()}")
    open_in_worker.cache_clear()  # a file of the model may have changed since the last call
    if workers > 1:
        apply = partial(_apply_in_worker, loader, function)
        return chain.from_iterable(_map_chunks(apply, iter(chunks), workers))
    model = loader.load()
    return (result for chunk in chunks for result in function(model, chunk.lines, chunk.first))


def _map_chunks(
    apply: Callable[[Chunk[T]], list[R]], chunks: Iterator[Chunk[T]], workers: int
) -> Iterator[list[R]]:
    for chunk in chunks:
        if chunk.paused:
            yield apply(chunk)
        else:
            yield from processes.map_in_order(apply, chain([chunk], chunks), workers)


def _apply_in_worker(
    loader: ModelLoader, function: ChunkFunction[T, R], chunk: Chunk[T]
) -> list[R]:
    return list(function(open_in_worker(loader), chunk.lines, chunk.first))


@lru_cache(maxsize=1)
def open_in_worker(loader: ModelLoader) -> Model:
    """Open the model once per process, with its share of the threads or a GPU of its own."""
    rank, device, threads = processes.worker_rank(), loader.device, loader.threads
    if rank.workers > 1:
        threads = max(1, (threads or available_cpus()) // rank.workers)
        if gpus := count_gpus(loader):
            device = f"cuda:{rank.rank % gpus}"
    return replace(loader, device=device, threads=threads).load()


def count_gpus(loader: ModelLoader) -> int:
    """Return how many GPUs the model can use; exported models use none."""
    if loader.device not in ("auto", "cuda") or is_exported(loader.directories[0]):
        return 0
    import torch

    return torch.cuda.device_count()


def models_identity(directories: Iterable[Path], more: Sequence[str] = ()) -> dict[str, Any]:
    """Hash what models compute with: weights, vocabularies, and `more` files of each directory."""
    directories, names = list(directories), (*WEIGHTS, *more)
    return {
        "models": [
            file_digest(path)
            for directory in directories
            for path in sorted(directory.iterdir())
            if path.name in names
        ],
        "vocabularies": [vocabulary_fingerprint(directory) for directory in directories],
    }


@dataclass(frozen=True)
class TranslationJob:
    """A model and how to translate with it, the same for all workers."""

    loader: ModelLoader
    decode: DecodeConfig
    overlong: Literal["cut", "split"] = "cut"
    split_sentences: bool = False
    as_json: bool = False

    def translate(
        self, model: Model, lines: Iterable[str], first: int = 0
    ) -> Iterator[Translation]:
        """Translate lines; `first` is the index of the first one, for warnings."""
        return model.translate_stream(
            lines, self.decode, self.overlong, split_sentences=self.split_sentences, first=first
        )

    def identity(self) -> dict[str, Any]:
        """Return all that the translations depend on."""
        dictionary = self.loader.dictionary
        return {
            **models_identity(self.loader.directories),
            "decode": self.decode.model_dump(mode="json"),
            "overlong": self.overlong,
            "sentences": self.split_sentences,
            "json": self.as_json,
            "dictionary": file_digest(dictionary) if dictionary else None,
        }


def translate_input(
    job: TranslationJob, path: Path | str | None, workers: int
) -> Iterator[Translation]:
    """Translate a file, standard input (None) or a text (str), in order.

    0 workers are as many as suit the model for a file, and one for standard input.
    """
    if not workers and is_file_path(path):
        workers = job.loader.default_workers
    size = (CHUNK_BATCHES if workers > 1 else WINDOW_BATCHES) * job.decode.batch_size
    return map_lines(job.loader, job.translate, input_chunks(path, size), workers)


def align_parallel_files(
    loader: ModelLoader, source: Path, target: Path, tokenized: bool
) -> Iterator[Alignment]:
    """Align two files line by line, in order; an error names the line."""
    workers = loader.default_workers
    size = ALIGNMENT_CHUNK_PAIRS if workers > 1 else align.WINDOW_PAIRS
    pairs = chunked(((s, t) for s, t in read_parallel_lines(source, target)), size)
    try:
        yield from map_lines(loader, partial(_align_chunk, tokenized), pairs, workers)
    except EmptySideError as error:
        raise error.in_files(source, target) from None


def _align_chunk(
    tokenized: bool, model: Model, pairs: list[tuple[str, str]], first: int
) -> Iterator[Alignment]:
    return model.align_stream(pairs, tokenized, first)


@dataclass(frozen=True)
class Shard:
    """A file, and the file for its translation."""

    source: Path
    target: Path

    def __str__(self) -> str:
        return str(self.source)


@dataclass(frozen=True)
class TranslationSummary:
    """What a call of `translate_files` did."""

    directory: Path
    files: int
    lines: int
    skipped: int  # files that had a translation already

    def __str__(self) -> str:
        skipped = f"; {self.skipped:,} were there already" if self.skipped else ""
        return f"{self.directory}: {self.files:,} files, {self.lines:,} lines{skipped}"


def translate_files(
    job: TranslationJob,
    inputs: Sequence[Path],
    directory: Path | None,
    workers: int,
    ray: str | None = None,
) -> TranslationSummary:
    """Translate all files that have no translation yet, in processes or on a Ray cluster."""
    if not inputs or directory is None:
        raise UserError("--shards and --output-dir, the directory of the translations: give both")
    if job.decode.nbest > 1 and not job.as_json:
        raise UserError("--shards gives one line for each line: with --nbest add --json")
    shards = plan_shards(inputs, directory)
    check_output_settings(job, directory)
    workers = workers or count_gpus(job.loader) or max(1, available_cpus() // CORES_PER_WORKER)
    waiting = [shard for shard in shards if not shard.target.exists()]
    # the largest first, so that no worker is left alone with it in the end
    waiting.sort(key=lambda shard: -shard.source.stat().st_size)
    open_in_worker.cache_clear()
    line_counts: Iterator[int]
    if ray is None:
        line_counts = processes.map_unordered(
            partial(translate_shard, job), waiting, min(workers, len(waiting))
        )
    else:
        directories = tuple(path.absolute() for path in job.loader.directories)
        threads = job.loader.threads or CORES_PER_WORKER
        job = replace(job, loader=replace(job.loader, directories=directories, threads=threads))
        line_counts = ray_cluster.map_on_cluster(
            partial(translate_shard, job), waiting, ray, CORES_PER_WORKER
        )
    lines = sum(track(line_counts, len(waiting), "translating", "files"))
    remove_abandoned_files(directory, {shard.target.name for shard in shards})
    return TranslationSummary(directory, len(waiting), lines, len(shards) - len(waiting))


def plan_shards(inputs: Sequence[Path], directory: Path) -> list[Shard]:
    """List the files, including those in directories, and where their translations go."""
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
            raise UserError(
                f"{source}: its translation would replace it; choose another --output-dir"
            )
        shards[shard.target] = shard
    return list(shards.values())


def check_output_settings(job: TranslationJob, directory: Path) -> None:
    """Refuse a directory that holds translations made with other settings."""
    path, settings = directory / SETTINGS_FILE, job.identity()
    if not path.exists() or all(entry.name.startswith(".") for entry in directory.iterdir()):
        write_json(path, settings)  # nothing is translated yet
        return
    before = read_json(path)
    require_same_settings(
        before if isinstance(before, dict) else {},
        settings,
        f"{directory}: holds translations made",
        "choose another --output-dir, or the old settings",
    )


def translate_shard(job: TranslationJob, shard: Shard) -> int:
    """Translate one file; return the number of its lines.

    Warn if many of them are unlike what the model was trained on.
    """
    translations = job.translate(open_in_worker(job.loader), read_lines(shard.source))
    if monitor := job.loader.domain_monitor(str(shard)):
        translations = monitor.watch(translations)
    lines, written = format_translations(translations, job.as_json, job.decode.nbest), count()
    write_lines(shard.target, (line for line, _ in zip(lines, written)))  # noqa: B905 (endless)
    return next(written)
