"""Multi-head attention over memory and segment; subclasses know where positions enter.

Axes: B batch, S tokens of the segment, M memory rows, K = M + S keys, D `d_model`, H heads, h `d_head`.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from xltraining.transformer_xl.config import TransformerXLConfig
from xltraining.transformer_xl.dropout import make_dropout

__all__ = ["Attention"]


class Attention(nn.Module, ABC):
    """Multi-head attention of layer `index` (from 0), with its residual connection and layer normalisation."""

    def __init__(self, config: TransformerXLConfig, index: int) -> None:
        super().__init__()
        self.index = index
        D, H, h = config.d_model, config.n_head, config.d_head
        self.n_head, self.d_head, self.pre_lnorm = H, h, config.pre_lnorm
        self._add_projections(config)
        self._add_positions(config)
        self.output = nn.Linear(H * h, D, bias=False)
        self.norm = nn.LayerNorm(D, eps=config.layer_norm_epsilon)
        self.dropout = make_dropout(config.dropout, config.variational)
        self.dropatt = make_dropout(config.dropatt, config.variational)

    @abstractmethod
    def _add_projections(self, config: TransformerXLConfig) -> None:
        """Make the linear maps of `project`."""

    @abstractmethod
    def _add_positions(self, config: TransformerXLConfig) -> None:
        """Make the parameters that depend on positions."""

    def shared(self, config: TransformerXLConfig, M: int, S: int) -> Tensor | None:
        """Return what all layers share in one pass, for `scores`; the configuration may have other evaluation settings.

        None: scores do not depend on positions.
        """
        return None

    def place(self, hidden: Tensor, M: int) -> Tensor:
        """Return the layer's input (B,S,D) with its positions; `M` tokens of the document come before it."""
        return hidden

    @abstractmethod
    def project(self, hidden: Tensor, normed: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query (H,B,S,h), key and value (H,B,K,h).

        Args:
            hidden: the layer's input (B,S,D).
            normed: the same, normalised under `pre_lnorm`.
            memory: (B,M,D), normalised under `pre_lnorm`.
        """

    @abstractmethod
    def weights(self, query: Tensor, key: Tensor, shared: Tensor | None, hiding: Tensor) -> Tensor:
        """Return the attention weights (H*B,S,K): the softmax of scores that are scaled by 1/sqrt(h)."""

    def forward(self, hidden: Tensor, memory: Tensor, shared: Tensor | None, hiding: Tensor) -> Tensor:
        """Return the block's output (B,S,D).

        Args:
            hidden: (B,S,D).
            memory: (B,M,D).
            shared: result of `shared`.
            hiding: (S,K), minus infinity for keys that a query does not see, otherwise 0.
        """
        B, S, _ = hidden.shape
        normed = (self.norm(hidden), self.norm(memory)) if self.pre_lnorm else (hidden, memory)
        query, key, value = self.project(hidden, *normed)
        attention = self.dropatt(self.weights(query, key, shared, hiding))
        mixed = torch.bmm(attention, value.flatten(0, 1))  # (H*B,S,h)
        mixed = mixed.view(self.n_head, B, S, self.d_head).permute(1, 2, 0, 3).flatten(2)  # (B,S,H*h)

        result: Tensor = hidden + self.dropout(self.output(mixed))
        return result if self.pre_lnorm else self.norm(result)

    def _by_head(self, rows: Tensor) -> Tensor:
        """Return rows (B,L,n*H*h) as (n,H,B,L,h)."""
        B, L, width = rows.shape
        parts = width // (self.n_head * self.d_head)
        return rows.view(B, L, parts, self.n_head, self.d_head).permute(2, 3, 0, 1, 4)
