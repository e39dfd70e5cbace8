"""`ai.xlexport::RelativeAttention`: attention with relative positions over a ring, from the new rows to their result.

Standard operators write the scores of all keys to memory, and read and write them again for each part: content,
positions, shift, mask, order of slots, softmax. A kernel can keep a block of them in the cache.
"""

from __future__ import annotations

import math
from typing import no_type_check

import torch
from onnxscript import FLOAT, INT64, script
from onnxscript import opset20 as op
from torch import Tensor, library

from xlexport.ops.operator import OWN_OPSET

__all__ = ["RelativeAttention", "RelativeMasks", "relative_attention"]


@library.custom_op("xlexport::relative_attention", mutates_args=())
def relative_attention(
    qkv: Tensor,
    content_bias: Tensor,
    position_bias: Tensor,
    memory_key: Tensor,
    memory_value: Tensor,
    position_key: Tensor,
    offset: Tensor,
    memory_length: Tensor,
    window: Tensor,
    sizes: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Write a step's rows into two rings of C slots, and compute the attention of its S queries to the rings' rows.

    Args:
        qkv: (B, S, 3·H·d), queries divided by sqrt(d), keys and values.
        content_bias, position_bias: (H, 1, d), u and v, divided by sqrt(d).
        memory_key, memory_value: (B, H, C, d) in the order of slots, S <= C.
        position_key: (H, d, 1 + near), a zero column, then the keys of the distances near - 1 … 0. A larger distance
            has the key zero. If near < C, so have the distances above near - S.
        offset: (1,) int64, the slot of the first new row; counts modulo C.
        memory_length: (B,) int64, rows that each batch row may see before this step.
        window: (1,) int64, the largest number of keys that a query sees, itself included.
        sizes: (4,) int64, H, S, C and near. The ONNX function reads them here: one mask serves all layers.

    Returns:
        attended (B, S, H·d), and the two rings with the new rows.
    """
    (B, S, _), (_, H, C, d), near = qkv.shape, memory_key.shape, position_key.shape[2] - 1
    query, key, value = qkv.view(B, S, 3, H, d).permute(2, 0, 3, 1, 4)  # each (B, H, S, d)
    steps = torch.arange(S, device=qkv.device)
    slots = torch.remainder(offset + steps, C)
    memory_key, memory_value = memory_key.index_copy(2, slots, key), memory_value.index_copy(2, slots, value)

    age = torch.remainder(torch.arange(C, device=qkv.device) - offset - S, C)  # (C,) by slot; the oldest is 0
    distance = C - S + steps.unsqueeze(1) - age  # (S, C)
    reach = torch.minimum(memory_length.view(B, 1, 1) + steps.unsqueeze(1), window - 1)  # (B, S, 1)
    seen = (distance >= 0) & (distance <= reach)  # (B, S, C)
    column = torch.where((distance >= 0) & (distance < near), near - distance, 0)
    positions = (query + position_bias) @ position_key  # (B, H, S, 1 + near)
    scores = (query + content_bias) @ memory_key.transpose(2, 3) + positions.gather(3, column.expand(B, H, S, C))
    weights = scores.masked_fill(~seen.unsqueeze(1), -math.inf).softmax(dim=3)
    return (weights @ memory_value).transpose(1, 2).reshape(B, S, H * d), memory_key, memory_value


@relative_attention.register_fake
def _(
    qkv: Tensor, content_bias: Tensor, position_bias: Tensor, memory_key: Tensor, memory_value: Tensor, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    H, _one, d = content_bias.shape
    return qkv.new_empty(*qkv.shape[:2], H * d), torch.empty_like(memory_key), torch.empty_like(memory_value)


@script(OWN_OPSET, default_opset=op)
@no_type_check  # onnxscript gives its tensors no arithmetic
def RelativeMasks(
    offset: INT64[...], memory_length: INT64[...], window: INT64[...], sizes: INT64[...]
) -> tuple[INT64[...], FLOAT[...], FLOAT[...], FLOAT[...], INT64[...]]:
    """Compute where new rows go, and the masks of all rows: the values that the bodies of all layers share.

    They depend on sizes and counters alone. The bodies of all layers call this function with the same inputs, so ONNX
    Runtime computes it once a step. It is a function only: no graph has a node of it, and it needs no kernel.

    By age, the newest `near` rows have positional keys; the older ones are far. By slot, those below `cut` hold the
    newest rows, the others the oldest.

    Returns:
        write_index: (B, H, S, 3), the place of each new row in a ring.
        near_mask: (B, 1, S, near), to add to the scores of near rows by age.
        newest_far, oldest_far: (B, H, S, …), the masks of far rows by slot, which are also all their positional scores.
        near_sizes: (2), how many near rows are at the slots from `cut`, and how many below it.
    """
    begin = op.Constant(value_int=0)
    by_one = op.Constant(value_int=1)
    one = op.Constant(value_ints=[1])
    zero = op.Constant(value_ints=[0])
    last = op.Constant(value_ints=[3])
    column = op.Constant(value_ints=[-1, 1])
    B = op.Shape(memory_length)
    H, S, C, near = op.Split(sizes, num_outputs=4)
    far = C - near
    steps = op.Range(begin, op.Squeeze(S), by_one)

    rows = op.Concat(B, H, S, one, axis=0)
    batch = op.Expand(op.Reshape(op.Range(begin, op.Squeeze(B), by_one), op.Constant(value_ints=[-1, 1, 1, 1])), rows)
    head = op.Expand(op.Reshape(op.Range(begin, op.Squeeze(H), by_one), op.Constant(value_ints=[-1, 1, 1])), rows)
    slot = op.Expand(op.Reshape(op.Mod(offset + steps, C), column), rows)
    write_index = op.Concat(batch, head, slot, axis=3)

    queries = op.Reshape(steps, column)
    distance = C - S + queries - op.Range(begin, op.Squeeze(C), by_one)  # (S, C) by age; negative after the query
    earlier = op.Reshape(memory_length, op.Constant(value_ints=[-1, 1, 1])) + queries
    reach = op.Where(earlier < window, earlier, window - one)  # (B, S, 1)
    seen = op.And(distance >= zero, distance <= reach)  # (B, S, C)
    mask = op.Unsqueeze(op.Where(seen, op.Constant(value_float=0.0), op.Constant(value_float=float("-inf"))), one)
    near_mask = op.Slice(mask, far, C, last)

    cut = op.Mod(offset + S, C)
    newest_near = op.Where(cut < near, cut, near)
    newest_far_size = cut - newest_near
    far_mask = op.Expand(op.Slice(mask, zero, far, last), op.Concat(B, H, S, far, axis=0))
    newest_far = op.Slice(far_mask, far - newest_far_size, far, last)
    oldest_far = op.Slice(far_mask, zero, far - newest_far_size, last)
    near_sizes = op.Concat(near - newest_near, newest_near, axis=0)
    return write_index, near_mask, newest_far, oldest_far, near_sizes


@script(OWN_OPSET, default_opset=op)
@no_type_check  # onnxscript gives its tensors no arithmetic
def RelativeAttention(
    qkv: FLOAT[...],
    content_bias: FLOAT[...],
    position_bias: FLOAT[...],
    memory_key: FLOAT[...],
    memory_value: FLOAT[...],
    position_key: FLOAT[...],
    offset: INT64[...],
    memory_length: INT64[...],
    window: INT64[...],
    sizes: INT64[...],
) -> tuple[FLOAT[...], FLOAT[...], FLOAT[...]]:
    """Compute `relative_attention` in standard operators, with masks that all layers share.

    Only the newest `near` rows get positional scores. Older ones are so far from all queries that theirs are zero.

    Positional scores have a column for each distance, and column 0 is zero. To shift them (Appendix B), drop the first
    S of the flat scores, which moves row i left by S - i. Then column j of row i has the distance near - S + i - j. The
    zero column ends up at places that the mask hides.
    """
    d = op.Shape(content_bias, start=2)
    _, S, _, near = op.Split(sizes, num_outputs=4)
    write_index, near_mask, newest_far, oldest_far, near_sizes = RelativeMasks(offset, memory_length, window, sizes)
    as_before = op.Constant(value_ints=[0, 0])  # Reshape: the sizes of its input
    rest = op.Constant(value_ints=[-1])
    split = op.Concat(as_before, rest, d, axis=0)
    query_rows, key_rows, value_rows = op.Split(qkv, axis=2, num_outputs=3)
    query = op.Transpose(op.Reshape(query_rows, split), perm=[0, 2, 1, 3])  # (B, H, S, d)
    key = op.Transpose(op.Reshape(key_rows, split), perm=[0, 2, 1, 3])
    value = op.Transpose(op.Reshape(value_rows, split), perm=[0, 2, 1, 3])
    new_memory_key = op.ScatterND(memory_key, write_index, key)
    new_memory_value = op.ScatterND(memory_value, write_index, value)

    content = op.MatMul(query + content_bias, op.Transpose(new_memory_key, perm=[0, 1, 3, 2]))  # (B, H, S, C) by slot
    by_distance = op.MatMul(query + position_bias, position_key)  # (B, H, S, 1 + near)
    flat = op.Reshape(by_distance, op.Concat(as_before, rest, axis=0))
    moved = op.Slice(flat, S, op.Constant(value_ints=[9223372036854775807]), op.Constant(value_ints=[2]))
    by_age = op.Reshape(moved, op.Concat(as_before, rest, near, axis=0)) + near_mask
    oldest_near, newest_near = op.Split(by_age, near_sizes, axis=3)
    position = op.Concat(newest_far, newest_near, oldest_far, oldest_near, axis=3)  # (B, H, S, C) by slot
    weights = op.Softmax(content + position, axis=-1)
    rows = op.Transpose(op.MatMul(weights, new_memory_value), perm=[0, 2, 1, 3])
    attended = op.Reshape(rows, op.Concat(as_before, rest, axis=0))
    return attended, new_memory_key, new_memory_value
