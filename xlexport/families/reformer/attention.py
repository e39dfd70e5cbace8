"""The attention of the Reformer step graphs: LSH attention by each rule, local attention, and full attention.

The rules of LSH attention differ in the keys of a bucket that a query attends to. `xltraining.reformer.lsh` is the
eager model's implementation.

* `band` (`Reach`): in each round the latest W (`chunk_length`) earlier keys of its bucket that are at most M old. Each
  key counts once over all rounds. A query attends to itself only if no round has a key. So a score does not depend on
  later tokens, nor on how a document is cut into segments.
* `paper` (`attend_by_paper`): a whole document at once. Each round sorts it by bucket and place, and cuts the order
  into chunks. A query attends to earlier keys of its own bucket in its own chunk and in the chunk before it, each key
  once over all rounds, and to itself only if it has no other key.
* `chunk` (`ChunkLSH`): a whole document at once, as in Hugging Face's Reformer, where chunks may span buckets.

Keys are unit vectors and a query is its key times a factor, so sorted forms need no separate queries.

Source: Kitaev et al. 2020, section 2 and appendix A; constants of rule `chunk` are those of transformers 4.57.6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from xlexport.families.ring import RingStep
from xlexport.ops import (
    local_attention,
    local_mask,
    lsh_attention,
    lsh_band_attention,
    lsh_chunk_attention,
    lsh_few_attention,
    lsh_sort,
)
from xlexport.ops.constants import EXCLUDED
from xltraining.reformer import ReformerConfig

__all__ = [
    "KEY_EPSILON",
    "ChunkLSH",
    "LocalReach",
    "Reach",
    "WindowReach",
    "attend_by_paper",
    "attend_fully",
    "hash_buckets",
]

KEY_EPSILON = 1e-6  # added to a key's mean square before the root


def hash_buckets(query_key: Tensor, rotations: Tensor, n_buckets: Sequence[int]) -> Tensor:
    """Return the bucket id of each row in each round; rounds are computed one after the other to save memory.

    This is angular LSH (the largest entry of [xR; -xR]) with operators that are fast in ONNX Runtime. The number of
    buckets is split into factors as in Trax and Hugging Face.

    Args:
        query_key: (B, H, S, d).
        rotations: (H, R, d, K), K = half the sum of `n_buckets`; the factors use consecutive columns.
        n_buckets: even factors of the number of buckets, the least significant first.

    Returns:
        (B, H, R, S) int64. The digit of factor f is argmax([x, -x]), where x are the f/2 projections; if entries are
        equal, the first counts.
    """
    rounds = []
    for r in range(rotations.shape[1]):
        buckets, scale, begin = None, 1, 0
        for factor in n_buckets:
            columns = rotations[:, r, :, begin : begin + factor // 2]  # (H, d, factor / 2)
            digit = scale * _largest_of_both_signs(torch.matmul(query_key, columns))
            buckets = digit if buckets is None else buckets + digit
            scale, begin = scale * factor, begin + factor // 2
        assert buckets is not None
        rounds.append(buckets)
    return torch.stack(rounds, dim=2)


def _largest_of_both_signs(x: Tensor) -> Tensor:
    """Return `argmax([x, -x])` of the last axis without a tensor of double width: (…, K) to (…) int64."""
    positive = x.amax(-1) >= -x.amin(-1)
    turned = x * torch.where(positive, 1.0, -1.0).unsqueeze(-1)
    return turned.argmax(-1) + torch.where(positive, 0, x.shape[-1])


class Reach:
    """How far back the queries of one step see in all layers with rings, and their attention by rule `band`.

    `lsh_attention` sorts memory and segment by bucket and age and cuts them into chunks of W. Each chunk attends to
    itself and to the chunk before it. It suits segments about as long as the memory. `lsh_few_attention` computes the
    same: it finds each query's keys by TopK of their ages. It suits one or a few tokens, and needs no sort.
    """

    def __init__(self, position: Tensor, window: Tensor, n_hashes: Tensor, ring: RingStep, few: bool) -> None:
        """Keep what the layers share.

        Args:
            position: (B,) earlier tokens of the rows' documents.
            window: (1,) int64, the largest number of keys that a query reaches, itself included.
            n_hashes: (1,) int64, the number of rounds that count.
            ring: the step on the rings.
            few: whether the step has a few tokens only.
        """
        self.ring, self.few = ring, few
        self.inputs = position, ring.offset, window
        self.n_hashes = n_hashes
        self.sizes = torch.cat([torch.full((1,), ring.S), torch.full((1,), ring.C)])

    def near(self) -> Tensor:
        """Return (B, S, C): whether each slot holds a row that the query may see."""
        position, _, window = self.inputs
        steps = torch.arange(self.ring.S)
        distance = self.ring.newest_first + (steps + 1 - self.ring.S).unsqueeze(1)  # (S, C), negative for later rows
        reach = torch.minimum(position.unsqueeze(1) + steps, window - 1)  # (B, S)
        return torch.logical_and(distance > 0, distance <= reach.unsqueeze(2))

    def attend(
        self,
        key: Tensor,
        value: Tensor,
        buckets: Tensor,
        length: Tensor,
        own_value: Tensor,
        W: int,
        n_buckets: int,
    ) -> tuple[Tensor, Tensor]:
        """Compute the attention of the newest S rows of the rings.

        Args:
            key, value: rings (B, H, C, d), keys of unit length.
            buckets: ring (B, H, R, C) int32.
            length: (B, H, S), the factor with query = factor · key, times the scale of scores.
            own_value: (B, H, S, d) of the queries themselves.

        Returns:
            (B, H, S, d), and (B, S) int64: the number of (head, round) pairs in which a query could see more than W
            keys.
        """
        shared = (*self.inputs, self.n_hashes, self.sizes)
        compute = lsh_few_attention if self.few else lsh_attention
        attended, overflow = compute(key, value, buckets, length, own_value, *shared, W, n_buckets)
        return attended, overflow


class WindowReach:
    """How far back the queries of a step see in windows, and their attention by rule `band`, for fixed sizes.

    Each query is compared with all keys. This needs no sort and no loop, so shapes do not depend on data; it suits
    segments and memories that are not much longer than the keys of a bucket.
    """

    def __init__(self, S: int, R: int, position: Tensor, window: Tensor, n_hashes: Tensor) -> None:
        """Keep what the layers share: see `Reach`; R rows are kept from before the step."""
        self.S, self.n_hashes = S, n_hashes
        steps = torch.arange(S)
        distance = R + steps.unsqueeze(1) - torch.arange(R + S)  # (S, K), negative for later rows
        reach = torch.minimum(position.unsqueeze(1) + steps, window - 1)  # (B, S)
        self._near = torch.logical_and(distance > 0, distance <= reach.unsqueeze(2))

    def near(self) -> Tensor:
        """Return (B, S, K): whether the query may see each row of the memory and the step."""
        return self._near

    def attend(
        self,
        key: Tensor,
        value: Tensor,
        buckets: Tensor,
        length: Tensor,
        own_value: Tensor,
        W: int,
        n_buckets: int,
    ) -> tuple[Tensor, Tensor]:
        """Compute `Reach.attend` with the rows of memory and step (B, H, K, d), oldest first, for the last S."""
        S, near = self.S, self._near.unsqueeze(1)  # (B, 1, S, K)
        chosen, overflow = torch.zeros_like(near), torch.zeros_like(near[:, 0, :, 0], dtype=torch.int64)
        for r in range(buckets.shape[2]):
            ids = buckets[:, :, r]  # (B, H, K)
            seen = torch.logical_and(near, self.n_hashes > r)
            same = torch.logical_and(ids[:, :, -S:].unsqueeze(3) == ids.unsqueeze(2), seen)  # (B, H, S, K)
            counts = same.to(torch.float32).cumsum(dim=3)  # exact for any memory
            total = counts[..., -1:]
            chosen = torch.logical_or(chosen, torch.logical_and(same, total - counts < W))  # fewer than W newer keys
            overflow = overflow + (total > W).sum(dim=(1, 3))
        query, some = key[:, :, -S:] * length.unsqueeze(3), chosen.any(dim=3, keepdim=True)
        mask = torch.where(torch.logical_or(chosen, ~some), 0.0, -math.inf)  # without keys: finite scores, of no use
        weights = (query @ key.transpose(2, 3) + mask).softmax(dim=3)
        return torch.where(some, weights @ value, own_value), overflow


def attend_by_paper(key: Tensor, value: Tensor, length: Tensor, buckets: Tensor, W: int) -> tuple[Tensor, Tensor]:
    """Compute the attention of a document by rule `paper`.

    `lsh_band_attention` computes it if no `lowest` place is before the query's two chunks.

    Args:
        key: (B, H, T, d) of unit length; value: (B, H, T, d).
        length: (B, H, T), the factor with query = factor · key, times the scale of scores.
        buckets: (B, H, R, T) int64.
        W: rows of a chunk.

    Returns:
        (B, H, T, d), and (B, T) int64: the number of (head, round) pairs in which earlier keys of the query's bucket
        are before its two chunks.
    """
    T, R = key.shape[2], buckets.shape[2]
    order, rank = lsh_sort(buckets)
    steps = torch.arange(T)
    first = buckets * T  # below the places of all rows of the bucket
    place = first + steps
    nothing = torch.full((), -1).expand(first[..., :1].shape)  # not a pad: CUDA has none for integers
    ordered = torch.cat([nothing, place.gather(3, order)], dim=3)  # the row at rank k is at k + 1
    before = (torch.div(steps, W, rounding_mode="floor") - 1) * W
    begin = before.maximum(torch.full((), 0))  # of the chunk before, by rank; not a clamp, as in `local_mask`
    # By place of the query: the row with which its two chunks begin, and the row before that.
    lowest = ordered.index_select(3, begin + 1).gather(3, rank)
    missed = ordered.index_select(3, begin).gather(3, rank)
    overflow = (missed >= first).sum(dim=(1, 2))
    lowest = torch.maximum(first, lowest)
    rounds = torch.full((1,), R)
    attended, highest = lsh_band_attention(key, value, length, order, rank, place, lowest, steps, rounds, W)
    return torch.where((highest > EXCLUDED).unsqueeze(3), attended, value), overflow


class ChunkLSH(nn.Module):
    """The attention of a layer under rule `chunk`.

    Each round sorts the document by bucket and cuts the order into chunks. `lsh_chunk_attention` defines which keys
    each chunk attends to, and pads documents to a multiple of the chunk lengths. A document of at most one chunk gets
    full attention. One graph does both: it treats a short document as one bucket in one round.

    If a query sees only its own key, at a score of -1e5, Hugging Face's float32 arithmetic rounds in steps of 1/128.
    This is visible in the results, so the graph repeats the same arithmetic.
    """

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.config = config
        # Documents up to this length get full attention: padding does not make them longer than a chunk.
        lengths = [config.chunk_length, *([config.local_chunk_length] if "local" in config.attn_layers else [])]
        self.short = config.chunk_length if config.chunk_multiple == config.chunk_length else min(lengths)

    def forward(self, query_key: Tensor, value: Tensor, buckets: Tensor) -> Tensor:
        """Compute the attention of a document, (B, H, T, d).

        Args:
            query_key: (B, H, T, d), as projected; value: (B, H, T, d).
            buckets: (B, H, R, T) int64; ignored for a short document.
        """
        config = self.config
        d, T = config.d_head, query_key.shape[2]
        full = torch.arange(T)[-1:] < self.short  # (1,): a trace would fix a number that is made a tensor
        order, rank = lsh_sort(torch.where(full, 0, buckets))
        scale = d if config.scale_scores else math.sqrt(d)
        key = query_key * torch.rsqrt(query_key.square().mean(dim=3, keepdim=True) + KEY_EPSILON) / scale
        return lsh_chunk_attention(
            query_key,
            key,
            value,
            order,
            rank,
            full.long(),
            config.chunk_length,
            config.chunks_before,
            config.chunk_multiple,
            config.self_mask,
        )


class LocalReach:
    """The keys that the queries of one step see in all local layers: each chunk sees itself and the chunks before it.

    A few tokens are multiplied with all keys. A long segment is cut into blocks as long as a chunk.
    """

    def __init__(self, config: ReformerConfig, tokens: Tensor, position: Tensor, kept: int, few: bool) -> None:
        """Lay out the queries of a step.

        Args:
            tokens: (B, S) of the step; position: (B,) earlier tokens of their documents.
            kept: rows of keys from before the step.
        """
        S = tokens.shape[1]
        self.position, self.few = position, few
        self.chunks = config.local_chunk_length, config.local_chunks_before
        self.sizes = torch.cat([torch.full((1,), S), torch.full((1,), kept)])
        if few:
            places = torch.arange(kept + S).unsqueeze(0) - kept
            self.mask = local_mask(position, torch.arange(S).unsqueeze(0), places, *self.chunks, kept)  # (B, 1, S, K)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Compute local attention (B, H, S, d).

        Args:
            query: (B, H, S, d), scaled.
            key, value: (B, H, K, d), the kept rows first.
        """
        if self.few:
            return (query @ key.transpose(2, 3) + self.mask).softmax(dim=3) @ value
        attended: Tensor = local_attention(query, key, value, self.position, self.sizes, *self.chunks)
        return attended


def attend_fully(query: Tensor, key: Tensor, value: Tensor, own_value: Tensor, near: Tensor) -> Tensor:
    """Compute shared query-key attention to all near keys: (B, H, S, d) from scaled queries (B, H, S, d).

    Args:
        key, value: (B, H, K, d).
        own_value: (B, H, S, d), the values of the queries themselves; the result of queries without a near key.
        near: (B, S, K) bool.
    """
    some = near.any(dim=2, keepdim=True)  # (B, S, 1)
    mask = torch.where(torch.logical_or(near, ~some), 0.0, -math.inf)  # a row without keys needs only finite scores
    heads = []
    for h in range(query.shape[1]):  # one by one: the scores of all heads would be the largest tensor
        weights = (query[:, h] @ key[:, h].transpose(1, 2) + mask).softmax(dim=2)  # (B, S, K)
        heads.append(torch.where(some, weights @ value[:, h], own_value[:, h]))
    return torch.stack(heads, dim=1)
