"""Local attention of the step graphs: each chunk of a document sees itself and the chunks before it."""

from __future__ import annotations

from torch import Tensor

from xlexport.ops import local_attention, local_attention_plan, local_few_attention
from xltraining.reformer import ReformerConfig

__all__ = ["LocalReach"]


class LocalReach:
    """The keys that the queries of one step see in all local layers.

    A few tokens form one block with all keys. A long segment is cut into blocks as long as a chunk.
    """

    def __init__(self, config: ReformerConfig, tokens: Tensor, position: Tensor, kept: int, few: bool) -> None:
        """Lay out the queries of a step.

        Args:
            tokens: (B, S) of the step; position: (B,) earlier tokens of their documents.
            kept: rows of keys from before the step.
        """
        self.position, self.few = position, few
        self.chunks = config.local_chunk_length, config.local_chunks_before
        block = 0 if few else config.local_chunk_length
        self.mask, self.index = local_attention_plan(tokens, position, *self.chunks, kept, block)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Compute local attention (B, H, S, d).

        Args:
            query: (B, H, S, d), scaled.
            key, value: (B, H, kept + S, d), the kept rows first.
        """
        if self.few:
            few: Tensor = local_few_attention(query, key, value, self.position, self.mask, *self.chunks)
            return few
        attended: Tensor = local_attention(query, key, value, self.position, self.mask, self.index, *self.chunks)
        return attended
