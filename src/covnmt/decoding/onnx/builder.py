"""A small language for writing ONNX graphs: every operation gives the name of its result.

    store = Store("weights.bin")
    graph = Graph("small", precision, store)
    x = graph.input("x", FLOAT, ["R", 8])
    graph.output("y", graph.op("Tanh", graph.product(x, W)), ["R", 4])

The large products and the word tables are stored as the precision says; all else is float32.
Matrices go to a file of their own, which the runtime maps into memory.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from covnmt.decoding.onnx.format import Precision

FLOAT, INT64, INT8, BOOL = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.INT8,
    TensorProto.BOOL,
)
MICROSOFT = "com.microsoft"  # the domain of ONNX Runtime's own operations
INT8_MAX = 127  # of a signed byte that has a counterpart below zero
EXTERNAL_BYTES = 1024  # bytes; what has fewer stays in the graph
ALIGNMENT = 64


def quantize(W: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Rows [b, a] as signed bytes, and what each row's bytes are multiplied by [b]."""
    scale = np.maximum(np.abs(W).max(axis=1), np.finfo(np.float32).tiny) / INT8_MAX
    return np.rint(W / scale[:, None]).astype(np.int8), scale.astype(np.float32)


class WeightStore:
    """The matrices of several graphs, end to end in one file; equal ones are stored once."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.parts: list[bytes] = []
        self.size = 0
        self._known: dict[str, int] = {}  # offsets, by digest
        self.matrices: dict[str, dict[str, int]] = {}  # where those of bytes lie, by name
        self.output: dict[str, int] = {}  # where the output layer lies, if it is given in parts

    def put(self, value: NDArray[Any]) -> int:
        """Put an array behind the others; where it begins."""
        content = value.tobytes()
        known = hashlib.sha256(content).hexdigest()
        if known not in self._known:
            padding = -self.size % ALIGNMENT
            self._known[known] = self.size + padding
            self.parts += [bytes(padding), content]
            self.size += padding + len(content)
        return self._known[known]

    def tensor(self, name: str, value: NDArray[Any]) -> onnx.TensorProto:
        """Store an array; what the graph says of it."""
        place = {"location": self.location, "offset": self.put(value), "length": value.nbytes}
        entries = [onnx.StringStringEntryProto(key=k, value=str(v)) for k, v in place.items()]
        return onnx.TensorProto(
            name=name,
            data_type=helper.np_dtype_to_tensor_dtype(value.dtype),
            dims=value.shape,
            data_location=TensorProto.EXTERNAL,
            external_data=entries,
        )


class GraphBuilder:
    """A graph in the making; an inner one keeps its constants in the outer."""

    def __init__(
        self,
        name: str,
        precision: Precision,
        store: WeightStore,
        outer: "GraphBuilder | None" = None,
    ) -> None:
        self.name, self.precision, self.store = name, precision, store
        self._outer = outer
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._names: dict[str, str] = {}  # of results that are outputs
        self._matrices: dict[tuple[int, int], str] = {}  # those in bytes, by where they lie
        self._bytes: dict[float, tuple[str, str]] = {}  # steps and zeros, by the bound of numbers

    def inner(self, name: str) -> "GraphBuilder":
        """A graph that runs as part of this one, and sees its values."""
        return GraphBuilder(name, self.precision, self.store, outer=self)

    def input(self, name: str, kind: int, shape: Sequence[int | str] | None) -> str:
        """A value that is given from outside; sizes with names may differ from call to call."""
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(
        self, name: str, value: str, shape: Sequence[int | str] | None, kind: int = FLOAT
    ) -> None:
        """Give this value back under this name."""
        self._names[value] = name
        self._outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """An operation with one result."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(
        self, kind: str, results: int, *inputs: str, domain: str = "", **attributes: Any
    ) -> list[str]:
        """An operation with several results."""
        place = f"{self.name}.{kind}{len(self._nodes)}"
        names = [f"{place}.{number}" for number in range(results)]
        node = helper.make_node(kind, list(inputs), names, domain=domain, **attributes)
        self._nodes.append(node)
        return names

    def constant(self, value: NDArray[Any]) -> str:
        """Numbers that never change."""
        if self._outer is not None:
            return self._outer.constant(value)
        name = f"{self.name}.constant{len(self._constants)}"
        array = np.asarray(value, order="C")
        small = array.nbytes < EXTERNAL_BYTES
        made = numpy_helper.from_array(array, name) if small else self.store.tensor(name, array)
        self._constants.append(made)
        return name

    def _matrix(self, W: NDArray[np.float32]) -> tuple[str, str]:
        """Bytes [a, b] and scales of a matrix [b, a], under names that `engine` knows."""
        if self._outer is not None:
            return self._outer._matrix(W)
        whole, scale = quantize(W)
        turned = np.asarray(whole.T, order="C")
        place = self.store.put(turned), self.store.put(scale)
        if place not in self._matrices:
            name = f"{self.name}.matrix{len(self._constants)}"
            self._constants.append(self.store.tensor(name, turned))
            self._constants.append(self.store.tensor(f"{name}.scale", scale))
            places = dict(zip(("offset", "scale"), place, strict=True))
            rows, columns = turned.shape
            self.store.matrices[name] = {"rows": rows, "columns": columns, **places}
            self._matrices[place] = name
        return self._matrices[place], f"{self._matrices[place]}.scale"

    def ints(self, *values: int) -> str:
        """A small vector of whole numbers."""
        return self.constant(np.array(values, dtype=np.int64))

    def split(self, value: str, *sizes: int) -> list[str]:
        """Cut the last axis into parts of these sizes."""
        return self.ops("Split", len(sizes), value, self.ints(*sizes), axis=-1)

    def reshape(self, value: str, *shape: int) -> str:
        """The same numbers in another shape; 0 keeps a size and -1 takes what is left."""
        return self.op("Reshape", value, self.ints(*shape))

    def product(
        self, x: str, W: NDArray[np.float32], b: NDArray[np.float32] | None = None, bound: float = 1
    ) -> str:
        """x W^T + b for a matrix [b, a] that is large; numbers of x stay within the bound.

        States, annotations and contexts stay within 1.
        """
        if self.precision == "int8":
            bias = "" if b is None else self.constant(b)
            return self._of_bytes(x, bound, *self._matrix(W), bias)
        found = self.op("MatMul", x, self.constant(W.T))
        return found if b is None else self.op("Add", found, self.constant(b))

    def given_product(
        self, x: str, W: NDArray[np.float32], b: NDArray[np.float32], bound: float
    ) -> str:
        """x W^T + b for some rows of a matrix [b, a], which whoever runs the graph gives.

        The store has all of them, as `engine.exported.OutputLayer` expects.
        """
        rows, columns = W.shape
        arrays = {"W": W, "b": b}
        if self.precision == "int8":
            arrays["W"], arrays["scale"] = quantize(W)  # type: ignore[assignment]
        self.store.output = {"rows": rows, "columns": columns}
        for name, array in arrays.items():
            self.store.output[name] = self.store.put(array)
        kind = INT8 if self.precision == "int8" else FLOAT
        matrix = self.input("output.W", kind, [columns, "list"])
        given = [self.input(f"output.{name}", FLOAT, ["list"]) for name in list(arrays)[1:]]
        if self.precision == "int8":
            bias, scale = given
            return self._of_bytes(x, bound, matrix, scale, bias)
        return self.op("Add", self.op("MatMul", x, matrix), given[0])

    def _of_bytes(self, x: str, bound: float, matrix: str, scale: str, bias: str) -> str:
        """The product of x in bytes; how it is rounded depends on nothing else in the batch."""
        step, zero = self._byte(bound)
        rounded = self.op("QuantizeLinear", x, step, zero)
        inputs = [rounded, matrix, step, scale, zero, "", bias]
        return self.op("MatMulIntegerToFloat", *inputs, domain=MICROSOFT)

    def _byte(self, bound: float) -> tuple[str, str]:
        """What a byte counts, and the byte that stands for 0; numbers stay within the bound."""
        if self._outer is not None:
            return self._outer._byte(bound)
        if bound not in self._bytes:
            # where there is nothing but 0, any step will do
            step = np.array((bound or 1) / INT8_MAX, np.float32)
            zero = np.array(INT8_MAX + 1, np.uint8)
            self._bytes[bound] = self.constant(step), self.constant(zero)
        return self._bytes[bound]

    def table(self, E: NDArray[np.float32], words: str) -> str:
        """The rows of a table with one for each word."""
        if self.precision == "int8":
            whole, scale = quantize(E)
            rows = self.op("Cast", self.op("Gather", self.constant(whole), words), to=FLOAT)
            return self.op("Mul", rows, self.op("Gather", self.constant(scale[:, None]), words))
        return self.op("Gather", self.constant(E), words)

    def columns(self, W: NDArray[np.float32], words: str) -> str:
        """The rows of a matrix [b, a] in bytes that is multiplied with too, and stored once."""
        whole, scale = self._matrix(W)
        found = self.op("Gather", whole, words, axis=1)  # [a, G, c, K]
        rows = self.op("Cast", self.op("Transpose", found, perm=[1, 2, 3, 0]), to=FLOAT)
        scales = self.op("Unsqueeze", self.op("Gather", scale, words), self.ints(-1))
        return self.op("Mul", rows, scales)

    def choose(self, condition: str, then: "GraphBuilder", otherwise: "GraphBuilder") -> list[str]:
        """The outputs of one inner graph or of the other."""
        branches = {"then_branch": then.graph(), "else_branch": otherwise.graph()}
        return self.ops("If", len(then._outputs), condition, **branches)

    def build(self) -> onnx.ModelProto:
        """The finished graph, with the operations it is written in."""
        operations = [helper.make_opsetid("", 18), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(
            self.graph(), opset_imports=operations, ir_version=9, producer_name="covnmt"
        )

    def graph(self) -> onnx.GraphProto:
        """The finished graph."""
        for node in self._nodes:
            for names in (node.input, node.output):
                names[:] = [self._names.get(name, name) for name in names]
        return helper.make_graph(
            self._nodes, self.name, self._inputs, self._outputs, self._constants
        )
