"""Build ONNX graphs: every operation returns the name of its result.

    store = WeightStore("weights.bin")
    graph = GraphBuilder("small", precision, store)
    x = graph.input("x", FLOAT, ["R", 8])
    graph.output("y", graph.op("Tanh", graph.product(x, W)), ["R", 4])

The large products and the embedding tables are stored in the given precision; all else is float32.
Matrices go to a file of their own, which the runtime maps into memory.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from covnmt.base.arrays import FloatArray
from covnmt.decoding.onnx.format import Precision

FLOAT, INT64, INT8, BOOL = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.INT8,
    TensorProto.BOOL,
)
MICROSOFT = "com.microsoft"  # the domain of ONNX Runtime's own operations
INT8_MAX = 127  # so that every value has a counterpart below zero
EXTERNAL_BYTES = 1024  # smaller arrays stay in the graph
ALIGNMENT = 64


def quantize(W: FloatArray) -> tuple[NDArray[np.int8], FloatArray]:
    """Return rows [b, a] in int8, and the scale of each row [b]."""
    scale = np.maximum(np.abs(W).max(axis=1), np.finfo(np.float32).tiny) / INT8_MAX
    return np.rint(W / scale[:, None]).astype(np.int8), scale.astype(np.float32)


class WeightStore:
    """The matrices of several graphs, end to end in one file; equal ones are stored once."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.parts: list[bytes] = []
        self.size = 0
        self._offsets: dict[str, int] = {}  # by digest
        self.matrices: dict[str, dict[str, int]] = {}  # where int8 matrices are, by name
        self.output: dict[str, int] = {}  # where the output layer is, if a shortlist selects rows

    def put(self, value: NDArray[Any]) -> int:
        """Store an array; return its offset."""
        content = value.tobytes()
        digest = hashlib.sha256(content).hexdigest()
        if digest not in self._offsets:
            padding = -self.size % ALIGNMENT
            self._offsets[digest] = self.size + padding
            self.parts += [bytes(padding), content]
            self.size += padding + len(content)
        return self._offsets[digest]

    def tensor(self, name: str, value: NDArray[Any]) -> onnx.TensorProto:
        """Store an array; return the tensor that refers to it."""
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
    """A graph being built; a subgraph keeps its constants in the outer graph."""

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
        self._output_names: dict[str, str] = {}  # by the name of the result
        self._matrices: dict[tuple[int, int], str] = {}  # int8 matrices by their offsets
        self._steps: dict[float, tuple[str, str]] = {}  # steps and zero points by bound

    def subgraph(self, name: str) -> "GraphBuilder":
        """Begin a graph that runs as part of this one and sees its values."""
        return GraphBuilder(name, self.precision, self.store, outer=self)

    def input(self, name: str, dtype: int, shape: Sequence[int | str] | None) -> str:
        """Declare an input; sizes with names may differ from call to call."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(
        self, name: str, value: str, shape: Sequence[int | str] | None, dtype: int = FLOAT
    ) -> None:
        """Declare this value as an output of this name."""
        self._output_names[value] = name
        self._outputs.append(helper.make_tensor_value_info(name, dtype, shape))

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Append a node with one result; return its name."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(
        self, kind: str, results: int, *inputs: str, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Append a node with several results; return their names."""
        prefix = f"{self.name}.{kind}{len(self._nodes)}"
        names = [f"{prefix}.{number}" for number in range(results)]
        node = helper.make_node(kind, list(inputs), names, domain=domain, **attributes)
        self._nodes.append(node)
        return names

    def constant(self, value: NDArray[Any]) -> str:
        """Store an array in the graph; return its name."""
        if self._outer is not None:
            return self._outer.constant(value)
        name = f"{self.name}.constant{len(self._constants)}"
        array = np.asarray(value, order="C")
        is_small = array.nbytes < EXTERNAL_BYTES
        tensor = (
            numpy_helper.from_array(array, name) if is_small else self.store.tensor(name, array)
        )
        self._constants.append(tensor)
        return name

    def ints(self, *values: int) -> str:
        """Store a vector of integers in the graph; return its name."""
        return self.constant(np.array(values, dtype=np.int64))

    def split(self, value: str, *sizes: int) -> list[str]:
        """Append a node that cuts the last axis into parts of these sizes."""
        return self.ops("Split", len(sizes), value, self.ints(*sizes), axis=-1)

    def reshape(self, value: str, *shape: int) -> str:
        """Append a node that changes the shape; 0 keeps a size and -1 takes what is left."""
        return self.op("Reshape", value, self.ints(*shape))

    def product(self, x: str, W: FloatArray, b: FloatArray | None = None, bound: float = 1) -> str:
        """Append nodes that compute x W^T + b for a large matrix [rows, columns].

        In int8, x is clipped to the bound: states, annotations and contexts stay within 1.
        """
        if self.precision == "int8":
            bias = "" if b is None else self.constant(b)
            return self._int8_product(x, bound, *self._int8_matrix(W), bias)
        product = self.op("MatMul", x, self.constant(W.T))
        return product if b is None else self.op("Add", product, self.constant(b))

    def product_with_input(self, x: str, W: FloatArray, b: FloatArray, bound: float) -> str:
        """Append nodes that compute x W^T + b for some rows of W and b, which are graph inputs.

        The store has all rows, as `format.OutputLayer` expects them.
        """
        rows, columns = W.shape
        arrays = {"W": W, "b": b}
        if self.precision == "int8":
            arrays["W"], arrays["scale"] = quantize(W)  # type: ignore[assignment]
        self.store.output = {"rows": rows, "columns": columns}
        for name, array in arrays.items():
            self.store.output[name] = self.store.put(array)
        dtype = INT8 if self.precision == "int8" else FLOAT
        matrix = self.input("output.W", dtype, [columns, "list"])
        vectors = [self.input(f"output.{name}", FLOAT, ["list"]) for name in list(arrays)[1:]]
        if self.precision == "int8":
            bias, scale = vectors
            return self._int8_product(x, bound, matrix, scale, bias)
        return self.op("Add", self.op("MatMul", x, matrix), vectors[0])

    def _int8_product(self, x: str, bound: float, matrix: str, scale: str, bias: str) -> str:
        """Append nodes of a product in int8; nothing else in the batch changes how x is rounded."""
        step, zero_point = self._quantization(bound)
        rounded = self.op("QuantizeLinear", x, step, zero_point)
        inputs = [rounded, matrix, step, scale, zero_point, "", bias]
        return self.op("MatMulIntegerToFloat", *inputs, domain=MICROSOFT)

    def _quantization(self, bound: float) -> tuple[str, str]:
        """Store the step and the zero point for values within the bound."""
        if self._outer is not None:
            return self._outer._quantization(bound)
        if bound not in self._steps:
            # where all values are 0, any step will do
            step = np.array((bound or 1) / INT8_MAX, np.float32)
            zero_point = np.array(INT8_MAX + 1, np.uint8)
            self._steps[bound] = self.constant(step), self.constant(zero_point)
        return self._steps[bound]

    def _int8_matrix(self, W: FloatArray) -> tuple[str, str]:
        """Store a matrix [rows, columns] in int8, transposed, and the scales of its rows.

        The manifest names both.
        """
        if self._outer is not None:
            return self._outer._int8_matrix(W)
        rounded, scale = quantize(W)
        transposed = np.asarray(rounded.T, order="C")
        offsets = self.store.put(transposed), self.store.put(scale)
        if offsets not in self._matrices:
            name = f"{self.name}.matrix{len(self._constants)}"
            self._constants.append(self.store.tensor(name, transposed))
            self._constants.append(self.store.tensor(f"{name}.scale", scale))
            rows, columns = transposed.shape
            self.store.matrices[name] = {
                "rows": rows, "columns": columns, "offset": offsets[0], "scale": offsets[1],
            }  # fmt: skip
            self._matrices[offsets] = name
        return self._matrices[offsets], f"{self._matrices[offsets]}.scale"

    def embed(self, E: FloatArray, token_ids: str) -> str:
        """Append nodes that look up rows of an embedding table."""
        if self.precision == "int8":
            rounded, scale = quantize(E)
            rows = self.op("Gather", self.constant(rounded), token_ids)
            rows = self.op("Cast", rows, to=FLOAT)
            return self.op("Mul", rows, self.op("Gather", self.constant(scale[:, None]), token_ids))
        return self.op("Gather", self.constant(E), token_ids)

    def embed_from_product(self, W: FloatArray, token_ids: str) -> str:
        """Append nodes that look up rows of an int8 matrix of `product`, which is stored once."""
        matrix, scale = self._int8_matrix(W)
        columns = self.op("Gather", matrix, token_ids, axis=1)  # [columns, G, c, K]
        rows = self.op("Cast", self.op("Transpose", columns, perm=[1, 2, 3, 0]), to=FLOAT)
        scales = self.op("Unsqueeze", self.op("Gather", scale, token_ids), self.ints(-1))
        return self.op("Mul", rows, scales)

    def branch(self, condition: str, then: "GraphBuilder", otherwise: "GraphBuilder") -> list[str]:
        """Append a node that runs one subgraph or the other; return the names of its outputs."""
        branches = {"then_branch": then.build_graph(), "else_branch": otherwise.build_graph()}
        return self.ops("If", len(then._outputs), condition, **branches)

    def build(self) -> onnx.ModelProto:
        """Return the finished model."""
        operations = [helper.make_opsetid("", 18), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(
            self.build_graph(), opset_imports=operations, ir_version=9, producer_name="covnmt"
        )

    def build_graph(self) -> onnx.GraphProto:
        """Return the finished graph."""
        for node in self._nodes:
            for names in (node.input, node.output):
                names[:] = [self._output_names.get(name, name) for name in names]
        return helper.make_graph(
            self._nodes, self.name, self._inputs, self._outputs, self._constants
        )
