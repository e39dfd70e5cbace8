"""Local attention of the step graphs: each chunk of a document sees itself and the chunks before it."""

from __future__ import annotations

import torch
from torch import Tensor

from xlexport.ops import local_attention, local_mask
from xltraining.reformer import ReformerConfig

__all__ = ["LocalReach"]


class LocalReach:
    """The keys that the queries of one step see in all local layers.

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
