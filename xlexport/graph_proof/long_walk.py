"""Walk many steps: how far the states reach, what counts, and whether another graph stays beside this one."""

from __future__ import annotations

import bisect
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.callbacks import Progress
from xlexport.graph_proof.checks import SMALL, Baseline
from xlexport.graph_proof.compare import Deviation, Values, worst
from xlexport.graph_proof.counterpart import OtherGraph, OtherModule
from xlexport.graph_proof.cuts import Cuts
from xlexport.graph_proof.graph_file import Port
from xlexport.graph_proof.report import Check
from xlexport.graph_proof.walk import GraphWalk, State, StepError
from xlruntime.messages import listed, named

__all__ = ["LongWalk", "check_horizon", "check_other", "check_range", "walk_long"]

FLOAT16, FLOAT32 = 65_504.0, float(1 << 24)
HORIZONS = (1 << 20, (1 << 24) + 1, (1 << 31) + 7)
AFTER = 8  # steps that follow a counter that was set
SHOWN = 100  # steps between two marks of progress
LEAST = 40  # steps from which growth can be told
BLOCK = 64  # steps that the other graph reads in one call
LARGER = (8.0, 64.0, 512.0, 4096.0)  # times its value: at each, a state that forgets shrinks
FORGOTTEN = 256  # steps in which it does


@dataclass
class LongWalk:
    """What a walk has seen.

    Attributes:
        steps: steps that were read; stopped: why not all, in words; failure: the error of the graph in the next step.
        reach: the largest absolute value of each state so far, after each step.
        counters: states that grow by the same amount in each step, with the amount.
        broken: the first place that is no finite number.
        apart: the largest difference from the other graph.
        fed: what it read first, step by step.
        last: the states in the end.
    """

    steps: int = 0
    stopped: str = ""
    failure: str | None = None
    reach: dict[str, list[float]] = field(default_factory=dict)
    counters: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    broken: str | None = None
    apart: Deviation = field(default_factory=Deviation)
    fed: list[dict[str, npt.NDArray[Any]]] = field(default_factory=list)
    last: State = field(default_factory=dict)


def walk_long(
    base: Baseline,
    cuts: Cuts | None,
    steps: int,
    seconds: float,
    other: OtherGraph | OtherModule | None,
    progress: Progress,
) -> LongWalk:
    """Walk `steps` steps from the first state, or as many as `seconds` and the files of inputs allow.

    Args:
        cuts: takes the steps, too.
    """
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
            size = float(np.max(np.abs(value), initial=0)) if value.dtype.kind != "b" else 1.0
            seen.reach[name].append(max([size, *seen.reach[name][-1:]]))
        bad = [name for name in outputs if not _finite(outputs[name], or_log=name in walk.results)]
        if bad and seen.broken is None:
            seen.broken = f"{named(bad[0])}, step {step}"
        deltas = _still_counting(deltas, state, after)
        if cuts is not None:
            cuts.add(step, state, outputs, after)
        if other is not None and not (base.is_chaotic and step >= base.steps) and np.isfinite(seen.apart.share):
            read = {source.port.name: feeds[source.port.name] for source in walk.sources}
            seen.fed += [read] if step < min(BLOCK, base.steps) else []
            try:
                seen.apart = worst((seen.apart, _apart(base, other.step(read), outputs, f"step {step}")))
            except StepError as error:
                seen.apart = Deviation(np.inf, f"step {step}, where the other graph fails: {error}", np.inf)
        state, seen.steps = after, step + 1
        if seen.steps % SHOWN == 0:
            progress(seen.steps, steps)
        if time.monotonic() > until:
            seen.stopped = f" (the time for them was over after {seconds:.0f} s)"
            break
    if cuts is not None:
        cuts.again(state)
    seen.counters, seen.last = deltas or {}, state
    return seen


def _finite(value: npt.NDArray[Any], or_log: bool = False) -> bool:
    """Return whether all are numbers; `or_log`: or minus infinity, the logarithm of what cannot be."""
    return value.dtype.kind != "f" or bool((np.isfinite(value) | (or_log & (value == -np.inf))).all())


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


def _apart(base: Baseline, found: Values, expected: Values, place: str, least: float = 0.0) -> Deviation:
    """Return how far results are apart that may differ in axes of size one."""
    pairs = {name: (value.reshape(-1), expected[name].reshape(-1)) for name, value in found.items()}
    one, two = ({name: pair[at] for name, pair in pairs.items()} for at in range(2))
    return base.scales.compare(one, two, place, least)


def check_other(base: Baseline, seen: LongWalk, other: OtherGraph | OtherModule | None) -> Check:
    """Return whether another graph has the same results, step by step and in one call."""
    if other is None:
        return Check("other", None, "no other graph or module given")
    detail = f"{base.steps} steps, after which rounding decides" if base.is_chaotic else f"{seen.steps:,} steps"
    if isinstance(other, OtherGraph) and (left := {*base.walk.observed} - {*other.names}):
        detail += f"; without {listed(map(named, sorted(left)))}, which it lacks"
    check = base.verdict("other", seen.apart, detail)
    if check.passed is False or not isinstance(other, OtherGraph) or other.walk.layout.stream is None:
        return check
    if base.walk.layout.stream == other.walk.layout.stream and any(one.context for one in base.walk.sources):
        return check
    try:
        together = other.together(seen.fed)
    except StepError:  # it takes one step a call, or has no result for each
        return check
    count = len(seen.fed)
    pairs = enumerate(zip(together, base.results, strict=False))
    apart = [_apart(base, one, two, f"step {at} of {count} in one call", base.across) for at, (one, two) in pairs]
    detail = f"{detail}; also {count} steps in one call"
    return base.verdict("other", worst((seen.apart, *apart)), detail, across=True)


def check_range(base: Baseline, seen: LongWalk) -> Check:
    """Return whether the states stay in a range: finite, and without a growth that has no end."""
    walk = base.walk
    most = max((reach[-1] for reach in seen.reach.values()), default=0.0)
    if seen.broken is not None:
        return Check("range", False, "not a finite number", seen.broken, most)
    marks = sorted({mark for mark in (10, 100, 1000, 10_000) if mark < seen.steps} | {seen.steps})
    lines = [
        f"{named(name)} {', '.join(f'{reach[mark - 1]:.4g}' for mark in marks)}"
        for name, reach in sorted(seen.reach.items(), key=lambda one: -one[1][-1])
    ]
    detail = f"largest after {', '.join(f'{mark:,}' for mark in marks)} steps{seen.stopped}: {listed(lines)}"
    floats = [port for port in walk.states if port.dtype.kind == "f"]
    for limit, words in ((FLOAT16, "float16"), (FLOAT32, "2^24, where float32 ceases to count")):
        if large := [named(port.name) for port in floats if seen.reach[port.name][-1] > limit]:
            detail += f"; {listed(large)} beyond {words}"
    endless = []
    for port in floats:
        reach = seen.reach[port.name]
        reach = reach[: bisect.bisect_left(reach, reach[-1]) + 1] if port.dtype.itemsize == 2 else reach  # it may stick
        if not _grows(reach) or (port.dtype.itemsize > 4 and port.name in seen.counters):
            continue
        end = _end_of_growth(walk, port, seen)
        endless += [] if end else [named(port.name)]
        detail += f"; {named(port.name)} still grows{f', but {end}' if end else ''}"
    if not endless:
        return Check("range", True, detail, None, most)
    counts = " as a counter, which float32 holds to 16,777,216" if set(endless) & set(map(named, seen.counters)) else ""
    detail = f"{listed(endless)} grows throughout the walk, and forgets nothing{counts}; {detail}"
    return Check("range", False, detail, f"{endless[0]}, step {seen.steps - 1}", most)


def _grows(reach: Sequence[float]) -> bool:
    """Return whether a state grows to the end of a walk as fast as steps count, or faster; √n is slower."""
    if len(reach) < LEAST:
        return False
    first, half, *parts = (reach[len(reach) * part // 16 - 1] for part in (1, 8, 10, 12, 14, 16))
    grown = [new - old for old, new in itertools.pairwise((half, *parts))]
    steady = min(grown) > 0 and all(4 * new >= old for old, new in itertools.pairwise(grown))
    return steady and parts[-1] >= 1.5 * half and parts[-1] >= 8 * first


def _end_of_growth(walk: GraphWalk, port: Port, seen: LongWalk) -> str:
    """Return what ends the growth of a state, or an empty text: larger values shrink, or it was for random inputs only.

    A sum keeps what it holds, however large it is. An average, a bound or a cell of an LSTM whose gates are not quite
    open gives some of it back.
    """
    value, steps = seen.last[port.name], min(FORGOTTEN, seen.steps)
    place = np.unravel_index(np.argmax(np.abs(value)), value.shape)
    lost = steps * float(np.finfo(port.dtype).eps)  # the part that rounding takes
    most = float(np.finfo(port.dtype).max) / 8

    def growth(times: float, walk: GraphWalk = walk) -> float:
        state: State = {**seen.last, port.name: (value * times).astype(port.dtype)}
        before, sizes = abs(float(state[port.name][place])), list[float]()
        try:
            for at in range(seen.steps - steps, seen.steps):
                _, state = walk.read(at, at + 1, state)
                sizes.append(abs(float(state[port.name][place])))
        except StepError:
            return np.inf
        return (max(sizes[steps // 2 :]) - before) / before  # the largest, as it may swing

    if (once := growth(1.0)) < 0 or (once == 0 and port.dtype.itemsize > 2):
        return "not if it reads the last steps again"
    grown = {times: growth(times) for times in LARGER if times * abs(float(value[place])) < most}
    if any(times * part < once / 2 if times == LARGER[0] else part < -lost for times, part in grown.items()):
        return "gives back what is larger: it has an end"
    drawn = [one for one in walk.sources if one.data is None and one.axis is not None and one.low < one.high]
    silent = [replace(one, low=0.0, high=0.0) if one in drawn else one for one in walk.sources]
    if drawn and growth(1.0, replace(walk, sources=tuple(silent))) < -lost:
        return "only for random inputs, and zeros shrink it: try real ones with --input"
    return ""


def check_horizon(base: Baseline, seen: LongWalk) -> Check:
    """Return whether counters count on far from the beginning, and the walk has met no end of a table."""
    walk, start = base.walk, base.last
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
            far = {**start, name: np.full_like(start[name], horizon)}
            if (problem := _counts_on(base, far, name, delta)) is not None:
                return Check("horizon", False, f"{named(name)} at {horizon:,}: {problem}", place, horizon)
    counted = f"{listed(map(named, seen.counters))}: on, around a ring or to a bound, at 2^20, 2^24 + 1 and 2^31 + 7"
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
        if after[name].min() >= 0 and after[name].flat[0] < 0.99 * state[name].flat[0]:
            return None  # a place in a ring, or a bound
        if not np.array_equal(moved, delta):
            return f"it moves by {moved.flat[0]:g} a step, expected {delta.flat[0]:g}"
        if bad := [result for result in walk.results if not _finite(outputs[result])]:
            return f"{named(bad[0])} is not finite"
        state = after
    return None


def _end(base: Baseline, state: State, name: str, failure: str) -> str | None:
    """Return at which value of a counter the graph fails; None if the counter begins anew before it, as in a ring."""
    low, high = int(base.last[name].flat[0]), int(state[name].flat[0])
    after = 0
    while low + 1 < high:
        middle = (low + high) // 2
        try:
            after = int(base.walk.read(0, 1, {**state, name: np.full_like(state[name], middle)})[1][name].flat[0])
            low = middle
        except StepError as error:
            high, failure = middle, str(error)
    return None if 0 <= after < low else f"the graph fails from {high:,} on: {failure}"
