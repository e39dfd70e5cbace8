"""The custom operators, each in the file of its name; `docs/bundle_format.md` specifies them.

Each is a PyTorch operator that exports to one ONNX node, and an ONNX function of standard operators. The ONNX file
holds both. A runtime with a kernel of that name uses the kernel; every other runtime runs the function's body.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from typing import Any

import onnx_ir as ir
import torch
from onnx.defs import OpSchema
from onnx_ir.passes.common import InlinePass, LiftConstantsToInitializersPass, RemoveUnusedOpsetsPass
from onnxscript import OnnxFunction
from onnxscript.values import Op

from xlexport.ops.fourier import exact_fourier_transforms
from xlexport.ops.local_attention import LocalAttention, local_attention, local_mask
from xlexport.ops.lsh_attention import LSHAttention, LSHFewAttention, lsh_attention, lsh_few_attention
from xlexport.ops.lsh_band_attention import LSHBandAttention, lsh_band_attention
from xlexport.ops.lsh_batched import BATCHED
from xlexport.ops.lsh_chunk_attention import LSHChunkAttention, lsh_chunk_attention
from xlexport.ops.lsh_gather import LSHGather, lsh_gather
from xlexport.ops.lsh_sort import LSHSort, lsh_sort
from xlexport.ops.operator import DOMAIN, OWN_OPSET, VERSION
from xlexport.ops.quantize_rows import QuantizeRows
from xlexport.ops.relative_attention import RelativeAttention, RelativeMasks, relative_attention
from xlexport.ops.relative_attention_int8 import RelativeAttentionInt8, relative_attention_int8
from xlexport.ops.rnn import replace_rnns
from xlexport.ops.translations import standard_translations

__all__ = [
    "DOMAIN",
    "FUSED",
    "VERSION",
    "add_functions",
    "custom_operators",
    "exact_fourier_transforms",
    "inline_functions",
    "local_attention",
    "local_mask",
    "lsh_attention",
    "lsh_band_attention",
    "lsh_chunk_attention",
    "lsh_few_attention",
    "lsh_gather",
    "lsh_sort",
    "relative_attention",
    "relative_attention_int8",
    "replace_rnns",
    "translations",
    "use_batched_bodies",
]

_OPERATORS: dict[Callable[..., Any], OnnxFunction[..., Any]] = {
    getattr(torch.ops.xlexport, name).default: function
    for name, function in (
        ("lsh_sort", LSHSort),
        ("lsh_gather", LSHGather),
        ("lsh_band_attention", LSHBandAttention),
        ("lsh_chunk_attention", LSHChunkAttention),
        ("lsh_attention", LSHAttention),
        ("lsh_few_attention", LSHFewAttention),
        ("local_attention", LocalAttention),
        ("relative_attention", RelativeAttention),
        ("relative_attention_int8", RelativeAttentionInt8),
    )
}
# Attention with sort or gathers inside. Graphs have these as nodes, unless kernels compute all of it at once.
FUSED = (LSHAttention.name, LSHBandAttention.name, LSHChunkAttention.name)
_TYPES = {name: f"tensor({name.lower()})" for name in ("FLOAT", "INT8", "INT32", "INT64")}  # onnxscript's and ONNX's
_ATTRIBUTES = {"int": OpSchema.AttrType.INT, "float": OpSchema.AttrType.FLOAT}


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the mapping from PyTorch operators to ONNX nodes that `torch.onnx.export` takes.

    The nodes are recorded by a schema, because the exporter replaces nodes of a function by the function's body.
    """
    return standard_translations() | {operator: _recorder(function) for operator, function in _OPERATORS.items()}


def _recorder(function: OnnxFunction[..., Any]) -> Callable[..., Any]:
    """Return a function that records one node of an ONNX function.

    It takes inputs, then attributes, in the order of the PyTorch operator. A schema loses the order of attributes.
    """
    proto = function.to_function_proto()
    written = inspect.get_annotations(function.function)  # as texts, such as "INT64[...]"
    types = {name: re.findall(r"(\w+)\[\.\.\.\]", text) for name, text in written.items()}
    schema = OpSchema(
        function.name,
        DOMAIN,
        VERSION,
        inputs=[OpSchema.FormalParameter(name, _TYPES[types[name][0]]) for name in proto.input],
        outputs=[
            OpSchema.FormalParameter(name, _TYPES[kind])
            for name, kind in zip(proto.output, types["return"], strict=True)
        ],
        attributes=[OpSchema.Attribute(name, _ATTRIBUTES[written[name]], "") for name in proto.attribute],
    )
    node, count = Op(OWN_OPSET, function.name, schema), len(proto.input)

    def record(*arguments: Any) -> Any:
        return node(*arguments[:count], **dict(zip(proto.attribute, arguments[count:], strict=True)))

    return record


def add_functions(model: ir.Model) -> None:
    """Add the bodies that the model's custom nodes lack and the import of their domain, if it has such nodes.

    A body follows those that it calls, as ONNX's reference evaluator wants it.
    """
    functions = {function.name: function for function in (*_OPERATORS.values(), RelativeMasks, QuantizeRows)}
    written = {name for _, name, _ in model.functions}
    if not written:
        model.opset_imports.pop(DOMAIN, None)

    def add(nodes: ir.Graph | ir.Function) -> None:
        for name in sorted(custom_operators(nodes) - written):
            if name in written:
                continue
            body = ir.serde.deserialize_function(functions[name].to_function_proto())
            body.name = name
            _close_loops(body)
            add(body)
            if custom_operators(body):
                body.opset_imports[DOMAIN] = VERSION  # onnxscript omits it
            model.functions[body.identifier()] = body
            model.opset_imports[DOMAIN] = VERSION
            written.add(name)

    add(model.graph)


def use_batched_bodies(model: ir.Model) -> None:
    """Give the functions of LSH attention their bodies without loops; `inline_functions` must follow."""
    for name, function in BATCHED.items():
        if (DOMAIN, name, "") in model.functions:
            body = ir.serde.deserialize_function(function.to_function_proto())
            body.name = name
            body.opset_imports[DOMAIN] = VERSION  # onnxscript omits it
            model.functions[body.identifier()] = body


def _close_loops(body: ir.Function) -> None:
    """Give loops the condition `true`: onnxscript leaves it out, which ONNX's reference evaluator takes for `false`."""
    if loops := [node for node in body.all_nodes() if node.op_type == "Loop"]:
        true = ir.val("true")
        body.insert_before(body[0], ir.node("Constant", [], {"value": ir.tensor(True)}, outputs=[true]))
        for loop in loops:
            loop.replace_input_with(1, true)


def inline_functions(model: ir.Model, names: Collection[str] | None = None) -> None:
    """Replace nodes of these custom operators, or of all, by their bodies.

    Constants of the bodies become initializers, as the graph's own are.
    """
    if InlinePass(criteria=lambda function: names is None or function.name in names)(model).modified:
        LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        RemoveUnusedOpsetsPass()(model)


def custom_operators(nodes: ir.Graph | ir.Function) -> set[str]:
    """Return the names of the custom operators among the nodes, including nodes inside loops."""
    return {node.op_type for node in nodes.all_nodes() if node.domain == DOMAIN}
