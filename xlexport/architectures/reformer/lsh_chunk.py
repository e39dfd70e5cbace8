"""LSH attention of the step graphs under rule `chunk`: a whole document at once, as in Hugging Face's Reformer.

Each round sorts the document by bucket and cuts the order into chunks, which may span buckets. `lsh_chunk_attention`
defines which keys each chunk attends to, and pads documents to a multiple of the chunk lengths. A document of at most
one chunk gets full attention. One graph does both: it treats a short document as one bucket in one round.

If a query sees only its own key, at a score of -1e5, Hugging Face's float32 arithmetic rounds in steps of 1/128. This
is visible in the results, so the graph repeats the same arithmetic.

Source: Kitaev et al. 2020, section 2; the constants are those of transformers 4.57.6.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from xlexport.ops import lsh_chunk_attention, lsh_sort
from xltraining.reformer import ReformerConfig

__all__ = ["KEY_EPSILON", "ChunkLSH"]

KEY_EPSILON = 1e-6  # added to a key's mean square before the root


class ChunkLSH(nn.Module):
    """The attention of a layer under rule `chunk`."""

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
