"""Run all checks of a graph, in this process. `child.prove` does so in another one."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from xlexport.callbacks import Progress
from xlexport.errors import GraphError
from xlexport.graph_proof import checks, long_walk
from xlexport.graph_proof.counterpart import OtherGraph, OtherModule, open_module, open_other
from xlexport.graph_proof.cuts import Cuts, open_cuts
from xlexport.graph_proof.graph_file import read_graph_file
from xlexport.graph_proof.options import GraphOptions
from xlexport.graph_proof.report import Check, GraphReport
from xlexport.graph_proof.walk import StepError, open_walk

__all__ = ["run_proof"]

STATELESS = ("cuts", "repeat", "fresh", "recurrence", "other")  # checks that need no state
SHARE = 0.2  # of the time limit that the long walk may take, and changing one state after the other
LAST = 0.8  # of the time limit, after which no check begins
RUNS = 60  # of the short document, about
LEAST = 2  # steps of the short document


def run_proof(graph: Path, other: str | None, options: GraphOptions, folder: Path, progress: Progress) -> GraphReport:
    """Return the report of a graph.

    Args:
        other: the path of another graph, or `FILE.py:NAME`; None: no other.
        folder: where names of files in `options` and `other` begin.

    Raises:
        GraphError: a file, an option or a module is wrong, the graph has no state, or it does not run.
        MemoryError: it needs too much memory.
    """
    began, seconds = time.monotonic(), SHARE * options.seconds
    file = read_graph_file(graph)
    is_module = other is not None and (other.endswith(".py") or ".py:" in other)
    other_file = None if other is None or is_module else read_graph_file(folder / other)
    walk = open_walk(file, options, folder, other_file.inputs if other_file else ())
    counterpart: OtherGraph | OtherModule | None = None
    if other_file is not None:
        counterpart = open_other(other_file, walk, options, folder)
    elif other is not None:
        counterpart = open_module(other, walk, options.trust, folder)
    found: list[Check] = []

    def check(name: str, made: Callable[[], Check]) -> Check:
        if not walk.pairs and name not in STATELESS:
            found.append(Check(name, None, "the graph carries no state"))
        elif time.monotonic() - began > LAST * options.seconds:
            found.append(Check(name, None, "not tried, as the time is over: allow more, --set seconds=N"))
        else:
            try:
                found.append(made())
            except StepError as error:
                found.append(Check(name, False, f"the graph fails: {error}"))
        return found[-1]

    try:
        start = time.monotonic()
        walk.along(0, 2)
        step = max((time.monotonic() - start) / 2, 1e-9)
        steps = max(LEAST, min(options.steps, int(options.seconds / RUNS / step)))
        base = checks.read_baseline(walk, steps, other_file.types if other_file else ())
        cuts = open_cuts(base)
        opened = cuts if isinstance(cuts, Cuts) else None
        check("repeat", lambda: base.judged("repeat", *walk.along(0, base.steps), f"{base.steps} steps twice"))
        check("state read", lambda: checks.check_state_read(base, seconds))
        check("state written", lambda: checks.check_state_written(base))
        check("rows", lambda: checks.check_rows(base))
        check("buffers", lambda: checks.check_buffers(base))
        check("save", lambda: checks.check_save(base))
        left = max(1.0, min(seconds, LAST * options.seconds - (time.monotonic() - began)))
        seen = long_walk.walk_long(base, opened, options.steps, left, counterpart, progress)
    except StepError as error:
        hint = "Say what it reads with --input."
        raise GraphError(f"{graph}: fails in the first steps: {error}.", hint=hint) from error
    cut = check("cuts", lambda: cuts.check() if isinstance(cuts, Cuts) else cuts)
    again = "the short document again, after the long walk"
    check("fresh", lambda: base.judged("fresh", *walk.along(0, base.steps), again))
    check("horizon", lambda: long_walk.check_horizon(base, seen))
    check("range", lambda: long_walk.check_range(base, seen))
    check("recurrence", lambda: checks.check_recurrences(walk, cut))
    check("other", lambda: long_walk.check_other(base, seen, counterpart))
    inputs = tuple(map(str, walk.sources))
    return GraphReport(graph.name, other, walk.pairs, inputs, seen.steps, tuple(found))
