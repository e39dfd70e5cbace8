"""`ai.xlexport::LSHAttention`: rule `band` for the newest rows of rings, found by a sort.

It suits segments about as long as the memory. Graphs for a few tokens have another body (`few_attention`).
"""

from __future__ import annotations

from typing import no_type_check

import torch
from onnxscript import FLOAT, INT32, INT64, script
from onnxscript import opset20 as op
from torch import Tensor
from torch.nn import functional as F

from xlexport.ops import constants
from xlexport.ops.band_attention import lsh_band_attention
from xlexport.ops.operator import OPSET, operator, shapes_of
from xlexport.ops.sort import LSHSort, lsh_sort

__all__ = ["LSHAttention", "lsh_attention"]


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


@shapes_of("lsh_attention")
def _(
    key: Tensor, value: Tensor, buckets: Tensor, length: Tensor, own_value: Tensor, *_: object
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(own_value), length.new_empty(length.shape[0], length.shape[2], dtype=torch.int64)


@script(OPSET, default_opset=op)
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
    tokens = op.Min(op.Unsqueeze(position, one) + op.Range(0, op.Squeeze(S), 1), window - one)  # (B, S)

    first_seen = C - S - op.Unsqueeze(op.Slice(tokens, zero, one, one), [2, 3])  # (B, 1, 1, 1)
    by_age = op.Where(ages >= first_seen, op.Cast(op.Gather(buckets, slot, axis=3), to=7), n_buckets)  # (B, H, R, C)
    order, rank = LSHSort(by_age)

    number = by_age * C
    place = number + ages
    olds = op.Expand(op.Slice(ages, zero, C - S), op.Concat(B, C - S, axis=0))
    oldest = op.Concat(olds, op.Slice(ages, C - S, C) - tokens, axis=1)  # (B, C)
    lowest = op.GatherElements(number + op.Unsqueeze(oldest, [1, 2]), order, axis=3)
    padding = op.Concat(zero, zero, zero, W + one, zero, zero, zero, zero, axis=0)
    before = op.Pad(op.GatherElements(place, order, axis=3), padding, op.Constant(value_int=-1))
    has_more = op.Cast(op.Slice(before, zero, C, three) >= lowest, to=7)
    more_of_new = op.GatherElements(has_more, op.Slice(rank, C - S, C, three), axis=3)  # (B, H, R, S)
    overflow = op.ReduceSum(op.Slice(more_of_new, zero, rounds, op.Constant(value_ints=[2])), [1, 2], keepdims=0)
    latest = op.GatherElements(op.Max(lowest, op.Slice(before, one, C + one, three)), rank, axis=3)

    # As a node of the domain: onnxscript would pass another function's attribute as an input.
    found, highest = OPSET.LSHBandAttention(
        key, value, length, order, rank, place, latest, slot, rounds, chunk_length=chunk_length
    )
    attended = op.Where(op.Unsqueeze(highest > -1e30, three), found, own_value)
    return attended, overflow
