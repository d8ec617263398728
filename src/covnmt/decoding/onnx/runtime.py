"""ONNX Runtime as the engine: exported models, on a CPU, without PyTorch.

A model is two graphs (see `export`): one reads the source, the other makes a step of the
search and proposes words. States stay inside the runtime: a state is the values that the last
step left, and the rows of them that the next step begins with.

Letters: S sentences, R rows, V words, J source positions.
"""

import math
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covnmt.base.arrays import FloatArray, IntArray
from covnmt.base.config import DecodeConfig, ModelConfig
from covnmt.base.errors import UserError
from covnmt.data.padding import PaddedIds
from covnmt.decoding.array_functions import mean, mean_log_probs, mean_or_none, top_k
from covnmt.decoding.beam_search import Proposal, beam_search
from covnmt.decoding.onnx.format import (
    ENCODER_FILE,
    MANIFEST_FILE,
    REEXPORT_HINT,
    SHORTLIST_FILE,
    STEP_FILE,
    Manifest,
    OutputLayer,
    check_digests,
    matrices_for_this_cpu,
    read_manifest,
)
from covnmt.decoding.onnx.shortlist import Shortlist
from covnmt.decoding.protocol import ForcedDecoding, SearchResult, StepCallback
from covnmt.model.directory import (
    ModelDescription,
    check_model_signature,
)
from covnmt.text.vocabulary import PAD_ID, UNK_ID

# Nothing about our users leaves their machines; it must be said before the import.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import onnxruntime as ort

MANY = 16  # sentences, from which on greedy search takes products of contexts, not of annotations
STRIDE = 4  # source positions that the runtime adds up at once; the last few it adds in other order
TOGETHER = 8  # hypotheses that look at the source at once

OrtValues = dict[str, ort.OrtValue]  # by name, inside the runtime


def to_ort_value(array: NDArray[Any]) -> ort.OrtValue:
    """An array as the runtime sees it, where it lies."""
    return ort.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"))


@lru_cache(typed=True)
def scalar_ort_value(number: int | bool, *shape: int) -> ort.OrtValue:
    """One number as the runtime sees it."""
    return to_ort_value(np.full(shape, number))


class OnnxMemory(NamedTuple):
    """What one model knows of S sentences; shared by all hypotheses of each."""

    arrays: dict[str, FloatArray]  # [S, ..., J, *]: keys, values, bias, and Phi where there is one
    output: dict[str, NDArray[Any]]  # the part of the output layer that is used, if not all
    words: IntArray | None  # the words of that part

    def select(self, sentences: IntArray) -> "OnnxMemory":
        """Only these sentences."""
        chosen = {name: array[sentences] for name, array in self.arrays.items()}
        return OnnxMemory(chosen, self.output, self.words)

    def values(self, size: int) -> OrtValues:
        """As the runtime sees it, in groups of so many sentences."""
        groups = {name: a.reshape(-1, size, *a.shape[1:]) for name, a in self.arrays.items()}
        return {name: to_ort_value(array) for name, array in (groups | self.output).items()}


class OnnxStates(NamedTuple):
    """What every model carries from step to step, and the rows of it that are still of interest."""

    each: tuple[OrtValues, ...]
    rows: IntArray  # [R]

    def select(self, rows: IntArray) -> "OnnxStates":
        """Only these rows; the next step picks them."""
        return OnnxStates(self.each, self.rows[rows])


class OnnxModel:
    """The two graphs of a model, ready to run."""

    def __init__(
        self,
        directory: Path,
        known: ModelDescription,
        threads: int,
        manifest: Manifest | None = None,
    ) -> None:
        manifest = manifest or read_manifest(directory)
        # kept for as long as the runtime, which does not copy them, may look at them
        self.matrices = matrices_for_this_cpu(directory, manifest)
        self.encoder = open_session(directory / ENCODER_FILE, threads, self.matrices)
        self.steps = open_session(directory / STEP_FILE, threads, self.matrices)
        self.config = known.config.model
        self.has_narrow = "narrow" in {each.name for each in self.encoder.get_inputs()}
        self.before_first = known.vocabulary_sizes["target"]  # the table has a row of zeros there
        shapes = {each.name: each.shape for each in self.steps.get_inputs()}
        self.carried = [name for name in ("t", "s", "C") if name in shapes]
        sizes = {name: int(shapes[name][-1]) for name in self.carried}
        self.context = sizes.get("s", 0)  # products of the last context
        self.coverage = sizes.get("C", 0)
        found = (sizes["t"], self.coverage, "Phi" in shapes)
        if found != _sizes(self.config):
            raise UserError(
                f"{directory / 'config.json'}: of another model than {STEP_FILE}; {REEXPORT_HINT}"
            )
        self.has_first = "first" in shapes
        listed = "output.W" in shapes
        self.output = OutputLayer.load(directory, manifest) if listed else None
        self.shortlist = Shortlist.load(directory / SHORTLIST_FILE) if listed else None

    def read(self, source: PaddedIds, beam: int, every_word: bool) -> tuple[OnnxMemory, OrtValues]:
        """Read sentences: what steps need of them, and what the first one begins with.

        A short list is not used where every word is asked for.
        """
        source = pad_to_stride(source)
        S, J = source.ids.shape
        names = [each.name for each in self.encoder.get_outputs()]
        narrow = {"narrow": np.array(beam == 1 and S >= MANY)} if self.has_narrow else {}
        inputs = {"words": source.ids, "mask": source.mask, **narrow}
        arrays = self.encoder.run(names, inputs)
        found = dict(zip(names, arrays, strict=True))
        nothing = float(self.config.coverage.accumulate == "subtract")
        begin = {
            "t": found.pop("t").reshape(1, S, 1, -1),
            "s": np.zeros((1, S, 1, self.context), np.float32),
            "C": np.full((1, S, 1, J, self.coverage), nothing, np.float32),
        }
        found["bias"] = np.where(source.mask, np.float32(0), np.float32(-math.inf))
        shared = {name: a if name == "values" else a[:, None] for name, a in found.items()}
        words, output = self._listed(None if every_word else source.ids)
        memory = OnnxMemory(shared, output, words)
        return memory, {name: to_ort_value(begin[name]) for name in self.carried}

    def _listed(self, source: IntArray | None) -> tuple[IntArray | None, dict[str, NDArray[Any]]]:
        """The words that may follow these, and their part of the output layer."""
        if self.output is None or self.shortlist is None:
            return None, {}
        words = None if source is None else self.shortlist.of(source)
        return words, self.output.inputs(words)

    def bind(self, memory: OrtValues) -> ort.IOBinding:
        """Tell the runtime what stays the same for several steps."""
        binding = self.steps.io_binding()
        for name, each in memory.items():
            binding.bind_ortvalue_input(name, each)
        return binding

    def step(
        self, binding: ort.IOBinding, inputs: OrtValues, names: Sequence[str]
    ) -> tuple[list[NDArray[Any]], OrtValues]:
        """Some outputs of a step as arrays, and what it carries to the next."""
        for name, each in inputs.items():
            binding.bind_ortvalue_input(name, each)
        for name in (*names, *(f"{name}.next" for name in self.carried)):
            binding.bind_output(name)
        self.steps.run_with_iobinding(binding)
        # by number: walking over this vector takes the runtime longer than a small product
        vector = binding.get_outputs_as_ortvaluevector()
        found = [ort.OrtValue(vector[number]) for number in range(len(names) + len(self.carried))]
        arrays = [_by_row(each.numpy()) for each in found[: len(names)]]
        return arrays, dict(zip(self.carried, found[len(names) :], strict=True))

    def fertility(self, memory: OnnxMemory, J: int) -> FloatArray | None:
        """Target words expected of each source word [S, J], where the model predicts them."""
        predicts = self.config.coverage.kind == "fertility"
        return memory.arrays["Phi"][:, 0, :J, 0] if predicts else None


class OnnxScorer:
    """Models that have read certain sentences, as the search sees them.

    Of several, the mean of their probabilities and of their attention counts.
    """

    def __init__(
        self, models: Sequence[OnnxModel], memories: Sequence[OnnxMemory], end_id: int
    ) -> None:
        self.models, self.memories, self.end_id, self.unk_id = models, memories, end_id, UNK_ID
        self.sentences = len(memories[0].arrays["keys"])
        # the memories in groups of this size, and as the runtime was told of them
        self._size, self._values, self._bindings = 0, [OrtValues()], list[ort.IOBinding]()

    @classmethod
    def read(
        cls,
        models: Sequence[OnnxModel],
        source: PaddedIds,
        end_id: int,
        beam: int,
        every_word: bool,
    ) -> tuple["OnnxScorer", OnnxStates]:
        """Let every model read the source; the scorer and its first state."""
        read = (model.read(source, beam, every_word) for model in models)
        memories, begin = zip(*read, strict=True)
        return cls(models, memories, end_id), OnnxStates(begin, np.arange(len(source.ids)))

    def step(self, state: OnnxStates, words: IntArray | None, k: int) -> Proposal[OnnxStates]:
        """Propose the k best next words of every row."""
        outputs = ["best", "numbers", "alpha"] if len(self.models) == 1 else ["log_probs", "alpha"]
        listed = self.memories[0].words
        found, after = self.run(state, words, k if listed is None else min(k, len(listed)), outputs)
        if len(found) == 1:
            log_probs, numbers, attention = found[0]
            numbers = numbers if listed is None else listed[numbers]
        else:
            # behind the end symbol some have words that nobody says, to fill blocks
            known = [each[0][:, : self.end_id + 1] for each in found]
            log_probs, numbers = top_k(mean_log_probs(known), k)
            attention = mean([each[1] for each in found])
        return Proposal(log_probs, numbers, attention, after)

    def run(
        self, state: OnnxStates, words: IntArray | None, k: int, outputs: Sequence[str]
    ) -> tuple[list[list[NDArray[Any]]], OnnxStates]:
        """One step of every model: these outputs of each, and the state after it."""
        size = group_size(self.sentences, len(state.rows) // self.sentences)
        if size != self._size:
            self._group(size)
        shape = (self.sentences // size, size, -1)  # [G, c, K]
        given = {"parents": to_ort_value(state.rows.reshape(shape)), "k": scalar_ort_value(k, 1)}
        found, after = [], []
        for model, binding, carried in zip(self.models, self._bindings, state.each, strict=True):
            last = np.full(len(state.rows), model.before_first) if words is None else words
            inputs = {**given, **carried, "words": to_ort_value(last.reshape(shape))}
            if model.has_first:
                inputs["first"] = scalar_ort_value(words is None)
            arrays, carries = model.step(binding, inputs, outputs)
            found.append(arrays)
            after.append(carries)
        return found, OnnxStates(tuple(after), np.arange(len(state.rows)))

    def _group(self, size: int) -> None:
        """Look at so many sentences together from now on."""
        self._size, self._values = size, [memory.values(size) for memory in self.memories]
        pairs = zip(self.models, self._values, strict=True)
        self._bindings = [model.bind(values) for model, values in pairs]

    def keep(self, sentences: IntArray) -> "OnnxScorer":
        """The same for fewer sentences."""
        if len(sentences) == self.sentences:
            return self
        return OnnxScorer(self.models, [m.select(sentences) for m in self.memories], self.end_id)

    def fertility(self, J: int) -> FloatArray | None:
        """Expected target words [S, J]; the mean where several models predict them."""
        pairs = zip(self.models, self.memories, strict=True)
        return mean_or_none([model.fertility(memory, J) for model, memory in pairs])


def _sizes(config: ModelConfig) -> tuple[int, int, bool]:
    """Of the state and of the coverage, and whether that knows something of each source word."""
    kind, size = config.coverage.kind, config.coverage.size
    units = {"none": 0, "tanh": size, "gru": size}.get(kind, 1)
    return config.hidden, units, kind in ("fertility", "tanh", "gru")


def pad_to_stride(source: PaddedIds) -> PaddedIds:
    """The same with so much padding that no sentence depends on how long the others are."""
    missing = ((0, 0), (0, -source.ids.shape[1] % STRIDE))
    return PaddedIds(
        np.pad(source.ids, missing, constant_values=PAD_ID), np.pad(source.mask, missing)
    )


def _by_row(array: NDArray[Any]) -> NDArray[Any]:
    """[G, c, K, ...] as [R, ...]."""
    return array.reshape(-1, array.shape[-1])


@lru_cache
def group_size(sentences: int, beam: int) -> int:
    """How many sentences a step looks at together.

    Few, so that the arrays of attention stay in the processor's cache; enough to be worth a round.
    """
    sizes = (size for size in range(1, sentences) if sentences % size == 0)
    return next((size for size in sizes if size * beam >= TOGETHER), sentences)


class OnnxEngine:
    """Exported models at work."""

    device = "cpu"

    def __init__(self, models: Sequence[OnnxModel], end_id: int) -> None:
        self.models, self.end_id = models, end_id

    def search(
        self, source: PaddedIds, decode: DecodeConfig, on_step: StepCallback | None
    ) -> SearchResult:
        """Translate."""
        alone = len(self.models) == 1  # several would each have a list of their own
        scorer, start = OnnxScorer.read(
            self.models, source, self.end_id, decode.beam, every_word=not alone
        )
        found = beam_search(scorer, start, source.lengths, decode, on_step)
        return SearchResult(found, scorer.fertility(source.ids.shape[1]))

    def force_decode(self, source: PaddedIds, target: PaddedIds) -> ForcedDecoding:
        """Decode these targets with the first model."""
        scorer, state = OnnxScorer.read(self.models[:1], source, self.end_id, 1, every_word=True)
        rows, J = np.arange(len(source.ids)), source.ids.shape[1]
        alphas, said = [], np.zeros(len(rows), np.float32)
        last: IntArray | None = None
        for words, real in zip(target.ids.T, target.mask.T, strict=True):
            [[log_probs, alpha]], state = scorer.run(state, last, 1, ["log_probs", "alpha"])
            said += np.where(real, log_probs[rows, words], 0)
            alphas.append(alpha[:, :J])
            last = words
        return ForcedDecoding(np.stack(alphas, axis=1), said, scorer.fertility(J))


def open_session(
    path: Path, threads: int, matrices: Mapping[str, NDArray[Any]]
) -> ort.InferenceSession:
    """Open one graph for so many threads. Some matrices may be replaced."""
    options = ort.SessionOptions()
    own = {
        name: to_ort_value(each) for name, each in matrices.items() if name.startswith(path.stem)
    }
    if own:
        options.add_external_initializers(list(own), list(own.values()))
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors; they come as exceptions too
    try:
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # whatever the runtime raises, it is about this file
        raise UserError(f"{path}: damaged ({error}); {REEXPORT_HINT}") from None


def load_exported(directory: Path, known: ModelDescription, threads: int) -> OnnxModel:
    """Open an exported model whose config.json has been read already."""
    manifest = read_manifest(directory)
    check_digests(directory, manifest)
    check_model_signature(manifest.settings, known, directory / MANIFEST_FILE)
    return OnnxModel(directory, known, threads, manifest)
