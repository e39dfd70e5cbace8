"""Compare one call that reads many steps with calls that read fewer, at the beginning and far into a walk."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.graph_proof.checks import Baseline, Results
from xlexport.graph_proof.compare import Deviation, moving_axis, worst
from xlexport.graph_proof.report import Check
from xlexport.graph_proof.walk import State, StepError
from xlruntime.messages import listed, named

__all__ = ["Cuts", "read_cuts"]

PIECES = (1, 7, 3)  # steps a call
LATER = 61  # steps a call far into the walk: a prime, so that the ends of rings lie within calls
POOLS = 16  # steps that show whether a result pools
ONE_LENGTH = "steps overlap, and a call reads one of them"


@dataclass
class Cuts:
    """What calls of many steps have shown.

    Attributes:
        axes: of each result, along which it has a value for each step; None: a call has one value, of its last step.
        most, size: steps that a call takes; those of calls far into the walk.
        decided: the result of the check, where no call can be cut.
        pooled: results that pool what a call reads.
        later: steps far into the walk that were read in one call, too; place: the first of the current call; start,
            after: the states before and after it.
        spent: seconds in such calls; began: when the walk did.
    """

    base: Baseline
    axes: dict[str, int | None] = field(default_factory=dict)
    most: int = 0
    size: int = 0
    decided: Check | None = None
    pooled: tuple[str, ...] = ()
    apart: Deviation = field(default_factory=Deviation)
    detail: str = ""
    later: int = 0
    place: int = 0
    start: State = field(default_factory=dict)
    after: State = field(default_factory=dict)
    parts: Results = field(default_factory=list)
    spent: float = 0.0
    began: float = field(default_factory=time.monotonic)

    def add(self, step: int, state: State, results: Mapping[str, npt.NDArray[Any]], after: State) -> None:
        """Take the next step of a walk."""
        if not self.parts:
            self.place, self.start = step, state
        self.parts.append({name: results[name] for name in self.axes})
        self.after = after
        if len(self.parts) >= self.size:
            self.again()

    def again(self) -> None:
        """Read the last steps of a walk again, in one call, unless such calls cost more than the walk."""
        parts, self.parts, now = self.parts, [], time.monotonic()
        if min(self.size, len(parts)) < 2 or not self.apart.passed or self.spent > (now - self.began) / 2:
            return
        try:
            whole, last = self.base.walk.read(self.place, self.place + len(parts), self.start)
            self.apart = worst((self.apart, self.compare(parts, self.after, whole, last, 1)))
        except StepError as error:
            self.apart = Deviation(np.inf, f"step {self.place}: {error}", np.inf)
        self.later += len(parts)
        self.spent += time.monotonic() - now

    def compare(
        self, parts: Results, state: State, whole: Mapping[str, npt.NDArray[Any]], last: State, by: int
    ) -> Deviation:
        """Return how far pieces of `by` steps, put together, are from the whole, and the states after both."""
        apart, compare, across = [], self.base.scales.compare, self.base.across
        for name, axis in self.axes.items():
            if axis is None:
                apart.append(compare({name: parts[-1][name]}, {name: whole[name]}, "last call", across))
                continue
            total, at = whole[name].shape[axis], 0
            sizes = [part[name].shape[axis] for part in parts]
            if sum(sizes) < total:
                return Deviation(np.inf, f"{named(name)}: {sum(sizes)} results, and {total} in one call", np.inf)
            extra = (sum(sizes) - total) // max(1, len(sizes) - 1)  # of the context
            for number, (part, size) in enumerate(zip(parts, sizes, strict=True)):
                kept = size - (extra if number else 0)
                values = np.take(part[name], range(size - kept, size), axis)
                expected = np.take(whole[name], range(at, min(at + kept, total)), axis)
                place = f"step {self.place + number * by}"
                apart.append(compare({name: values}, {name: expected}, place, across))
                at += kept
        place = f"after step {self.place + len(parts) * by - 1}"
        return worst((*apart, compare(state, last, place, across)))

    def check(self) -> Check:
        """Return whether calls of many steps have the results of calls of one."""
        if self.decided is not None:
            return self.decided
        if not (self.axes or self.base.walk.pairs):
            return Check("cuts", None, f"{listed(map(named, self.pooled))} pools what a call reads")
        later = f"; also {self.later:,} steps of the walk, {self.size} a call" if self.later else ""
        pools = f"; {listed(map(named, self.pooled))} pools what a call reads" if self.pooled else ""
        return self.base.verdict("cuts", self.apart, f"{self.detail}{later}{pools}", across=True)


def read_cuts(base: Baseline) -> Cuts:
    """Return the comparison of the document of the short checks."""
    walk, steps, length = base.walk, base.steps, base.walk.length
    cuts = Cuts(base)
    if walk.layout.stream is None or steps < 2:
        why = "one step only" if steps < 2 else "a step has a fixed size: no free axis"
        cuts.decided = Check("cuts", None, why)
        return cuts
    contexts = any(source.context for source in walk.sources)
    hint = "" if contexts else "; if steps overlap, give --context, and --length if the graph takes one only"
    try:
        two = walk.read(0, 2, walk.first_state())[0]
    except StepError as error:
        what = f"it takes {length} along its free axis, and fails at {2 * length}{hint} ({error})"
        failed = Check("cuts", False, what, f"axis {walk.layout.stream}")
        cuts.decided = Check("cuts", None, ONE_LENGTH) if contexts else failed
        return cuts
    cuts.axes = {name: moving_axis(base.results[0][name], two[name]) for name in walk.results}
    if contexts and not any(axis is not None for axis in cuts.axes.values()):
        cuts.decided = Check("cuts", None, ONE_LENGTH)
        return cuts
    cuts.pooled = tuple(name for name, axis in cuts.axes.items() if axis is None and _pools(base, name))
    cuts.axes = {name: axis for name, axis in cuts.axes.items() if name not in cuts.pooled}
    cuts.most = _most(base)
    wholes, last = walk.along(0, cuts.most, by=cuts.most)
    for by in PIECES:
        if by < cuts.most and cuts.apart.passed:
            known = by == 1 and cuts.most == steps
            parts, state = (base.results, base.last) if known else walk.along(0, cuts.most, by=by)
            cuts.apart = worst((cuts.apart, cuts.compare(parts, state, wholes[0], last, by)))
            shown = f"calls of {by * length}{hint}" if not cuts.apart.passed else f"calls of {length} and others"
            cuts.detail = f"one call of {cuts.most * length} against {shown}"
    cuts.size = min(LATER, cuts.most // 2 if base.is_chaotic else cuts.most)
    cuts.began = time.monotonic()
    return cuts


def _pools(base: Baseline, name: str) -> bool:
    """Return whether a call of two steps has not the last result, but one between those of both, or their sum."""
    if name not in base.walk.results or base.results[0][name].dtype.kind == "b":
        return False
    state, pairs = base.walk.first_state(), list[tuple[npt.NDArray[Any], ...]]()
    for at in range(0, min(POOLS, base.steps - 1), 2):
        outputs, state = base.walk.read(at, at + 2, state)
        pairs.append((outputs[name], base.results[at][name], base.results[at + 1][name]))
    if any(len({value.shape for value in three}) > 1 for three in pairs) or all(
        base.scales.compare({name: one}, {name: two}, "").passed for one, _, two in pairs
    ):
        return False
    margin = base.scales.tolerance(name) * base.scales.largest.get(name, 0.0)

    def within(whole: npt.NDArray[Any], low: npt.NDArray[Any], high: npt.NDArray[Any]) -> bool:
        return bool(((whole >= low - margin) & (whole <= high + margin)).all())

    sums = all(within(whole, one + two, one + two) for whole, one, two in pairs)
    return sums or all(within(whole, np.minimum(one, two), np.maximum(one, two)) for whole, one, two in pairs)


def _most(base: Baseline) -> int:
    """Return how many steps one call reads: all of the document, or as many as the graph takes."""
    most = base.steps
    while most > 2:
        try:
            base.walk.read(0, most, base.walk.first_state())
            return most
        except (StepError, MemoryError):
            most //= 2
    return 2
