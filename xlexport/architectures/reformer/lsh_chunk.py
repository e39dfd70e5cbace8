"""LSH attention of the step graphs under rule `chunk`: a whole document at once, as Hugging Face's Reformer does it.

Each round sorts the document by bucket and cuts the order into chunks, across buckets; `lsh_chunk_attention` says what
attends to what. A document that is no multiple of the chunk lengths is padded there; one that is no longer than a chunk
gets full attention. One graph does both: a short document is one bucket, and one round counts.

The float32 arithmetic of Hugging Face shows where a query sees no key but itself, at -1e5 in steps of 1/128. Parity
needs it, so it is repeated.

Source: Kitaev et al. 2020, section 2; transformers 4.57.6, whose numbers these are.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from xlexport.ops import lsh_chunk_attention, lsh_sort
from xltraining.reformer_config import ReformerConfig

__all__ = ["KEY_EPSILON", "ChunkLSH"]

KEY_EPSILON = 1e-6  # added to a key's mean square before the root


class ChunkLSH(nn.Module):
    """Attention of a layer under rule `chunk`."""

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        self.config = config
        # Documents up to here get full attention: those that are not padded beyond a chunk.
        lengths = [config.chunk_length, *([config.local_chunk_length] if "local" in config.attn_layers else [])]
        self.short = config.chunk_length if config.chunk_multiple == config.chunk_length else min(lengths)

    def forward(self, query_key: Tensor, value: Tensor, buckets: Tensor) -> Tensor:
        """Attention of a document, (B, H, T, d).

        Args:
            query_key: (B, H, T, d), as projected; value: (B, H, T, d).
            buckets: (B, H, R, T) int64; those of a short document do not matter.
        """
        config = self.config
        d, T = query_key.shape[3], query_key.shape[2]
        full = torch.full((1,), T) <= self.short
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
