"""Explain why the graphs of a user's module differ from it: the first output, and the operators behind it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from xlexport.errors import ParityError
from xlexport.families.recurrent.trial import STATE_TOLERANCE, TOLERANCE, difference_of
from xlruntime.errors import BundleGraphError, HintedError
from xlruntime.messages import listed

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from xlexport.families.recurrent.eager import RecurrentEager
    from xlruntime.engine import Engine
    from xlruntime.evaluation import EvaluationSettings

__all__ = ["graph_fault"]

# Operators of ONNX whose results are not always PyTorch's.
SUSPECTS = {
    **dict.fromkeys(("Floor", "Ceil", "Round", "ArgMax", "ArgMin", "TopK"), "rounding becomes a step"),
    **dict.fromkeys(("CumSum", "ScatterElements", "ScatterND"), "sums in another order"),
    **{"Sigmoid": "0 below -18", "Mod": "rounding becomes a step", "Softmax": "rows of -inf alone"},
}


def graph_fault(
    engine: Engine,
    model: RecurrentEager,
    ids: npt.NDArray[np.int64],
    evaluation: EvaluationSettings,
    error: HintedError,
) -> ParityError:
    """Return the error for the graphs of a module that read token ids (N,) otherwise than the module.

    Args:
        error: of `verify`; its figures remain if no output of the score graph differs.
    """
    form, output, problem = (
        model.config.form,
        "log_prob",
        "the ONNX graph cannot run: a tensor has another shape than in PyTorch",
    )
    with contextlib.suppress(BundleGraphError):
        output, problem = next(_differences(engine, model, ids, evaluation), (output, error.message.rstrip(".")))
    graph = ir.load(engine.folder / engine.bundle.graphs["score"].file).graph
    kinds = sorted({node.op_type for node in _behind([one for one in graph.outputs if one.name == output])})
    if suspects := listed(f"{kind} ({SUSPECTS[kind]})" for kind in kinds if kind in SUSPECTS):
        problem += f"; behind it are {suspects}"
    way = "Leave out segment, and define only step" if form == "segment" else "Compute it by other operators"
    what = f"{model.config.model}.{form}: {problem}."
    return ParityError(what, f"The graph is at fault, not the weights. {way}.")


def _differences(
    engine: Engine, model: RecurrentEager, ids: npt.NDArray[np.int64], evaluation: EvaluationSettings
) -> Iterator[tuple[str, str]]:
    """Yield each output of the score graph that differs in a segment, and by how much."""
    memory, state = engine.new_memory(evaluation), None
    for start in range(0, len(ids) - 1, evaluation.segment_len):
        targets = ids[None, start + 1 : start + 1 + evaluation.segment_len]
        tokens = ids[None, start : start + targets.shape[1]]
        log_probs = torch.from_numpy(engine.step("score", memory, tokens, targets)["log_prob"].copy())
        with torch.no_grad():
            logits, state = model(torch.from_numpy(tokens), state)
        expected = logits.log_softmax(dim=2).gather(2, torch.from_numpy(targets)[:, :, None])[:, :, 0]
        pairs: list[tuple[str, str, Any, Any]] = [("log_prob", "the log-probabilities", log_probs, expected)]
        for entry in memory.entries:
            value = torch.from_numpy(memory.array(entry).copy())
            pairs.append((entry.output, f"the state {entry.input!r}", value, state[entry.input]))
        for output, name, value, other in pairs:
            apart = float(difference_of(value, other).max())
            if not apart <= (TOLERANCE if output == "log_prob" else STATE_TOLERANCE):
                end = start + targets.shape[1]
                what = f"the ONNX graph differs from the module first in {name}"
                yield output, f"{what}, by {apart:.2g} within {end:,} tokens"


def _behind(values: list[Any]) -> Iterator[ir.Node]:
    """Yield the nodes that compute values of a graph, those within scans among them."""
    nodes: list[Any] = [value.producer() for value in values]
    seen = set[Any]()
    while nodes:
        if (node := nodes.pop()) is None or node in seen:
            continue
        seen.add(node)
        yield node
        nodes += [value.producer() for value in node.inputs if value is not None]
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                nodes += attribute.value
