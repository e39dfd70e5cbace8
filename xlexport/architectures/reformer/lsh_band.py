"""LSH attention of the step graphs under rule `band`: two operators compute the same result.

In each round a query attends to the latest W (`chunk_length`) earlier keys of its bucket that are at most M old. Each
key counts once over all rounds. A query attends to itself only if no round has a key. So a score does not depend on
later tokens, nor on how a document is cut into segments. `xltraining.reformer.lsh` is the eager model's implementation.

* `lsh_attention` sorts memory and segment by bucket and age and cuts them into chunks of W. Each chunk attends to
  itself and to the chunk before it (Kitaev et al. 2020, section 2 and appendix A). It suits segments about as long as
  the memory.
* `lsh_few_attention` finds each query's keys by TopK of their ages. It suits one or a few tokens, and needs no sort.

Keys are unit vectors and a query is its key times a factor, so the sorted form needs no separate queries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from xlexport.architectures.ring import Ring
from xlexport.ops import lsh_attention, lsh_few_attention, lsh_few_attention_plan

__all__ = ["Reach"]


class Reach:
    """How far back the queries of one step see in all layers with rings."""

    def __init__(self, tokens: Tensor, position: Tensor, window: Tensor, n_hashes: Tensor, ring: Ring) -> None:
        """Keep what the layers share.

        Args:
            tokens: (B, S) of the step; position: (B,) earlier tokens of their documents.
            window: (1,) int64, the largest number of keys that a query reaches, itself included.
            n_hashes: (1,) int64, the number of rounds that count.
            ring: the step on the rings.
        """
        self.tokens, self.ring = tokens, ring
        self.given = position, ring.offset, window
        self.n_hashes = n_hashes
        self._priority: Tensor | None = None  # one for all layers

    def near(self) -> Tensor:
        """Return (B, S, C): whether each slot holds a row that the query may see."""
        position, _, window = self.given
        steps = torch.arange(self.ring.S)
        distance = self.ring.newest_first - (self.ring.S - 1 - steps).unsqueeze(1)  # (S, C), negative for later rows
        reach = torch.minimum(position.unsqueeze(1) + steps, window - 1)  # (B, S)
        return (distance > 0) & (distance <= reach.unsqueeze(2))

    def attend_long(
        self,
        key: Tensor,
        value: Tensor,
        buckets: Tensor,
        length: Tensor,
        own_value: Tensor,
        W: int,
        n_buckets: int,
    ) -> tuple[Tensor, Tensor]:
        """Compute the attention of the newest S rows of the rings by sorting and cutting into chunks.

        Args:
            key, value: rings (B, H, C, d), keys of unit length.
            buckets: ring (B, H, R, C) int32.
            length: (B, H, S), the factor with query = factor · key, times the scale of scores.
            own_value: (B, H, S, d) of the queries themselves.

        Returns:
            (B, H, S, d), and (B, S) int64: the number of (head, round) pairs in which a query could see more than W
            keys.
        """
        given = (*self.given, self.n_hashes)
        attended, overflow = lsh_attention(key, value, buckets, length, own_value, *given, W, n_buckets)
        return attended, overflow

    def attend_few(
        self, key: Tensor, value: Tensor, buckets: Tensor, query: Tensor, own: Tensor, own_value: Tensor, W: int
    ) -> tuple[Tensor, Tensor]:
        """Compute the attention of a few queries by TopK.

        Args:
            key, value, buckets, own_value: as for `attend_long`.
            query: (B, H, S, d), scaled.
            own: (B, H, R, S) int32, the buckets of the queries.

        Returns:
            As `attend_long`.
        """
        if self._priority is None:
            self._priority = lsh_few_attention_plan(self.tokens, buckets, *self.given)
        given = (*self.given, self.n_hashes, self._priority)
        attended, overflow = lsh_few_attention(key, value, buckets, query, own, own_value, *given, W)
        return attended, overflow
