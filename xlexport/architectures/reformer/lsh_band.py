"""LSH attention of the step graphs under rule `band`: two ways to compute the same result.

In each round a query attends to the latest W (`chunk_length`) earlier keys of its bucket that are at most M old. Each
key counts once over all rounds. A query attends to itself only if no round has a key. So a score does not depend on
later tokens, nor on how a document is cut into segments. `xltraining.lsh` is the eager model's implementation.

* `attend_long` sorts memory and segment by bucket and age and cuts them into chunks of W. Each chunk attends to itself
  and to the chunk before it (Kitaev et al. 2020, section 2 and appendix A). It suits segments about as long as the
  memory.
* `attend_few` finds each query's keys by TopK of their ages. It suits one or a few tokens, and needs no sort.

Keys are unit vectors and a query is its key times a factor, so the sorted form needs no separate queries.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from xlexport.architectures.ring import Ring
from xlexport.ops import lsh_band_attention, lsh_gather, lsh_sort
from xlexport.ops.band_attention import EXCLUDED

__all__ = ["Reach", "attend_few", "attend_long"]

NEVER = -(2**30)  # a priority below that of every key


class Reach:
    """How far back the queries of one step see, on rings of C slots.

    Attributes:
        tokens: (B, S) int64, the largest number of earlier keys that each query may see.
        n_hashes: (1,) int64, the number of rounds that count.
        active: (R,) bool, the rounds that count.
    """

    def __init__(self, position: Tensor, window: Tensor, n_hashes: Tensor, rounds: int, ring: Ring) -> None:
        own = position.unsqueeze(1) + torch.arange(ring.S)  # (B, S) tokens before each query in its document
        self.tokens = torch.minimum(own, window - 1)
        self.n_hashes = n_hashes
        self.active = torch.arange(rounds) < n_hashes
        self.ring = ring

    def distance(self) -> Tensor:
        """Return (S, C): the distance in tokens from each query back to each slot's row; negative for later rows."""
        steps = torch.arange(self.ring.S)
        return self.ring.newest_first.unsqueeze(0) - (self.ring.S - 1 - steps).unsqueeze(1)

    def near(self) -> Tensor:
        """Return (B, S, C): whether each slot holds a row that the query may see."""
        distance = self.distance().unsqueeze(0)
        return (distance > 0) & (distance <= self.tokens.unsqueeze(2))


def attend_long(
    key: Tensor, value: Tensor, buckets: Tensor, length: Tensor, own_value: Tensor, n_buckets: int, W: int, reach: Reach
) -> tuple[Tensor, Tensor]:
    """Compute the attention of the newest S rows of the rings by sorting and cutting into chunks.

    Args:
        key, value: rings (B, H, C, d), keys of unit length.
        buckets: ring (B, H, R, C).
        length: (B, H, S), the factor with query = factor · key, times the scale of scores.
        own_value: (B, H, S, d) of the queries themselves.

    Returns:
        (B, H, S, d), and (B, S) int64: the number of (head, round) pairs in which a query could see more than W keys.
    """
    B, C = key.shape[0], key.shape[2]
    R, S = buckets.shape[2], length.shape[2]
    ring = reach.ring
    ages = torch.arange(C)  # of rows, 0 is the oldest

    # Rows that no query may see get a bucket after all others.
    first_seen = C - S - reach.tokens[:, 0].view(B, 1, 1, 1)
    by_age = torch.where(ages >= first_seen, ring.by_age(buckets).long(), n_buckets)  # (B, H, R, C)
    order, rank = lsh_sort(by_age)  # (B, H, R, C) each

    # A number that sorts rows by bucket and age, and the lowest such number that the row's query may see.
    place = by_age * C + ages
    oldest = torch.cat([ages[: C - S].expand(B, C - S), ages[C - S :] - reach.tokens], dim=1)  # (B, C)
    lowest = (by_age * C + oldest.view(B, 1, 1, C)).gather(3, order)  # sorted
    before = F.pad(place.gather(3, order), (W + 1, 0), value=-1)  # sorted, (B, H, R, W + 1 + C)
    has_more = (before[..., :C] >= lowest).long()  # if the query may see the row W + 1 ranks before
    overflow = (has_more.gather(3, rank[..., C - S :]) * reach.active.view(R, 1).long()).sum(dim=(1, 2))  # (B, S)
    lowest = torch.maximum(lowest, before[..., 1 : C + 1]).gather(3, rank)  # by age: the latest W only

    attended, highest = lsh_band_attention(
        key, value, length, order, rank, place, lowest, ring.slots_of(ages), reach.n_hashes, W
    )
    return torch.where((highest > EXCLUDED).unsqueeze(3), attended, own_value), overflow


def attend_few(
    key: Tensor, value: Tensor, buckets: Tensor, query: Tensor, own: Tensor, own_value: Tensor, W: int, reach: Reach
) -> tuple[Tensor, Tensor]:
    """Compute the attention of a few queries by TopK.

    Args:
        key, value: rings (B, H, C, d), keys of unit length.
        buckets: ring (B, H, R, C).
        query: (B, H, S, d), scaled.
        own: (B, H, R, S), the buckets of the queries.
        own_value: (B, H, S, d).

    Returns:
        As `attend_long`.
    """
    B, H, C, d = key.shape
    R, S = own.shape[2:]
    # The latest key has the highest priority. Padding ensures that TopK has enough entries to choose from.
    priority = torch.where(reach.near(), -reach.distance(), NEVER).to(torch.int32).view(B, 1, 1, S, C)
    matches = buckets.unsqueeze(3) == own.unsqueeze(4)  # (B, H, R, S, C)
    eligible = F.pad(torch.where(matches, priority, NEVER), (0, W + 1), value=NEVER)
    best, slots = torch.topk(eligible, W + 1, dim=4)  # (B, H, R, S, W + 1)
    overflow = ((best[..., W] > NEVER) & reach.active.view(R, 1)).sum(dim=(1, 2))  # (B, S)
    best, slots = best[..., :W], slots[..., :W].clamp(max=C - 1)

    # Each key counts once: drop it if an earlier round has it too, in the query's bucket among its latest W.
    everywhere = slots.reshape(B, H, 1, R * S * W).expand(B, H, R, R * S * W)
    there = buckets.gather(3, everywhere).view(B, H, R, R, S, W)  # in each round, of the keys of each round
    had = (there == own.view(B, H, R, 1, S, 1)) & (best.unsqueeze(2) >= best[..., W - 1 :].unsqueeze(3))
    rounds = torch.arange(R)
    had = had & (rounds.unsqueeze(1) < rounds).view(R, R, 1, 1)
    fresh = (best > NEVER) & reach.active.view(R, 1, 1) & ~had.any(dim=2)  # (B, H, R, S, W)

    mask = fresh.transpose(2, 3).reshape(B, H, S, R * W)
    index = slots.transpose(2, 3).reshape(B, H, S * R * W)
    keys = lsh_gather(key, index).view(B, H, S, R * W, d)
    values = lsh_gather(value, index).view(B, H, S, R * W, d)
    scores = torch.where(mask, (keys @ query.unsqueeze(4)).squeeze(4), EXCLUDED)  # (B, H, S, R·W)
    attended = (scores.softmax(dim=3).unsqueeze(3) @ values).squeeze(3)  # (B, H, S, d)
    return torch.where(mask.any(dim=3, keepdim=True), attended, own_value), overflow
