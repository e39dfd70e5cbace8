"""Short checks of a graph that carries states: each runs one document in another way, and compares."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.graph_proof.compare import Deviation, difference, largest, moving_axis, tolerance_of
from xlexport.graph_proof.graph_file import Port, Recurrence
from xlexport.graph_proof.report import Check
from xlexport.graph_proof.walk import GraphWalk, State, StepError, reason_of
from xlruntime.devices import Device
from xlruntime.messages import listed, named
from xlruntime.providers import onnxruntime_errors, owned_value

__all__ = [
    "Baseline",
    "check_buffers",
    "check_cuts",
    "check_fresh",
    "check_recurrences",
    "check_repeat",
    "check_rows",
    "check_save",
    "check_state_read",
    "check_state_written",
    "read_baseline",
]

LONGEST = 256  # steps of the document of all short checks
WARM = 16  # steps before a state is changed
ROWS = 3
HUGE = 1e6  # by which a state is changed that shows no effect otherwise: weights near zero hide it
CPU = Device("cpu")
ONE_LENGTH = "steps overlap, and a call reads one of them"
FAINT = 1e-4  # a difference up to which rounding may grow in the document of the short checks
FEWEST = 4  # steps of that document, however fast rounding grows
LAYERS = 8  # the most that a state may stack
PIECES = (7, 3)  # steps a call, besides one
Results = list[dict[str, npt.NDArray[Any]]]


@dataclass(frozen=True)
class Baseline:
    """A short document, read step by step: what all short checks compare with.

    Attributes:
        results: of each step; states: after each step.
        tolerance: the difference that rounding explains.
        is_chaotic: whether the document ends early, because later results depend on the last digits.
    """

    walk: GraphWalk
    results: Results
    states: list[State]
    tolerance: float
    is_chaotic: bool

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.results)

    def judged(self, name: str, results: Results, state: State, detail: str) -> Check:
        """Return the check of another run of the document, step by step."""
        apart = largest(results, self.results, self.tolerance)
        return self.verdict(name, self.worst(apart, self.apart(state, self.states[-1])), detail)

    def apart(self, found: State, expected: State) -> Deviation:
        """Return the largest difference of the last states of two runs."""
        apart = largest([found], [expected], self.tolerance)
        return Deviation(apart.value, apart.place and apart.place.replace("step 0", "at the end"))

    def worst(self, *found: Deviation) -> Deviation:
        """Return the first difference that rounding does not explain, or the largest."""
        beyond = (apart for apart in found if not apart.value <= self.tolerance)
        return next(beyond, max(found, key=lambda apart: apart.value))

    def verdict(self, name: str, apart: Deviation, detail: str) -> Check:
        """Return the check of a largest difference."""
        passed = apart.value <= self.tolerance
        return Check(name, passed, detail, None if passed else apart.place, apart.value)


def read_baseline(walk: GraphWalk, steps: int) -> Baseline:
    """Return the document of the short checks, of at most `steps` steps; errors as `GraphWalk.run`."""
    steps = int(min(steps, LONGEST, walk.steps))
    results, states, state = Results(), list[State](), walk.first_state()
    moved, shaken, is_chaotic = walk.first_state(), Results(), False
    generator = np.random.default_rng(0)
    for at in range(steps):
        feeds = walk.feeds(at, at + 1, state)
        try:
            outputs, state = walk.run(feeds)
        except StepError:  # the long walk says so, if the beginning is long enough to check the rest
            if at < 2:
                raise
            break
        results.append({name: outputs[name] for name in walk.observed})
        states.append(state)
        if not walk.layout.grows:
            outputs, moved = walk.run(_shaken({**feeds, **moved}, generator))
            shaken.append({name: outputs[name] for name in walk.observed})
            real = {name: value for name, value in results[-1].items() if value.dtype.kind == "f"}
            if is_chaotic := at + 1 >= FEWEST and largest(shaken[-1:], [real], np.inf).value > FAINT:
                break
    sensitivity = largest(shaken, results[: len(shaken)], np.inf).value
    dtypes = [port.dtype for port in (*walk.file.inputs, *walk.file.outputs)]
    return Baseline(walk, results, states, tolerance_of(dtypes, sensitivity), is_chaotic)


def _shaken(feeds: Mapping[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """Return inputs whose last binary digits have changed."""
    signs = (generator.integers(-1, 2, value.shape) for value in feeds.values())
    return {
        name: np.asarray(value * (1 + np.finfo(value.dtype).eps * sign), value.dtype)
        if value.dtype.kind == "f"
        else value
        for (name, value), sign in zip(feeds.items(), signs, strict=True)
    }


def check_fresh(base: Baseline) -> Check:
    """Return whether the document has the same results again, such as after a long walk."""
    results, state = base.walk.along(0, base.steps)
    return base.judged("fresh", results, state, "the short document again, after the long walk")


def check_cuts(base: Baseline, contexts: bool) -> Check:
    """Return whether one call that reads many steps has the results of many calls; `contexts`: steps overlap."""
    walk, steps, length = base.walk, base.steps, base.walk.length
    if walk.layout.stream is None or steps < 2:
        return Check("cuts", None, "one step only" if steps < 2 else "a step has a fixed size: no free axis")
    hint = "" if contexts else "; if steps overlap, give --context, and --length if the graph takes one only"
    try:
        two = walk.read(0, 2, walk.first_state())[0]
    except StepError as error:
        if contexts:
            return Check("cuts", None, ONE_LENGTH)
        what = f"it takes {length} along its free axis, and fails at {2 * length}{hint} ({error})"
        return Check("cuts", False, what, f"axis {walk.layout.stream}")
    axes = {name: moving_axis(base.results[0][name], two[name]) for name in walk.observed}
    if contexts and all(axis is None for axis in axes.values()):
        return Check("cuts", None, ONE_LENGTH)
    most = _most(base)
    wholes, last = walk.along(0, most, by=most)
    whole, worst = wholes[0], Deviation()
    for by in (1, *(by for by in PIECES if by < most)):
        parts, state = walk.along(0, most, by=by)
        worst = base.worst(worst, _joined(base, parts, whole, axes, by), base.apart(state, last))
        if not worst.value <= base.tolerance:
            detail = f"one call of {most * length} against calls of {by * length}{hint}"
            return Check("cuts", False, detail, worst.place, worst.value)
    return base.verdict("cuts", worst, f"one call of {most * length} against calls of {length} and others")


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


def _joined(
    base: Baseline, parts: Results, whole: Mapping[str, npt.NDArray[Any]], axes: Mapping[str, int | None], by: int
) -> Deviation:
    """Return how far pieces of `by` steps, put together, are from the whole."""
    worst = Deviation()
    for name, axis in axes.items():
        if axis is None:  # one result a call: of the last one
            worst = base.worst(worst, Deviation(difference(parts[-1][name], whole[name]), f"{named(name)}, last call"))
            continue
        total, at = whole[name].shape[axis], 0
        sizes = [part[name].shape[axis] for part in parts]
        if sum(sizes) < total:
            return Deviation(np.inf, f"{named(name)}: {sum(sizes)} results, and {total} in one call")
        extra = (sum(sizes) - total) // max(1, len(sizes) - 1)  # of the context
        for number, (part, size) in enumerate(zip(parts, sizes, strict=True)):
            kept = size - (extra if number else 0)
            values = np.take(part[name], range(size - kept, size), axis)
            expected = np.take(whole[name], range(at, min(at + kept, total)), axis)
            worst = base.worst(worst, Deviation(difference(values, expected), f"{named(name)}, step {number * by}"))
            at += kept
    return worst


def check_repeat(base: Baseline) -> Check:
    """Return whether two runs of the document agree."""
    results, state = base.walk.along(0, base.steps)
    return base.judged("repeat", results, state, f"{base.steps} steps twice")


def check_save(base: Baseline) -> Check:
    """Return whether states continue after they were written to bytes, in a new session."""
    half = base.steps // 2
    if not half:
        return Check("save", None, "one step only")
    state, saved = base.states[half - 1], io.BytesIO()
    np.savez(saved, allow_pickle=False, **{f"state{at}": value for at, value in enumerate(state.values())})
    with np.load(io.BytesIO(saved.getvalue()), allow_pickle=False) as arrays:
        restored = {name: arrays[f"state{at}"] for at, name in enumerate(state)}
    results, state = base.walk.reopened().along(half, base.steps, restored)
    detail = f"saved after {half} steps ({len(saved.getvalue()):,} bytes), restored in a new session"
    return base.judged("save", [*base.results[:half], *results], state, detail)


def check_buffers(base: Baseline) -> Check:
    """Return whether one buffer may hold a state as input and output; a right graph may write it too early for that."""
    walk = base.walk
    if walk.layout.grows:
        return Check("buffers", None, "the states grow, so no buffer holds both")
    binding = walk.session.io_binding()
    values = {name: owned_value(value, CPU) for name, value in walk.first_state().items()}
    results = Results()
    for at in range(base.steps):
        feeds = walk.feeds(at, at + 1, {})
        for name, value in feeds.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(value))
        for pair in walk.pairs:
            binding.bind_ortvalue_input(pair.input, values[pair.input])
            binding.bind_ortvalue_output(pair.output, values[pair.input])
        for name in walk.results:
            binding.bind_output(name)
        try:
            walk.session.run_with_iobinding(binding)
        except onnxruntime_errors() as error:
            raise StepError(reason_of(error)) from error
        bound = binding.get_outputs()
        names = [*(pair.output for pair in walk.pairs), *walk.results]
        found = {name: value.numpy() for name, value in zip(names, bound, strict=True)}
        results.append({name: found[name].copy() for name in walk.observed})
        binding.clear_binding_outputs()
    state = {name: value.numpy() for name, value in values.items()}
    check = base.judged("buffers", results, state, "one buffer for each state as input and output, against two")
    differs = "one buffer as input and output differs, so bind two: the graph may be right"
    return check if check.passed else replace(check, passed=None, detail=differs)


def check_state_written(base: Baseline) -> Check:
    """Return whether each state changes, as numbers that an input or constant only passes through do not."""
    walk = base.walk
    before = [walk.first_state(), *base.states[:-1]]
    wrong = {}
    for pair, port in zip(walk.pairs, walk.states, strict=True):
        for part, index in _parts(walk, port):
            old, new = ([state[pair.input][index] for state in states] for states in (before, base.states))
            if all(difference(one, two) == 0 for one, two in zip(old, new, strict=True)):
                wrong[f"{named(pair.output)}{part}"] = "its input, unchanged"
            elif base.steps > 1 and all(difference(one, new[0]) == 0 for one in new):
                wrong[f"{named(pair.output)}{part}"] = "the same numbers after each step"
    if wrong:
        detail = listed(f"{name}: {what}" for name, what in wrong.items())
        return Check("state written", False, detail, f"{next(iter(wrong))}, step 0", len(wrong))
    return Check("state written", True, f"each of {len(walk.pairs)} changes from step to step", value=len(walk.pairs))


def check_state_read(base: Baseline) -> Check:
    """Return whether each state, if it is changed after some steps, changes the results that follow."""
    walk = base.walk
    warm = min(WARM, base.steps // 2)
    if not warm:
        return Check("state read", None, "one step only")
    start = base.states[warm - 1]
    silent, faint, least = [], [], Deviation(np.inf)
    for port, (part, index) in ((one, part) for one in walk.states for part in _parts(walk, one)):
        changed = ({**start, port.name: value} for value in _others(base, port, start, index))
        effects = enumerate(_effect(base, warm, state) for state in changed)
        at, effect = next(((at, one) for at, one in effects if one.value > 0), (0, None))
        if effect is None:
            silent.append(f"{named(port.name)}{part}")
            continue
        faint += [f"{named(port.name)}{part}"] if at else []
        least = min(least, effect, key=lambda one: one.value)
    if silent:
        detail = f"changing {listed(silent)} after {warm} steps changes no result of the next {base.steps - warm}"
        return Check("state read", False, detail, silent[0], 0.0)
    note = f"; {listed(faint)} only by numbers of {HUGE:g}" if faint else ""
    detail = f"forgetting a state after {warm} steps changes what follows{note}"
    return Check("state read", True, detail, least.place, least.value)


def _parts(walk: GraphWalk, port: Port) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the parts of a state that a layer each may carry, such as two of [2, batch, 128], as text and index.

    The axis of layers comes before that of rows, and is short: a channel of a longer one may be constant.
    """
    shape, rows = port.shape or (), walk.layout.place(port, walk.layout.rows)
    for at, size in enumerate(shape[:-1] if rows is None else shape[:rows]):
        if isinstance(size, int) and 1 < size <= LAYERS and len(shape) > 2:
            return [(f"[{':, ' * at}{layer}]", (*[slice(None)] * at, layer)) for layer in range(size)]
    return [("", (...,))]


def _others(base: Baseline, port: Port, state: State, index: tuple[Any, ...]) -> Iterator[npt.NDArray[Any]]:
    """Yield a state with other values in a part of it: forgotten ones, then very large ones."""
    value, first = state[port.name], base.walk.first_state()[port.name]
    forgotten = first if first.shape == value.shape and difference(first[index], value[index]) else np.zeros_like(value)
    if value.dtype.kind in "iub":
        other = ~value if value.dtype.kind == "b" else value + value.dtype.type(1)
    else:
        most = min(HUGE, float(np.finfo(value.dtype).max) / 8)
        noise = np.random.default_rng(1).standard_normal(value.shape)
        other = (value.astype(np.float64) + most * noise).astype(value.dtype)
    for new in (forgotten, other):
        changed = value.copy()
        changed[index] = new[index]
        yield changed


def _effect(base: Baseline, start: int, state: State) -> Deviation:
    """Return the largest change of the results from step `start` on; an error of the graph is one, too."""
    try:
        results, _ = base.walk.along(start, base.steps, state)
    except StepError:
        return Deviation(np.inf, f"step {start}")
    return largest(results, base.results[start:], np.inf)


def check_rows(base: Baseline) -> Check:
    """Return whether rows of a batch have the results that each has alone."""
    walk = base.walk
    carried = any(walk.layout.place(port, walk.layout.rows) is not None for port in walk.states)
    if not any(walk.layout.place(source.port, walk.layout.rows) is not None for source in walk.sources):
        return Check("rows", None, "no free axis of rows")
    try:
        together, last = walk.along(0, base.steps, rows=tuple(range(ROWS)))
    except StepError as error:  # states without the axis are of one row
        return Check("rows", False if carried else None, f"it fails with {ROWS} rows: {error}")
    worst = Deviation()
    for row in range(ROWS):
        alone, state = (base.results, base.states[-1]) if row == 0 else walk.along(0, base.steps, rows=(row,))
        for name in walk.observed:
            axis = moving_axis(alone[0][name], together[0][name])
            if axis is None:
                detail = f"{named(name)} has shape {together[0][name].shape} for {ROWS} rows"
                return Check("rows", False, detail, named(name))
            picked = [{name: np.take(one[name], [row], axis)} for one in together]
            apart = largest(picked, [{name: one[name]} for one in alone], base.tolerance)
            worst = base.worst(worst, Deviation(apart.value, f"row {row}, {apart.place}"))
        for port in walk.states:
            axis = walk.layout.place(port, walk.layout.rows)
            if axis is not None:
                apart = Deviation(difference(np.take(last[port.name], [row], axis), state[port.name]), named(port.name))
                worst = base.worst(worst, Deviation(apart.value, f"row {row}, {apart.place}"))
    return base.verdict("rows", worst, f"{ROWS} rows together against each alone, {base.steps} steps")


def _begins(one: Recurrence, carried: Collection[str]) -> bool:
    """Return whether a recurrence begins with carried states; loops may have counters and sums of their own, too."""
    begun = [name in carried for name in one.start]
    return any(begun) if one.operator in ("Scan", "Loop") else all(begun)


def check_recurrences(walk: GraphWalk, cuts: Check) -> Check:
    """Return whether recurrences begin with a carried state, or whether those that do not read only within a step."""
    found = walk.file.recurrences
    if not found:
        return Check("recurrence", None, "no LSTM, GRU, RNN, Scan or Loop")
    carried = walk.file.reached([port.name for port in walk.states])
    anew = [one for one in found if not _begins(one, carried)]
    chosen = {one.choice for one in found if one.choice and one not in anew}  # another branch begins with a state
    anew = [one for one in anew if one.choice not in chosen]
    if not anew:
        return Check("recurrence", True, f"{len(found)} of {len(found)} begin with a carried state", value=len(found))
    seen = listed(f"{one.operator} {named(one.name)}" for one in anew)
    if cuts.passed:
        return Check(
            "recurrence", True, f"{seen} begin anew in each call, but any cut has the same results", value=len(anew)
        )
    if walk.pairs and cuts.passed is None and all(one.backwards for one in anew):
        return Check("recurrence", None, f"{seen} read in both directions, so only within a step", value=len(anew))
    return Check(
        "recurrence",
        False,
        f"{len(anew)} of {len(found)} begin anew in each call: {seen}",
        named(anew[0].name),
        len(anew),
    )
