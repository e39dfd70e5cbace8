"""Run a recurrence over segments of any length, in PyTorch and in a graph: token by token, or in chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

__all__ = ["Chunks", "chunk_sizes", "scan"]

T = TypeVar("T", Tensor, tuple[Tensor, ...])
Tensors: TypeAlias = tuple[Tensor, ...]
Chunks: TypeAlias = tuple[int, int]  # how many there are, and the tokens of each


def scan(body: Callable[[Tensors, Tensors], tuple[Tensors, T]], carry: Tensors, rows: Tensors) -> tuple[Tensors, T]:
    """Return the last carry of `body`, and its outputs stacked over the first axis of `rows`.

    In a graph, this is one operator, unless the number of rows is fixed: then each row has its own nodes.

    Args:
        body: maps the carry and a row of each tensor to the next carry and an output, or a tuple of outputs, all of
            them new tensors.
        carry: the first carry.
        rows: tensors with the same first axis, of at least one row.
    """
    if not isinstance(rows[0].shape[0], int):
        from torch._higher_order_ops.scan import scan as scan_operator

        # Copies, as it mistakes axes of size one in views.
        return scan_operator(body, *(tuple(value.clone() for value in values) for values in (carry, rows)))
    outputs = []
    for row in zip(*rows, strict=True):
        carry, output = body(carry, row)
        outputs.append(output)
    return carry, tree_map(lambda *parts: torch.stack(parts), *outputs)


def chunk_sizes(S: int, most: int) -> Chunks:
    """Return how many chunks S tokens need, and the tokens of each: S itself if it is smaller than `most`.

    If S is free, `torch.export` gets both as numbers that it cannot know. As functions of S, they would be compared
    with each other in dozens of ways, and it refuses a graph if any answer depends on S. It also treats axes of size
    one differently: it may take both for larger, as what is computed does not depend on that.
    """
    if most == 1 or isinstance(S, int):
        return -(-S // min(S, most)), min(S, most)
    length = torch.scalar_tensor(S, dtype=torch.int64)
    tokens = length.clamp(max=most)
    T: Any = tokens.item()  # `int` would ask for the number
    chunks: Any = ((length + tokens - 1) // tokens).item()
    torch._check(T > 1)
    torch._check(chunks > 1)
    torch._check(chunks * T >= S)
    return chunks, T
