"""Compare calls that read many steps with calls that read one, along a whole walk."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from xlexport.graph_proof.checks import Baseline, Results
from xlexport.graph_proof.compare import Deviation, Values, moving_axis, worst
from xlexport.graph_proof.report import Check
from xlexport.graph_proof.walk import State, StepError
from xlruntime.messages import listed, named

__all__ = ["Cuts", "open_cuts"]

SIZES = (2, 3, 7, 61, 256)  # steps a call, in turn, so that the ends of rings lie within calls
POOLS = 16  # steps that show whether a result pools


class Cuts:
    """The steps of a walk, read again in calls of many.

    Attributes:
        axes: of each result, along which it has a value for each step; None: a call has one value, of its last step.
        pooled: results that pool what a call reads.
        sizes: steps of the next calls.
        apart: the largest difference; steps: how many were read again.
    """

    def __init__(self, base: Baseline, axes: Mapping[str, int | None], hint: str) -> None:
        self.base, self.hint = base, hint
        self.pooled = [name for name, axis in axes.items() if axis is None and _pools(base, name)]
        self.axes = {name: axis for name, axis in axes.items() if name not in self.pooled}
        most = max(2, base.steps // 2) if base.is_chaotic else SIZES[-1]
        self.sizes = [size for size in SIZES if size <= most]
        self.apart, self.steps, self.taken = Deviation(), 0, 0
        self._spent, self._began = 0.0, time.monotonic()
        self._parts, self._first, self._start = Results(), 0, base.walk.first_state()

    def add(self, step: int, state: State, results: Values, after: State) -> None:
        """Take the next step of a walk: its results, and the states before and after it."""
        if not self._parts:
            self._first, self._start = step, state
        self._parts.append({name: results[name] for name in self.axes})
        if len(self._parts) >= self.sizes[0]:
            self.again(after)

    def again(self, after: State) -> None:
        """Read the last steps again in one call, unless such calls cost more than half of the walk."""
        parts, self._parts, now = self._parts, [], time.monotonic()
        if len(parts) < 2 or not self.apart.passed or self._spent > (now - self._began) / 2:
            return
        self.sizes.append(self.sizes.pop(0))
        try:
            whole, last = self.base.walk.read(self._first, self._first + len(parts), self._start)
            self.apart = worst((self.apart, self._compared(parts, after, whole, last)))
            self.steps, self.taken = self.steps + len(parts), max(self.taken, len(parts))
        except (StepError, MemoryError) as error:
            if len(parts) > 2 and (len(parts) > self.taken or isinstance(error, MemoryError)):  # it takes fewer
                self.sizes = [size for size in SIZES if size < len(parts)]
            else:
                self.apart = Deviation(np.inf, f"step {self._first} ({error})", np.inf)
        self._spent += time.monotonic() - now

    def _compared(self, parts: Results, after: State, whole: Values, last: State) -> Deviation:
        """Return how far steps, put together, are from the whole, and the states after both."""
        apart, compare, across = [], self.base.scales.compare, self.base.across
        for name, axis in self.axes.items():
            if axis is None:
                place = f"step {self._first + len(parts) - 1}"
                apart.append(compare({name: parts[-1][name]}, {name: whole[name]}, place, across))
                continue
            total, at = whole[name].shape[axis], 0
            sizes = [part[name].shape[axis] for part in parts]
            if sum(sizes) < total:
                return Deviation(np.inf, f"{named(name)}: {sum(sizes)} results, and {total} in one call", np.inf)
            extra = (sum(sizes) - total) // (len(sizes) - 1)  # of the context
            for number, (part, size) in enumerate(zip(parts, sizes, strict=True)):
                kept = size - (extra if number else 0)
                values = np.take(part[name], range(size - kept, size), axis)
                expected = np.take(whole[name], range(at, min(at + kept, total)), axis)
                apart.append(compare({name: values}, {name: expected}, f"step {self._first + number}", across))
                at += kept
        return worst((*apart, compare(after, last, f"after step {self._first + len(parts) - 1}", across)))

    def check(self) -> Check:
        """Return whether calls of many steps have the results of calls of one."""
        pools = f"{listed(map(named, self.pooled))} pools what a call reads"
        if not (self.axes or self.base.walk.pairs):
            return Check("cuts", None, pools)
        sizes = ", ".join(str(size * self.base.walk.length) for size in sorted(self.sizes))
        detail = f"{self.steps:,} steps in calls of {sizes} along the stream against calls of {self.base.walk.length}"
        detail += (f"; {pools}" if self.pooled else "") + ("" if self.apart.passed else self.hint)
        return self.base.verdict("cuts", self.apart, detail, across=True)


def open_cuts(base: Baseline) -> Cuts | Check:
    """Return what reads the steps of a walk again, or the result of the check where no call can be cut."""
    walk, length = base.walk, base.walk.length
    if walk.layout.stream is None or base.steps < 2:
        why = "one step only" if base.steps < 2 else "a step has a fixed size: no free axis"
        return Check("cuts", None, why)
    contexts = any(source.context for source in walk.sources)
    one_step = Check("cuts", None, "steps overlap, and a call reads one of them")
    hint = "" if contexts else "; if steps overlap, give --context, and --length if the graph takes one only"
    try:
        two = walk.read(0, 2, walk.first_state())[0]
    except StepError as error:
        what = f"it takes {length} along its free axis, and fails at {2 * length}{hint} ({error})"
        return one_step if contexts else Check("cuts", False, what, f"axis {walk.layout.stream}")
    axes = {name: moving_axis(base.results[0][name], two[name]) for name in walk.results}
    if contexts and all(axis is None for axis in axes.values()):
        return one_step
    return Cuts(base, axes, hint)


def _pools(base: Baseline, name: str) -> bool:
    """Return whether a call of two steps has not the last result, but one between those of both, or their sum."""
    state, margin = base.walk.first_state(), base.scales.tolerance(name) * base.scales.largest.get(name, 0.0)
    is_last, is_between, is_sum = True, True, True
    for at in range(0, min(POOLS, base.steps - 1), 2):
        outputs, state = base.walk.read(at, at + 2, state)
        whole, one, two = (values[name].astype(np.float64) for values in (outputs, *base.results[at : at + 2]))
        if not whole.shape == one.shape == two.shape:
            return False
        is_last &= bool((np.abs(whole - two) <= margin).all())
        is_sum &= bool((np.abs(whole - one - two) <= margin).all())
        is_between &= bool(((whole >= np.minimum(one, two) - margin) & (whole <= np.maximum(one, two) + margin)).all())
    return not is_last and (is_between or is_sum)
