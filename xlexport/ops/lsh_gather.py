"""`ai.xlexport::LSHGather`: whole rows in a given order."""

from __future__ import annotations

from typing import no_type_check

import torch
from onnxscript import FLOAT, INT64, script
from onnxscript import opset20 as op
from torch import Tensor

from xlexport.ops.operator import OWN_OPSET, operator, shapes_of

__all__ = ["LSHGather", "lsh_gather"]


@operator("lsh_gather")
def lsh_gather(rows: Tensor, index: Tensor) -> Tensor:
    """Gather whole rows in the order of `index`, separately for each place of the leading axes.

    Args:
        rows: (…, N, D).
        index: (…, M) int64 of [0, N), with the leading axes of `rows`.

    Returns:
        (…, M, D): row `index[…, m]` at m.

    Raises:
        IndexError: an index is negative, or N or more.
    """
    N, D, M = rows.shape[-2], rows.shape[-1], index.shape[-1]
    if index.numel() > 0 and (int(index.min()) < 0 or int(index.max()) >= N):
        raise IndexError(f"lsh_gather: indices must be in [0, {N}), found {int(index.min())} to {int(index.max())}.")
    G = 1
    for size in index.shape[:-1]:
        G *= size
    flat = index.reshape(G, M) + N * torch.arange(G, device=index.device).unsqueeze(1)  # (G, M)
    gathered = rows.reshape(G * N, D).index_select(0, flat.flatten())
    return gathered.view(index.shape + (D,))  # (…, M, D)  # noqa: RUF005  # scripts have no starred parts


@shapes_of("lsh_gather")
def _(rows: Tensor, index: Tensor) -> Tensor:
    return rows.new_empty(*index.shape, rows.shape[-1])


@script(OWN_OPSET, default_opset=op)
@no_type_check  # onnxscript gives its tensors no arithmetic
def LSHGather(rows: FLOAT[...], index: INT64[...]) -> FLOAT[...]:
    """Compute `lsh_gather` in standard operators: rows of all groups in one axis, so that each is copied at once.

    An index out of range is moved behind the last row, so that Gather raises an error.
    """
    leading = op.Shape(rows, start=0, end=-2)
    groups = op.Cast(op.ReduceProd(op.Cast(leading, to=6), keepdims=1), to=7)  # CUDA has no product of int64
    count = op.Shape(rows, start=-2, end=-1)
    width = op.Shape(rows, start=-1)
    flat = op.Reshape(rows, op.Concat(groups * count, width, axis=0), allowzero=1)
    starts = op.Unsqueeze(op.Range(0, op.Squeeze(groups), 1) * count, 1)
    own = op.Reshape(index, op.Concat(groups, op.Shape(index, start=-1), axis=0), allowzero=1)
    valid = op.And(own >= 0, own < count)
    place = op.Where(valid, own + starts, groups * count)
    gathered = op.Reshape(op.Gather(flat, place, axis=0), op.Concat(op.Shape(index), width, axis=0), allowzero=1)
    return gathered
