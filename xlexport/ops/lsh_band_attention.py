"""`ai.xlexport::LSHBandAttention`: attention of sorted rows, chunk by chunk.

Standard operators in the graph could compute it, too. But unrolled over heads and rounds that takes thousands of nodes,
and all heads and rounds at once need gigabytes. As an ONNX function it is a loop.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from onnxscript import FLOAT, INT64, script
from onnxscript import opset20 as op
from torch import Tensor
from torch.nn import functional as F

from xlexport.ops import constants
from xlexport.ops.lsh_gather import LSHGather, lsh_gather
from xlexport.ops.operator import OWN_OPSET, operator, shapes_of

__all__ = ["LSHBandAttention", "lsh_band_attention"]


@operator("lsh_band_attention")
def lsh_band_attention(
    key: Tensor,
    value: Tensor,
    length: Tensor,
    order: Tensor,
    rank: Tensor,
    place: Tensor,
    lowest: Tensor,
    slot: Tensor,
    rounds: Tensor,
    chunk_length: int,
) -> tuple[Tensor, Tensor]:
    """Compute attention of the newest S of C rows to earlier keys in the same bucket, in chunks of W sorted rows.

    Rows are numbered by age, from the oldest, 0. Each round sorts them. A query attends to keys of its own chunk and
    the chunk before it, if their places are below its own place and at least its `lowest`. A key that an earlier round
    has for the query does not count again. One softmax covers all rounds.

    Args:
        key: (B, H, C, d) in the order of slots; a query is its key times its length.
        value: (B, H, C, d) in the order of slots.
        length: (B, H, S) of the queries.
        order: (B, H, R, C) int64, ages in sorted order; rank: (B, H, R, C) int64, its inverse.
        place: (B, H, R, C) int64 by age, at least 0, ascending in sorted order.
        lowest: (B, H, R, C) int64 by age, at least 0, the lowest place that a query sees.
        slot: (C,) int64, the slot of the row of each age.
        rounds: (1,) int64, how many of the R rounds count.
        chunk_length: W.

    Returns:
        attended (B, H, S, d), and highest (B, H, S), the highest score. If a query has no key, `highest` is `EXCLUDED`
        and its row of `attended` is undefined.
    """
    B, H, C, d = key.shape
    W, S = chunk_length, length.shape[2]
    padded = (C + W - 1) // W * W
    lengths = F.pad(length, (C - S, 0))  # queries of older rows are not used
    keys_by_slot, values_by_slot = key.reshape(B, H * C, d), value.reshape(B, H * C, d)
    heads, highest = [], []
    for h in range(H):
        most = torch.full((B, S), constants.EXCLUDED)
        total, attended = torch.zeros(B, S), torch.zeros(B, S, d)
        for r in range(int(rounds)):
            ages, new = order[:, h, r], rank[:, h, r, C - S :]  # (B, C), (B, S)
            rows = F.pad(h * C + slot[ages], (W, padded - C))
            keys = _windows(lsh_gather(keys_by_slot, rows), W)  # (B, n, 2W, d)
            values = _windows(lsh_gather(values_by_slot, rows), W)
            scale = F.pad(lengths[:, h].gather(1, ages), (0, padded - C)).view(B, -1, W, 1)
            scores = (keys[:, :, W:] * scale) @ keys.transpose(2, 3)  # (B, n, W, 2W)
            seen = torch.ones(1, dtype=torch.bool)
            for other in range(r + 1):
                places = _windows(F.pad(place[:, h, other].gather(1, ages), (W, padded - C), value=-1.0), W)
                bounds = F.pad(lowest[:, h, other].gather(1, ages), (0, padded - C)).view(B, -1, W, 1)
                covered = (places.unsqueeze(2) >= bounds) & (places.unsqueeze(2) < places[:, :, W:].unsqueeze(3))
                seen = seen & (covered if other == r else ~covered)
            scores = torch.where(seen, scores, constants.EXCLUDED)
            best = scores.amax(dim=3, keepdim=True)
            exponentials = (scores - best).exp()
            best = best.view(B, padded).gather(1, new)
            most, before = torch.maximum(most, best), most
            kept, added = (before - most).exp(), (best - most).exp()
            total = kept * total + added * exponentials.sum(dim=3).view(B, padded).gather(1, new)
            weighted = lsh_gather((exponentials @ values).view(B, padded, d), new)
            attended = kept.unsqueeze(2) * attended + added.unsqueeze(2) * weighted
        heads.append(attended / total.unsqueeze(2))
        highest.append(most)
    return torch.stack(heads, dim=1), torch.stack(highest, dim=1)


@shapes_of("lsh_band_attention")
def _(key: Tensor, value: Tensor, length: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return key.new_empty(*length.shape, key.shape[3]), torch.empty_like(length)


def _windows(rows: Tensor, W: int) -> Tensor:
    """Return the windows of the n chunks, the chunk before and itself: (B, W + n·W, …) to (B, n, 2W, …)."""
    chunks = rows.unflatten(1, (rows.shape[1] // W, W))
    return torch.cat([chunks[:, :-1], chunks[:, 1:]], dim=2)


@script(OWN_OPSET, default_opset=op)
@no_type_check  # onnxscript gives its tensors no arithmetic
def LSHBandAttention(  # noqa: PLR0915  # one body: a function called from its loops would hide what it costs
    key: FLOAT[...],
    value: FLOAT[...],
    length: FLOAT[...],
    order: INT64[...],
    rank: INT64[...],
    place: INT64[...],
    lowest: INT64[...],
    slot: INT64[...],
    rounds: INT64[...],
    chunk_length: int,
) -> tuple[FLOAT[...], FLOAT[...]]:
    """Compute `lsh_band_attention` in standard operators: loops over heads, rounds, and the rounds before each."""
    W = op.Reshape(chunk_length, [1])
    B = op.Shape(key, start=0, end=1)
    H = op.Shape(key, start=1, end=2)
    C = op.Shape(key, start=2, end=3)
    d = op.Shape(key, start=3)
    S = op.Shape(length, start=2)
    one = op.Constant(value_ints=[1])
    zero = op.Constant(value_ints=[0])
    chunks = (C + W - one) / W
    filler = chunks * W - C
    behind = op.Concat(zero, zero, zero, filler, axis=0)  # fill the last chunk
    # And add a chunk before the first. Not by `Pad`: CUDA has none for integers.
    first_rows = op.Expand(zero, op.Concat(B, W, axis=0))
    last_rows = op.Expand(zero, op.Concat(B, filler, axis=0))
    no_places = op.Expand(op.Constant(value_ints=[-1]), op.Concat(B, W, axis=0))
    last_places = op.Expand(op.Constant(value_ints=[-1]), op.Concat(B, filler, axis=0))
    in_chunks = op.Concat(B, chunks + one, W, axis=0)
    rows_in_chunks = op.Concat(B, chunks + one, W, d, axis=0)
    by_query = op.Concat(B, chunks, W, one, axis=0)
    flat = op.Concat(B, chunks * W, axis=0)
    keys_by_slot = op.Reshape(key, op.Concat(B, H * C, d, axis=0))
    values_by_slot = op.Reshape(value, op.Concat(B, H * C, d, axis=0))
    lengths = op.Pad(length, op.Concat(zero, zero, C - S, zero, zero, zero, axis=0))

    none = op.Expand(-1e30, op.Concat(B, S, axis=0))
    nothing = op.Expand(0.0, op.Concat(B, S, axis=0))
    no_rows = op.Expand(0.0, op.Concat(B, S, d, axis=0))
    # `B - B`, as a loop of OpenVINO ignores what it appends to a tensor that is known to be empty.
    all_attended = op.Expand(0.0, op.Concat(B, B - B, S, d, axis=0))
    all_highest = op.Expand(0.0, op.Concat(B, B - B, S, axis=0))
    for h in range(op.Squeeze(H)):
        own_order = op.Gather(order, h, axis=1)  # (B, R, C)
        own_rank = op.Slice(op.Gather(rank, h, axis=1), C - S, C, [2])  # (B, R, S)
        own_place = op.Gather(place, h, axis=1)
        own_lowest = op.Gather(lowest, h, axis=1)
        own_length = op.Gather(lengths, h, axis=1)  # (B, C)
        most = op.Identity(none)
        total = op.Identity(nothing)
        attended = op.Identity(no_rows)
        for r in range(op.Squeeze(rounds)):
            ages = op.Gather(own_order, r, axis=1)  # (B, C)
            new = op.Gather(own_rank, r, axis=1)  # (B, S)
            rows = op.Concat(first_rows, h * op.Squeeze(C) + op.Gather(slot, ages), last_rows, axis=1)
            key_chunks = op.Reshape(LSHGather(keys_by_slot, rows), rows_in_chunks)
            value_chunks = op.Reshape(LSHGather(values_by_slot, rows), rows_in_chunks)
            latter = op.Slice(key_chunks, one, chunks + one, one)
            keys = op.Concat(op.Slice(key_chunks, zero, chunks, one), latter, axis=2)
            values = op.Concat(
                op.Slice(value_chunks, zero, chunks, one), op.Slice(value_chunks, one, chunks + one, one), axis=2
            )
            scale = op.Reshape(op.Pad(op.GatherElements(own_length, ages, axis=1), behind), by_query)
            scores = op.MatMul(latter * scale, op.Transpose(keys, perm=[0, 1, 3, 2]))
            # Each key once: those that this round covers, and no earlier round. OpenVINO cannot run a loop zero times.
            seen = op.Expand(True, op.Shape(scores))
            for other in range(r + 1):
                places = op.GatherElements(op.Gather(own_place, other, axis=1), ages, axis=1)
                place_chunks = op.Reshape(op.Concat(no_places, places, last_places, axis=1), in_chunks)
                own = op.Slice(place_chunks, one, chunks + one, one)
                window = op.Unsqueeze(op.Concat(op.Slice(place_chunks, zero, chunks, one), own, axis=2), [2])
                bounds = op.GatherElements(op.Gather(own_lowest, other, axis=1), ages, axis=1)
                bounds = op.Reshape(op.Concat(bounds, last_rows, axis=1), by_query)
                covered = op.And(window >= bounds, window < op.Unsqueeze(own, [3]))
                seen = op.And(seen, covered == (op.Reshape(other, one) == op.Reshape(r, one)))
            masked = op.Where(seen, scores, -1e30)
            best = op.ReduceMax(masked, [3])
            exponentials = op.Exp(masked - best)
            weighted = LSHGather(op.Reshape(op.MatMul(exponentials, values), op.Concat(flat, d, axis=0)), new)
            sums = op.GatherElements(op.Reshape(op.ReduceSum(exponentials, [3]), flat), new, axis=1)
            best_of_new = op.GatherElements(op.Reshape(best, flat), new, axis=1)
            higher = op.Max(most, best_of_new)
            kept = op.Exp(most - higher)
            added = op.Exp(best_of_new - higher)
            total = kept * total + added * sums
            attended = op.Unsqueeze(kept, [2]) * attended + op.Unsqueeze(added, [2]) * weighted
            most = op.Identity(higher)
        all_attended = op.Concat(all_attended, op.Unsqueeze(attended / op.Unsqueeze(total, [2]), [1]), axis=1)
        all_highest = op.Concat(all_highest, op.Unsqueeze(most, [1]), axis=1)
    return all_attended, all_highest
