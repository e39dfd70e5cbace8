"""`ai.xlexport::RelativeAttentionInt8`: relative attention over rings of integers with one scale a row."""

from __future__ import annotations

from typing import no_type_check

import torch
from onnxscript import FLOAT, INT8, INT64, script
from onnxscript import opset20 as op
from torch import Tensor, library

from xlexport.ops.operator import OWN_OPSET
from xlexport.ops.relative_attention import RelativeMasks, relative_attention

__all__ = ["RelativeAttentionInt8", "relative_attention_int8"]

LARGEST = 127  # of a row's numbers; -128 is not used
LARGEST_QUERY = 63  # unsigned, with 64 for zero: two products with rows stay within int16, see `quantize.dynamic_int8`


@library.custom_op("xlexport::relative_attention_int8", mutates_args=())
def relative_attention_int8(
    qkv: Tensor,
    content_bias: Tensor,
    position_bias: Tensor,
    memory_key: Tensor,
    memory_key_scale: Tensor,
    memory_value: Tensor,
    memory_value_scale: Tensor,
    position_key: Tensor,
    offset: Tensor,
    memory_length: Tensor,
    window: Tensor,
    sizes: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute `relative_attention` over rings of integers; new rows are rounded once, before anything reads them.

    Queries with content bias are rounded to ±63 steps of their own before they meet keys.

    Args:
        memory_key, memory_value: (B, H, C, d) int8.
        memory_key_scale, memory_value_scale: (B, H, C); a row is its integers times its scale.

    Returns:
        attended (B, S, H·d), and the four rings with the new rows.
    """
    (B, S, _), (_, H, C, d) = qkv.shape, memory_key.shape
    query, key, value = qkv.view(B, S, 3, H, d).permute(2, 0, 3, 1, 4)  # each (B, H, S, d)
    slots = torch.remainder(offset + torch.arange(S, device=qkv.device), C)
    (key, key_scale), (value, value_scale) = _rounded(key, LARGEST), _rounded(value, LARGEST)
    content_query, content_scale = _rounded(query + content_bias, LARGEST_QUERY)
    memory_key = memory_key.index_copy(2, slots, key)
    memory_key_scale = memory_key_scale.index_copy(2, slots, key_scale)
    memory_value = memory_value.index_copy(2, slots, value)
    memory_value_scale = memory_value_scale.index_copy(2, slots, value_scale)
    rounded = torch.stack([query, key * key_scale.unsqueeze(3), value * value_scale.unsqueeze(3)])
    attended, _, _ = relative_attention(
        rounded.permute(1, 3, 0, 2, 4).reshape(B, S, 3 * H * d),
        content_query * content_scale.unsqueeze(3) - query,  # a bias for each query
        position_bias,
        memory_key * memory_key_scale.unsqueeze(3),
        memory_value * memory_value_scale.unsqueeze(3),
        position_key,
        *(offset, memory_length, window, sizes),
    )
    return attended, memory_key, memory_key_scale, memory_value, memory_value_scale


@relative_attention_int8.register_fake
def _(qkv: Tensor, content_bias: Tensor, position_bias: Tensor, *rings: Tensor) -> tuple[Tensor, ...]:
    H, _one, d = content_bias.shape
    return qkv.new_empty(*qkv.shape[:2], H * d), *(torch.empty_like(ring) for ring in rings[:4])


def _rounded(rows: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    """Return the integers of rows (…, d), at most `largest`, and their scales (…); a row of zeros has the scale 1."""
    scale = rows.abs().amax(dim=-1) / largest
    scale = torch.where(scale > 0, scale, 1.0)
    return (rows / scale.unsqueeze(-1)).round().clamp(-largest, largest).to(torch.int8), scale


@script(OWN_OPSET, default_opset=op)
@no_type_check  # onnxscript gives its tensors no arithmetic
def RelativeAttentionInt8(
    qkv: FLOAT[...],
    content_bias: FLOAT[...],
    position_bias: FLOAT[...],
    memory_key: INT8[...],
    memory_key_scale: FLOAT[...],
    memory_value: INT8[...],
    memory_value_scale: FLOAT[...],
    position_key: FLOAT[...],
    offset: INT64[...],
    memory_length: INT64[...],
    window: INT64[...],
    sizes: INT64[...],
) -> tuple[FLOAT[...], INT8[...], FLOAT[...], INT8[...], FLOAT[...]]:
    """Compute `relative_attention_int8` in standard operators; see `RelativeAttention` for the shift.

    Both products are products of integers, with queries and weights of 7 bits, each row with its own scale.
    """
    d = op.Shape(content_bias, start=2)
    _, S, _, near = op.Split(sizes, num_outputs=4)
    write_index, near_mask, newest_far, oldest_far, near_sizes = RelativeMasks(offset, memory_length, window, sizes)
    as_before = op.Constant(value_ints=[0, 0])  # Reshape: the sizes of its input
    rest = op.Constant(value_ints=[-1])
    third = op.Constant(value_ints=[2])
    most = op.Constant(value_float=127.0)
    unit = op.Constant(value_float=1.0)
    nothing = op.Constant(value_float=0.0)
    zero = op.Cast(nothing, to=3)  # int8
    no_sign = op.Cast(nothing, to=2)  # uint8
    middle = op.Cast(op.Constant(value_float=64.0), to=2)
    query_step = op.Constant(value_float=0.015873015873015872)  # 1 / 63
    weight_step = op.Constant(value_float=0.007874015748031496)  # 1 / 127

    heads = op.Transpose(op.Reshape(qkv, op.Concat(as_before, rest, d, axis=0)), perm=[0, 2, 1, 3])  # (B, 3·H, S, d)
    query, key, value = op.Split(heads, axis=1, num_outputs=3)
    rows = op.Concat(key, value, axis=1)  # rounded together
    largest = op.ReduceMax(op.Abs(rows), rest) / most  # (B, 2·H, S, 1)
    scale = op.Where(largest > nothing, largest, unit)
    key_numbers, value_numbers = op.Split(op.QuantizeLinear(rows / scale, unit, zero), axis=1, num_outputs=2)
    key_scale, value_scale = op.Split(op.Squeeze(scale, rest), axis=1, num_outputs=2)
    new_memory_key = op.ScatterND(memory_key, write_index, key_numbers)
    new_memory_value = op.ScatterND(memory_value, write_index, value_numbers)
    new_memory_key_scale = op.ScatterND(memory_key_scale, write_index, key_scale)
    new_memory_value_scale = op.ScatterND(memory_value_scale, write_index, value_scale)

    content_query = query + content_bias
    query_largest = op.ReduceMax(op.Abs(content_query), rest)  # (B, H, S, 1)
    products = op.MatMul(
        op.DequantizeLinear(op.QuantizeLinear(content_query / query_largest, query_step, middle), query_step, middle),
        op.DequantizeLinear(op.Transpose(new_memory_key, perm=[0, 1, 3, 2]), unit, zero),
    )
    content = products * query_largest * op.Unsqueeze(new_memory_key_scale, third)  # (B, H, S, C) by slot
    by_distance = op.MatMul(query + position_bias, position_key)  # (B, H, S, 1 + near)
    flat = op.Reshape(by_distance, op.Concat(as_before, rest, axis=0))
    moved = op.Slice(flat, S, op.Constant(value_ints=[9223372036854775807]), third)
    by_age = op.Reshape(moved, op.Concat(as_before, rest, near, axis=0)) + near_mask
    oldest_near, newest_near = op.Split(by_age, near_sizes, axis=3)
    position = op.Concat(newest_far, newest_near, oldest_far, oldest_near, axis=3)  # (B, H, S, C) by slot
    weights = op.Softmax(content + position, axis=-1) * op.Unsqueeze(new_memory_value_scale, third)
    weight_largest = op.ReduceMax(weights, rest)
    sums = op.MatMul(
        op.DequantizeLinear(op.QuantizeLinear(weights / weight_largest, weight_step, no_sign), weight_step, no_sign),
        op.DequantizeLinear(new_memory_value, unit, zero),
    )
    attended = op.Reshape(op.Transpose(sums * weight_largest, perm=[0, 2, 1, 3]), op.Concat(as_before, rest, axis=0))
    return attended, new_memory_key, new_memory_key_scale, new_memory_value, new_memory_value_scale
