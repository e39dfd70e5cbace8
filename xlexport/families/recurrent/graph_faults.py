"""Explain why the graphs of a user's module differ from it: the first output, and operators that may be the cause."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
from onnx_ir.traversal import RecursiveGraphIterator

from xlexport.errors import ParityError
from xlexport.families.recurrent.trial import STATE_TOLERANCE, TOLERANCE, difference_of
from xlruntime.errors import BundleGraphError, HintedError
from xlruntime.messages import listed

if TYPE_CHECKING:
    from xlexport.families.recurrent.eager import RecurrentEager
    from xlruntime.engine import Engine
    from xlruntime.evaluation import EvaluationSettings

__all__ = ["graph_fault"]

# Operators of ONNX whose results are not always PyTorch's.
SUSPECTS = {
    **dict.fromkeys(("Floor", "Ceil", "Round", "Mod", "ArgMax", "ArgMin", "TopK"), "rounding becomes a step"),
    **dict.fromkeys(("CumSum", "ScatterElements", "ScatterND"), "sums in another order"),
    "Sigmoid": "0 below -18",
}


def graph_fault(
    engine: Engine, model: RecurrentEager, ids: Any, evaluation: EvaluationSettings, error: HintedError
) -> ParityError:
    """Return the error for the graphs of a module that read token ids (N,) otherwise than the module.

    Args:
        error: of `verify`; its figures remain if no output of the score graph differs.
    """
    problem = "the graph cannot run: a tensor has another shape than in PyTorch"
    with contextlib.suppress(BundleGraphError):
        problem = next(_differences(engine, model, ids, evaluation), error.message.rstrip("."))
    score = engine.bundle.graphs["score"]
    graph: Any = ir.load(engine.folder / score.file).graph if score.format == "onnx" else []
    if kinds := sorted({node.op_type for node in RecursiveGraphIterator(graph)} & SUSPECTS.keys()):
        problem += f"; it has {listed(f'{kind} ({SUSPECTS[kind]})' for kind in kinds)}"
    form = model.config.form
    way = "Leave out segment, and define only step" if form == "segment" else "Compute it by other operators"
    hint = f"The graph is at fault, not the weights. {way}."
    return ParityError(f"{model.config.model}.{form}: {problem}.", hint)


def _differences(engine: Engine, model: RecurrentEager, ids: Any, evaluation: EvaluationSettings) -> Iterator[str]:
    """Yield each output of the score graph that differs from the module, and by how much, in words."""
    memory, state, S = engine.new_memory(evaluation), None, evaluation.segment_len
    for start in range(0, len(ids) - 1, S):
        targets = ids[None, start + 1 : start + 1 + S]
        tokens = ids[None, start : start + targets.shape[1]]
        log_probs = engine.step("score", memory, tokens, targets)["log_prob"]
        with torch.no_grad():
            logits, state = model(torch.from_numpy(tokens), state)
        expected = logits.log_softmax(dim=2).gather(2, torch.from_numpy(targets)[:, :, None])[:, :, 0]
        pairs: list[tuple[str, Any, Any, float]] = [("the log-probabilities", log_probs, expected, TOLERANCE)]
        for entry in memory.entries:
            value = memory.array(entry)
            pairs.append((f"the state {entry.input!r}", value, state[entry.input], STATE_TOLERANCE))
        for name, value, other, limit in pairs:
            apart = float(difference_of(torch.from_numpy(value.copy()), other).max())
            if not apart <= limit:
                what = f"the graph differs from the module first in {name}"
                yield f"{what}, by {apart:.2g} within {start + tokens.shape[1]:,} tokens"
