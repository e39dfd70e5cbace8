"""Divide segments of any length into chunks, in PyTorch and in a graph."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["chunk_sizes"]


def chunk_sizes(S: int, most: int) -> tuple[int, int]:
    """Return how many chunks S tokens need, and the tokens of each: S itself if it is smaller than `most`.

    `torch.export` gets both as numbers that it cannot know. As functions of S, they would be compared with each other
    in dozens of ways, and it refuses a graph if any answer depends on S. It also treats axes of size one differently:
    it may take both for larger, as what is computed does not depend on that.
    """
    if most == 1 or not torch.compiler.is_exporting():
        return -(-S // min(S, most)), min(S, most)
    length = torch.scalar_tensor(S, dtype=torch.int64)
    tokens = length.clamp(max=most)
    T: Any = tokens.item()  # `int` would ask for the number
    chunks: Any = ((length + tokens - 1) // tokens).item()
    torch._check(T > 1)
    torch._check(chunks > 1)
    torch._check(chunks * T >= S)
    return chunks, T
