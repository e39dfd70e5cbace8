"""The custom operators, one in each file; `docs/custom_ops.md` specifies them.

Each is a PyTorch operator that exports to one ONNX node, and an ONNX function of standard operators. The ONNX file
holds both. A runtime with a kernel of that name uses the kernel; every other runtime runs the function's body.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import torch
from onnx.defs import OpSchema
from onnxscript import OnnxFunction
from onnxscript.values import Op

from xlexport.ops.band_attention import LSHBandAttention, lsh_band_attention
from xlexport.ops.chunk_attention import LSHChunkAttention, lsh_chunk_attention
from xlexport.ops.domain import DOMAIN, OPSET, VERSION
from xlexport.ops.few_attention import (
    LSHFewAttention,
    LSHFewAttentionPlan,
    lsh_few_attention,
    lsh_few_attention_plan,
)
from xlexport.ops.gather import LSHGather, lsh_gather
from xlexport.ops.local_attention import (
    LocalAttention,
    LocalAttentionPlan,
    LocalFewAttention,
    local_attention,
    local_attention_plan,
    local_few_attention,
)
from xlexport.ops.lsh_attention import LSHAttention, lsh_attention
from xlexport.ops.relative_attention import RelativeAttention, relative_attention
from xlexport.ops.relative_attention_plan import RelativeAttentionPlan, relative_attention_plan
from xlexport.ops.sort import LSHSort, lsh_sort

__all__ = [
    "DOMAIN",
    "VERSION",
    "add_functions",
    "local_attention",
    "local_attention_plan",
    "local_few_attention",
    "lsh_attention",
    "lsh_band_attention",
    "lsh_chunk_attention",
    "lsh_few_attention",
    "lsh_few_attention_plan",
    "lsh_gather",
    "lsh_sort",
    "relative_attention",
    "relative_attention_plan",
    "translations",
]

_INT64, _INT32, _FLOAT = "tensor(int64)", "tensor(int32)", "tensor(float)"
_FLOATS = ("T", ["tensor(float)", "tensor(float16)", "tensor(bfloat16)", "tensor(double)"], "Any kind of row.")


@dataclass(frozen=True)
class _Operator:
    """One operator in PyTorch and in ONNX; inputs, then attributes, are in the order of the PyTorch operator."""

    operator: Callable[..., Any]
    function: OnnxFunction[..., Any]
    inputs: dict[str, str]
    outputs: dict[str, str]
    attributes: dict[str, OpSchema.AttrType] = field(default_factory=dict)

    def schema(self) -> OpSchema:
        uses_rows = "T" in (*self.inputs.values(), *self.outputs.values())
        return OpSchema(
            self.function.name,
            DOMAIN,
            VERSION,
            inputs=[OpSchema.FormalParameter(*entry) for entry in self.inputs.items()],
            outputs=[OpSchema.FormalParameter(*entry) for entry in self.outputs.items()],
            type_constraints=[_FLOATS] if uses_rows else [],
            attributes=[OpSchema.Attribute(*entry, "") for entry in self.attributes.items()],
        )

    def recorder(self) -> Callable[..., Any]:
        """Return a function that records one node, with attributes by name because a schema loses their order."""
        node = Op(OPSET, self.function.name, self.schema())
        count = len(self.inputs)

        def record(*given: Any) -> Any:
            return node(*given[:count], **dict(zip(self.attributes, given[count:], strict=True)))

        return record


_PLAN = {
    "write_index": _INT64,
    **dict.fromkeys(("near_mask", "newest_far", "oldest_far"), _FLOAT),
    "near_sizes": _INT64,
}
_LOCAL_INPUTS = {**dict.fromkeys(("query", "key", "value"), _FLOAT), "position": _INT64, "mask": _FLOAT}
_LOCAL_ATTRIBUTES = dict.fromkeys(("chunk_length", "chunks_before"), OpSchema.AttrType.INT)
_RINGS = {"key": _FLOAT, "value": _FLOAT, "buckets": _INT32}
_REACH = dict.fromkeys(("position", "offset", "window", "rounds"), _INT64)
_OPERATORS = (
    _Operator(torch.ops.xlexport.lsh_sort.default, LSHSort, {"buckets": _INT64}, {"order": _INT64, "inverse": _INT64}),
    _Operator(torch.ops.xlexport.lsh_gather.default, LSHGather, {"rows": "T", "index": _INT64}, {"gathered": "T"}),
    _Operator(
        torch.ops.xlexport.lsh_band_attention.default,
        LSHBandAttention,
        {
            **dict.fromkeys(("key", "value", "length"), "T"),
            **dict.fromkeys(("order", "rank", "place", "lowest", "slot", "rounds"), _INT64),
        },
        {"attended": "T", "highest": "T"},
        {"chunk_length": OpSchema.AttrType.INT},
    ),
    _Operator(
        torch.ops.xlexport.lsh_chunk_attention.default,
        LSHChunkAttention,
        {**dict.fromkeys(("query", "key", "value"), "T"), **dict.fromkeys(("order", "rank", "full"), _INT64)},
        {"attended": "T"},
        {
            **dict.fromkeys(("chunk_length", "chunks_before", "multiple"), OpSchema.AttrType.INT),
            "self_mask": OpSchema.AttrType.FLOAT,
        },
    ),
    _Operator(
        torch.ops.xlexport.relative_attention_plan.default,
        RelativeAttentionPlan,
        {
            "tokens": _INT64,
            **dict.fromkeys(("memory_key", "position_key"), _FLOAT),
            **dict.fromkeys(("offset", "memory_length", "window"), _INT64),
        },
        _PLAN,
    ),
    _Operator(
        torch.ops.xlexport.relative_attention.default,
        RelativeAttention,
        {
            **dict.fromkeys(("qkv", "content_bias", "position_bias"), _FLOAT),
            **dict.fromkeys(("memory_key", "memory_value", "position_key"), _FLOAT),
            **dict.fromkeys(("offset", "memory_length", "window"), _INT64),
            **_PLAN,
        },
        dict.fromkeys(("attended", "new_memory_key", "new_memory_value"), _FLOAT),
    ),
    _Operator(
        torch.ops.xlexport.local_attention_plan.default,
        LocalAttentionPlan,
        {"tokens": _INT64, "position": _INT64},
        {"mask": _FLOAT, "index": _INT64},
        dict.fromkeys(("chunk_length", "chunks_before", "kept", "block_length"), OpSchema.AttrType.INT),
    ),
    _Operator(
        torch.ops.xlexport.local_attention.default,
        LocalAttention,
        {**_LOCAL_INPUTS, "index": _INT64},
        {"attended": _FLOAT},
        _LOCAL_ATTRIBUTES,
    ),
    _Operator(
        torch.ops.xlexport.local_few_attention.default,
        LocalFewAttention,
        _LOCAL_INPUTS,
        {"attended": _FLOAT},
        _LOCAL_ATTRIBUTES,
    ),
    _Operator(
        torch.ops.xlexport.lsh_attention.default,
        LSHAttention,
        {**_RINGS, "length": _FLOAT, "own_value": _FLOAT, **_REACH},
        {"attended": _FLOAT, "overflow": _INT64},
        dict.fromkeys(("chunk_length", "n_buckets"), OpSchema.AttrType.INT),
    ),
    _Operator(
        torch.ops.xlexport.lsh_few_attention_plan.default,
        LSHFewAttentionPlan,
        {"tokens": _INT64, "buckets": _INT32, **dict.fromkeys(("position", "offset", "window"), _INT64)},
        {"priority": _INT32},
    ),
    _Operator(
        torch.ops.xlexport.lsh_few_attention.default,
        LSHFewAttention,
        {**_RINGS, "query": _FLOAT, "own": _INT32, "own_value": _FLOAT, **_REACH, "priority": _INT32},
        {"attended": _FLOAT, "overflow": _INT64},
        {"chunk_length": OpSchema.AttrType.INT},
    ),
)


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the mapping from PyTorch operators to ONNX nodes that `torch.onnx.export` takes.

    The nodes are recorded by a schema, because the exporter replaces nodes of a function by the function's body.
    """
    return {entry.operator: entry.recorder() for entry in _OPERATORS}


def add_functions(model: ir.Model) -> None:
    """Add the bodies of the model's custom nodes and the import of their domain, if it has such nodes.

    The outputs of plans get no shape, because those of kernels are empty.
    """
    bodies = {
        entry.function.name: ir.serde.deserialize_function(entry.function.to_function_proto()) for entry in _OPERATORS
    }
    used, waiting = set[str](), _custom(model.graph)
    while waiting:
        used.add(name := waiting.pop())
        if inside := _custom(bodies[name]):
            bodies[name].opset_imports[DOMAIN] = VERSION  # onnxscript omits it
            waiting |= inside - used
    for node in model.graph:
        if node.domain == DOMAIN and node.op_type.endswith("Plan"):
            for value in node.outputs:
                value.shape = None
    model.opset_imports.pop(DOMAIN, None)
    for name in sorted(used):
        model.functions[bodies[name].identifier()] = bodies[name]
        model.opset_imports[DOMAIN] = VERSION


def _custom(nodes: ir.Graph | ir.Function) -> set[str]:
    """Return the names of the custom operators among the nodes, including nodes inside loops."""
    return {node.op_type for node in nodes.all_nodes() if node.domain == DOMAIN}
