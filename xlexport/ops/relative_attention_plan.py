"""`ai.xlexport::RelativeAttentionPlan`: the values of a step that the bodies of all its `RelativeAttention` share.

They depend on sizes and counters alone, so a step computes them once instead of once a layer. Only those bodies read
them. A kernel of `RelativeAttention` does not need them, so a kernel of this operator returns tensors without content,
and so does PyTorch. A runtime must have kernels of both operators, or of neither.
"""

from __future__ import annotations

from typing import no_type_check

from onnxscript import FLOAT, INT64, script
from onnxscript import opset20 as op
from torch import Tensor, library

from xlexport.ops.domain import OPSET

__all__ = ["RelativeAttentionPlan", "relative_attention_plan"]


@library.custom_op("xlexport::relative_attention_plan", mutates_args=())
def relative_attention_plan(
    tokens: Tensor, memory_key: Tensor, position_key: Tensor, offset: Tensor, memory_length: Tensor, window: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return five tensors without content for `relative_attention`, which in PyTorch needs no plan.

    Args:
        tokens: (B, S) int64; only its sizes count.
        memory_key: (B, H, C, d), a ring of the first layer; only its sizes count.
        position_key: (H, d, 1 + near); only its sizes count.
        offset, memory_length, window: as in `relative_attention`.
    """
    return _nothing(tokens, memory_key)


@relative_attention_plan.register_fake
def _(tokens: Tensor, memory_key: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _nothing(tokens, memory_key)


def _nothing(tokens: Tensor, memory_key: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    near_mask, newest_far, oldest_far = (memory_key.new_empty(0) for _ in range(3))
    return tokens.new_empty(0), near_mask, newest_far, oldest_far, tokens.new_empty(0)


@script(OPSET, default_opset=op)
@no_type_check  # onnxscript gives its tensors no arithmetic
def RelativeAttentionPlan(
    tokens: INT64[...],
    memory_key: FLOAT[...],
    position_key: FLOAT[...],
    offset: INT64[...],
    memory_length: INT64[...],
    window: INT64[...],
) -> tuple[INT64[...], FLOAT[...], FLOAT[...], FLOAT[...], INT64[...]]:
    """Compute what the bodies of `RelativeAttention` share, in standard operators.

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
    B = op.Shape(memory_key, start=0, end=1)
    H = op.Shape(memory_key, start=1, end=2)
    C = op.Shape(memory_key, start=2, end=3)
    S = op.Shape(tokens, start=1)
    near = op.Shape(position_key, start=2) - one
    far = C - near
    steps = op.Range(begin, op.Squeeze(S), by_one)

    rows = op.Concat(B, H, S, one, axis=0)
    batch = op.Expand(op.Reshape(op.Range(begin, op.Squeeze(B), by_one), op.Constant(value_ints=[-1, 1, 1, 1])), rows)
    head = op.Expand(op.Reshape(op.Range(begin, op.Squeeze(H), by_one), op.Constant(value_ints=[-1, 1, 1])), rows)
    slot = op.Expand(op.Reshape(op.Mod(offset + steps, C), column), rows)
    write_index = op.Concat(batch, head, slot, axis=3)

    queries = op.Reshape(steps, column)
    distance = C - S + queries - op.Range(begin, op.Squeeze(C), by_one)  # (S, C) by age; negative after the query
    reach = op.Min(op.Reshape(memory_length, op.Constant(value_ints=[-1, 1, 1])) + queries, window - one)  # (B, S, 1)
    seen = op.And(distance >= zero, distance <= reach)  # (B, S, C)
    mask = op.Unsqueeze(op.Where(seen, op.Constant(value_float=0.0), op.Constant(value_float=float("-inf"))), one)
    near_mask = op.Slice(mask, far, C, last)

    cut = op.Mod(offset + S, C)
    newest_near = op.Min(cut, near)
    newest_far_size = cut - newest_near
    far_mask = op.Expand(op.Slice(mask, zero, far, last), op.Concat(B, H, S, far, axis=0))
    newest_far = op.Slice(far_mask, far - newest_far_size, far, last)
    oldest_far = op.Slice(far_mask, zero, far - newest_far_size, last)
    near_sizes = op.Concat(near - newest_near, newest_near, axis=0)
    return write_index, near_mask, newest_far, oldest_far, near_sizes
