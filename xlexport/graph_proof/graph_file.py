"""Read an ONNX file of others: what may be in it, its inputs and outputs, and how values flow through it.

The file is checked as protocol buffers before the package `onnx` parses it. `xlruntime.graph_gate` has the strict list
for bundles; here all operators of ONNX, and those of ONNX Runtime that neither read files nor hold code, may run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.inliner

from xlexport.errors import GraphError
from xlruntime.errors import BundleGraphError
from xlruntime.graph_gate import GRAPH_LIMITS, FileRecord
from xlruntime.hub_cache import real_folders
from xlruntime.limits import read_at_most
from xlruntime.messages import first_line, named, near_path

__all__ = ["UNNAMED", "GraphFile", "Port", "Recurrence", "read_graph_file"]

UNNAMED = "/"  # in the name of an axis that the graph does not name
NO_NAME = re.compile(r".*_dynamic_axes_\d+|unk__\d+|\?|None|-1|")  # of an axis, as exporters write it
ONNX_RUNTIME = "com.microsoft"
UNLISTED = "SimplifiedLayerNormalization"  # ONNX Runtime's, which it has among the standard operators
# Of this domain: computed from inputs alone, without strings, files, contexts of devices or code.
CONTRIBUTED = frozenset(
    """
    Attention AttnLSTM BiasGelu BranchwiseRMSNorm CDist CausalConvWithState ConvTransposeWithDynamicPads
    CropAndResize DecoderMaskedMultiHeadAttention DequantizeLinear DynamicQuantizeLSTM DynamicQuantizeMatMul
    EmbedLayerNormalization ExpandDims FastGelu FusedConv FusedGemm FusedMatMul GatedRMSNorm GatherBlockQuantized
    GatherND Gelu GridSample GroupQueryAttention Inverse LinearAttention LinearAttentionGate MatMulBnb4 MatMulFpQ4
    MatMulInteger16 MatMulIntegerToFloat MatMulNBits MaxpoolWithMask MoE MultiHeadAttention NhwcMaxPool Pad
    QAttention QEmbedLayerNormalization QGemm QLinearAdd QLinearAveragePool QLinearConcat QLinearConv
    QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul QLinearSigmoid QLinearSoftmax QLinearWhere QMoE
    QuantizeLinear QuickGelu Range RotaryEmbedding ScaledSiLU SkipLayerNormalization
    SkipSimplifiedLayerNormalization SparseAttention SparseToDenseMatMul TransposeMatMul Trilu UnfoldTensor Unique
    """.split()  # noqa: SIM905 - a word is easier to find here than in a list
)
FLOATS = frozenset(onnx.TensorProto.DataType.Value(name) for name in ("FLOAT", "FLOAT16", "DOUBLE", "BFLOAT16"))
INITIAL = {"RNN": (5,), "GRU": (5,), "LSTM": (5, 6)}  # inputs that hold the state before the first step


class _ForeignRecord(FileRecord):
    """One pass over a file of others: operators of ONNX and ONNX Runtime, and functions that the file holds."""

    WRITTEN = "that are neither standard nor on the list of ONNX Runtime's"
    FUNCTIONS = "other domains"

    def is_operator(self, domain: str, operator: str) -> bool:
        """Return whether the operator is standard, or one of ONNX Runtime's that computes from inputs alone."""
        return operator in CONTRIBUTED if domain else onnx.defs.has(operator) or operator == UNLISTED

    def is_function(self, domain: str) -> bool:
        """Return whether the file itself must hold the operator."""
        return domain not in ("", ONNX_RUNTIME)

    def location_problem(self, location: str) -> str | None:
        """Return what is wrong with a file of tensors: it must lie in the graph's folder or the hub's own cache."""
        folder = Path(self.budget.name).absolute().parent
        real = folder.resolve()
        roots = [real, *(blobs for one in (real, *real.parents) for blobs in real_folders(one)[1:])]
        try:
            found = (folder / location).resolve()
            is_inside = not Path(location).is_absolute() and any(map(found.is_relative_to, roots))
            return "which leads out of its folder" if not is_inside else None if found.is_file() else "which is missing"
        except (OSError, RuntimeError, ValueError):  # a link to itself, or no name of a file
            return "which cannot be read"


@dataclass(frozen=True)
class Port:
    """An input or output of a graph.

    Attributes:
        dtype: of its numbers.
        shape: a number for a fixed axis, a name for a free one; an axis without a name is called PORT/AXIS. None: the
            graph says nothing.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str, ...] | None

    def __str__(self) -> str:
        names = ", ".join("?" if UNNAMED in str(axis) else str(axis) for axis in self.shape or ())
        return f"{named(self.name)} {self.dtype} {'unknown shape' if self.shape is None else f'[{names}]'}"


@dataclass(frozen=True)
class Recurrence:
    """An operator that reads its input step by step.

    Attributes:
        operator: `LSTM`, `GRU`, `RNN`, `Scan` or `Loop`; name: of the node, or of its first output.
        start: the values that hold its first state; empty texts for those that it lacks.
        backwards: whether it also reads from the end.
        choice: the node `If` in which it is, or an empty text.
    """

    operator: str
    name: str
    start: tuple[str, ...]
    backwards: bool
    choice: str


@dataclass(frozen=True)
class GraphFile:
    """A checked graph.

    Attributes:
        path: where it lies; content: the bytes that were checked.
        inputs, outputs: of every call.
        nodes: names that each node reads and writes, in order, nodes within nodes included.
        recurrences: in the order of the graph.
        vocabularies: number of rows of the table that an input of ids selects from, by the name of the input.
        optional: inputs that the graph itself has values for: `defaults`, by name.
        locations: the files that hold its weights.
        operators: names of all operators; types: of inputs, outputs and casts.
    """

    path: Path
    content: bytes
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    nodes: tuple[tuple[frozenset[str], frozenset[str]], ...]
    recurrences: tuple[Recurrence, ...]
    vocabularies: dict[str, int]
    optional: tuple[Port, ...] = ()
    defaults: Mapping[str, onnx.TensorProto] = field(default_factory=dict)
    locations: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()
    types: frozenset[np.dtype[Any]] = frozenset()

    def first(self, name: str) -> npt.NDArray[Any] | None:
        """Return the graph's own value of an input, or None."""
        tensor = self.defaults.get(name)
        return None if tensor is None else onnx.numpy_helper.to_array(tensor, str(self.path.absolute().parent))

    def reached(self, names: Collection[str]) -> set[str]:
        """Return these values and all that depend on them."""
        found = set(names)
        for read, written in self.nodes:
            if not found.isdisjoint(read):
                found |= written
        return found


def read_graph_file(path: Path) -> GraphFile:
    """Return an ONNX file of others once it is checked.

    Raises:
        GraphError: it is missing, not an ONNX graph, too large, or needs operators, functions or files that it does not
            bring.
    """
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "no such file"
        raise GraphError(f"{path}: {what}.", hint=near_path(path) or "Give an ONNX file.")
    budget = GRAPH_LIMITS.budget(str(path), GraphError)
    with path.open("rb") as file:
        content = read_at_most(file, budget)
    try:
        record = _ForeignRecord(content, str(path), ())
        problems = list(record.problems())
        model = None if problems else onnx.load_model_from_string(content)
    except BundleGraphError as error:
        raise GraphError(error.message, hint=error.hint) from error
    except Exception as error:  # google.protobuf has several classes of errors
        raise GraphError(f"{path}: not an ONNX graph ({first_line(error)}).", hint="Give an ONNX file.") from error
    if model is None:
        hint = "verify loads no library of custom operators and no file from elsewhere; export the graph without them."
        raise GraphError(f"{path}: {'; '.join(problems)}.", hint=hint)
    if not (model.graph.node and model.graph.output):
        hint = "Give a graph that ONNX Runtime runs."
        raise GraphError(f"{path}: not an ONNX graph: it has no nodes or no outputs.", hint=hint)
    try:
        return _described(path, content, onnx.inliner.inline_local_functions(model), frozenset(record.locations))
    except GraphError:
        raise
    except Exception as error:
        raise GraphError(f"{path}: a damaged graph ({first_line(error)}).", hint="Export it again.") from error


def _described(path: Path, content: bytes, model: onnx.ModelProto, locations: frozenset[str]) -> GraphFile:
    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    constants = {*weights, *(one.values.name for one in graph.sparse_initializer)}
    can_replace = model.ir_version >= 4  # before, each constant had to be an input, too
    defaults = {value.name: weights[value.name] for value in graph.input if can_replace and value.name in weights}
    inputs = tuple(_port(path, value) for value in graph.input if value.name not in constants)
    outputs = tuple(_port(path, value) for value in graph.output)
    nodes = [node for node, _ in _all_nodes(graph)]
    casts = {one.i for node in nodes if node.op_type == "Cast" for one in node.attribute if one.name == "to"} & FLOATS
    return GraphFile(
        path=path,
        content=content,
        inputs=inputs,
        outputs=outputs,
        nodes=tuple(_flow(graph)),
        operators=frozenset(node.op_type for node in nodes),
        types=frozenset(port.dtype for port in (*inputs, *outputs))
        | {np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind)) for kind in casts},
        recurrences=tuple(_recurrences(graph)),
        vocabularies=_vocabularies(graph),
        optional=tuple(_port(path, value) for value in graph.input if value.name in defaults),
        defaults=defaults,
        locations=locations,
    )


def _port(path: Path, value: onnx.ValueInfoProto) -> Port:
    kind = value.type.WhichOneof("value")
    tensor = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type or onnx.TensorProto.STRING)
    if kind != "tensor_type" or np.dtype(dtype).kind not in "iufb":
        what = str(np.dtype(dtype)) if kind == "tensor_type" else str(kind)
        what = f"{path}: {named(value.name)} holds {what}, expected a tensor of NumPy's numbers."
        raise GraphError(what, hint="Export the graph without it.")
    axes = tuple(_axis(value.name, at, axis) for at, axis in enumerate(tensor.shape.dim))
    known = axes if tensor.HasField("shape") else None
    return Port(value.name, np.dtype(dtype), known)


def _axis(name: str, at: int, axis: onnx.TensorShapeProto.Dimension) -> int | str:
    """Return the size or the name of an axis; transformers writes some sizes as names."""
    if axis.HasField("dim_value") and axis.dim_value >= 0:
        return axis.dim_value
    if axis.dim_param.isdecimal():
        return int(axis.dim_param)
    return f"{name}{UNNAMED}{at}" if NO_NAME.fullmatch(axis.dim_param) else axis.dim_param


def _graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _all_nodes(graph: onnx.GraphProto, choice: str = "") -> Iterator[tuple[onnx.NodeProto, str]]:
    """Yield all nodes, those within a node before it, each with the first output of the `If` around it."""
    for node in graph.node:
        for inner in _graphs(node):
            yield from _all_nodes(inner, node.output[0] if node.op_type == "If" else choice)
        yield node, choice


def _flow(graph: onnx.GraphProto) -> Iterator[tuple[frozenset[str], frozenset[str]]]:
    """Yield what each node reads and writes. A graph within a node reads what the node reads, and what it names."""
    for node in graph.node:
        read = set(node.input)
        for inner in _graphs(node):
            yield frozenset(node.input), frozenset(value.name for value in inner.input)
            yield from _flow(inner)
            read |= {value.name for value in inner.output}
        yield frozenset(read - {""}), frozenset(node.output)


def _recurrences(graph: onnx.GraphProto) -> Iterator[Recurrence]:
    for node, choice in _all_nodes(graph):
        attributes = {attribute.name: attribute for attribute in node.attribute}
        backwards, start = False, tuple[str, ...]()
        if node.op_type in INITIAL:
            places = INITIAL[node.op_type]
            start = tuple(node.input[place] if place < len(node.input) else "" for place in places)
            backwards = "direction" in attributes and attributes["direction"].s != b"forward"
        elif node.op_type == "Scan":
            states = len(node.input) - attributes["num_scan_inputs"].i
            start = tuple(node.input[-len(node.input) : states]) if states > 0 else ()
            backwards = "scan_input_directions" in attributes and 1 in attributes["scan_input_directions"].ints
        elif node.op_type == "Loop":
            kinds = [value.type.tensor_type.elem_type for value in attributes["body"].g.input[2:]]
            start = tuple(name for name, kind in zip(node.input[2:], kinds, strict=False) if kind in FLOATS)
        if start:
            yield Recurrence(node.op_type, node.name or node.output[0], start, backwards, choice)


def _vocabularies(graph: onnx.GraphProto) -> dict[str, int]:
    """Return the rows of tables from which inputs select, directly or after a change of their type or shape."""
    tables = {tensor.name: tensor.dims[0] for tensor in graph.initializer if tensor.dims}
    tables |= {
        node.output[0]: attribute.t.dims[0]
        for node in graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.HasField("t") and attribute.t.dims
    }
    origin = {value.name: value.name for value in graph.input}
    found: dict[str, int] = {}
    for node in graph.node:
        if node.op_type in ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze") and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        elif node.op_type == "Gather" and node.input[0] in tables and node.input[1] in origin:
            name = origin[node.input[1]]
            found[name] = min(tables[node.input[0]], found.get(name, tables[node.input[0]]))
    return found
