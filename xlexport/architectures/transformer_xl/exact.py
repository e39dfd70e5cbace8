"""Transformer-XL in float64, for `verify`: a row of memory is projected once, not again in each segment."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from xltraining.transformer_xl import TransformerXL
from xltraining.transformer_xl.encodings import AttentionByDistance, RelativeAttention

__all__ = ["project_once"]


def project_once(model: TransformerXL) -> None:
    """Let each layer keep what it projected in the call before, and use it for rows with the same numbers."""
    for layer in model.layers:
        attention = layer.attention
        if isinstance(attention, AttentionByDistance):
            attention.project = _Projection(attention.project)  # type: ignore[method-assign]
        if isinstance(attention, RelativeAttention):
            attention.position.forward = _Repeated(attention.position.forward)  # type: ignore[method-assign]


class _Projection:
    """`AttentionByDistance.project`, which remembers its last keys and values, (H,B,K,h)."""

    def __init__(self, project: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]) -> None:
        self.project = project
        self.rows: tuple[Tensor, ...] = ()  # that were projected, in two parts (B,L,D)
        self.before: tuple[Tensor, Tensor]

    def __call__(self, hidden: Tensor, normed: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        M = memory.shape[1]
        known = M > 0 and self.rows != () and torch.equal(torch.cat(self.rows, dim=1)[:, -M:], memory)
        query, key, value = self.project(hidden, normed, memory[:, M if known else 0 :])
        if known:
            key, value = (
                torch.cat([old[:, :, -M:], new], dim=2) for old, new in zip(self.before, (key, value), strict=True)
            )
        self.rows, self.before = (memory, normed), (key, value)
        return query, key, value


class _Repeated:
    """A function of a tensor, which remembers its last argument and result."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function, self.last = function, (torch.empty(0), torch.empty(0))

    def __call__(self, argument: Tensor) -> Tensor:
        if not torch.equal(self.last[0], argument):
            self.last = argument, self.function(argument)
        return self.last[1]
