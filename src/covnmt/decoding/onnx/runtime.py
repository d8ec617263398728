"""The ONNX Runtime engine: exported models on a CPU, without PyTorch.

A model is two graphs (see `encoder` and `step`): one encodes the source, the other computes a step
of the search and proposes tokens. States stay inside the runtime: a state is the values that the
last step left, and the rows of them that the next step begins with.

Notation: S sentences, R rows, V vocabulary size, I target and J source positions; G groups of c
sentences with K hypotheses each.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covnmt.base.arrays import FloatArray, IntArray
from covnmt.base.config import DecodeConfig
from covnmt.base.errors import UserError
from covnmt.data.padding import PaddedIds
from covnmt.decoding.array_functions import mean, mean_log_probs, mean_or_none, top_k
from covnmt.decoding.beam_search import Proposal, beam_search
from covnmt.decoding.engines import (
    CoverageAblation,
    ForcedDecoding,
    SearchResult,
    StepCallback,
    do_nothing,
)
from covnmt.decoding.onnx.format import (
    ENCODER_FILE,
    MANIFEST_FILE,
    REEXPORT_HINT,
    SHORTLIST_FILE,
    STEP_FILE,
    OutputLayer,
    matrices_for_this_cpu,
    verify_manifest,
)
from covnmt.decoding.onnx.shortlist import Shortlist
from covnmt.model.directory import ModelDescription, check_model_signature
from covnmt.text.vocabulary import PAD_ID, UNK_ID

# Nothing about our users leaves their machines; it must be set before the import.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import onnxruntime as ort

MIN_SENTENCES_TO_PROJECT_CONTEXTS = 16  # greedy search; see `encoder`
STRIDE = 4  # source positions that the runtime adds up at once; the last few it adds in other order
GROUP_ROWS = 8  # hypotheses that attend at once

OrtValues = dict[str, ort.OrtValue]  # by name, inside the runtime


def to_ort_value(array: NDArray[Any]) -> ort.OrtValue:
    """Wrap an array for the runtime, without copying it."""
    return ort.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"))


class OnnxMemory(NamedTuple):
    """What one model knows of S sentences; shared by all hypotheses of each."""

    arrays: dict[str, FloatArray]  # [S, ..., J, *]: keys, values, bias, and Phi where there is one
    output: dict[str, NDArray[Any]]  # the rows of the output layer that a shortlist selects
    shortlist: IntArray | None  # ids of those rows


class OnnxStates(NamedTuple):
    """What every model carries from step to step, and which rows of it the next step reads."""

    carried: tuple[OrtValues, ...]
    rows: IntArray  # [R]

    def select(self, rows: IntArray) -> "OnnxStates":
        """Keep only these rows; the next step picks them."""
        return OnnxStates(self.carried, self.rows[rows])


class OnnxModel:
    """The two graphs of an exported model, opened; its config.json has been read already."""

    def __init__(self, directory: Path, description: ModelDescription, threads: int) -> None:
        manifest = verify_manifest(directory)
        check_model_signature(manifest.settings, description, directory / MANIFEST_FILE)
        # kept for as long as the runtime, which does not copy them, may read them
        self.matrices = matrices_for_this_cpu(directory, manifest)
        self.encoder = open_session(directory / ENCODER_FILE, threads, self.matrices)
        self.steps = open_session(directory / STEP_FILE, threads, self.matrices)
        self.config = description.config.model
        self.chooses_projection = "narrow" in {node.name for node in self.encoder.get_inputs()}
        # at the first step the last token is this id, a row of zeros after the embeddings
        self.start_id = description.vocabulary_sizes["target"]
        shapes = {node.name: node.shape for node in self.steps.get_inputs()}
        self.carried = [name for name in ("t", "s", "C") if name in shapes]
        sizes = {name: int(shapes[name][-1]) for name in self.carried}
        self.context = sizes.get("s", 0)  # products of the last context
        self.coverage = sizes.get("C", 0)
        kind, size = self.config.coverage.kind, self.config.coverage.size
        coverage = {"none": 0, "tanh": size, "gru": size}.get(kind, 1)
        expected = (self.config.hidden, coverage, kind in ("fertility", "tanh", "gru"))
        if (sizes["t"], self.coverage, "Phi" in shapes) != expected:
            raise UserError(
                f"{directory / 'config.json'}: of another model than {STEP_FILE}; {REEXPORT_HINT}"
            )
        self.has_first = "first" in shapes
        has_shortlist = "output.W" in shapes
        self.output = OutputLayer.load(directory, manifest) if has_shortlist else None
        self.shortlist = (
            Shortlist.load(directory / SHORTLIST_FILE, self.start_id) if has_shortlist else None
        )

    def encode(
        self, source: PaddedIds, beam: int, all_tokens: bool
    ) -> tuple[OnnxMemory, OrtValues]:
        """Encode sentences; return what steps need of them, and the state of the first one.

        With `all_tokens` no shortlist is used.
        """
        source = pad_to_stride(source)
        S, J = source.ids.shape
        names = [node.name for node in self.encoder.get_outputs()]
        inputs = {"words": source.ids, "mask": source.mask}
        if self.chooses_projection:
            inputs["narrow"] = np.array(beam == 1 and S >= MIN_SENTENCES_TO_PROJECT_CONTEXTS)
        outputs = dict(zip(names, self.encoder.run(names, inputs), strict=True))
        no_coverage = float(self.config.coverage.accumulate == "subtract")
        first_state = {
            "t": outputs.pop("t").reshape(1, S, 1, -1),
            "s": np.zeros((1, S, 1, self.context), np.float32),
            "C": np.full((1, S, 1, J, self.coverage), no_coverage, np.float32),
        }
        outputs["bias"] = np.where(source.mask, np.float32(0), np.float32(-math.inf))
        arrays = {name: a if name == "values" else a[:, None] for name, a in outputs.items()}
        first_values = {name: to_ort_value(first_state[name]) for name in self.carried}
        if self.output is None or self.shortlist is None:
            return OnnxMemory(arrays, {}, None), first_values
        token_ids = None if all_tokens else self.shortlist.for_source(source.ids)
        return OnnxMemory(arrays, self.output.inputs(token_ids), token_ids), first_values


class OnnxScorer:
    """One model or an ensemble that has encoded certain sentences: a `Scorer`.

    The members of an ensemble vote with the mean of their probabilities and of their attention.
    """

    def __init__(
        self, models: Sequence[OnnxModel], memories: Sequence[OnnxMemory], end_id: int
    ) -> None:
        self.models, self.memories, self.end_id, self.unk_id = models, memories, end_id, UNK_ID
        self.sentences = len(memories[0].arrays["keys"])
        # how many sentences are bound as a group, the bindings of every model, and what they hold:
        # the runtime does not copy it
        self._group_size, self._bindings = 0, list[tuple[ort.IOBinding, OrtValues]]()

    @classmethod
    def encode(
        cls,
        models: Sequence[OnnxModel],
        source: PaddedIds,
        end_id: int,
        beam: int,
        all_tokens: bool,
    ) -> tuple["OnnxScorer", OnnxStates]:
        """Let every model encode the source; return the scorer and its first state."""
        encoded = (model.encode(source, beam, all_tokens) for model in models)
        memories, states = zip(*encoded, strict=True)
        return cls(models, memories, end_id), OnnxStates(states, np.arange(len(source.ids)))

    def step(self, state: OnnxStates, token_ids: IntArray | None, k: int) -> Proposal[OnnxStates]:
        """Propose the k best next tokens of every row."""
        if len(self.models) > 1:
            outputs, next_state = self.run(state, token_ids, k, ["log_probs", "alpha"])
            # some models have padding after the end symbol, which fills the last block
            members = [log_probs[:, : self.end_id + 1] for log_probs, _ in outputs]
            log_probs, best_ids = top_k(mean_log_probs(members), k)
            return Proposal(log_probs, best_ids, mean([alpha for _, alpha in outputs]), next_state)
        shortlist = self.memories[0].shortlist
        k = k if shortlist is None else min(k, len(shortlist))
        [alone], next_state = self.run(state, token_ids, k, ["best", "numbers", "alpha"])
        log_probs, best_ids, attention = alone
        best_ids = best_ids if shortlist is None else shortlist[best_ids]
        return Proposal(log_probs, best_ids, attention, next_state)

    def run(
        self, state: OnnxStates, token_ids: IntArray | None, k: int, names: Sequence[str]
    ) -> tuple[list[list[NDArray[Any]]], OnnxStates]:
        """Run a step of every model; return these outputs [R, *] of each, and the next state."""
        R = len(state.rows)
        size = group_size(self.sentences, R // self.sentences)
        if size != self._group_size:
            self._bind_memories(size)
        shape = (self.sentences // size, size, -1)  # [G, c, K]
        parents, best = to_ort_value(state.rows.reshape(shape)), to_ort_value(np.array([k]))
        outputs, next_states = [], []
        for model, (binding, _), carried in zip(
            self.models, self._bindings, state.carried, strict=True
        ):
            last_ids = np.full(R, model.start_id) if token_ids is None else token_ids
            words = to_ort_value(last_ids.reshape(shape))
            inputs = {"parents": parents, "k": best, "words": words, **carried}
            if model.has_first:
                inputs["first"] = to_ort_value(np.array(token_ids is None))
            for name, value in inputs.items():
                binding.bind_ortvalue_input(name, value)
            all_names = [*names, *(f"{name}.next" for name in model.carried)]
            for name in all_names:
                binding.bind_output(name)
            model.steps.run_with_iobinding(binding)
            # by number: iterating over this vector takes the runtime longer than a small product
            vector = binding.get_outputs_as_ortvaluevector()
            values = [ort.OrtValue(vector[number]) for number in range(len(all_names))]
            arrays = [value.numpy() for value in values[: len(names)]]  # [G, c, K, *]
            outputs.append([array.reshape(-1, array.shape[-1]) for array in arrays])
            next_states.append(dict(zip(model.carried, values[len(names) :], strict=True)))
        return outputs, OnnxStates(tuple(next_states), np.arange(R))

    def _bind_memories(self, size: int) -> None:
        """Bind what stays the same for several steps, in groups of so many sentences."""
        self._group_size, self._bindings = size, []
        for model, memory in zip(self.models, self.memories, strict=True):
            groups = {name: a.reshape(-1, size, *a.shape[1:]) for name, a in memory.arrays.items()}
            values = {name: to_ort_value(a) for name, a in (groups | memory.output).items()}
            binding = model.steps.io_binding()
            for name, value in values.items():
                binding.bind_ortvalue_input(name, value)
            self._bindings.append((binding, values))

    def keep(self, sentences: IntArray) -> "OnnxScorer":
        """Return a scorer for only these sentences, in this order."""
        if np.array_equal(sentences, np.arange(self.sentences)):
            return self
        memories = [
            memory._replace(arrays={name: a[sentences] for name, a in memory.arrays.items()})
            for memory in self.memories
        ]
        return OnnxScorer(self.models, memories, self.end_id)

    def fertility(self, J: int) -> FloatArray | None:
        """Return the expected number of target tokens [S, J], if all models predict it."""
        pairs = zip(self.models, self.memories, strict=True)
        return mean_or_none(
            [
                memory.arrays["Phi"][:, 0, :J, 0] if m.config.coverage.kind == "fertility" else None
                for m, memory in pairs
            ]
        )


def pad_to_stride(source: PaddedIds) -> PaddedIds:
    """Pad so that no translation depends on how long the other sentences are."""
    missing = ((0, 0), (0, -source.ids.shape[1] % STRIDE))
    return PaddedIds(
        np.pad(source.ids, missing, constant_values=PAD_ID), np.pad(source.mask, missing)
    )


@lru_cache
def group_size(sentences: int, beam: int) -> int:
    """Return how many sentences attend together.

    Few, so that the arrays of attention stay in the processor's cache; enough to be worth a loop
    over groups.
    """
    sizes = (size for size in range(1, sentences) if sentences % size == 0)
    return next((size for size in sizes if size * beam >= GROUP_ROWS), sentences)


class OnnxEngine:
    """Exported models, opened for translation."""

    device = "cpu"

    def __init__(self, models: Sequence[OnnxModel], end_id: int) -> None:
        self.models, self.end_id = models, end_id
        self.before_step: Callable[[], None] = do_nothing

    def search(
        self, source: PaddedIds, decode: DecodeConfig, on_step: StepCallback | None
    ) -> SearchResult:
        """Translate; an ensemble uses no shortlists, as each model would have its own."""
        scorer, state = OnnxScorer.encode(
            self.models, source, self.end_id, decode.beam, all_tokens=len(self.models) > 1
        )
        hypotheses = beam_search(scorer, state, source.lengths, decode, on_step, self.before_step)
        return SearchResult(hypotheses, scorer.fertility(source.ids.shape[1]))

    def force_decode(self, source: PaddedIds, target: PaddedIds) -> ForcedDecoding:
        """Decode these targets with the first model."""
        scorer, state = OnnxScorer.encode(
            self.models[:1], source, self.end_id, beam=1, all_tokens=True
        )
        rows, J = np.arange(len(source.ids)), source.ids.shape[1]
        alphas, columns = [], []
        last_ids: IntArray | None = None
        for token_ids, is_real in zip(target.ids.T, target.mask.T, strict=True):
            self.before_step()
            [outputs], state = scorer.run(state, last_ids, 1, ["log_probs", "alpha"])
            log_probs, alpha = outputs
            columns.append(np.where(is_real, log_probs[rows, token_ids], np.float32(0)))
            alphas.append(alpha[:, :J])
            last_ids = token_ids
        total = np.zeros(len(rows), np.float32)
        for column in columns:  # in this order, so that padding changes nothing
            total += column
        alpha, token_log_probs = np.stack(alphas, axis=1), np.stack(columns, axis=1)
        return ForcedDecoding(alpha, total, scorer.fertility(J), token_log_probs)

    def ablate_coverage(self, source: PaddedIds, target: PaddedIds) -> CoverageAblation:
        """Take every step with the coverage, and with C_0 instead."""
        scorer, state = OnnxScorer.encode(
            self.models[:1], source, self.end_id, beam=1, all_tokens=True
        )
        first = state.carried[0].get("C")
        C_0 = {} if first is None else {"C": first}
        J = source.ids.shape[1]
        alphas, without, last_ids = [], [], None
        for token_ids in target.ids.T:
            self.before_step()
            uncovered = OnnxStates(({**state.carried[0], **C_0},), state.rows)
            [[alpha]], _ = scorer.run(uncovered, last_ids, 1, ["alpha"])
            without.append(alpha[:, :J])
            [[alpha]], state = scorer.run(state, last_ids, 1, ["alpha"])
            alphas.append(alpha[:, :J])
            last_ids = token_ids
        alpha, without_coverage = np.stack(alphas, axis=1), np.stack(without, axis=1)
        return CoverageAblation(alpha, without_coverage, None, scorer.fertility(J))


def open_session(
    path: Path, threads: int, matrices: Mapping[str, NDArray[Any]]
) -> ort.InferenceSession:
    """Open a graph; some of its matrices may be replaced."""
    options = ort.SessionOptions()
    replacements = {
        name: to_ort_value(matrix)
        for name, matrix in matrices.items()
        if name.startswith(path.stem)
    }
    if replacements:
        options.add_external_initializers(list(replacements), list(replacements.values()))
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors; they are raised too
    try:
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # whatever the runtime raises, it is about this file
        raise UserError(f"{path}: damaged ({error}); {REEXPORT_HINT}") from None
