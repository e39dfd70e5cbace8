"""The walk that any architecture can use: graphs and eager model segment by segment, each with its own memory.

After every segment it compares the log-probabilities of the step graph and all its memories. Graphs other than `score`
walk only the first segments. The graphs walk the text one after the other. The eager model walks it again for each
graph, so its results and memories need not be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from xlexport.architectures.findings import LSHTotals, SegmentDifference
from xlexport.verification.compare import (
    NamedRows,
    check_architecture,
    check_sizes,
    compare_other,
    compare_score,
    cut,
    memory_difference,
    segments_of_others,
    trim,
    with_memory,
)
from xlexport.verification.exact import ExactModel
from xlexport.verification.expected import Expected, Ids, expect
from xlexport.verification.tolerances import tolerance_of

if TYPE_CHECKING:
    from xlexport.architectures.base import Architecture
    from xlruntime.engine import Engine
    from xlruntime.evaluation import EvaluationSettings

__all__ = ["common_walk"]


def common_walk(
    architecture: Architecture,
    model: Engine,
    build_eager: Callable[[], Any],
    ids: Ids,
    segments: int,
    evaluation: EvaluationSettings,
    progress: Callable[[SegmentDifference], None] | None = None,
) -> tuple[list[SegmentDifference], LSHTotals | None]:
    """Walk `ids` in both, up to `segments` segments; see `GraphComparison`."""
    trained = build_eager()
    check_architecture(model, trained)
    trained = architecture.as_converted(trained, model.bundle.config)
    check_sizes(model, trained)
    eager = architecture.under_evaluation(trained, evaluation)
    exact = ExactModel(architecture, model, eager)
    found: list[SegmentDifference] = []
    limit = evaluation.max_positions
    whole = ids[: segments * evaluation.segment_len + 1]
    for segment, (expected, rows, outputs, memory) in enumerate(
        _steps(architecture, model, eager, "score", cut(whole, evaluation.segment_len, limit), evaluation, exact)
    ):
        one = compare_score(segment, expected, outputs["log_prob"][0])
        found.append(with_memory(one, memory_difference(memory, rows)))
        if progress is not None:
            progress(found[-1])
    few = min(len(found), segments_of_others(evaluation))
    for purpose, graph in model.bundle.graphs.items():
        if purpose == "score" or not graph.outputs.keys() & {"log_prob", "logits"}:
            continue
        most = min(graph.max_segment or evaluation.segment_len, evaluation.segment_len)
        cuts = cut(ids[: few * evaluation.segment_len + 1], most, limit)
        done = 0
        for expected, rows, outputs, memory in _steps(architecture, model, eager, purpose, cuts, evaluation):
            segment = done // evaluation.segment_len
            done += expected.tokens.shape[1]
            one = with_memory(found[segment], memory_difference(memory, rows))
            found[segment] = compare_other(one, expected, outputs)
    return found, None


def _steps(
    architecture: Architecture,
    model: Engine,
    eager: Any,
    purpose: str,
    cuts: Iterable[tuple[Ids, Ids]],
    evaluation: EvaluationSettings,
    exact: ExactModel | None = None,
) -> Iterator[tuple[Expected, list[NamedRows], dict[str, Any], Any]]:
    """Yield for each segment the eager model's results and memory, and the graph's outputs and memory."""
    import torch

    memory, eager_memory = model.new_memory(evaluation), None
    for tokens, targets in cuts:
        if memory.room[0] == 0:  # the document begins again
            memory.restart(0)
            eager_memory = None
            if exact is not None:
                exact.memory = None
        with torch.inference_mode():
            hidden, eager_memory = eager(torch.from_numpy(tokens), eager_memory)
            projected = [(name, rows[0].numpy()) for name, rows in architecture.project_memory(eager, eager_memory)]
        expected = expect(eager, hidden, tokens, targets, tolerance_of(model.bundle).log_prob)
        if exact is not None:
            expected = exact.beside(expected)
        yield expected, projected, model.step(purpose, memory, tokens, targets), memory
        trim()
    model.release(purpose)
