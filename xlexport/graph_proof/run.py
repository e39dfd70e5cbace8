"""Run all checks of a graph, in this process. `child.prove` does so in another one."""

from __future__ import annotations

import time
from pathlib import Path

from xlexport.callbacks import Progress
from xlexport.errors import GraphError
from xlexport.graph_proof.checks import check_fresh, read_baseline, recurrence_check, short_checks
from xlexport.graph_proof.counterpart import OtherGraph, OtherModule, open_module, open_other
from xlexport.graph_proof.graph_file import read_graph_file
from xlexport.graph_proof.long_walk import horizon_check, other_check, range_check, walk_long
from xlexport.graph_proof.options import GraphOptions
from xlexport.graph_proof.report import Check, GraphReport
from xlexport.graph_proof.walk import StepError, open_walk

__all__ = ["run_proof"]

ORDER = (
    *("cuts", "repeat", "fresh", "state read", "state written", "rows", "buffers", "save"),
    *("horizon", "range", "recurrence", "other", "context"),
)
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
    is_module = other is not None and not (folder / other).is_file()
    other_file = read_graph_file(folder / other) if other is not None and not is_module else None
    walk = open_walk(file, options, folder, other_file.inputs if other_file else ())
    counterpart: OtherGraph | OtherModule | None = None
    if other_file is not None:
        counterpart = open_other(other_file, walk, options, folder)
    elif other is not None:
        counterpart = open_module(other, walk, options.trust, folder)
    began = time.monotonic()
    try:
        walk.along(0, 2)
        step = (time.monotonic() - began) / 2
        base = read_baseline(walk, max(LEAST, min(options.steps, int(options.seconds / RUNS / max(step, 1e-9)))))
        checks = {check.name: check for check in short_checks(base, bool(options.context))}
        seen = walk_long(base, options.steps, SHARE * options.seconds, counterpart, progress)
    except StepError as error:
        raise GraphError(
            f"{graph}: fails in the first steps: {error}.", hint="Say what it reads with --input."
        ) from error
    for check in (
        check_fresh(base),
        horizon_check(base, seen),
        range_check(walk, seen),
        recurrence_check(walk, checks["cuts"]),
        other_check(base, seen, counterpart),
        _context(options, checks["cuts"], walk.results),
    ):
        checks[check.name] = check
    return GraphReport(
        graph=graph.name,
        other=other,
        pairs=walk.pairs,
        inputs=tuple(map(str, walk.sources)),
        steps=seen.steps,
        checks=tuple(checks[name] for name in ORDER),
    )


def _context(options: GraphOptions, cuts: Check, results: tuple[str, ...]) -> Check:
    if options.context:
        return Check("context", None, f"fed with --context {' '.join(options.context)}")
    return Check("context", None, "not given")
