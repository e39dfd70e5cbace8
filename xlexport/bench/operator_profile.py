"""Where the time of a step goes, by operator."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlexport.bench.runners import GraphSide
from xlexport.errors import XlexportError
from xlruntime.session import GraphSession

__all__ = ["BETWEEN", "OperatorTime", "profile_step", "sum_events"]

STEPS = 5
BETWEEN = "(between operators)"


@dataclass(frozen=True)
class OperatorTime:
    """What all nodes of one type take in a step, on one execution provider.

    Attributes:
        provider: empty for what is no node.
        percent: of the step.
        count: how often such a node runs; one inside a loop counts each time.
    """

    operator: str
    provider: str
    ms: float
    percent: float
    count: int


def profile_step(side: GraphSide) -> list[OperatorTime]:
    """Profile some warm steps, in a session of its own: where the quickest of them spends its time.

    Raises:
        XlexportError: a step is too long for ONNX Runtime's profile.
    """
    with tempfile.TemporaryDirectory() as scratch:
        model = side.model
        graph = model.bundle.graphs[side.graph]
        prefix = str(Path(scratch, "profile"))
        session = GraphSession(
            model.folder, graph, model.device, model.threads, profile=prefix, data_files=model.bundle.files
        )
        for _ in range(1 + STEPS):
            side.step_in(session)
        events = json.loads(session.end_profiling().read_text("utf-8"))
    return sum_events(events, skip=1)


def sum_events(events: Iterable[Mapping[str, Any]], skip: int = 0) -> list[OperatorTime]:
    """Sum the quickest run of an ONNX Runtime profile up by operator and execution provider, the longest first.

    A loop's time holds that of the nodes inside it, which stand in the profile too: what a node contains is taken off
    its own time, so that the sum is the step's.

    Args:
        skip: runs at the beginning that do not count.

    Raises:
        XlexportError: the profile holds no whole run, as ONNX Runtime ends it after a million entries.
    """
    timed = [(int(event["ts"]), int(event["dur"]), event) for event in events if "dur" in event]
    runs = [(length, start) for start, length, event in timed if event["name"] == "model_run"][skip:]
    if not runs:
        raise XlexportError(
            "one step has more nodes than ONNX Runtime's profile holds.", repair="Profile a shorter one: --segment-len."
        )
    total, begin = min(runs)
    nodes = [
        (start, -length, (event["args"]["op_name"], event["args"].get("provider", "")))
        for start, length, event in timed
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time") and begin <= start < begin + total
    ]
    between = (BETWEEN, "")
    micros, count = Counter({between: total}), Counter[tuple[str, str]]()
    around = [(begin + total, between)]  # what contains the next node, outermost first: its end and its operator
    for start, negative_length, operator in sorted(nodes):
        while start >= around[-1][0] and len(around) > 1:
            around.pop()
        micros[around[-1][1]] += negative_length
        micros[operator] -= negative_length
        count[operator] += 1
        around.append((start - negative_length, operator))
    return [
        OperatorTime(*operator, time / 1e3, 100 * time / max(total, 1), count[operator])
        for operator, time in micros.most_common()
    ]
