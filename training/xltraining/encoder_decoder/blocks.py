"""The blocks of an encoder-decoder: attention of three kinds, and feed-forward.

Axes: B batch, S tokens of the segment, M rows of memory, L tokens of the source, D `d_model`, H heads, h `d_head`.
All blocks normalise the stream that they read.
"""

import math

import torch
from torch import Tensor, nn

from xltraining.encoder_decoder.config import EncoderDecoderConfig

__all__ = ["Attention", "CrossAttention", "DecoderAttention", "EncoderAttention", "FeedForward"]


class Attention(nn.Module):
    """Softmax attention with separate maps for queries, keys and values, without biases."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        D, heads = config.d_model, config.n_head * config.d_head
        self.n_head, self.d_head = config.n_head, config.d_head
        self.norm = nn.LayerNorm(D, eps=config.layer_norm_epsilon)
        self.query = nn.Linear(D, heads, bias=False)
        self.key = nn.Linear(D, heads, bias=False)
        self.value = nn.Linear(D, heads, bias=False)
        self.output = nn.Linear(heads, D, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.dropatt = nn.Dropout(config.dropatt)

    def heads(self, rows: Tensor) -> Tensor:
        """Split rows (B,N,H*h) into heads (B,H,N,h)."""
        B, N, _ = rows.shape
        return rows.view(B, N, self.n_head, self.d_head).transpose(1, 2)

    def attend(self, normed: Tensor, rows: Tensor, bias: Tensor) -> Tensor:
        """Return the output (B,S,D) of normalised queries (B,S,D) over rows (B,K,D).

        Args:
            bias: added to the scores (B,H,S,K): zero for a visible key, minus infinity for any other.
        """
        query = self.heads(self.query(normed)) / math.sqrt(self.d_head)
        key, value = self.heads(self.key(rows)), self.heads(self.value(rows))
        weights = self.dropatt((query @ key.transpose(2, 3) + bias).softmax(dim=3))
        return self.dropout(self.output((weights @ value).transpose(1, 2).flatten(2)))


class EncoderAttention(Attention):
    """Attention of the source's tokens to all of them."""

    def forward(self, hidden: Tensor, source: Tensor, context: Tensor) -> Tensor:
        """Return the block's output (B,L,D) from hidden (B,L,D); the context is the bias (B,1,1,L) of padding."""
        normed = self.norm(hidden)
        return self.attend(normed, normed, context)


class DecoderAttention(Attention):
    """Causal attention of the target's tokens to themselves and to the rows of earlier segments."""

    def forward(self, hidden: Tensor, source: Tensor, context: Tensor) -> Tensor:
        """Return the block's output (B,S,D) from hidden (B,S,D); the context is the memory: rows (B,M,D)."""
        normed = self.norm(hidden)
        S, M = hidden.shape[1], context.shape[1]
        later = torch.full((S, M + S), -math.inf, dtype=hidden.dtype, device=hidden.device).triu(M + 1)
        return self.attend(normed, torch.cat([context.to(normed), normed], dim=1), later)


class CrossAttention(Attention):
    """Attention of the target's tokens to the encoder's output, which is normalised already."""

    def forward(self, hidden: Tensor, source: Tensor, context: Tensor) -> Tensor:
        """Return the block's output (B,S,D) from hidden (B,S,D); the context is the bias (B,1,1,L) of padding."""
        return self.attend(self.norm(hidden), source, context)


class FeedForward(nn.Module):
    """Two linear maps with a ReLU between them."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon)
        self.inner = nn.Linear(config.d_model, config.d_inner)
        self.outer = nn.Linear(config.d_inner, config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor, source: Tensor, context: None = None) -> Tensor:
        """Return the block's output (B,S,D) from hidden (B,S,D)."""
        return self.dropout(self.outer(self.dropout(self.inner(self.norm(hidden)).relu())))
