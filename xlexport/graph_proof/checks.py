"""Short checks of a graph that carries states: each runs one document in another way, and compares."""

from __future__ import annotations

import io
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.graph_proof.compare import Deviation, Scales, moving_axis, rounding_of, worst
from xlexport.graph_proof.graph_file import Port, Recurrence
from xlexport.graph_proof.pairs import READ_ONLY
from xlexport.graph_proof.report import Check
from xlexport.graph_proof.walk import GraphWalk, State, StepError, open_graph, reason_of
from xlruntime.devices import Device
from xlruntime.messages import listed, named
from xlruntime.providers import onnxruntime_errors, owned_value

__all__ = [
    "Baseline",
    "Results",
    "check_buffers",
    "check_recurrences",
    "check_rows",
    "check_save",
    "check_state_read",
    "check_state_written",
    "read_baseline",
]

LONGEST = 256  # steps of the document of all short checks
WARM = (16, 8, 4, 2, 1)  # steps before a state is changed or saved, the most that half the document has
SOON = 4  # steps in which most states show
ROWS = 3
HUGE = 1e6  # by which a state is changed that shows no effect otherwise: weights near zero hide it
SMALL = 16  # numbers of a state that may be a flag or a counter
CPU = Device("cpu")
FAINT = 1e-4  # a difference up to which rounding may grow in the document of the short checks
FEWEST = 4  # steps of that document, however fast rounding grows
LAYERS = 8  # the most that a state may stack
STACKED = 32  # the same if the rows follow, as in [layers, batch, size]
DYNAMIC = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul"})
QUANTA = 25 / 255  # what the ranges of int8 activations may change, if they depend on the call
Results = list[dict[str, npt.NDArray[Any]]]


@dataclass(frozen=True)
class Baseline:
    """A short document, read step by step: what all short checks compare with.

    Attributes:
        results: of each step.
        warm: after how many steps `middle` is the state; 0: there is one step only.
        last: the states in the end.
        is_chaotic: whether the document ends early, because later results depend on the last digits.
    """

    walk: GraphWalk
    results: Results
    warm: int
    middle: State
    last: State
    scales: Scales
    is_chaotic: bool

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.results)

    def judged(self, name: str, results: Results, state: State, detail: str) -> Check:
        """Return the check of another run of the document, step by step, to its end."""
        start = self.steps - len(results)
        pairs = enumerate(zip(results, self.results[start:], strict=True), start)
        apart = [self.scales.compare(one, two, f"step {at}") for at, (one, two) in pairs]
        return self.verdict(name, worst([*apart, self.scales.compare(state, self.last, "at the end")]), detail)

    @property
    def across(self) -> float:
        """What calls with other numbers in them may differ by: the ranges of dynamic int8 depend on the call."""
        return QUANTA if DYNAMIC & self.walk.file.operators else 0.0

    def verdict(self, name: str, apart: Deviation, detail: str, across: bool = False) -> Check:
        """Return the check of a largest difference; `across`: of calls with other numbers in them."""
        note = f"; up to {QUANTA:.2f} is allowed, as each call has its own ranges of int8"
        detail += note if across and self.across else ""
        return Check(name, apart.passed, detail, None if apart.passed else apart.place, apart.value)


def read_baseline(walk: GraphWalk, steps: int, types: Iterable[np.dtype[Any]] = ()) -> Baseline:
    """Return the document of the short checks, of at most `steps` steps; errors as `GraphWalk.run`.

    Args:
        types: of another graph, whose digits count, too, if they are fewer.
    """
    steps = int(min(steps, LONGEST, walk.steps))
    kept, results, state, moved = dict[int, State](), Results(), walk.first_state(), walk.first_state()
    digits = max((float(np.finfo(one).eps) for one in types if one.kind == "f"), default=0.0)
    scales, is_chaotic = Scales(rounding_of([*walk.file.types, *types])), False
    generator = np.random.default_rng(0)
    for at in range(steps):
        feeds, before = walk.feeds(at, at + 1, state), state
        try:
            outputs, state = walk.run(feeds)
        except StepError:  # the long walk says so, if the beginning is long enough to check the rest
            if at < 2:
                raise
            break
        results.append({name: outputs[name] for name in walk.observed})
        kept |= {at + 1: state} if at + 1 in WARM else {}
        scales.learn(before, state)
        scales.learn(results[-2] if at else {name: np.zeros_like(one) for name, one in results[0].items()}, results[-1])
        outputs, moved = walk.run(_shaken({**feeds, **moved}, generator, digits))
        scales.shake(moved, state)
        apart = scales.shake({name: outputs[name] for name in walk.observed}, results[-1])
        is_chaotic = at + 1 >= FEWEST and apart > max(FAINT, scales.rounding) and not DYNAMIC & walk.file.operators
        if is_chaotic:
            break
    warm = next((at for at in WARM if 2 * at <= len(results)), 0)
    return Baseline(walk, results, warm, kept[warm] if warm else walk.first_state(), state, scales, is_chaotic)


def _shaken(feeds: Mapping[str, Any], generator: np.random.Generator, digits: float) -> dict[str, Any]:
    """Return inputs whose last binary digits have changed, or those of a type with fewer digits."""
    shaken = dict(feeds)
    for name, value in feeds.items():
        if value.dtype.kind == "f":
            part = max(float(np.finfo(value.dtype).eps), digits) * generator.integers(-1, 2, value.shape)
            with np.errstate(over="ignore", invalid="ignore"):  # an infinite state fails elsewhere
                shaken[name] = np.asarray(value + value * part, value.dtype)
    return shaken


def check_save(base: Baseline) -> Check:
    """Return whether states continue after they were written to bytes, in a new session."""
    if not base.warm:
        return Check("save", None, "one step only")
    saved = io.BytesIO()
    np.savez(saved, allow_pickle=False, **{f"state{at}": value for at, value in enumerate(base.middle.values())})
    with np.load(io.BytesIO(saved.getvalue()), allow_pickle=False) as arrays:
        restored = {name: arrays[f"state{at}"] for at, name in enumerate(base.middle)}
    reopened = replace(base.walk, session=open_graph(base.walk.file))
    results, state = reopened.along(base.warm, base.steps, restored)
    detail = f"saved after {base.warm} steps ({len(saved.getvalue()):,} bytes), restored in a new session"
    return base.judged("save", results, state, detail)


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


@dataclass(frozen=True, eq=False)
class _Part:
    """A state, or a part of it that a layer may carry, and its name as an input and an output."""

    port: Port
    index: tuple[Any, ...]
    before: str
    after: str

    def same(self, one: State, two: State) -> bool:
        """Return whether two states have the same numbers in it."""
        old, new = (state[self.port.name][self.index] for state in (one, two))
        return np.array_equal(old, new, equal_nan=new.dtype.kind == "f")


def _parts(walk: GraphWalk) -> list[_Part]:
    """Return the parts of states that a layer each may carry, such as two of [2, batch, 128].

    The axis of layers comes before that of rows, and is short: a channel of a longer one may be constant.
    """
    found = []
    for pair, port in zip(walk.pairs, walk.states, strict=True):
        shape, rows = port.shape or (), walk.layout.place(port, walk.layout.rows)
        axes = enumerate(shape[:-1] if rows is None else shape[:rows])
        most = STACKED if rows == 1 or shape[1:2] == (1,) else LAYERS
        at = next((at for at, size in axes if isinstance(size, int) and 1 < size <= most and len(shape) > 2), None)
        if at is None:
            found.append(_Part(port, (...,), named(port.name), named(pair.output)))
            continue
        for layer in range(int(shape[at])):
            place = f"[{':, ' * at}{layer}]"
            names = (f"{named(name)}{place}" for name in (pair.input, pair.output))
            found.append(_Part(port, (*[slice(None)] * at, layer), *names))
    return found


def check_state_written(base: Baseline) -> Check:
    """Return whether each state changes, or why it need not: some are flags, or hold what steps only read."""
    walk, parts = base.walk, _parts(base.walk)
    state = once = walk.first_state()
    unchanged, constant = set(parts), set(parts)
    for at in range(base.steps):
        before, (_, state) = state, walk.read(at, at + 1, state)
        once = once if at else state
        unchanged = {part for part in unchanged if part.same(before, state)}
        constant = {part for part in constant if part.same(once, state)}
        if at and not unchanged | constant:
            break
    still = [part for part in parts if part in unchanged or (part in constant and base.steps > 1)]
    changed = [part for part in parts if part not in still]
    wrong, notes = list[str](), list[str]()
    for part in still:
        if state[part.port.name].size:
            is_wrong, why = _unwritten(base, part, part in unchanged, [one.port for one in changed])
            (wrong if is_wrong else notes).append(f"{part.after}: {why}")
    if wrong:
        return Check("state written", False, "; ".join(wrong), f"{wrong[0].rpartition(': ')[0]}, step 0", len(wrong))
    detail = "; ".join([f"{len(changed)} of {len(parts)} change from step to step", *notes])
    return Check("state written", True if changed else None, detail, value=len(changed))


def _unwritten(base: Baseline, part: _Part, is_unchanged: bool, changed: Collection[Port]) -> tuple[bool, str]:
    """Return whether it is wrong that a part of a state stays the same, and why.

    Args:
        is_unchanged: it is its input; otherwise the first step changes it.
        changed: the states that change.
    """
    walk, port = base.walk, part.port
    first = walk.first_state()
    *_, other = _others(base, port, first, part.index)
    other_state = {**first, port.name: other}
    feeds = walk.feeds(0, 1, other_state)
    heard = [one.port for one in walk.sources if one.axis is not None and one.port.dtype.kind == "f"]
    loud = {one.name: feeds[one.name] * one.dtype.type(min(HUGE, np.finfo(one.dtype).max / 8)) for one in heard}
    try:
        passes = is_unchanged and part.same(other_state, walk.run(feeds)[1])
        wakes = not part.same(base.last, walk.run({**feeds, **loud})[1])
    except StepError:
        passes, wakes = False, True
    if not passes:
        if not is_unchanged and np.isin(base.last[port.name], (0, 1)).all() and first[port.name].size <= SMALL:
            return False, "a flag that the first step sets"
        follows = (port.shape or ())[len(part.index) :][:1]  # rows follow layers; a channel may be dead
        if wakes or (port in changed and not {*follows} & {1, *walk.layout.rows}):
            return False, "the same numbers in this document"
        return True, "the same numbers whatever it reads"
    output = next(pair.output for pair in walk.pairs if pair.input == port.name)
    if port not in changed:
        if output in walk.file.reached([one.port.name for one in walk.sources]):
            return False, "no step of this document changes what it holds"
        if changed and READ_ONLY.search(f"{port.name} {output}".lower()):
            return False, "passed through, as what steps only read"
    return True, "its input, unchanged"


def check_state_read(base: Baseline, seconds: float) -> Check:
    """Return whether each state, if it is changed after some steps, changes the results that follow.

    Args:
        seconds: after which the states that are left are not tried.
    """
    walk, warm, until = base.walk, base.warm, time.monotonic() + seconds
    if not warm:
        return Check("state read", None, "one step only")
    parts = [part for part in _parts(walk) if base.middle[part.port.name].size]
    untried = dict[_Part, None]()
    silent = parts
    for stop in (warm + SOON, base.steps):  # most states show at once, so that those that need longer come last
        for number in range(2):
            for part in silent:
                if time.monotonic() > until:
                    untried[part] = None
                    continue
                value = list(_others(base, part.port, base.middle, part.index))[number]
                if _changes(base, {**base.middle, part.port.name: value}, min(stop, base.steps)):
                    silent = [one for one in silent if one is not part]
    heard, notes = [part for part in parts if part not in silent], list[str]()
    if untried:
        names = listed(part.before for part in untried)
        notes.append(f"; not all tried, as {seconds:.0f} s were over: {names}; allow more, --set seconds=N")
    silent = [part for part in silent if part not in untried]
    alive = [part.port for part in heard]
    for reason, explained in (
        ("too short to be seen in results: give more with --first", [one for one in silent if _is_short(base, one)]),
        (
            "dead, as it stays the same",
            [one for one in silent if one.port in alive and one.same(base.middle, base.last)],
        ),
    ):
        if explained:
            notes.append(f"; {listed(part.before for part in explained)}: {reason}")
            silent = [part for part in silent if part not in explained]
    note = "".join(notes)
    if silent:
        names = listed(part.before for part in silent)
        detail = f"changing {names} after {warm} steps changes no result of the next {base.steps - warm}{note}"
        return Check("state read", False, detail, silent[0].before, 0.0)
    detail = f"changing each of {len(heard)} after {warm} steps changes what follows{note}"
    return Check("state read", True if heard else None, detail, value=len(heard))


def _is_short(base: Baseline, part: _Part) -> bool:
    """Return whether a state has at most one number along a free axis: attention to a single place is always 1."""
    axes = zip(part.port.shape or (), base.middle[part.port.name].shape, strict=False)
    return any(isinstance(axis, str) and axis not in base.walk.layout.rows and size < 2 for axis, size in axes)


def _others(base: Baseline, port: Port, state: State, index: tuple[Any, ...]) -> Iterator[npt.NDArray[Any]]:
    """Yield a state with other values in a part of it: forgotten ones, then very large ones."""
    value, first = state[port.name], base.walk.first_state()[port.name]
    is_new = first.shape == value.shape and not np.array_equal(first[index], value[index])
    forgotten = first if is_new else np.zeros_like(value)
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


def _changes(base: Baseline, state: State, stop: int) -> bool:
    """Return whether another state in the middle changes a result before step `stop`; an error is a change, too."""
    for step in range(base.warm, stop):
        try:
            outputs, state = base.walk.read(step, step + 1, state)
        except StepError:
            return True
        for name, value in base.results[step].items():
            if not np.array_equal(outputs[name], value, equal_nan=value.dtype.kind == "f"):
                return True
    return False


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
    axes = {name: moving_axis(base.results[0][name], together[0][name]) for name in walk.observed}
    rowless = [named(name) for name, axis in axes.items() if axis is None]
    apart = []
    for row in range(ROWS):
        alone, state = (base.results, base.last) if row == 0 else walk.along(0, base.steps, rows=(row,))
        for step, (one, all_rows) in enumerate(zip(alone, together, strict=True)):
            picked = {name: np.take(all_rows[name], [row], axis) for name, axis in axes.items() if axis is not None}
            expected = {name: one[name] for name in picked}
            apart.append(base.scales.compare(picked, expected, f"row {row}, step {step}", base.across))
        places = {port.name: walk.layout.place(port, walk.layout.rows) for port in walk.states}
        picked = {name: np.take(last[name], [row], axis) for name, axis in places.items() if axis is not None}
        expected = {name: state[name] for name in picked}
        apart.append(base.scales.compare(picked, expected, f"row {row}, at the end", base.across))
    note = f"; {listed(rowless)} has no axis of rows" if rowless else ""
    detail = f"{ROWS} rows together against each alone, {base.steps} steps{note}"
    if len(rowless) == len(axes) and not carried:
        return Check("rows", None, f"{listed(rowless)} has no axis of rows")
    return base.verdict("rows", worst(apart), detail, across=True)


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
    seen = listed(f"{one.operator} {named(one.name)}" for one in anew)
    passed: bool | None = True
    if not anew:
        detail = f"{len(found)} of {len(found)} begin with a carried state"
    elif cuts.passed:
        detail = f"{seen} begin anew in each call, but any cut has the same results"
    elif walk.pairs and all(
        one.operator in ("Scan", "Loop") or (one.backwards and cuts.passed is None) for one in anew
    ):
        passed, detail = None, f"{seen} begin anew in each call, which is right within a step, not along the stream"
    else:
        passed, detail = False, f"{len(anew)} of {len(found)} begin anew in each call: {seen}"
    return Check("recurrence", passed, detail, named(anew[0].name) if passed is False else None, len(anew or found))
