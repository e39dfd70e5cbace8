"""`ai.xlexport::LSHAttention`: rule `band` for the newest rows of rings.

The operator has two bodies. `LSHAttention` finds a query's keys by a sort, which suits segments about as long as the
memory. `LSHFewAttention` finds them by TopK, without a sort; graphs for a few tokens have this body.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from onnxscript import FLOAT, INT32, INT64, script
from onnxscript import opset20 as op
from torch import Tensor
from torch.nn import functional as F

from xlexport.ops import constants
from xlexport.ops.lsh_band_attention import lsh_band_attention
from xlexport.ops.lsh_gather import LSHGather, lsh_gather
from xlexport.ops.lsh_sort import LSHSort, lsh_sort
from xlexport.ops.operator import OWN_OPSET, operator, shapes_of

__all__ = ["LSHAttention", "LSHFewAttention", "lsh_attention", "lsh_few_attention"]


@operator("lsh_attention")
def lsh_attention(
    key: Tensor,
    value: Tensor,
    buckets: Tensor,
    length: Tensor,
    own_value: Tensor,
    position: Tensor,
    offset: Tensor,
    window: Tensor,
    rounds: Tensor,
    sizes: Tensor,
    chunk_length: int,
    n_buckets: int,
) -> tuple[Tensor, Tensor]:
    """Compute attention of the newest S rows of rings to the latest W earlier keys of their bucket in each round.

    Row i of the S rows lies at slot (offset + i) modulo C, and a query is its key times its length. It sees earlier
    keys of at most `position + i` and at most `window - 1` tokens before, each key once. A query without any key gets
    its own value.

    Args:
        key, value: rings (B, H, C, d).
        buckets: ring (B, H, R, C) int32 of ids from 0 to n_buckets - 1.
        length: (B, H, S); own_value: (B, H, S, d), the newest rows of `value`.
        position: (B,) int64, earlier tokens of each document.
        offset: (1,) int64, rows written to the rings before these.
        window: (1,) int64, the largest number of keys that a query reaches, itself included; at most C - S + 1.
        rounds: (1,) int64, how many of the R rounds count.
        sizes: (2,) int64, S and C. The ONNX function reads them here: what depends on them serves all layers.
        chunk_length: W.
        n_buckets: number of buckets.

    Returns:
        attended (B, H, S, d), and overflow (B, S) int64: the number of heads and rounds in which a query could see
        more than W keys.
    """
    B, C = key.shape[0], key.shape[2]
    S, W = length.shape[2], chunk_length
    ages = torch.arange(C)  # of rows, 0 is the oldest
    slot = torch.remainder(offset + S + ages, C)
    tokens = torch.minimum(position.unsqueeze(1) + torch.arange(S), window - 1)  # (B, S)

    # Rows that no query may see get a bucket after all others.
    first_seen = C - S - tokens[:, 0].view(B, 1, 1, 1)
    by_age = torch.where(ages >= first_seen, buckets.index_select(3, slot).long(), n_buckets)  # (B, H, R, C)
    order, rank = lsh_sort(by_age)  # (B, H, R, C) each

    # A number that sorts rows by bucket and age, and the lowest such number that the row's query may see.
    place = by_age * C + ages
    oldest = torch.cat([ages[: C - S].expand(B, C - S), ages[C - S :] - tokens], dim=1)  # (B, C)
    lowest = (by_age * C + oldest.view(B, 1, 1, C)).gather(3, order)  # sorted
    before = F.pad(place.gather(3, order), (W + 1, 0), value=-1.0)  # sorted, (B, H, R, W + 1 + C)
    has_more = (before[..., :C] >= lowest).gather(3, rank[..., C - S :])  # if the query may see the row W + 1 before
    overflow = has_more[:, :, : int(rounds)].sum(dim=(1, 2))
    lowest = torch.maximum(lowest, before[..., 1 : C + 1]).gather(3, rank)  # by age: the latest W only

    attended, highest = lsh_band_attention(key, value, length, order, rank, place, lowest, slot, rounds, W)
    return torch.where((highest > constants.EXCLUDED).unsqueeze(3), attended, own_value), overflow


@operator("lsh_few_attention")
def lsh_few_attention(
    key: Tensor,
    value: Tensor,
    buckets: Tensor,
    length: Tensor,
    own_value: Tensor,
    position: Tensor,
    offset: Tensor,
    window: Tensor,
    rounds: Tensor,
    sizes: Tensor,
    chunk_length: int,
    n_buckets: int,
) -> tuple[Tensor, Tensor]:
    """Compute `lsh_attention` by TopK; arguments and results are the same, and `window` may be larger."""
    B, H, C, d = key.shape
    R, S, W = buckets.shape[2], length.shape[2], chunk_length
    steps = torch.arange(S)
    slot = torch.remainder(offset + steps, C)
    query = key.index_select(2, slot) * length.unsqueeze(3)  # (B, H, S, d)
    own = buckets.index_select(3, slot)  # (B, H, R, S)

    # The latest key has the highest priority.
    newest_first = torch.remainder(offset + (S - 1) - torch.arange(C), C)
    distance = newest_first - (S - 1 - steps).unsqueeze(1)  # (S, C), negative for later rows
    reach = torch.minimum(position.unsqueeze(1) + steps, window - 1).unsqueeze(2)  # (B, S, 1)
    near = (distance > 0) & (distance <= reach)
    priority = torch.where(near, -distance, constants.NEVER).to(torch.int32).unsqueeze(1).unsqueeze(1)

    active = torch.arange(R) < rounds
    matches = buckets.unsqueeze(3) == own.unsqueeze(4)  # (B, H, R, S, C)
    # Padding ensures that TopK has enough entries to choose from.
    eligible = F.pad(torch.where(matches, priority, constants.NEVER), (0, W + 1), value=float(constants.NEVER))
    best, slots = torch.topk(eligible, W + 1, dim=4)  # (B, H, R, S, W + 1)
    overflow = ((best[..., W] > constants.NEVER) & active.view(R, 1)).sum(dim=(1, 2))  # (B, S)
    best, slots = best[..., :W], slots[..., :W].clamp(max=C - 1)

    # Each key counts once: drop it if an earlier round has it too, in the query's bucket among its latest W.
    everywhere = slots.reshape(B, H, 1, R * S * W).expand(B, H, R, R * S * W)
    there = buckets.gather(3, everywhere).view(B, H, R, R, S, W)  # in each round, of the keys of each round
    had = (there == own.view(B, H, R, 1, S, 1)) & (best.unsqueeze(2) >= best[..., W - 1 :].unsqueeze(3))
    earlier = torch.arange(R)
    had = had & (earlier.unsqueeze(1) < earlier).view(R, R, 1, 1)
    fresh = (best > constants.NEVER) & active.view(R, 1, 1) & ~had.any(dim=2)  # (B, H, R, S, W)

    mask = fresh.transpose(2, 3).reshape(B, H, S, R * W)
    index = slots.transpose(2, 3).reshape(B, H, S * R * W)
    keys = lsh_gather(key, index).view(B, H, S, R * W, d)
    values = lsh_gather(value, index).view(B, H, S, R * W, d)
    scores = torch.where(mask, (keys @ query.unsqueeze(4)).squeeze(4), constants.EXCLUDED)  # (B, H, S, R·W)
    attended = (scores.softmax(dim=3).unsqueeze(3) @ values).squeeze(3)  # (B, H, S, d)
    return torch.where(mask.any(dim=3, keepdim=True), attended, own_value), overflow


@shapes_of("lsh_attention")
@shapes_of("lsh_few_attention")
def _(
    key: Tensor, value: Tensor, buckets: Tensor, length: Tensor, own_value: Tensor, *_: object
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(own_value), length.new_empty(length.shape[0], length.shape[2], dtype=torch.int64)


@script(OWN_OPSET, default_opset=op)
@no_type_check  # onnxscript gives its tensors no arithmetic
def LSHAttention(
    key: FLOAT[...],
    value: FLOAT[...],
    buckets: INT32[...],
    length: FLOAT[...],
    own_value: FLOAT[...],
    position: INT64[...],
    offset: INT64[...],
    window: INT64[...],
    rounds: INT64[...],
    sizes: INT64[...],
    chunk_length: int,
    n_buckets: int,
) -> tuple[FLOAT[...], INT64[...]]:
    """Compute `lsh_attention` in standard operators, a sort and `LSHBandAttention`."""
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    three = op.Constant(value_ints=[3])
    W = op.Reshape(chunk_length, one)
    B = op.Shape(key, start=0, end=1)
    S, C = op.Split(sizes, num_outputs=2)
    ages = op.Range(0, op.Squeeze(C), 1)
    slot = op.Mod(offset + S + ages, C)
    earlier = op.Unsqueeze(position, one) + op.Range(0, op.Squeeze(S), 1)
    tokens = op.Where(earlier < window, earlier, window - one)  # (B, S)

    first_seen = C - S - op.Unsqueeze(op.Slice(tokens, zero, one, one), [2, 3])  # (B, 1, 1, 1)
    by_age = op.Where(ages >= first_seen, op.Cast(op.Gather(buckets, slot, axis=3), to=7), n_buckets)  # (B, H, R, C)
    order, rank = LSHSort(by_age)

    number = by_age * C
    place = number + ages
    olds = op.Expand(op.Slice(ages, zero, C - S), op.Concat(B, C - S, axis=0))
    oldest = op.Concat(olds, op.Slice(ages, C - S, C) - tokens, axis=1)  # (B, C)
    lowest = op.GatherElements(number + op.Unsqueeze(oldest, [1, 2]), order, axis=3)
    # Not `Pad`: CUDA has none for integers.
    nothing = op.Expand(op.Constant(value_ints=[-1]), op.Concat(op.Shape(order, start=0, end=3), W + one, axis=0))
    before = op.Concat(nothing, op.GatherElements(place, order, axis=3), axis=3)
    has_more = op.Cast(op.Slice(before, zero, C, three) >= lowest, to=7)
    more_of_new = op.GatherElements(has_more, op.Slice(rank, C - S, C, three), axis=3)  # (B, H, R, S)
    overflow = op.ReduceSum(op.Slice(more_of_new, zero, rounds, op.Constant(value_ints=[2])), [1, 2], keepdims=0)
    seen = op.Slice(before, one, C + one, three)
    latest = op.GatherElements(op.Where(lowest > seen, lowest, seen), rank, axis=3)

    # As a node of the domain: onnxscript would pass another function's attribute as an input.
    found, highest = OWN_OPSET.LSHBandAttention(
        key, value, length, order, rank, place, latest, slot, rounds, chunk_length=chunk_length
    )
    attended = op.Where(op.Unsqueeze(highest > -1e30, three), found, own_value)
    return attended, overflow


@script(OWN_OPSET, default_opset=op)
@no_type_check  # onnxscript gives its tensors no arithmetic
def LSHFewAttention(  # noqa: PLR0915  # one body
    key: FLOAT[...],
    value: FLOAT[...],
    buckets: INT32[...],
    length: FLOAT[...],
    own_value: FLOAT[...],
    position: INT64[...],
    offset: INT64[...],
    window: INT64[...],
    rounds: INT64[...],
    sizes: INT64[...],
    chunk_length: int,
    n_buckets: int,
) -> tuple[FLOAT[...], INT64[...]]:
    """Compute `lsh_few_attention` in standard operators."""
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    two = op.Constant(value_ints=[2])
    three = op.Constant(value_ints=[3])
    four = op.Constant(value_ints=[4])
    rest = op.Constant(value_ints=[-1])
    never = op.Cast(-1073741824, to=6)
    W = op.Reshape(chunk_length, one)
    heads = op.Shape(key, start=0, end=2)  # B, H
    d = op.Shape(key, start=3)
    R = op.Shape(buckets, start=2, end=3)
    S, C = op.Split(sizes, num_outputs=2)
    steps = op.Range(0, op.Squeeze(S), 1)
    slot = op.Mod(offset + steps, C)
    query = op.Gather(key, slot, axis=2) * op.Unsqueeze(length, three)  # (B, H, S, d)
    own = op.Gather(buckets, slot, axis=3)  # (B, H, R, S)

    newest_first = op.Mod(offset + S - one - op.Range(0, op.Squeeze(C), 1), C)
    distance = newest_first - op.Unsqueeze(S - one - steps, one)  # (S, C)
    tokens = op.Unsqueeze(position, one) + steps
    reach = op.Where(tokens < window, tokens, window - one)  # (B, S)
    near = op.And(distance > 0, distance <= op.Unsqueeze(reach, two))
    priority = op.Cast(op.Where(near, op.Neg(distance), -1073741824), to=6)

    # TopK needs enough entries to choose from. Not `Pad`: CUDA has none for integers.
    some_never = op.Expand(never, op.Concat(op.Shape(priority, start=0, end=2), W + one, axis=0))
    no_bucket = op.Expand(op.Cast(-1, to=6), op.Concat(heads, R, W + one, axis=0))
    priority = op.Unsqueeze(op.Concat(priority, some_never, axis=2), [1, 2])
    earlier = op.Range(0, op.Squeeze(R), 1)
    active = op.Unsqueeze(earlier < rounds, one)  # (R, 1)
    ids = op.Unsqueeze(op.Concat(buckets, no_bucket, axis=3), three)
    matches = op.Equal(ids, op.Unsqueeze(own, four))  # (B, H, R, S, C + W + 1)
    eligible = op.Where(matches, priority, never)
    chosen, places = op.TopK(eligible, W + one, axis=4)  # (B, H, R, S, W + 1)
    more = op.And(op.Squeeze(op.Slice(chosen, W, W + one, four), four) > never, active)
    overflow = op.ReduceSum(op.Cast(more, to=7), [1, 2], keepdims=0)
    best = op.Slice(chosen, zero, W, four)
    latest = op.Slice(places, zero, W, four)
    slots = op.Where(latest < C, latest, zero)  # the mask hides padding

    by_key = op.Reshape(slots, op.Concat(heads, one, rest, axis=0))  # (B, H, 1, R·S·W)
    everywhere = op.Expand(by_key, op.Concat(one, one, R, one, axis=0))
    there = op.Reshape(op.GatherElements(buckets, everywhere, axis=3), op.Concat(heads, R, R, S, W, axis=0))
    last = op.Unsqueeze(op.Slice(best, W - one, W, four), three)  # (B, H, R, 1, S, 1)
    same = op.Equal(there, op.Unsqueeze(own, [3, 5]))
    had = op.And(same, op.Unsqueeze(best, two) >= last)  # (B, H, R, R, S, W)
    had = op.And(had, op.Unsqueeze(op.Unsqueeze(earlier, one) < earlier, [2, 3]))
    any_had = op.Cast(op.ReduceMax(op.Cast(had, to=6), two, keepdims=0), to=9)
    fresh = op.And(op.And(best > never, op.Unsqueeze(active, two)), op.Not(any_had))  # (B, H, R, S, W)

    mask = op.Reshape(op.Transpose(fresh, perm=[0, 1, 3, 2, 4]), op.Concat(heads, S, R * W, axis=0))
    index = op.Reshape(op.Transpose(slots, perm=[0, 1, 3, 2, 4]), op.Concat(heads, S * R * W, axis=0))
    by_query = op.Concat(heads, S, R * W, d, axis=0)
    keys = op.Reshape(LSHGather(key, index), by_query)
    values = op.Reshape(LSHGather(value, index), by_query)
    scores = op.Where(mask, op.Squeeze(op.MatMul(keys, op.Unsqueeze(query, four)), four), -1e30)
    found = op.Squeeze(op.MatMul(op.Unsqueeze(op.Softmax(scores, axis=-1), three), values), three)
    some = op.Cast(op.ReduceMax(op.Cast(mask, to=6), three, keepdims=1), to=9)
    attended = op.Where(some, found, own_value)
    return attended, overflow
