"""The layers of the Reformer step graphs: attention and feed-forward blocks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from xlexport.architectures.reformer.lsh_chunk import KEY_EPSILON, ChunkLSH
from xltraining.reformer import Reformer

__all__ = ["AttentionStep", "FeedForwardStep", "attend_fully"]


class AttentionStep(nn.Module):
    """The modules of a layer's attention; the layer's kind decides which of them exist."""

    norm: nn.LayerNorm
    query: nn.Linear
    key: nn.Linear
    query_key: nn.Linear
    value: nn.Linear
    output: nn.Linear
    rotations: Tensor
    whole: ChunkLSH

    def __init__(self, model: Reformer, index: int) -> None:
        super().__init__()
        config = model.config
        attention: Any = model.layers[index].attention
        self.kind = config.attn_layers[index]
        self.index, self.n_head, self.d_head = index, config.n_head, config.d_head
        self.norm, self.value, self.output = attention.norm, attention.value, attention.output
        if self.kind == "local":
            self.query, self.key = attention.query, attention.key
        else:
            self.query_key = attention.query_key
        if self.kind == "lsh":
            self.register_buffer("rotations", attention.rotations.detach())
            self.whole = ChunkLSH(config)
        self.local_scale = 1.0 / math.sqrt(config.d_head)
        self.shared_scale = math.sqrt(config.d_head) * (self.local_scale if config.scale_scores else 1.0)

    def heads(self, rows: Tensor, weight: nn.Module) -> Tensor:
        """Apply a linear map to `rows` (B, S, D) and split the result into heads (B, H, S, d_head)."""
        B, S, _ = rows.shape
        projected: Tensor = weight(rows)
        return projected.view(B, S, self.n_head, self.d_head).transpose(1, 2)

    def turned(self, vectors: Tensor, turns: tuple[Tensor, Tensor] | None) -> Tensor:
        """Turn each pair of neighbours in `vectors` (B, H, S, d_head) as `ReformerStep.turns` says."""
        if turns is None:
            return vectors
        sin, cos = turns
        even, odd = vectors[..., 0::2], vectors[..., 1::2]
        return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(3)

    def shared(self, query_key: Tensor) -> tuple[Tensor, Tensor]:
        """Return unit-length keys (B, H, S, d_head) and the factors (B, H, S, 1) with query = factor · key."""
        root = (query_key.square().mean(dim=3, keepdim=True) + KEY_EPSILON).sqrt()
        return query_key / (root * math.sqrt(self.d_head)), root * self.shared_scale

    def join(self, attended: Tensor) -> Tensor:
        """Join the heads of `attended` (B, H, S, d_head) and apply the output map: (B, S, D)."""
        B, H, S, d = attended.shape
        joined: Tensor = self.output(attended.transpose(1, 2).reshape(B, S, H * d))  # (B, S, H·d_head)
        return joined


class FeedForwardStep(nn.Module):
    """One feed-forward block with its normalisation."""

    norm: nn.LayerNorm
    inner: nn.Linear
    outer: nn.Linear

    def __init__(self, model: Reformer, index: int) -> None:
        super().__init__()
        block: Any = model.layers[index].feed_forward
        self.norm, self.inner, self.outer = block.norm, block.inner, block.outer
        self.activation = model.config.activation

    def forward(self, rows: Tensor) -> Tensor:
        """Return the block's output (B, S, D) for `rows` (B, S, D)."""
        inner: Tensor = self.inner(self.norm(rows))
        result: Tensor = self.outer(_activate(inner, self.activation))
        return result


def attend_fully(query: Tensor, key: Tensor, value: Tensor, own_value: Tensor, near: Tensor) -> Tensor:
    """Compute shared query-key attention to all near keys: (B, H, S, d) from scaled queries (B, H, S, d).

    Args:
        key, value: (B, H, K, d).
        own_value: (B, H, S, d), the values of the queries themselves; the result of queries without a near key.
        near: (B, S, K) bool.
    """
    some = near.any(dim=2, keepdim=True)  # (B, S, 1)
    mask = torch.where(near | ~some, 0.0, -math.inf)  # a row without keys needs only finite scores
    heads = []
    for h in range(query.shape[1]):  # one by one: the scores of all heads would be the largest tensor
        weights = (query[:, h] @ key[:, h].transpose(1, 2) + mask).softmax(dim=2)  # (B, S, K)
        heads.append(torch.where(some, weights @ value[:, h], own_value[:, h]))
    return torch.stack(heads, dim=1)


def _activate(rows: Tensor, name: str) -> Tensor:
    """Apply the activation function with this name."""
    if name == "relu":
        return rows.relu()
    return nn.functional.gelu(rows, approximate="tanh" if name == "gelu_tanh" else "none")
