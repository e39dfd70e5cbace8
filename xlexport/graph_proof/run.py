"""Run all checks of a graph, in this process. `child.prove` does so in another one."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from xlexport.callbacks import Progress
from xlexport.errors import GraphError
from xlexport.graph_proof import checks, long_walk
from xlexport.graph_proof.counterpart import OtherGraph, OtherModule, open_module, open_other
from xlexport.graph_proof.graph_file import read_graph_file
from xlexport.graph_proof.options import GraphOptions
from xlexport.graph_proof.report import Check, GraphReport
from xlexport.graph_proof.walk import StepError, open_walk

__all__ = ["run_proof"]

ORDER = (
    *("cuts", "repeat", "fresh", "state read", "state written", "rows", "buffers", "save"),
    *("horizon", "range", "recurrence", "other", "context"),
)
STATELESS = ("cuts", "repeat")  # checks that need no state
SHARE = 0.2  # of the time limit that the long walk may take
RUNS = 60  # of the short document, about
LEAST = 8  # steps of the short document


def run_proof(graph: Path, other: str | None, options: GraphOptions, folder: Path, progress: Progress) -> GraphReport:
    """Return the report of a graph.

    Args:
        other: the path of another graph, or `FILE.py:NAME`; None: no other.
        folder: where names of files in `options` and `other` begin.

    Raises:
        GraphError: a file, an option or a module is wrong, the graph has no state, or it does not run.
        MemoryError: it needs too much memory.
    """
    file = read_graph_file(graph)
    is_module = other is not None and ".py" in other and not (folder / other).is_file()
    other_file = None if other is None or is_module else read_graph_file(folder / other)
    walk = open_walk(file, options, folder, other_file.inputs if other_file else ())
    counterpart: OtherGraph | OtherModule | None = None
    if other_file is not None:
        counterpart = open_other(other_file, walk, options, folder)
    elif other is not None:
        counterpart = open_module(other, walk, options.trust, folder)
    began = time.monotonic()
    try:
        walk.along(0, 2)
        step = max((time.monotonic() - began) / 2, 1e-9)
        base = checks.read_baseline(walk, max(LEAST, min(options.steps, int(options.seconds / RUNS / step))))
        short = {
            "cuts": lambda: checks.check_cuts(base, bool(options.context)),
            "repeat": lambda: checks.check_repeat(base),
            "state read": lambda: checks.check_state_read(base),
            "state written": lambda: checks.check_state_written(base),
            "rows": lambda: checks.check_rows(base),
            "buffers": lambda: checks.check_buffers(base),
            "save": lambda: checks.check_save(base),
        }
        found = {name: _guarded(name, check) for name, check in short.items() if walk.pairs or name in STATELESS}
        seen = long_walk.walk_long(base, options.steps, SHARE * options.seconds, counterpart, progress)
    except StepError as error:
        raise GraphError(
            f"{graph}: fails in the first steps: {error}.", hint="Say what it reads with --input."
        ) from error
    found["fresh"] = _guarded("fresh", lambda: checks.check_fresh(base))
    if walk.pairs:
        found["horizon"] = long_walk.check_horizon(base, seen)
        found["range"] = long_walk.check_range(walk, seen)
    found["recurrence"] = checks.check_recurrences(walk, found["cuts"])
    found["other"] = long_walk.check_other(base, seen, counterpart)
    found["context"] = _context(options, found["cuts"])
    none = "the graph carries no state"
    return GraphReport(
        graph=graph.name,
        other=other,
        pairs=walk.pairs,
        inputs=tuple(map(str, walk.sources)),
        steps=seen.steps,
        checks=tuple(found.get(name, Check(name, None, none)) for name in ORDER),
    )


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    """Return the result of a check, which has failed if the graph fails in it."""
    try:
        return check()
    except StepError as error:
        return Check(name, False, f"the graph fails: {error}")


def _context(options: GraphOptions, cuts: Check) -> Check:
    """Return what is known of values that a step shares with the step before."""
    if options.context:
        return Check("context", None, f"fed as --context {' '.join(options.context)} says")
    if cuts.passed is False:
        return Check("context", None, "not given: if steps of this graph overlap, that explains the cuts")
    return Check("context", None, "not given")
