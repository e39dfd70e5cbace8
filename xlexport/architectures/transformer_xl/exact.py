"""Transformer-XL in float64, for `verify`: a row of memory is projected once, not again in each segment."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from xltraining.transformer_xl.encodings import AttentionByDistance, RelativeAttention

__all__ = ["project_once"]


def project_once(attention: Any) -> None:
    """Let a layer take what it projected in the call before, for memory and distances with the same numbers."""
    rows: list[Tensor] = []  # memory (B,M,D), input (B,S,D), and their keys and values (H,B,K,h)
    distances: list[Tensor] = []  # encodings (K+1,D), and what they are projected to

    def project(hidden: Tensor, normed: Tensor, memory: Tensor) -> tuple[Tensor, ...]:
        M = memory.shape[1]
        known = M > 0 and bool(rows) and torch.equal(torch.cat(rows[:2], dim=1)[:, -M:], memory)
        query, *new = whole(hidden, normed, memory[:, M:] if known else memory)
        if known:
            new = [torch.cat([old[:, :, -M:], own], dim=2) for old, own in zip(rows[2:], new, strict=True)]
        rows[:] = memory, normed, *new
        return query, *new

    def position(encodings: Tensor) -> Tensor:
        if not (distances and torch.equal(distances[0], encodings)):
            distances[:] = encodings, every_position(encodings)
        return distances[1]

    if issubclass(type(attention), AttentionByDistance):
        whole, attention.project = attention.project, project
    if issubclass(type(attention), RelativeAttention):
        every_position, attention.position.forward = attention.position.forward, position
