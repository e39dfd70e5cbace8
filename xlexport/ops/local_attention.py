"""`ai.xlexport::LocalAttention`: each chunk of a document sees itself and the chunks before it.

Chunks are counted from the beginning of the document, not of a segment, so results do not depend on the segments.
`LocalFewAttention` computes the same for a few queries, in one block. What all layers share, `LocalAttentionPlan`
computes once; only the bodies of the other two need it.

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
from xlexport.ops.domain import OPSET
from xlexport.ops.operator import operator, shapes_of

__all__ = [
    "LocalAttention",
    "LocalAttentionPlan",
    "LocalFewAttention",
    "local_attention",
    "local_attention_plan",
    "local_few_attention",
]


@operator("local_attention_plan")
def local_attention_plan(
    tokens: Tensor, position: Tensor, chunk_length: int, chunks_before: int, kept: int, block_length: int
) -> tuple[Tensor, Tensor]:
    """Lay out the queries of a step in blocks, with all keys that each block can see.

    A segment may begin anywhere in a chunk, so blocks are counted from the segment's beginning. The keys of a block of
    one chunk span one chunk more than a query can see.

    Args:
        tokens: (B, S), only for its shape.
        position: (B,) int64, earlier tokens of each document.
        chunk_length: c; chunks_before: b.
        kept: rows of keys before those of the step.
        block_length: c, or 0 for one block of all S queries, with all keys.

    Returns:
        mask (B, n, queries of a block, keys of a block), zero or minus infinity, to be added to scores; and
        index (n, keys of a block) int64, the row of each key. Places without a row have another row's index.
    """
    S, c = tokens.shape[1], chunk_length
    n = (S + c - 1) // c if block_length else 1
    q = block_length if block_length else S  # in a script, `or` gives true and false
    before = (chunks_before + 1) * c if block_length else kept
    start = torch.arange(n).unsqueeze(1) * q  # places are counted from the first query
    queries = start + torch.arange(q)  # (n, q)
    keys = start + torch.arange(-before, q)  # (n, k)
    first = position.view(-1, 1, 1)
    chunk = torch.div(first + queries, c, rounding_mode="floor")
    oldest = (((chunk - chunks_before) * c).clamp(min=0) - first).clamp(min=-kept)  # (B, n, q)
    seen = (keys.unsqueeze(1) >= oldest.unsqueeze(3)) & (keys.unsqueeze(1) <= queries.unsqueeze(2))
    return torch.where(seen, 0.0, -math.inf), (keys + kept).clamp(0, kept + S - 1)


@shapes_of("local_attention_plan")
def _(
    tokens: Tensor, position: Tensor, chunk_length: int, chunks_before: int, kept: int, block_length: int
) -> tuple[Tensor, Tensor]:
    (B, S), c = tokens.shape, chunk_length
    n, q, k = 1, S, kept + S
    if block_length:
        n, q, k = (S + c - 1) // c, c, (chunks_before + 2) * c
    return position.new_empty(B, n, q, k, dtype=torch.float32), position.new_empty(n, k)


@operator("local_attention")
def local_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position: Tensor,
    mask: Tensor,
    index: Tensor,
    chunk_length: int,
    chunks_before: int,
) -> Tensor:
    """Compute local attention (B, H, S, d).

    Args:
        query: (B, H, S, d), scaled.
        key, value: (B, H, kept + S, d), the kept rows first.
        position: (B,) int64, earlier tokens of each document.
        mask, index: what `local_attention_plan` returns for blocks of one chunk.
        chunk_length: length of a chunk; chunks_before: chunks that a query sees before its own.
    """
    S = query.shape[2]
    n, q = mask.shape[1:3]
    queries = F.pad(query, (0, 0, 0, n * q - S)).unflatten(2, (n, q))  # (B, H, n, q, d)
    parts = []
    for h in range(0, query.shape[1], constants.HEADS_AT_ONCE):
        end = h + constants.HEADS_AT_ONCE
        keys, values = key[:, h:end, index], value[:, h:end, index]  # (B, h, n, k, d)
        scores = queries[:, h:end] @ keys.transpose(3, 4) + mask.unsqueeze(1)  # (B, h, n, q, k)
        parts.append((scores.softmax(dim=4) @ values).flatten(2, 3))
    return torch.cat(parts, dim=1)[:, :, :S].contiguous()


@operator("local_few_attention")
def local_few_attention(
    query: Tensor, key: Tensor, value: Tensor, position: Tensor, mask: Tensor, chunk_length: int, chunks_before: int
) -> Tensor:
    """Compute `local_attention` in one block; `mask` is what `local_attention_plan` returns for one block."""
    return (query @ key.transpose(2, 3) + mask).softmax(dim=3) @ value


@shapes_of("local_attention")
@shapes_of("local_few_attention")
def _(query: Tensor, *_: object) -> Tensor:
    return query.new_empty(query.shape)


@script(OPSET, default_opset=op)
@no_type_check  # onnxscript gives its tensors no arithmetic
def LocalAttentionPlan(
    tokens: INT64[...],
    position: INT64[...],
    chunk_length: int,
    chunks_before: int,
    kept: int,
    block_length: int,
) -> tuple[FLOAT[...], INT64[...]]:
    """Compute `local_attention_plan` in standard operators."""
    zero = op.Constant(value_int=0)
    one = op.Constant(value_int=1)
    c = op.Identity(chunk_length)
    block = op.Identity(block_length)
    S = op.Squeeze(op.Shape(tokens, start=1))
    blocks = block > zero
    n = op.Where(blocks, (S + c - one) / c, one)
    q = op.Where(blocks, block, S)
    before = op.Where(blocks, (chunks_before + one) * c, kept)
    start = op.Unsqueeze(op.Range(zero, n, one) * q, op.Constant(value_ints=[1]))
    queries = start + op.Range(zero, q, one)  # (n, q)
    keys = start + op.Range(op.Neg(before), q, one)  # (n, k)
    first = op.Unsqueeze(position, op.Constant(value_ints=[1, 2]))
    chunk = (first + queries) / c
    oldest = op.Max(op.Max((chunk - chunks_before) * c, zero) - first, op.Neg(kept))  # (B, n, q)
    own_keys = op.Unsqueeze(keys, op.Constant(value_ints=[1]))  # (n, 1, k)
    own_queries = op.Unsqueeze(queries, op.Constant(value_ints=[2]))  # (n, q, 1)
    seen = op.And(own_keys >= op.Unsqueeze(oldest, op.Constant(value_ints=[3])), own_keys <= own_queries)
    mask = op.Where(seen, 0.0, op.Constant(value_float=float("-inf")))
    index = op.Clip(keys + kept, zero, kept + S - one)
    return mask, index


@script(OPSET, default_opset=op)
@no_type_check  # onnxscript gives its tensors no arithmetic
def LocalAttention(
    query: FLOAT[...],
    key: FLOAT[...],
    value: FLOAT[...],
    position: INT64[...],
    mask: FLOAT[...],
    index: INT64[...],
    chunk_length: int,
    chunks_before: int,
) -> FLOAT[...]:
    """Compute `local_attention` in standard operators: a loop over pairs of heads."""
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    two = op.Constant(value_ints=[2])
    B = op.Shape(query, start=0, end=1)
    H = op.Shape(query, start=1, end=2)
    S = op.Shape(query, start=2, end=3)
    d = op.Shape(query, start=3)
    n = op.Shape(mask, start=1, end=2)
    q = op.Shape(mask, start=2, end=3)
    filled = op.Pad(query, op.Concat(zero, zero, zero, zero, zero, zero, n * q - S, zero, axis=0))
    in_blocks = op.Reshape(filled, op.Concat(B, H, n, q, d, axis=0), allowzero=1)
    own_mask = op.Unsqueeze(mask, one)
    attended = op.Expand(0.0, op.Concat(B, zero, n, q, d, axis=0))
    for pair in range(op.Squeeze((H + one) / two)):
        begin = op.Reshape(pair, one) * two
        end = begin + two
        keys = op.Gather(op.Slice(key, begin, end, one), index, axis=2)  # (B, 2, n, k, d)
        values = op.Gather(op.Slice(value, begin, end, one), index, axis=2)
        queries = op.Slice(in_blocks, begin, end, one)
        scores = op.MatMul(queries, op.Transpose(keys, perm=[0, 1, 2, 4, 3])) + own_mask
        attended = op.Concat(attended, op.MatMul(op.Softmax(scores, axis=-1), values), axis=1)
    rows = op.Reshape(attended, op.Concat(B, H, n * q, d, axis=0), allowzero=1)
    return op.Slice(rows, zero, S, two)


@script(OPSET, default_opset=op)
@no_type_check  # onnxscript gives its tensors no arithmetic
def LocalFewAttention(
    query: FLOAT[...],
    key: FLOAT[...],
    value: FLOAT[...],
    position: INT64[...],
    mask: FLOAT[...],
    chunk_length: int,
    chunks_before: int,
) -> FLOAT[...]:
    """Compute `local_few_attention` in standard operators."""
    scores = op.MatMul(query, op.Transpose(key, perm=[0, 1, 3, 2])) + mask
    return op.MatMul(op.Softmax(scores, axis=-1), value)
