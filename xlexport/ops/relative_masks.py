"""`ai.xlexport::RelativeMasks`: the values that the bodies of a step's relative attention share.

They depend on sizes and counters alone. The bodies of all layers call this function with the same inputs, so ONNX
Runtime computes it once a step. It is a function only: no graph has a node of it, and it needs no kernel.
"""

from __future__ import annotations

from typing import no_type_check

from onnxscript import FLOAT, INT64, script
from onnxscript import opset20 as op

from xlexport.ops.operator import OPSET

__all__ = ["RelativeMasks"]


@script(OPSET, default_opset=op)
@no_type_check  # onnxscript gives its tensors no arithmetic
def RelativeMasks(
    offset: INT64[...], memory_length: INT64[...], window: INT64[...], sizes: INT64[...]
) -> tuple[INT64[...], FLOAT[...], FLOAT[...], FLOAT[...], INT64[...]]:
    """Compute where new rows go, and the masks of all rows.

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
