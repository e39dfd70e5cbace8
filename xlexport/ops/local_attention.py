"""`ai.xlexport::LocalAttention`: each chunk of a document sees itself and the chunks before it.

Chunks are counted from the beginning of the document, not of a segment, so results do not depend on the segments.

Source: Kitaev et al. 2020, section 4 (the layers without LSH attention), as Trax and Hugging Face define them.
"""

from __future__ import annotations

import math
from typing import no_type_check

import torch
from onnxscript import FLOAT, INT64, script
from onnxscript import opset20 as op
from torch import Tensor
from torch.nn import functional as F

from xlexport.ops import constants
from xlexport.ops.operator import OWN_OPSET, operator, shapes_of

__all__ = ["LocalAttention", "local_attention", "local_mask"]


def local_mask(
    position: Tensor, queries: Tensor, keys: Tensor, chunk_length: int, chunks_before: int, kept: int
) -> Tensor:
    """Return what to add to scores, (B, n, q, k): zero for a key that the query sees, else minus infinity.

    Args:
        position: (B,) int64, earlier tokens of each document.
        queries, keys: (n, q), (n, k) int64, places in blocks, counted from the first query of the step.
        chunk_length: length of a chunk; chunks_before: chunks that a query sees before its own.
        kept: rows of keys before those of the step.
    """
    first = position.view(-1, 1, 1)
    chunk = torch.div(first + queries, chunk_length, rounding_mode="floor")
    # `maximum`, because OpenVINO limits integers to -1 if a clamp has no upper bound.
    oldest = ((chunk - chunks_before) * chunk_length).maximum(torch.full((), 0)) - first
    oldest = oldest.maximum(torch.full((), -kept))  # (B, n, q)
    seen = torch.logical_and(keys.unsqueeze(1) >= oldest.unsqueeze(3), keys.unsqueeze(1) <= queries.unsqueeze(2))
    return torch.where(seen, 0.0, -math.inf)


@operator("local_attention")
def local_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position: Tensor,
    sizes: Tensor,
    chunk_length: int,
    chunks_before: int,
) -> Tensor:
    """Compute local attention (B, H, S, d), in blocks of queries as long as a chunk.

    A segment may begin anywhere in a chunk, so blocks are counted from the segment's beginning. The keys of a block
    span one chunk more than a query can see. Places without a row have another row's key.

    Args:
        query: (B, H, S, d), scaled.
        key, value: (B, H, kept + S, d), the kept rows first.
        position: (B,) int64, earlier tokens of each document.
        sizes: (2,) int64, S and kept. The ONNX function reads them here: one mask serves all layers.
        chunk_length: length of a chunk; chunks_before: chunks that a query sees before its own.
    """
    S, c = query.shape[2], chunk_length
    n, kept = (S + c - 1) // c, key.shape[2] - S
    start = torch.arange(n).unsqueeze(1) * c
    places = start + torch.arange(-(chunks_before + 1) * c, c)  # (n, k), of keys
    mask = local_mask(position, start + torch.arange(c), places, c, chunks_before, kept)
    index = (places + kept).clamp(0, kept + S - 1)
    queries = F.pad(query, (0, 0, 0, n * c - S)).unflatten(2, (n, c))  # (B, H, n, c, d)
    parts = []
    for h in range(0, query.shape[1], constants.HEADS_AT_ONCE):
        end = h + constants.HEADS_AT_ONCE
        keys, values = key[:, h:end, index], value[:, h:end, index]  # (B, h, n, k, d)
        scores = queries[:, h:end] @ keys.transpose(3, 4) + mask.unsqueeze(1)  # (B, h, n, c, k)
        parts.append((scores.softmax(dim=4) @ values).flatten(2, 3))
    return torch.cat(parts, dim=1)[:, :, :S].contiguous()


@shapes_of("local_attention")
def _(query: Tensor, *_: object) -> Tensor:
    return query.new_empty(query.shape)


@script(OWN_OPSET, default_opset=op)
@no_type_check  # onnxscript gives its tensors no arithmetic
def LocalAttention(
    query: FLOAT[...],
    key: FLOAT[...],
    value: FLOAT[...],
    position: INT64[...],
    sizes: INT64[...],
    chunk_length: int,
    chunks_before: int,
) -> FLOAT[...]:
    """Compute `local_attention` in standard operators: a loop over pairs of heads."""
    c = op.Identity(chunk_length)
    S, kept = op.Split(sizes, num_outputs=2)
    n = (S + c - 1) / c
    start = op.Unsqueeze(op.Range(0, op.Squeeze(n), 1), [1]) * c
    places = start + op.Range(op.Neg((chunks_before + 1) * c), c, 1)  # (n, k), of keys
    own = start + op.Range(0, c, 1)  # (n, c), of queries
    first = op.Unsqueeze(position, [1, 2])
    # `Where`, because ONNX Runtime computes Max and Min of int64 wrongly from 2^31 on.
    begin = ((first + own) / c - chunks_before) * c
    since = op.Where(begin > 0, begin, 0) - first
    oldest = op.Where(since > op.Neg(kept), since, op.Neg(kept))  # (B, n, c)
    of_block = op.Unsqueeze(places, [1])  # (n, 1, k)
    seen = op.And(of_block >= op.Unsqueeze(oldest, [3]), of_block <= op.Unsqueeze(own, [2]))
    mask = op.Where(seen, 0.0, op.Constant(value_float=float("-inf")))  # (B, n, c, k)
    rows = places + kept
    index = op.Where(op.And(rows >= 0, rows < kept + S), rows, 0)  # the mask hides places without a row

    # The mask has no constant that a loop reads: ONNX Runtime would compute it once a layer.
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    two = op.Constant(value_ints=[2])
    q = op.Reshape(chunk_length, one)
    B = op.Shape(query, start=0, end=1)
    H = op.Shape(query, start=1, end=2)
    d = op.Shape(query, start=3)
    filled = op.Pad(query, op.Concat(zero, zero, zero, zero, zero, zero, n * c - S, zero, axis=0))
    in_blocks = op.Reshape(filled, op.Concat(B, H, n, q, d, axis=0), allowzero=1)
    own_mask = op.Unsqueeze(mask, one)
    # `B - B`, as a loop of OpenVINO ignores what it appends to a tensor that is known to be empty.
    attended = op.Slice(in_blocks, zero, B - B, one)
    for pair in range(op.Squeeze((H + one) / two)):
        begin = op.Reshape(pair, one) * two
        end = begin + two
        keys = op.Gather(op.Slice(key, begin, end, one), index, axis=2)  # (B, 2, n, k, d)
        values = op.Gather(op.Slice(value, begin, end, one), index, axis=2)
        queries = op.Slice(in_blocks, begin, end, one)
        scores = op.MatMul(queries, op.Transpose(keys, perm=[0, 1, 2, 4, 3])) + own_mask
        attended = op.Concat(attended, op.MatMul(op.Softmax(scores, axis=-1), values), axis=1)
    rows = op.Reshape(attended, op.Concat(B, H, n * c, d, axis=0), allowzero=1)
    return op.Slice(rows, zero, S, two)
