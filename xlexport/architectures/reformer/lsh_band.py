"""LSH attention of the step graphs under rule `band`: an operator with two bodies, which compute the same result.

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
from xlexport.ops import lsh_attention, lsh_few_attention

__all__ = ["Reach"]


class Reach:
    """How far back the queries of one step see in all layers with rings."""

    def __init__(self, position: Tensor, window: Tensor, n_hashes: Tensor, ring: Ring, few: bool) -> None:
        """Keep what the layers share.

        Args:
            position: (B,) earlier tokens of the rows' documents.
            window: (1,) int64, the largest number of keys that a query reaches, itself included.
            n_hashes: (1,) int64, the number of rounds that count.
            ring: the step on the rings.
            few: whether the step has a few tokens only.
        """
        self.ring, self.few = ring, few
        self.given = position, ring.offset, window
        self.n_hashes = n_hashes
        self.sizes = torch.cat([torch.full((1,), ring.S), torch.full((1,), ring.C)])

    def near(self) -> Tensor:
        """Return (B, S, C): whether each slot holds a row that the query may see."""
        position, _, window = self.given
        steps = torch.arange(self.ring.S)
        distance = self.ring.newest_first - (self.ring.S - 1 - steps).unsqueeze(1)  # (S, C), negative for later rows
        reach = torch.minimum(position.unsqueeze(1) + steps, window - 1)  # (B, S)
        return (distance > 0) & (distance <= reach.unsqueeze(2))

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
        given = (*self.given, self.n_hashes, self.sizes)
        compute = lsh_few_attention if self.few else lsh_attention
        attended, overflow = compute(key, value, buckets, length, own_value, *given, W, n_buckets)
        return attended, overflow
