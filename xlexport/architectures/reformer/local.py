"""Local attention of the step graphs: each chunk of a document sees itself and the chunks before it.

Chunks are counted from the beginning of the document, not of a segment, so scores do not depend on the segments.
Source: Kitaev et al. 2020, section 4 (the layers without LSH attention), as Trax and Hugging Face define them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["LocalReach", "attend_locally"]

HEADS_AT_ONCE = 2  # in a long segment: the scores of all heads would be its largest tensor


class LocalReach:
    """The keys that the queries of a step see, laid out in blocks of queries with all keys that the block can see.

    A segment may begin anywhere in a chunk, so blocks are counted from the segment's beginning. A block is as long as a
    chunk. Its keys span one chunk more than a query can see. A few tokens form one block with all keys.

    Attributes:
        mask: (B, n, queries of a block, keys of a block), zero or minus infinity, to be added to scores.
    """

    def __init__(self, position: Tensor, S: int, chunk_length: int, chunks_before: int, few: bool) -> None:
        """Compute the mask of S tokens, which follow `position` (B,) earlier tokens of their documents."""
        self.S, self.few = S, few
        self.c, self.before = chunk_length, chunks_before
        rows = (chunks_before + 1) * chunk_length  # kept from before the step
        # Places in the document, including the padding of the last block, which comes after all queries.
        count = S if few else (S + chunk_length - 1) // chunk_length * chunk_length
        keys = position.unsqueeze(1) + torch.arange(-rows, count)  # (B, rows + count)
        queries = position.unsqueeze(1) + torch.arange(count)  # (B, count)
        chunk = torch.div(queries, chunk_length, rounding_mode="floor")
        oldest = ((chunk - chunks_before) * chunk_length).clamp(min=0)
        place, query, first = self.keys(keys), self.queries(queries), self.queries(oldest)
        seen = (place.unsqueeze(2) >= first.unsqueeze(3)) & (place.unsqueeze(2) <= query.unsqueeze(3))
        self.mask = torch.where(seen, 0.0, -math.inf)

    def queries(self, rows: Tensor) -> Tensor:
        """Reshape `rows` (B, S, …) to (B, n, queries of a block, …); zeros fill the last block."""
        B, _, *rest = rows.shape
        if self.few:
            return rows.unsqueeze(1)
        n = (self.S + self.c - 1) // self.c
        return _filled(rows, n * self.c).view(B, n, self.c, *rest)

    def keys(self, rows: Tensor) -> Tensor:
        """Rearrange `rows` (B, rows + S, …) to (B, n, keys of a block, …)."""
        B, _, *rest = rows.shape
        if self.few:
            return rows.unsqueeze(1)
        n = (self.S + self.c - 1) // self.c
        chunks = _filled(rows, (self.before + 1 + n) * self.c).view(B, self.before + 1 + n, self.c, *rest)
        return torch.cat([chunks.narrow(1, start, n) for start in range(self.before + 2)], dim=2)


def _filled(rows: Tensor, count: int) -> Tensor:
    """Append zeros to `rows` (B, m, …), so that they become (B, count, …)."""
    return F.pad(rows, [0, 0] * (rows.dim() - 2) + [0, count - rows.shape[1]])


def attend_locally(query: Tensor, key: Tensor, value: Tensor, reach: LocalReach) -> Tensor:
    """Compute local attention (B, H, S, d).

    Args:
        query: (B, H, S, d), scaled.
        key, value: (B, H, rows + S, d), the kept rows first.
    """
    B, H, S, d = query.shape
    at_once = H if reach.few else HEADS_AT_ONCE
    parts = []
    for first in range(0, H, at_once):
        queries, keys, values = (part[:, first : first + at_once].flatten(0, 1) for part in (query, key, value))
        scores = reach.queries(queries) @ reach.keys(keys).transpose(2, 3)  # (B·h, n, queries of a block, keys of one)
        scores = scores.view(B, -1, *scores.shape[1:]) + reach.mask.unsqueeze(1)
        attended = scores.softmax(dim=4).flatten(0, 1) @ reach.keys(values)  # (B·h, n, queries of a block, d)
        parts.append(attended.view(B, min(at_once, H - first), -1, d))
    return torch.cat(parts, dim=1)[:, :, :S]
