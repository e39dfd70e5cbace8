"""Bodies of `LSHBandAttention` and `LSHChunkAttention` for accelerators: all heads and rounds at once, without a loop.

A loop waits for the device in each pass, and its products are small. These bodies take the inputs of those with loops,
and their results differ only by rounding. They hold the scores of all heads and rounds, so they need more memory. Each
docstring gives its largest tensors; the other tensors of a body are no larger. A file may have one body of a name and
version, so graphs get these bodies only inlined.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, no_type_check

from onnxscript import FLOAT, INT64, OnnxFunction, script
from onnxscript import opset20 as op

from xlexport.ops.lsh_gather import LSHGather
from xlexport.ops.operator import OWN_OPSET

__all__ = ["BATCHED", "LSHBandBatched", "LSHChunkBatched"]


@script(OWN_OPSET, default_opset=op)
@no_type_check  # onnxscript gives its tensors no arithmetic
def LSHBandBatched(  # noqa: PLR0915  # one body
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
    """Compute `lsh_band_attention` for all heads and rounds at once.

    Let Z be C rounded up to chunks of W, and R the rounds that count. The largest tensors are scores of B·H·R·Z·2W
    numbers, windows of B·H·R·Z·2d numbers (both float32), and masks of B·H·R·R·Z·2W bytes.
    """
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    two = op.Constant(value_ints=[2])
    three = op.Constant(value_ints=[3])
    four = op.Constant(value_ints=[4])
    rest = op.Constant(value_ints=[-1])
    W = op.Reshape(chunk_length, one)
    heads = op.Shape(key, start=0, end=2)  # B, H
    C = op.Shape(key, start=2, end=3)
    d = op.Shape(key, start=3)
    S = op.Shape(length, start=2)
    R = op.Where(rounds > zero, rounds, one)  # a round without keys, if none counts
    chunks = (C + W - one) / W
    filler = chunks * W - C
    ages = op.Slice(order, zero, R, two)  # (B, H, R, C)
    new = op.Slice(op.Slice(rank, zero, R, two), C - S, C, three)  # (B, H, R, S)

    # Rows of each round, with a chunk before the first.
    first_rows = op.Expand(zero, op.Concat(heads, R, W, axis=0))
    last_rows = op.Expand(zero, op.Concat(heads, R, filler, axis=0))
    rows = op.Reshape(op.Concat(first_rows, op.Gather(slot, ages), last_rows, axis=3), op.Concat(heads, rest, axis=0))
    in_chunks = op.Concat(heads, R, chunks + one, W, d, axis=0)
    key_chunks = op.Reshape(LSHGather(key, rows), in_chunks)
    value_chunks = op.Reshape(LSHGather(value, rows), in_chunks)
    queries = op.Slice(key_chunks, one, chunks + one, three)  # (B, H, R, n, W, d)
    keys = op.Concat(op.Slice(key_chunks, zero, chunks, three), queries, axis=4)  # (B, H, R, n, 2W, d)
    values = op.Concat(
        op.Slice(value_chunks, zero, chunks, three), op.Slice(value_chunks, one, chunks + one, three), axis=4
    )
    older = op.Expand(0.0, op.Concat(heads, C - S, axis=0))  # rows that are no queries
    lengths = op.Expand(op.Unsqueeze(op.Concat(older, length, axis=2), two), op.Shape(ages))
    no_lengths = op.Expand(0.0, op.Concat(heads, R, filler, axis=0))
    scale = op.Concat(op.GatherElements(lengths, ages, axis=3), no_lengths, axis=3)
    scaled = queries * op.Reshape(scale, op.Concat(heads, R, chunks, W, one, axis=0))
    scores = op.MatMul(scaled, op.Transpose(keys, perm=[0, 1, 2, 3, 5, 4]))  # (B, H, R, n, W, 2W)

    # What each round, on the axis after that of the sorting round, says of these pairs. B and H are one axis here.
    pairs = op.Concat(rest, R, R, C, axis=0)
    by_round = op.Concat(heads, R, R, C, axis=0)
    sorting = op.Reshape(op.Expand(op.Unsqueeze(ages, three), by_round), pairs)
    all_places = op.Reshape(op.Expand(op.Unsqueeze(op.Slice(place, zero, R, two), two), by_round), pairs)
    all_lowest = op.Reshape(op.Expand(op.Unsqueeze(op.Slice(lowest, zero, R, two), two), by_round), pairs)
    groups = op.Shape(sorting, start=0, end=1)
    before_all = op.Expand(rest, op.Concat(groups, R, R, W, axis=0))
    behind_all = op.Expand(rest, op.Concat(groups, R, R, filler, axis=0))
    places = op.Concat(before_all, op.GatherElements(all_places, sorting, axis=3), behind_all, axis=3)
    place_chunks = op.Reshape(places, op.Concat(groups, R, R, chunks + one, W, axis=0))
    own = op.Slice(place_chunks, one, chunks + one, three)  # (B·H, R, R, n, W)
    window = op.Unsqueeze(op.Concat(op.Slice(place_chunks, zero, chunks, three), own, axis=4), four)
    bounds = op.Concat(op.GatherElements(all_lowest, sorting, axis=3), behind_all, axis=3)
    bounds = op.Reshape(bounds, op.Concat(groups, R, R, chunks, W, one, axis=0))
    covered = op.And(window >= bounds, window < op.Unsqueeze(own, [5]))  # (B·H, R, R, n, W, 2W)

    # Each key once: those that the sorting round covers, and no earlier round.
    other = op.Reshape(op.Range(0, op.Squeeze(R), 1), op.Concat(R, one, one, one, axis=0))
    this = op.Unsqueeze(other, one)
    fits = op.And(op.Or(other > this, covered == (other == this)), rounds > 0)
    seen = op.Cast(op.ReduceMin(op.Cast(fits, to=2), two, keepdims=0), to=9)
    masked = op.Where(op.Reshape(seen, op.Shape(scores)), scores, -1e30)
    best = op.ReduceMax(masked, [5])
    exponentials = op.Exp(masked - best)

    flat = op.Concat(heads, R, chunks * W, axis=0)
    in_rows = op.Reshape(op.MatMul(exponentials, values), op.Concat(flat, d, axis=0))
    weighted = LSHGather(in_rows, new)  # (B, H, R, S, d)
    sums = op.GatherElements(op.Reshape(op.ReduceSum(exponentials, [5]), flat), new, axis=3)
    best_of_new = op.GatherElements(op.Reshape(best, flat), new, axis=3)
    highest = op.ReduceMax(best_of_new, two, keepdims=0)
    share = op.Exp(best_of_new - op.Unsqueeze(highest, two))
    total = op.ReduceSum(share * sums, two, keepdims=0)
    attended = op.ReduceSum(op.Unsqueeze(share, four) * weighted, two, keepdims=0) / op.Unsqueeze(total, three)
    return attended, highest


@script(OWN_OPSET, default_opset=op)
@no_type_check  # onnxscript gives its tensors no arithmetic
def LSHChunkBatched(  # noqa: PLR0915  # one body
    query: FLOAT[...],
    key: FLOAT[...],
    value: FLOAT[...],
    order: INT64[...],
    rank: INT64[...],
    full: INT64[...],
    chunk_length: int,
    chunks_before: int,
    multiple: int,
    self_mask: float,
) -> FLOAT[...]:
    """Compute `lsh_chunk_attention` for all heads and rounds at once.

    Let Z be T rounded up to `multiple`, and K = (1 + b)·W the keys of a chunk. The largest tensors are scores of
    B·H·R·Z·K numbers, and keys and values of B·H·R·Z·(1 + b)·d numbers, all float32.
    """
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    two = op.Constant(value_ints=[2])
    rest = op.Constant(value_ints=[-1])
    W = op.Reshape(chunk_length, one)
    step = op.Reshape(multiple, one)
    barrier = op.Constant(value_float=1073741824.0)
    behind_all = op.Constant(value_ints=[4194304])
    heads = op.Shape(query, start=0, end=2)  # B, H
    T = op.Shape(query, start=2, end=3)
    d = op.Shape(query, start=3)
    R = op.Shape(order, start=2, end=3)
    n = (T + step - one) / step * (step / W)
    count = R * n
    rounds = op.Where(full > 0, one, R)  # that count, and their chunks
    used = rounds * n
    filler = op.Concat(heads, R, n * W - T, axis=0)
    in_chunks = op.Concat(heads, count, W, axis=0)
    sources = op.Reshape(op.Concat(order, op.Expand(zero, filler), axis=3), in_chunks)
    places = op.Reshape(op.Concat(order, op.Expand(behind_all, filler), axis=3), in_chunks)
    chunk = op.Unsqueeze(op.Range(0, op.Squeeze(used), 1), one)
    distance = op.Range(chunks_before, -1, -1)
    seen = op.Where(distance <= count, op.Mod(chunk - distance, count), chunk)  # (used, 1 + b)
    hidden = op.Unsqueeze(distance * full > 0, one)
    key_places = op.Where(hidden, behind_all, op.Gather(places, seen, axis=2))  # (B, H, used, 1 + b, W)

    by_head = op.Concat(heads, rest, axis=0)
    own_sources = op.Reshape(op.Slice(sources, zero, used, two), by_head)
    key_sources = op.Reshape(op.Gather(sources, seen, axis=2), by_head)
    in_rows = op.Concat(heads, used, rest, d, axis=0)
    queries = op.Reshape(LSHGather(query, own_sources), in_rows)  # (B, H, used, W, d)
    keys = op.Reshape(LSHGather(key, key_sources), in_rows)  # (B, H, used, K, d)
    values = op.Reshape(LSHGather(value, key_sources), in_rows)
    own_places = op.Slice(places, zero, used, two) * 2 - 1
    query_limits = op.Unsqueeze(op.Cast(own_places, to=1) * barrier, [4])
    key_limits = op.Reshape(op.Cast(key_places * 2, to=1) * barrier, op.Concat(heads, used, one, rest, axis=0))
    products = op.MatMul(queries, op.Transpose(keys, perm=[0, 1, 2, 4, 3]))
    scores = op.Min(products, query_limits - key_limits)  # (B, H, used, W, K)
    weights = op.Softmax(scores, axis=-1)
    flat = op.Concat(heads, rounds, n * W, axis=0)
    found = op.Reshape(op.ReduceMax(scores, [4]), flat)
    share = op.Reshape(op.ReduceMax(weights, [4]), flat)
    highest = op.Where(found < -536870912.0, self_mask, found)
    normaliser = highest - op.Log(share)
    sums = op.Exp(highest - normaliser) / share

    ranks = op.Slice(rank, zero, rounds, two)  # (B, H, rounds, T)
    rows = LSHGather(op.Reshape(op.MatMul(weights, values), op.Concat(flat, d, axis=0)), ranks)
    own_normaliser = op.GatherElements(normaliser, ranks, axis=3)
    most = op.ReduceMax(own_normaliser, two)
    added = op.Exp(own_normaliser - most)
    share_of_round = added * op.GatherElements(sums, ranks, axis=3)
    attended = op.ReduceSum(op.Unsqueeze(share_of_round, [4]) * rows, two, keepdims=0)  # (B, H, T, d)
    scale = op.Exp(most - (most + op.Log(op.ReduceSum(added, two))))  # (B, H, 1, T)
    return attended * op.Reshape(scale, op.Concat(heads, T, one, axis=0))


BATCHED: Mapping[str, OnnxFunction[..., Any]] = {
    "LSHBandAttention": LSHBandBatched,
    "LSHChunkAttention": LSHChunkBatched,
}
