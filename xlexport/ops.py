"""The custom operators of LSH attention, `ai.xlexport::LSHSort` and `LSHGather`; `docs/custom_ops.md` specifies them.

Each is a PyTorch operator that exports to one ONNX node, and an ONNX function of standard operators that stands in the
file beside the nodes: a runtime that has a kernel of that name uses it, every other one runs the function's body.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, no_type_check

import onnx_ir as ir
import torch
from onnx.defs import OpSchema
from onnxscript import FLOAT, INT64, script
from onnxscript import opset20 as op
from onnxscript.values import Op, Opset
from torch import Tensor

__all__ = ["DOMAIN", "VERSION", "add_functions", "lsh_gather", "lsh_sort", "translations"]

DOMAIN, VERSION = "ai.xlexport", 1
_OPSET = Opset(DOMAIN, VERSION)


@torch.library.custom_op("xlexport::lsh_sort", mutates_args=())
def lsh_sort(buckets: Tensor) -> tuple[Tensor, Tensor]:
    """The stable ascending order of bucket ids, and its inverse.

    Args:
        buckets: (…, N) int64, of any sign; |bucket| · N must stay below 2^63.

    Returns:
        order (…, N) int64: places by bucket, those of one bucket in ascending order; and inverse (…, N) int64, the
        rank of each place: `inverse[…, order[…, k]] = k`.
    """
    order = torch.argsort(buckets.contiguous(), dim=-1, stable=True)
    ranks = torch.arange(buckets.shape[-1], device=buckets.device).expand_as(order)
    return order, torch.empty_like(order).scatter_(-1, order, ranks)


@lsh_sort.register_fake
def _(buckets: Tensor) -> tuple[Tensor, Tensor]:
    return buckets.new_empty(buckets.shape), buckets.new_empty(buckets.shape)


@torch.library.custom_op("xlexport::lsh_gather", mutates_args=())
def lsh_gather(rows: Tensor, index: Tensor) -> Tensor:
    """Whole rows in the order of `index`, for each place of the leading axes by itself.

    Args:
        rows: (…, N, D).
        index: (…, M) int64 of [0, N), with the leading axes of `rows`.

    Returns:
        (…, M, D): row `index[…, m]` at m.

    Raises:
        IndexError: an index is negative, or N or more.
    """
    *leading, N, D = rows.shape
    if index.numel() and not (index.min() >= 0 and index.max() < N):
        raise IndexError(f"lsh_gather: indices must be in [0, {N}), found {index.min()} to {index.max()}.")
    G, M = math.prod(leading), index.shape[-1]
    flat = index.reshape(G, M) + N * torch.arange(G, device=index.device).unsqueeze(1)  # (G, M)
    return rows.reshape(G * N, D).index_select(0, flat.flatten()).view(*leading, M, D)  # (…, M, D)


@lsh_gather.register_fake
def _(rows: Tensor, index: Tensor) -> Tensor:
    return rows.new_empty(*index.shape, rows.shape[-1])


@script(_OPSET, default_opset=op)
@no_type_check  # onnxscript gives its tensors no arithmetic
def LSHSort(buckets: INT64[...]) -> tuple[INT64[...], INT64[...]]:
    """`lsh_sort` in standard operators: keys bucket · N + place differ, so that their order has no ties."""
    count = op.Shape(buckets, start=-1)
    places = op.Range(0, op.Squeeze(count), 1)
    keys = buckets * count + places
    _, order = op.TopK(keys, count, axis=-1, largest=0, sorted=1)
    inverse = op.ScatterElements(order, order, op.Expand(places, op.Shape(order)), axis=-1)
    return order, inverse


@script(_OPSET, default_opset=op)
@no_type_check  # onnxscript gives its tensors no arithmetic
def LSHGather(rows: FLOAT[...], index: INT64[...]) -> FLOAT[...]:
    """`lsh_gather` in standard operators: rows of all groups in a line, so that each is copied in one piece.

    What is out of range points behind the last row, where Gather raises an error.
    """
    leading = op.Shape(rows, start=0, end=-2)
    groups = op.ReduceProd(leading, keepdims=1)
    count = op.Shape(rows, start=-2, end=-1)
    width = op.Shape(rows, start=-1)
    flat = op.Reshape(rows, op.Concat(groups * count, width, axis=0), allowzero=1)
    starts = op.Unsqueeze(op.Range(0, op.Squeeze(groups), 1) * count, 1)
    own = op.Reshape(index, op.Concat(groups, op.Shape(index, start=-1), axis=0), allowzero=1)
    valid = op.And(own >= 0, own < count)
    place = op.Where(valid, own + starts, groups * count)
    gathered = op.Reshape(op.Gather(flat, place, axis=0), op.Concat(op.Shape(index), width, axis=0), allowzero=1)
    return gathered


_FUNCTIONS = (LSHSort, LSHGather)
_INDICES = "tensor(int64)"
_ROWS = ("T", ["tensor(float)", "tensor(float16)", "tensor(bfloat16)", "tensor(double)"], "Any kind of row.")


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """PyTorch operator -> ONNX node, as `torch.onnx.export` takes it.

    The nodes are recorded by a schema: in place of a node made by the function itself, the exporter writes its body.
    """
    taken, given = OpSchema.FormalParameter, OpSchema.FormalParameter
    sort = OpSchema(
        "LSHSort",
        DOMAIN,
        VERSION,
        inputs=[taken("buckets", _INDICES)],
        outputs=[given("order", _INDICES), given("inverse", _INDICES)],
    )
    gather = OpSchema(
        "LSHGather",
        DOMAIN,
        VERSION,
        inputs=[taken("rows", "T"), taken("index", _INDICES)],
        outputs=[given("gathered", "T")],
        type_constraints=[_ROWS],
    )
    return {
        torch.ops.xlexport.lsh_sort.default: Op(_OPSET, sort.name, sort),
        torch.ops.xlexport.lsh_gather.default: Op(_OPSET, gather.name, gather),
    }


def add_functions(model: ir.Model) -> None:
    """Give `model` the bodies of the custom nodes that it has, and the import of their domain; or neither."""
    used = {node.op_type for node in model.graph if node.domain == DOMAIN}
    model.opset_imports.pop(DOMAIN, None)
    for function in _FUNCTIONS:
        if function.name in used:
            body = ir.serde.deserialize_function(function.to_function_proto())
            model.functions[body.identifier()] = body
            model.opset_imports[DOMAIN] = VERSION
