"""LSH attention of the step graphs under rule `paper`: a whole document at once, by the paper's formula.

Each round sorts the document by bucket and place, and cuts the order into chunks. A query attends to earlier keys of
its own bucket in its own chunk and in the chunk before it, each key once over all rounds. It attends to itself only if
it has no other key. `lsh_band_attention` computes this if no `lowest` place is before these two chunks, so no further
operator is needed. `xltraining.reformer.lsh` is the eager model's implementation.

Source: Kitaev et al. 2020, section 2 and appendix A.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from xlexport.ops import lsh_band_attention, lsh_sort
from xlexport.ops.constants import EXCLUDED

__all__ = ["attend_by_paper"]


def attend_by_paper(key: Tensor, value: Tensor, length: Tensor, buckets: Tensor, W: int) -> tuple[Tensor, Tensor]:
    """Compute the attention of a document.

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
    ordered = F.pad(place.gather(3, order), (1, 0), value=-1)  # the row at rank k is at k + 1
    begin = ((torch.div(steps, W, rounding_mode="floor") - 1) * W).clamp(min=0)  # of the chunk before, by rank
    # By place of the query: the row with which its two chunks begin, and the row before that.
    lowest = ordered.index_select(3, begin + 1).gather(3, rank)
    missed = ordered.index_select(3, begin).gather(3, rank)
    overflow = (missed >= first).sum(dim=(1, 2))
    lowest = torch.maximum(first, lowest)
    rounds = torch.full((1,), R)
    attended, highest = lsh_band_attention(key, value, length, order, rank, place, lowest, steps, rounds, W)
    return torch.where((highest > EXCLUDED).unsqueeze(3), attended, value), overflow
