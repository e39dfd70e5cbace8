"""Walk many steps: how far the states reach, what counts, and whether another graph stays beside this one."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.callbacks import Progress
from xlexport.graph_proof.checks import Baseline
from xlexport.graph_proof.compare import Deviation, difference
from xlexport.graph_proof.counterpart import OtherGraph, OtherModule
from xlexport.graph_proof.report import Check
from xlexport.graph_proof.walk import GraphWalk, State, StepError
from xlruntime.messages import listed, named

__all__ = ["LongWalk", "check_horizon", "check_other", "check_range", "walk_long"]

FLOAT16 = 65_504.0
HORIZONS = (1 << 20, (1 << 24) + 1, (1 << 31) + 7)
AFTER = 8  # steps that follow a counter that was set
SHOWN = 100  # steps between two marks of progress
LEAST = 40  # steps from which growth can be told
BLOCK = 64  # steps that the other graph reads in one call
SMALL = 16  # numbers of a state that may be a counter


@dataclass
class LongWalk:
    """What a walk has seen.

    Attributes:
        steps: steps that were read; stopped: why not all, in words; failure: the error of the graph in the next step.
        reach: the largest absolute value of each state so far, after each step.
        counters: states that grow by the same amount in each step, with the amount.
        broken: the first place that is no finite number.
        apart: the largest difference from the other graph; early, late: in the first and the last hundred steps.
        last: the states in the end.
    """

    steps: int = 0
    stopped: str = ""
    failure: str | None = None
    reach: dict[str, list[float]] = field(default_factory=dict)
    counters: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    broken: str | None = None
    apart: Deviation = field(default_factory=Deviation)
    early: float = 0.0
    late: list[float] = field(default_factory=list)
    last: State = field(default_factory=dict)


def walk_long(
    base: Baseline, steps: int, seconds: float, other: OtherGraph | OtherModule | None, progress: Progress
) -> LongWalk:
    """Walk `steps` steps from the first state, or as many as `seconds` and the files of inputs allow."""
    walk, seen = base.walk, LongWalk()
    steps = int(min(steps, walk.steps))
    until, state = time.monotonic() + seconds, walk.first_state()
    seen.reach = {pair.input: [] for pair in walk.pairs}
    deltas: dict[str, npt.NDArray[Any]] | None = None
    for step in range(steps):
        feeds = walk.feeds(step, step + 1, state)
        try:
            outputs, after = walk.run(feeds)
        except StepError as error:
            seen.failure = str(error)
            break
        for name, value in after.items():
            seen.reach[name].append(max([_magnitude(value), *seen.reach[name][-1:]]))
        if seen.broken is None and (
            bad := [
                *(name for name in walk.results if _is_broken(outputs[name])),
                *(pair.output for pair in walk.pairs if not _finite(outputs[pair.output])),
            ]
        ):
            seen.broken = f"{named(bad[0])}, step {step}"
        deltas = _still_counting(deltas, state, after)
        if other is not None and not (base.is_chaotic and step >= base.steps):
            _compare(seen, base, other, step, feeds, outputs)
        state, seen.steps = after, step + 1
        if seen.steps % SHOWN == 0:
            progress(seen.steps, steps)
        if time.monotonic() > until:
            seen.stopped = f" (the time for them was over after {seconds:.0f} s)"
            break
    seen.counters, seen.last = deltas or {}, state
    if other is not None and not base.is_chaotic and seen.failure is None and seen.apart.value <= base.tolerance:
        for name in other.shared_states():
            apart = difference(other.state[name], state[name])
            seen.apart = base.worst(seen.apart, Deviation(apart, f"{named(name)}, after step {seen.steps - 1}"))
    return seen


def _magnitude(value: npt.NDArray[Any]) -> float:
    return float(np.max(np.abs(value), initial=0)) if value.dtype.kind != "b" else 1.0


def _is_broken(value: npt.NDArray[Any]) -> bool:
    """Return whether a result has what is no number; minus infinity is the logarithm of what cannot be."""
    return value.dtype.kind == "f" and bool((~np.isfinite(value) & (value != -np.inf)).any())


def _finite(value: npt.NDArray[Any]) -> bool:
    return value.dtype.kind != "f" or bool(np.isfinite(value).all())


def _still_counting(
    deltas: dict[str, npt.NDArray[Any]] | None, before: State, after: State
) -> dict[str, npt.NDArray[Any]]:
    """Return how much each state grows that has grown so in each step before, too."""
    found = {}
    for name in after if deltas is None else deltas:
        old, new = before[name], after[name]
        if new.dtype.kind not in "iuf" or old.shape != new.shape or not 0 < new.size <= SMALL:
            continue
        delta = new.astype(np.float64) - old.astype(np.float64)
        whole = np.array_equal(np.round(delta), delta) and np.array_equal(np.round(old), old) and bool(delta.any())
        if whole and (deltas is None or np.array_equal(delta, deltas[name])):
            found[name] = delta
    return found


def _compare(
    seen: LongWalk,
    base: Baseline,
    other: OtherGraph | OtherModule,
    step: int,
    feeds: Mapping[str, Any],
    outputs: Mapping[str, npt.NDArray[Any]],
) -> None:
    """Record how far the other graph is apart in one step."""
    read = {source.port.name: feeds[source.port.name] for source in base.walk.sources}
    now = 0.0
    if math.isinf(seen.apart.value):  # it has failed, or has other shapes
        return
    try:
        results = other.step(read)
    except StepError as error:
        seen.apart = Deviation(math.inf, f"step {step}, where the other graph fails: {error}")
        return
    for name, value in results.items():
        apart = _apart(value, outputs[name])
        now = max(now, apart)
        if apart > seen.apart.value:
            first = seen.apart.place if seen.apart.value > base.tolerance else f"{named(name)}, step {step}"
            seen.apart = Deviation(apart, first)
    if step < 100:
        seen.early = max(seen.early, now)
    seen.late = [*seen.late[-99:], now]


def _apart(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    """Return how far results are apart that may differ in axes of size one."""
    return difference(found.reshape(-1), expected.reshape(-1))


def check_other(base: Baseline, seen: LongWalk, other: OtherGraph | OtherModule | None) -> Check:
    """Return whether another graph has the same results, step by step and in one call."""
    if other is None:
        return Check("other", None, "no other graph or module given")
    late = max(seen.late, default=0.0)
    steps_compared = f"{base.steps} steps, after which rounding decides" if base.is_chaotic else f"{seen.steps:,} steps"
    detail = f"{steps_compared}; first hundred {seen.early:.1e}, last hundred {late:.1e}"
    check = base.verdict("other", seen.apart, detail)
    if check.passed is False or not isinstance(other, OtherGraph) or other.walk.layout.stream is None:
        return check
    walk, count = base.walk, min(BLOCK, base.steps)
    if any(source.context for source in walk.sources) and other.walk.layout.stream == walk.layout.stream:
        return check
    state: State = walk.first_state()
    steps, worst = [], seen.apart
    for at in range(count):
        feeds = walk.feeds(at, at + 1, state)
        state = base.states[at]
        steps.append({source.port.name: feeds[source.port.name] for source in walk.sources})
    try:
        for at, results in enumerate(other.block(steps)):
            for name, value in results.items():
                apart = _apart(value, base.results[at][name])
                if apart > worst.value:
                    worst = Deviation(apart, f"{named(name)}, step {at} of {count} in one call")
    except StepError:
        return check
    return base.verdict("other", worst, f"{detail}; also {count} steps in one call")


def check_range(walk: GraphWalk, seen: LongWalk) -> Check:
    """Return whether the states stay in a range: finite, and without a growth that is linear or faster."""
    if not walk.pairs:
        return Check("range", None, "the graph carries no state")
    if seen.broken is not None:
        return Check("range", False, "not a finite number", seen.broken, _reached(seen))
    marks = sorted({mark for mark in (10, 100, 1000, 10_000) if mark < seen.steps} | {seen.steps})
    floats = [port for port in walk.states if port.dtype.kind == "f"]
    growing = [named(port.name) for port in floats if _is_linear(seen.reach[port.name])]
    large = [named(port.name) for port in floats if seen.reach[port.name][-1] > FLOAT16]
    lines = [
        f"{named(name)} {', '.join(f'{reach[mark - 1]:.4g}' for mark in marks)}"
        for name, reach in sorted(seen.reach.items(), key=lambda one: -one[1][-1])
    ]
    detail = f"largest after {', '.join(f'{mark:,}' for mark in marks)} steps{seen.stopped}: {listed(lines)}"
    if large:
        detail += f"; {listed(large)} beyond float16"
    if not growing:
        return Check("range", True, detail, None, _reached(seen))
    drawn = any(one.data is None and one.axis is not None and one.low < one.high for one in walk.sources)
    counts = " as a counter, which float32 holds to 16,777,216" if set(growing) & set(map(named, seen.counters)) else ""
    detail = f"{listed(growing)} grows throughout the walk{counts}; {detail}"
    if drawn:
        detail += "; on random inputs: try real ones with --input"
    return Check("range", False, detail, f"{growing[0]}, step {seen.steps - 1}", _reached(seen))


def _reached(seen: LongWalk) -> float:
    return max((reach[-1] for reach in seen.reach.values()), default=0.0)


def _is_linear(reach: Sequence[float]) -> bool:
    """Return whether a state has grown throughout a walk; linear growth doubles in its last half, and √n is 1.4."""
    early, half, end = (reach[len(reach) // part - 1] for part in (16, 2, 1)) if len(reach) >= LEAST else (0, 0, 0)
    return end > 0 and end >= 1.5 * half and end >= 8 * early


def check_horizon(base: Baseline, seen: LongWalk) -> Check:
    """Return whether counters count on far from the beginning, and the walk has met no end of a table."""
    walk, start = base.walk, base.states[-1]
    if seen.failure is not None:
        return Check("horizon", False, f"the graph fails: {seen.failure}", f"step {seen.steps}", seen.steps)
    grown = f"; states of {walk.past(seen.last):,} steps" if walk.layout.grows else ""
    if not seen.counters:
        return Check("horizon", True if grown else None, f"no state counts steps{grown}")
    beyond = []
    for name, delta in seen.counters.items():
        dtype = start[name].dtype
        for horizon in HORIZONS:
            if dtype.kind in "iu" and horizon + AFTER * float(np.max(np.abs(delta))) > np.iinfo(dtype).max:
                beyond.append(f"; {named(name)} is {dtype} and ends at {np.iinfo(dtype).max:,}")
                break
            place = f"{named(name)}, {horizon:,}"
            if (
                problem := _counts_on(base, {**start, name: np.full_like(start[name], horizon)}, name, delta)
            ) is not None:
                return Check("horizon", False, f"{named(name)} at {horizon:,}: {problem}", place, horizon)
    counted = f"{listed(map(named, seen.counters))}: on, or around a ring, at 2^20, 2^24 + 1 and 2^31 + 7"
    return Check("horizon", True, f"{counted}{''.join(beyond)}{grown}", value=HORIZONS[-1])


def _counts_on(base: Baseline, state: State, name: str, delta: npt.NDArray[Any]) -> str | None:
    """Return what goes wrong in the steps after a counter was set, or None."""
    walk = base.walk
    for at in range(min(AFTER, base.steps)):
        try:
            outputs, after = walk.read(at, at + 1, state)
        except StepError as error:
            return f"the graph fails: {error}" if at else _end(base, state, name, str(error))
        moved = after[name].astype(np.float64) - state[name].astype(np.float64)
        if after[name].min() >= 0 and 2 * after[name].flat[0] < state[name].flat[0]:
            return None  # it is a place in a ring
        if not np.array_equal(moved, delta):
            return f"it moves by {moved.flat[0]:g} a step, expected {delta.flat[0]:g}"
        if bad := [result for result in walk.results if not _finite(outputs[result])]:
            return f"{named(bad[0])} is not finite"
        state = after
    return None


def _end(base: Baseline, state: State, name: str, failure: str) -> str | None:
    """Return at which value of a counter the graph fails; None if the counter begins anew before it, as in a ring."""
    low, high = int(base.states[-1][name].flat[0]), int(state[name].flat[0])
    after = 0
    while low + 1 < high:
        middle = (low + high) // 2
        try:
            after = int(base.walk.read(0, 1, {**state, name: np.full_like(state[name], middle)})[1][name].flat[0])
            low = middle
        except StepError as error:
            high, failure = middle, str(error)
    return None if 0 <= after < low else f"the graph fails from {high:,} on: {failure}"
