"""`ai.xlexport::LSHChunkAttention`: attention of sorted rows as Hugging Face's Reformer computes it, chunk by chunk.

As in `LSHBandAttention`, the body is a loop over heads and rounds. Only one chunked score tensor exists at a time, and
the graph stays small.
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

__all__ = ["LSHChunkAttention", "lsh_chunk_attention"]


@operator("lsh_chunk_attention")
def lsh_chunk_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    order: Tensor,
    rank: Tensor,
    full: Tensor,
    chunk_length: int,
    chunks_before: int,
    multiple: int,
    self_mask: float,
) -> Tensor:
    """Compute attention of T rows to earlier rows, in chunks of W sorted rows.

    In each round the sorted rows are padded to a multiple of `multiple` rows and cut into chunks. The chunks of all
    rounds form a ring. The queries of a chunk attend to the keys of their own chunk and of the b chunks before it, if
    the keys are at earlier places. Every occurrence of the query's own key gets the score `self_mask`. The results of
    rounds are weighted by their normalisers, log(sum(exp(scores))).

    Args:
        query, key, value: (B, H, T, d).
        order: (B, H, R, T) int64, places in sorted order; rank: (B, H, R, T) int64, its inverse.
        full: (1,) int64. 1: there is one round, whose chunks see only themselves; then T is at most W and `order` is
            0 … T - 1. Otherwise 0.
        chunk_length: W.
        chunks_before: b.
        multiple: a multiple of W.
        self_mask: a number far below all scores.

    Returns:
        (B, H, T, d).
    """
    B, H, T, d = query.shape
    R, W = order.shape[2], chunk_length
    n = (T + multiple - 1) // multiple * (multiple // W)  # chunks of a round
    sources = F.pad(order, (0, n * W - T)).view(B, H, R * n, W)  # padding copies row 0
    places = F.pad(order, (0, n * W - T), value=float(constants.BEHIND_ALL)).view(B, H, R * n, W)
    chunk, distance = torch.arange(R * n).unsqueeze(1), torch.arange(chunks_before, -1, -1)
    # If the look-back exceeds the number of chunks, Hugging Face uses the chunk itself.
    seen = torch.where(distance <= R * n, torch.remainder(chunk - distance, R * n), chunk)  # (R·n, 1 + b)
    key_sources = sources[:, :, seen].view(B, H, R, -1)  # (B, H, R, n·(1 + b)·W)
    hidden = (distance * full > 0).unsqueeze(1)  # (1 + b, 1)
    key_places = torch.where(hidden, constants.BEHIND_ALL, places[:, :, seen])  # (B, H, R·n, 1 + b, W)
    # Each score is limited by its kind of key: above 0 for earlier keys, -1 barrier for the query itself.
    query_limits = ((2 * places - 1).float() * constants.BARRIER).view(B, H, R, n, W, 1)
    key_limits = (2 * key_places.float() * constants.BARRIER).view(B, H, R, n, 1, -1)
    heads = []
    for h in range(H):
        most, total, attended = torch.full((B, T), -constants.BARRIER), torch.zeros(B, T), torch.zeros(B, T, d)
        for r in range(1 if full else R):
            queries = lsh_gather(query[:, h], sources.view(B, H, R, -1)[:, h, r]).view(B, n, W, d)
            keys = lsh_gather(key[:, h], key_sources[:, h, r]).view(B, n, -1, d)
            values = lsh_gather(value[:, h], key_sources[:, h, r]).view(B, n, -1, d)
            scores = torch.minimum(queries @ keys.transpose(2, 3), query_limits[:, h, r] - key_limits[:, h, r])
            weights = scores.softmax(dim=3)
            highest, share = scores.amax(dim=3).view(B, -1), weights.amax(dim=3).view(B, -1)  # (B, n·W)
            highest = torch.where(highest < -constants.BARRIER / 2, self_mask, highest)
            normaliser = highest - share.log()
            # Weights exp(score - normaliser) do not sum to 1 if the normaliser is rounded, as at self_mask.
            sums = (highest - normaliser).exp() / share

            ranks = rank[:, h, r]
            normaliser = normaliser.gather(1, ranks)  # (B, T)
            most, before = torch.maximum(most, normaliser), most
            kept, added = (before - most).exp(), (normaliser - most).exp()
            total = kept * total + added
            rows = lsh_gather((weights @ values).view(B, -1, d), ranks)  # (B, T, d)
            attended = kept.unsqueeze(2) * attended + (added * sums.gather(1, ranks)).unsqueeze(2) * rows
        heads.append(attended * (most - (most + total.log())).exp().unsqueeze(2))
    return torch.stack(heads, dim=1)


@shapes_of("lsh_chunk_attention")
def _(query: Tensor, *_: object) -> Tensor:
    return query.new_empty(query.shape)


@script(OWN_OPSET, default_opset=op)
@no_type_check  # onnxscript gives its tensors no arithmetic
def LSHChunkAttention(  # noqa: PLR0915  # one body: a function called from its loops would hide what it costs
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
    """Compute `lsh_chunk_attention` in standard operators: loops over heads and rounds."""
    one = op.Constant(value_ints=[1])
    W = op.Reshape(chunk_length, one)
    step = op.Reshape(multiple, one)
    barrier = op.Constant(value_float=1073741824.0)
    behind_all = op.Constant(value_ints=[4194304])
    B = op.Shape(query, start=0, end=1)
    H = op.Shape(query, start=1, end=2)
    T = op.Shape(query, start=2, end=3)
    d = op.Shape(query, start=3)
    R = op.Shape(order, start=2, end=3)
    n = (T + step - one) / step * (step / W)
    count = R * n
    filler = op.Concat(B, H, R, n * W - T, axis=0)  # not by `Pad`: CUDA has none for integers
    in_chunks = op.Concat(B, H, count, W, axis=0)
    first = op.Expand(op.Constant(value_ints=[0]), filler)
    sources = op.Reshape(op.Concat(order, first, axis=3), in_chunks)
    places = op.Reshape(op.Concat(order, op.Expand(behind_all, filler), axis=3), in_chunks)
    chunk = op.Unsqueeze(op.Range(0, op.Squeeze(count), 1), one)
    distance = op.Range(chunks_before, -1, -1)
    seen = op.Where(distance <= count, op.Mod(chunk - distance, count), chunk)
    hidden = op.Unsqueeze(distance * full > 0, one)
    key_places = op.Where(hidden, behind_all, op.Gather(places, seen, axis=2))
    by_round = op.Concat(B, H, R, op.Constant(value_ints=[-1]), axis=0)
    query_sources = op.Reshape(sources, by_round)
    key_sources = op.Reshape(op.Gather(sources, seen, axis=2), by_round)
    query_limits = op.Reshape(op.Cast(places * 2 - 1, to=1) * barrier, op.Concat(B, H, R, n, W, one, axis=0))
    key_limits = op.Reshape(
        op.Cast(key_places * 2, to=1) * barrier,
        op.Concat(B, H, R, n, one, op.Constant(value_ints=[-1]), axis=0),
    )
    in_rows = op.Concat(B, n, op.Constant(value_ints=[-1]), d, axis=0)
    flat = op.Concat(B, n * W, axis=0)
    lowest = op.Expand(-1073741824.0, op.Concat(B, T, axis=0))
    nothing = op.Expand(0.0, op.Concat(B, T, axis=0))
    no_rows = op.Expand(0.0, op.Concat(B, T, d, axis=0))
    rounds = op.Squeeze(op.Where(full > 0, one, R))
    # `B - B`, as a loop of OpenVINO ignores what it appends to a tensor that is known to be empty.
    heads = op.Expand(0.0, op.Concat(B, B - B, T, d, axis=0))
    for h in range(op.Squeeze(H)):
        own_query = op.Gather(query, h, axis=1)  # (B, T, d)
        own_key = op.Gather(key, h, axis=1)
        own_value = op.Gather(value, h, axis=1)
        own_query_sources = op.Gather(query_sources, h, axis=1)  # (B, R, n·W)
        own_key_sources = op.Gather(key_sources, h, axis=1)
        own_query_limits = op.Gather(query_limits, h, axis=1)
        own_key_limits = op.Gather(key_limits, h, axis=1)
        own_rank = op.Gather(rank, h, axis=1)
        most = op.Identity(lowest)
        total = op.Identity(nothing)
        attended = op.Identity(no_rows)
        for r in range(rounds):
            sources_of_keys = op.Gather(own_key_sources, r, axis=1)
            queries = op.Reshape(LSHGather(own_query, op.Gather(own_query_sources, r, axis=1)), in_rows)
            keys = op.Reshape(LSHGather(own_key, sources_of_keys), in_rows)
            values = op.Reshape(LSHGather(own_value, sources_of_keys), in_rows)
            limits = op.Gather(own_query_limits, r, axis=1) - op.Gather(own_key_limits, r, axis=1)
            scores = op.Min(op.MatMul(queries, op.Transpose(keys, perm=[0, 1, 3, 2])), limits)
            weights = op.Softmax(scores, axis=-1)
            found = op.Reshape(op.ReduceMax(scores, [3]), flat)
            share = op.Reshape(op.ReduceMax(weights, [3]), flat)
            highest = op.Where(found < -536870912.0, self_mask, found)
            normaliser = highest - op.Log(share)
            sums = op.Exp(highest - normaliser) / share

            ranks = op.Gather(own_rank, r, axis=1)
            rows = LSHGather(op.Reshape(op.MatMul(weights, values), op.Concat(flat, d, axis=0)), ranks)
            own_normaliser = op.GatherElements(normaliser, ranks, axis=1)
            higher = op.Max(most, own_normaliser)
            kept = op.Exp(most - higher)
            added = op.Exp(own_normaliser - higher)
            total = kept * total + added
            share_of_round = added * op.GatherElements(sums, ranks, axis=1)
            attended = op.Unsqueeze(kept, [2]) * attended + op.Unsqueeze(share_of_round, [2]) * rows
            most = op.Identity(higher)
        scale = op.Exp(most - (most + op.Log(total)))
        heads = op.Concat(heads, op.Unsqueeze(attended * op.Unsqueeze(scale, [2]), one), axis=1)
    return heads
