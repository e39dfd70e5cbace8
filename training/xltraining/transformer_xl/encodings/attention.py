"""Multi-head attention over memory and segment; subclasses know where positions enter.

Axes: B batch, S tokens of the segment, M memory rows, K = M + S keys, D `d_model`, H heads, h `d_head`.
"""

import math
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
    def project(self, hidden: Tensor, normed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query (B,S,H,h), key and value (B,H,K,h).

        Args:
            hidden: the layer's input (B,S,D).
            normed: memory and input (B,K,D), normalised under `pre_lnorm`.
        """

    @abstractmethod
    def scores(self, query: Tensor, key: Tensor, shared: Tensor | None) -> Tensor:
        """Return the scores (B*H,S,K), scaled by 1/sqrt(h); those of future keys may be anything."""

    def forward(self, hidden: Tensor, memory: Tensor, shared: Tensor | None, masked: Tensor) -> Tensor:
        """Return the block's output (B,S,D).

        Args:
            hidden: (B,S,D).
            memory: (B,M,D).
            shared: result of `shared`.
            masked: (S,K) bool, true for keys that a query does not see.
        """
        B, S, _ = hidden.shape
        context = torch.cat([memory, hidden], dim=1)
        normed = self.norm(context) if self.pre_lnorm else context
        query, key, value = self.project(hidden, normed)
        scores = self.scores(query, key, shared)
        attention = self.dropatt(scores.masked_fill_(masked, -math.inf).softmax(dim=-1))
        mixed = torch.bmm(attention, value.flatten(0, 1))  # (B*H,S,h)
        mixed = mixed.view(B, self.n_head, S, self.d_head).transpose(1, 2).flatten(2)  # (B,S,H*h)

        result: Tensor = hidden + self.dropout(self.output(mixed))
        return result if self.pre_lnorm else self.norm(result)
