"""The time of a step by operator."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlexport.bench.sides import GraphSide
from xlexport.errors import XlexportError
from xlruntime.session import GraphSession

__all__ = ["BETWEEN", "OperatorTime", "profile_step", "sum_events"]

STEPS = 5
BETWEEN = "(between operators)"


@dataclass(frozen=True)
class OperatorTime:
    """The time of all nodes of one type in a step, on one execution provider.

    Attributes:
        provider: the execution provider; empty for time between nodes.
        percent: share of the step's time.
        count: how often such nodes run; a node inside a loop counts each time.
    """

    operator: str
    provider: str
    ms: float
    percent: float
    count: int


def profile_step(side: GraphSide) -> list[OperatorTime]:
    """Profile several warm steps in a separate session and return the times of the fastest one.

    Raises:
        XlexportError: a step is too long for ONNX Runtime's profile.
    """
    with tempfile.TemporaryDirectory() as scratch:
        model = side.model
        graph = model.bundle.graphs[side.graph]
        prefix = str(Path(scratch, "profile"))
        session = GraphSession(
            model.folder,
            graph,
            model.bundle.memory,
            model.device,
            model.threads,
            profile=prefix,
            data_files=model.bundle.files,
            kernels=model.kernels,
        )
        for _ in range(1 + STEPS):
            side.step_in(session)
        events = json.loads(session.end_profiling().read_text("utf-8"))
    return sum_events(events, skip=1)


def sum_events(events: Iterable[Mapping[str, Any]], skip: int = 0) -> list[OperatorTime]:
    """Sum the fastest run of an ONNX Runtime profile by operator and execution provider, the longest time first.

    The time of a loop includes the nodes inside it, which the profile also lists. So the time of inner nodes is
    subtracted from the node that contains them, and all times sum to the step's time.

    Args:
        skip: number of runs at the beginning to ignore.

    Raises:
        XlexportError: the profile holds no complete run, because ONNX Runtime stops after a million entries.
    """
    timed = [(int(event["ts"]), int(event["dur"]), event) for event in events if "dur" in event]
    runs = [(length, start) for start, length, event in timed if event["name"] == "model_run"][skip:]
    if not runs:
        raise XlexportError(
            "one step has more nodes than ONNX Runtime's profile holds.", hint="Profile a shorter one: --segment-len."
        )
    total, begin = min(runs)
    nodes = [
        (start, -length, (event["args"]["op_name"], event["args"].get("provider", "")))
        for start, length, event in timed
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time") and begin <= start < begin + total
    ]
    between = (BETWEEN, "")
    micros, count = Counter({between: total}), Counter[tuple[str, str]]()
    around = [(begin + total, between)]  # the nodes that contain the next node, outermost first: end and operator
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
