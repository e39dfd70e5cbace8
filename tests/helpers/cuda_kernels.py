"""The kernels of ONNX Runtime's CUDA provider for the operators of our graphs, and graphs without loops for them.

Source: docs/OperatorKernels.md of microsoft/onnxruntime at commit 001d12d2623f (early 2026), its entries for opset 20.
That file has `UNTIL_THEN` only for older versions of these operators. Later releases have them for opset 20, with at
least these types (issue 27729 there); with 1.31.1 a GPU computed them.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as ir
from onnx import TensorProto, defs, inliner, shape_inference

from xlexport.ops import inline_functions, use_batched_bodies

OPSET = 20
UNTIL_THEN = {"ConstantOfShape": 9, "Equal": 13, "Pad": 18, "ReduceMax": 18, "ReduceMin": 18, "Size": 13}

BOOL, INT64, INDEX = frozenset({"bool"}), frozenset({"int64"}), frozenset({"int32", "int64"})
FLOATS = frozenset({"double", "float", "float16"})
WIDE = FLOATS | {"bfloat16"}
UNSIGNED = frozenset({"uint32", "uint64"})
NUMBERS = WIDE | INDEX | UNSIGNED | {"int16", "int8", "uint16", "uint8"}
ANY = NUMBERS | BOOL

# By operator, then by type parameter as ONNX's schema names it. Parameters of one fixed type are left out.
_TABLE: tuple[tuple[str, Mapping[str, frozenset[str]]], ...] = (
    ("Add Div Mul Sub", {"T": NUMBERS}),
    ("And Or Xor", {"T": BOOL, "T1": BOOL}),
    ("ArgMax Cos Floor Log LogSoftmax Reciprocal Sin Softplus", {"T": FLOATS}),
    ("Erf Exp Gelu Gemm MatMul Relu Sigmoid Softmax Sqrt Sum Tanh", {"T": WIDE}),
    ("Concat Expand Reshape ScatterND Split Squeeze Transpose Trilu Unsqueeze", {"T": ANY}),
    ("GRU LSTM", {"T": FLOATS, "T1": frozenset({"int32"})}),
    ("Gather GatherElements ScatterElements Slice", {"T": ANY, "Tind": INDEX}),
    ("Greater GreaterOrEqual Less LessOrEqual", {"T": FLOATS | INDEX | UNSIGNED, "T1": BOOL}),
    ("Max Min Mod", {"T": WIDE | INDEX | UNSIGNED}),
    ("Shape Size", {"T": ANY, "T1": INT64}),
    ("Cast CastLike", {"T1": ANY, "T2": ANY}),  # ONNX defines the second by the first
    ("Clip", {"T": FLOATS | INT64 | {"int8", "uint64", "uint8"}}),
    ("ConstantOfShape", {"T1": INT64, "T2": ANY}),
    ("CumSum", {"T": FLOATS | INDEX | UNSIGNED, "T2": INDEX}),
    ("Equal", {"T": FLOATS | BOOL | INDEX | UNSIGNED, "T1": BOOL}),
    ("Identity", {"V": ANY}),
    ("If", {"V": ANY, "B": BOOL}),
    ("LayerNormalization", {"T": WIDE, "U": frozenset({"float"})}),
    ("Loop", {"V": ANY, "I": INT64, "B": BOOL}),
    ("Neg", {"T": WIDE | INDEX | {"int16", "int8"}}),
    ("NonZero", {"T": BOOL | INDEX | {"float", "float16", "uint8"}}),
    ("Not", {"T": BOOL}),
    ("Pad", {"T": FLOATS | BOOL, "Tind": INDEX}),
    ("Pow", {"T": WIDE | INDEX, "T1": WIDE | INDEX}),
    ("Range", {"T": INDEX | {"double", "float", "int16"}}),
    ("ReduceMax", {"T": FLOATS | INDEX}),
    ("ReduceMean ReduceProd", {"T": FLOATS | {"int32"}}),
    ("ReduceMin", {"T": FLOATS | INDEX | {"int8", "uint8"}}),
    ("ReduceSum", {"T": WIDE | INDEX}),
    ("Tile", {"T": WIDE | INDEX, "T1": INT64}),
    ("TopK", {"T": FLOATS | INDEX, "I": INT64}),
    ("Where", {"B": BOOL, "T": WIDE | INDEX | {"uint8"}}),
)
KERNELS = {name: types for names, types in _TABLE for name in names.split()}


def type_names(graph: onnx.GraphProto) -> dict[str, str]:
    """Return the type of each value of an inferred graph, such as "int64"; not of its subgraphs."""
    values = (*graph.input, *graph.output, *graph.value_info)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    return {name: TensorProto.DataType.Name(kind).lower() for name, kind in types.items()}


def lacking(node: onnx.NodeProto, types: Mapping[str, str]) -> str:
    """Return a node's operator and type, such as "Pad of int64", if it has no CUDA kernel, or else an empty string."""
    if node.op_type == "Constant":  # becomes an initializer
        return ""
    if node.domain or node.op_type not in KERNELS:
        return f"{node.domain}::{node.op_type}".removeprefix("::")
    schema, kernel = defs.get_schema(node.op_type, OPSET), KERNELS[node.op_type]
    for names, formal in ((node.input, schema.inputs), (node.output, schema.outputs)):
        for place, name in enumerate(names):
            allowed = kernel.get(formal[min(place, len(formal) - 1)].type_str, {types[name]} if name else {})
            if name and types[name] not in allowed:
                return f"{node.op_type} of {types[name]}"
    return ""


def missing_kernels(model: onnx.ModelProto) -> list[str]:
    """Return `lacking` of all nodes that lack a kernel, with functions inlined, and subgraphs."""
    inlined = shape_inference.infer_shapes(inliner.inline_local_functions(model), strict_mode=True, data_prop=True)

    def walk(graph: onnx.GraphProto, outside: Mapping[str, str]) -> list[str]:
        types = {**outside, **type_names(graph)}
        inner = (attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g"))
        here = [name for node in graph.node if (name := lacking(node, types))]
        return here + [name for subgraph in inner for name in walk(subgraph, types)]

    return walk(inlined.graph, {})


def without_loops(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph with functions inlined, of which those in `BATCHED` have their bodies without loops."""
    changed = ir.from_proto(model)
    use_batched_bodies(changed)
    inline_functions(changed)
    return ir.to_proto(changed)
