"""Run a recurrence over the first axis of tensors: one operator of a graph, a loop in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

__all__ = ["scan"]

Tensors: TypeAlias = tuple[Tensor, ...]


def scan(
    body: Callable[[Tensors, Tensors], tuple[Tensors, Tensor]], carry: Tensors, rows: Tensors
) -> tuple[Tensors, Tensor]:
    """Return the last carry of `body`, and its outputs stacked over the first axis of `rows`.

    Args:
        body: maps the carry and a row of each tensor to the next carry and an output, all of them new tensors.
        carry: the first carry.
        rows: tensors with the same first axis, of at least one row.
    """
    if torch.compiler.is_exporting():
        from torch._higher_order_ops.scan import scan as scan_operator

        return scan_operator(body, tuple(value.clone() for value in carry), rows)
    outputs = []
    for row in zip(*rows, strict=True):
        carry, output = body(carry, row)
        outputs.append(output)
    return carry, torch.stack(outputs)
