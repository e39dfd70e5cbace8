"""Which execution provider computes each node of a graph, and what a strict device forbids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .errors import ProviderError

__all__ = ["RECORD_PLACEMENT", "SIZE_OPERATORS", "PlacedNode", "count_placed", "placed_nodes", "require_placement"]

RECORD_PLACEMENT = "session.record_ep_graph_assignment_info"  # the session must have it set for `placed_nodes`
# What the sizes of tensors are computed with. ONNX Runtime itself puts such nodes on the CPU, because sizes are needed
# there before a kernel starts; that is no sign of a kernel that is missing elsewhere.
SIZE_OPERATORS = frozenset(
    {
        *("Shape", "Size", "Constant", "ConstantOfShape", "Identity", "Cast", "Range", "ReduceProd"),
        *("Gather", "Slice", "Concat", "Squeeze", "Unsqueeze"),
        *("Add", "Sub", "Mul", "Div", "Mod", "Neg", "Min", "Max"),
        *("Where", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
    }
)
NAMED = 8  # nodes that a message names at most


@dataclass(frozen=True)
class PlacedNode:
    """A node of the graph that runs, after ONNX Runtime has folded and fused what it could at first."""

    name: str
    operator: str
    provider: str  # "CUDAExecutionProvider"


def placed_nodes(session: Any) -> tuple[PlacedNode, ...]:
    """All nodes of an `onnxruntime.InferenceSession` that was opened with `RECORD_PLACEMENT`."""
    return tuple(
        PlacedNode(node.name, node.op_type, part.ep_name)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    )


def count_placed(nodes: Sequence[PlacedNode]) -> dict[str, dict[str, int]]:
    """How many nodes of each operator each provider computes: `{provider: {operator: count}}`, most first."""
    counted: dict[str, Counter[str]] = {}
    for node in nodes:
        counted.setdefault(node.provider, Counter())[node.operator] += 1
    most_first = sorted(counted, key=lambda provider: (-counted[provider].total(), provider))
    return {provider: dict(counted[provider].most_common()) for provider in most_first}


def require_placement(
    nodes: Sequence[PlacedNode], provider: str, where: str, allowed: frozenset[str] = SIZE_OPERATORS
) -> None:
    """Insist that `provider` computes everything but nodes of the `allowed` operators.

    Args:
        where: the device and the file, for the message.

    Raises:
        ProviderError: names the others.
    """
    strays = [node for node in nodes if node.provider != provider and node.operator not in allowed]
    if not strays:
        return
    operators = ", ".join(f"{count} {name}" for name, count in Counter(node.operator for node in strays).most_common())
    named = ", ".join(node.name or "(no name)" for node in strays[:NAMED]) + (", …" if len(strays) > NAMED else "")
    providers = ", ".join(sorted({node.provider for node in strays}))
    raise ProviderError(
        f"{where}: {len(strays)} of {len(nodes)} nodes run on {providers}, not on {provider}: {operators} ({named}).",
        repair="Use an ONNX Runtime that has these kernels, or leave out strict_device and cuda_graphs.",
    )
