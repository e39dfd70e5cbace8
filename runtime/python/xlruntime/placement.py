"""Find the execution provider of each node of a graph, and check it for strict devices."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .errors import ProviderError

__all__ = ["RECORD_PLACEMENT", "SIZE_OPERATORS", "PlacedNode", "count_placed", "placed_nodes", "require_placement"]

logger = logging.getLogger(__name__)

RECORD_PLACEMENT = "session.record_ep_graph_assignment_info"  # a session option that `placed_nodes` needs
# Operators that compute sizes of tensors. ONNX Runtime itself puts such nodes on the CPU, because it needs the sizes
# there before a kernel starts. This does not mean that the device lacks a kernel.
SIZE_OPERATORS = frozenset(
    {
        *("Shape", "Size", "Constant", "ConstantOfShape", "Identity", "Cast", "Range", "ReduceProd"),
        *("Gather", "Slice", "Concat", "Split", "Squeeze", "Unsqueeze", "Reshape", "Expand"),
        *("Add", "Sub", "Mul", "Div", "Mod", "Neg", "Min", "Max"),
        *("Where", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
    }
)
NAMED = 8  # most nodes that a message names


@dataclass(frozen=True)
class PlacedNode:
    """A node of the graph that runs, after ONNX Runtime has folded constants and fused nodes."""

    name: str
    operator: str
    provider: str  # "CUDAExecutionProvider"
    domain: str = ""  # of the operator; empty for ONNX's own


def placed_nodes(session: Any) -> tuple[PlacedNode, ...]:
    """Return all nodes of an `onnxruntime.InferenceSession` that was opened with `RECORD_PLACEMENT`."""
    return tuple(
        PlacedNode(node.name, node.op_type, part.ep_name, node.domain)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    )


def count_placed(nodes: Sequence[PlacedNode]) -> dict[str, dict[str, int]]:
    """Count the nodes of each provider by operator: `{provider: {operator: count}}`, most frequent first."""
    counted: dict[str, Counter[str]] = {}
    for node in nodes:
        counted.setdefault(node.provider, Counter())[node.operator] += 1
    most_first = sorted(counted, key=lambda provider: (-counted[provider].total(), provider))
    return {provider: dict(counted[provider].most_common()) for provider in most_first}


def require_placement(
    nodes: Sequence[PlacedNode],
    provider: str,
    where: str,
    allowed: frozenset[str] = SIZE_OPERATORS,
    strict: bool = True,
) -> None:
    """Check that `provider` computes all nodes, except nodes of `allowed` operators.

    Args:
        where: the device and the file, for the message.
        strict: raise an error about nodes elsewhere. Otherwise a warning in the log counts them.

    Raises:
        ProviderError: `provider` computes nothing, or with `strict` not everything; the message names nodes.
    """
    strays = [node for node in nodes if node.provider != provider and node.operator not in allowed]
    operators = ", ".join(f"{count} {name}" for name, count in Counter(node.operator for node in strays).most_common())
    elsewhere = ", ".join(sorted({node.provider for node in strays}))
    message = f"{where}: {len(strays)} of {len(nodes)} nodes run on {elsewhere}, not on {provider}: {operators}"
    if strays and strict:
        names = ", ".join(node.name or "(no name)" for node in strays[:NAMED]) + (", …" if len(strays) > NAMED else "")
        raise ProviderError(
            f"{message} ({names}).",
            hint="Use an ONNX Runtime that has these kernels, or leave out strict_device and cuda_graphs.",
        )
    if not any(node.provider == provider for node in nodes):
        raise ProviderError(f"{where}: no node of {len(nodes)} runs on {provider}.", hint="Use device cpu.")
    if strays:
        logger.warning("%s.", message)
