"""The horizon of a user's module: how many tokens of a document it reads before a table, a counter or a number ends.

A `Walk` reads one random document. From what its states did, a `Course` says what they are after any number of tokens:
counters have counted on, decays have decayed, and all else is as it was. There, the module reads `FEW` tokens more.
"""

from __future__ import annotations

import contextlib
import copy
import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from xlexport.errors import ExportError
from xlexport.families.recurrent.cuts import CALLS, LONGEST, check_cuts
from xlexport.families.recurrent.trial import Result, State, Trial, difference_of, many_calls
from xlruntime.errors import BundleGraphError
from xlruntime.evaluation import LARGEST_LENGTH
from xlruntime.memory import Memory

__all__ = ["Course", "End", "Far", "Horizon", "Probe", "Walk"]

WALK = 4096  # tokens before the checks from a state far into a document
FURTHER = 100_000  # as many if they take less than a fifth of the conversion
SHARE = 5
LARGEST_WALK = 1 << 16
SPACING, SNAPSHOTS = 256, 9  # a period of a power of two does not show
EARLY = 8  # tokens between the first snapshots, which a float16 counter still counts
FEW = 64  # tokens that are read from each state
TOKENS = (2**20, 2**24 + 1, 2**31 + 7)  # after which the module is tried
ENOUGH, UNLIMITED = 10**7, 2**31 + 7  # a module that reads fewer is refused; one that reads more has no limit
ROUNDED = 0.01  # of a counter's step: what rounding may change
HINT = "Documents have no end: use no table of positions, count in int64, and wrap phases and clocks."


class End(Exception):
    """The number of tokens of a document after which a module fails, how, and the remedy."""

    def __init__(self, tokens: int, cause: str, hint: str = HINT) -> None:
        super().__init__(cause)
        self.tokens, self.cause, self.hint = tokens, cause, hint


class Far(Trial):
    """Calls that begin with a state far into a document, which errors name by the tokens before."""

    def __init__(self, trial: Trial, state: State, token: int = 0) -> None:
        vars(self).update(vars(trial))
        self.state, self.token = state, token

    def error(self, method: str, problem: str, hint: str) -> ExportError:
        """Return the error that names the module's class and method."""
        before = f"after {self.token:,} tokens of a document, " if self.token else ""
        return super().error(method, f"{before}{problem}", hint)

    def first(self, rows: int = 1) -> State:
        """Return the state of `rows` rows, in memory of its own."""
        return {name: value.repeat(rows, *[1] * (value.dim() - 1)) for name, value in self.state.items()}


class Walk:
    """One document of random tokens: how many a module has read, and the state after them."""

    def __init__(self, trial: Trial) -> None:
        self.state, self.token = trial.first(), 0
        self.random = torch.Generator().manual_seed(0)

    def read(self, trial: Trial, count: int) -> Walk:
        """Read further tokens; raise End if the module cannot."""
        for start in range(0, count, LONGEST):
            tokens = torch.randint(trial.n_token, (1, min(LONGEST, count - start)), generator=self.random)
            state, rest = self.state, tokens
            try:
                if "segment" not in trial.forms:  # the checks of each call cost a third: the last one is enough
                    with contextlib.suppress(Exception):
                        for token in tokens[:, :-1].unbind(dim=1):
                            _, state = trial.model.step(token, state)
                        rest = tokens[:, -1:]
                _, self.state = trial.read(rest, state if rest is not tokens else self.state)
            except ExportError as error:
                raise self._end(trial, tokens, error) from error
            self.token += tokens.shape[1]
        return self

    def _end(self, trial: Trial, tokens: Tensor, error: ExportError) -> End:
        """Return how many tokens a module reads before an error, unless a token or a segment's length is the cause."""
        states = {0: self.state}

        def fails(count: int) -> ExportError | None:
            try:
                _, states[count] = trial.read(tokens[:, :count], self.state, length=EARLY)
            except ExportError as other:
                return other
            return None

        if fails(tokens.shape[1]) is None:
            raise error
        bad = _first(0, tokens.shape[1], lambda count: fails(count) is not None)
        trial.read(tokens[:, bad - 1 : bad], trial.first())
        for name, value in states[bad - 1].items():
            if value.is_floating_point() and bool((value.abs() > math.sqrt(torch.finfo(value.dtype).max)).any()):
                return _growth(self.token + bad - 1, name, value)
        return End(self.token + bad - 1, _cause(fails(bad) or error))


class Course:
    """The states of a document as functions of its length: counters count on, decays decay, all else stays."""

    def __init__(self, trial: Trial, walk: Walk, spacing: int) -> None:
        """Read on, by `spacing` tokens between snapshots, and then a few tokens one by one."""
        self.snapshots = [walk.state]
        for _ in range(SNAPSHOTS - 1):
            self.snapshots.append(walk.read(trial, spacing).state)
        singles, self.spacing, self.token = [walk.state], spacing, walk.token
        for token in range(1, SNAPSHOTS):
            singles.append(trial.read(torch.tensor([[token % trial.n_token]]), singles[-1])[1])
        self.laws = {name: _Law.of(name, self.snapshots, singles, spacing) for name in walk.state}
        for name, law in self.laws.items():
            if (slope := self._slope(name)) < 0:  # all of the state fades, though not each element steadily
                self.laws[name] = replace(law, factor=torch.full_like(law.value, slope))
        slow = any(bool((law.jump != 0).any()) for law in self.laws.values())
        self.moves = slow or any(bool((law.step != 0).any() | (law.factor != 0).any()) for law in self.laws.values())
        self.length = spacing if slow else FEW  # of tokens that each attempt reads

    def state(self, token: int) -> State:
        """Return the state after `token` tokens."""
        return {name: law.at(token - self.token) for name, law in self.laws.items()}

    def stops(self, walk: Walk) -> bool:
        """Return whether a counter has stopped between the snapshots and where a document is now."""
        laws, tokens = self.laws.items(), walk.token - self.token
        return any(bool(law.stopped(law.at(0), walk.state[name], tokens).any()) for name, law in laws)

    def growth(self) -> End | None:
        """Return when a state overflows whose size has grown by one factor after the other; sums grow ever slower."""
        for name, value in self.snapshots[-1].items():
            if (slope := self._slope(name)) > 0:
                left = math.log(torch.finfo(value.dtype).max) - float(value.double().abs().amax().log())
                return _growth(self.token + int(left / slope), name, value)
        return None

    def _slope(self, name: str) -> float:
        """Return what the logarithm of a state's size gains with every token, if always about the same; otherwise 0."""
        values = [state[name].double().abs() for state in self.snapshots if state[name].numel()]
        if not values or not self.snapshots[-1][name].is_floating_point():
            return 0.0
        steps = torch.stack([value.amax() for value in values]).log().diff()
        mean = steps.mean()
        return float(mean / self.spacing) if bool(((steps - mean).abs() < 0.2 * mean.abs()).all()) else 0.0

    def bounds(self) -> Iterable[int]:
        """Yield the numbers of tokens after which integers that count wrap around."""
        for law in self.laws.values():
            if not law.dtype.is_floating_point and law.dtype != torch.bool:
                for step in law.step.unique()[[0, -1]].tolist():
                    edge = torch.iinfo(law.dtype).max if step > 0 else torch.iinfo(law.dtype).min
                    if step:
                        yield self.token + (edge - int(law.value[law.step == step][0])) // step

    def end(self, trial: Trial, tokens: Iterable[int]) -> End | None:
        """Try a module after each of these numbers of tokens; return where it fails first."""
        for token in tokens:
            while any(self._attempt(trial, token)):
                bad = _first(self.token, token, lambda middle: any(self._attempt(trial, middle)))
                cause, stops = self._attempt(trial, bad)
                for name, stop in stops.items():
                    cause = self._rounding(trial, bad, name, *stop) or cause
                    self.laws[name] = self.laws[name].without(*stop)  # by intention: it stays, or begins again
                if cause:
                    return End(bad + self.length - 1, cause)
        return None

    def probe(self, trial: Trial, token: int) -> Probe:
        """Read `length` tokens after `token` tokens, in one segment if the module can."""
        far = Far(trial, self.state(token))
        tokens = torch.randint(trial.n_token, (1, self.length + 1), generator=torch.Generator().manual_seed(token))
        return Probe(token, far.state, tokens, far.read(tokens[:, :-1], far.first()))

    def _attempt(self, trial: Trial, token: int) -> tuple[str | None, dict[str, tuple[Tensor, Tensor]]]:
        """Return what fails after `token` tokens, and by name which elements of states stop, with the states after."""
        cause, stops = None, {}
        try:
            probe = self.probe(trial, token)
            for name, law in self.laws.items():
                after = probe.result[1][name]
                if bool((stopped := law.stopped(probe.state[name], after, self.length)).any()):
                    stops[name] = stopped, after
            if "segment" in trial.forms:
                check_cuts(Far(trial, probe.state), probe.tokens[:, :-1], (7, 1), self.length)
        except ExportError as error:
            cause = _cause(error)
        return cause, stops

    def _rounding(self, trial: Trial, token: int, name: str, stopped: Tensor, after: Tensor) -> str | None:
        """Return the cause if a precision rounds the steps of elements away, also from twice their value."""
        law, before = self.laws[name], self.state(token)
        if not law.dtype.is_floating_point:
            return None
        twice = 2 * after + law.step.to(law.dtype)
        try:
            next_ = trial.read(torch.zeros(1, 1, dtype=torch.int64), {**before, name: twice})[1][name]
        except ExportError:
            return None
        for dtype in (law.dtype, torch.bfloat16, torch.float16):
            value, step = before[name].to(dtype), law.step.to(dtype)
            for _ in range(self.length):
                value = value + step
            near = law.step.abs() * self.length / 4
            rounded = stopped & (law.step != 0) & ((_wide(value) - _wide(after)).abs() <= near)
            rounded &= (_wide(next_) - _wide(twice.to(dtype) + step)).abs() <= law.step.abs() / 4
            if bool(rounded.any()):
                size, count = float(after[rounded][0]), float(law.step[rounded][0])
                precision = str(dtype).removeprefix("torch.")
                return f"the state {name!r} is at {size:,.0f}, where {precision} is too coarse for steps of {count:.3g}"
        return None


@dataclass(frozen=True)
class _Law:
    """The course of one state: what elements gain with every token, with `spacing` tokens, and as a logarithm."""

    dtype: torch.dtype
    spacing: int
    value: Tensor
    step: Tensor
    jump: Tensor
    factor: Tensor

    @classmethod
    def of(cls, name: str, snapshots: list[State], singles: list[State], spacing: int) -> _Law:
        """Recognise the arithmetic and geometric sequences among the elements of a state."""
        dtype = snapshots[-1][name].dtype
        far, near = (torch.stack([_wide(state[name]) for state in states]) for states in (snapshots, singles))
        value, zero = far[-1], torch.zeros_like(far[-1])
        if dtype == torch.bool:
            return cls(dtype, spacing, value, zero, zero, zero)
        jumps, steps = (_wrapped(states.diff(dim=0), dtype) for states in (far, near))
        jump, step = jumps[-1], steps[-1]
        unit = value.abs() * torch.finfo(dtype).eps if dtype.is_floating_point else zero
        equal = ((jumps - jump).abs() <= spacing * unit).all(dim=0)
        counts = equal & ((steps - step).abs() <= 2 * unit).all(dim=0) & (step.abs() > 4 * unit)
        counts &= _wrapped(jump - spacing * step, dtype).abs() <= 2 * spacing * unit
        slow = equal & ~counts & (jump.abs() > 4 * spacing * unit)
        factor = zero
        if dtype.is_floating_point:
            step = jump / spacing
            ratios = far.abs().log().diff(dim=0) / spacing
            decays = (ratios - ratios[-1]).abs() <= 1e-3 * ratios[-1].abs() + torch.finfo(dtype).eps
            decays = decays.all(dim=0) & (far.sign() == value.sign()).all(dim=0) & (ratios[-1].abs() > 1e-6)
            factor = torch.where(decays & ~counts & ~slow, ratios[-1], zero)
        return cls(dtype, spacing, value, torch.where(counts, step, zero), torch.where(slow, jump, zero), factor)

    def gain(self, tokens: int) -> Tensor:
        """Return what the elements that count gain with a number of tokens."""
        return self.step * tokens + self.jump * (tokens // self.spacing)

    def at(self, tokens: int) -> Tensor:
        """Return the state after so many tokens more, rounded or wrapped as its dtype has it."""
        value = self.value + self.gain(tokens)
        return (value * (self.factor * tokens).exp() if self.dtype.is_floating_point else value).to(self.dtype)

    def stopped(self, before: Tensor, after: Tensor, length: int) -> Tensor:
        """Return which elements have not gained within `length` tokens what they should."""
        gain = _wrapped(self.gain(length), self.dtype)
        missed = _wrapped(_wide(after) - _wide(before) - gain, self.dtype).abs()
        return (missed > ROUNDED * gain.abs()) & (gain != 0)

    def without(self, elements: Tensor, after: Tensor) -> _Law:
        """Return the law under which these elements keep the values of `after`."""
        zero = torch.zeros_like(self.value)
        step, jump = (torch.where(elements, zero, part) for part in (self.step, self.jump))
        return replace(self, value=torch.where(elements, _wide(after), self.value), step=step, jump=jump)


@dataclass(frozen=True)
class Probe:
    """What a module computes far into a document: tokens (1, N + 1), log-probabilities of the last N, and states."""

    token: int
    state: State
    tokens: Tensor
    result: Result

    def difference(self, engine: Any, within: float) -> str | None:
        """Return in words how the graph differs from the module; None: by `within` nats or less."""
        rows, count = engine.bundle.fixed.get("batch", 1), self.tokens.shape[1] - 1
        fresh = engine.new_memory(engine.bundle.settings, rows, count)
        arrays = {name: value.repeat(rows, *[1] * (value.dim() - 1)).numpy() for name, value in self.state.items()}
        memory = Memory(fresh.plan, arrays, 0, fresh.memory_length, fresh.position)
        tokens, targets = (ids.repeat(rows, 1).numpy() for ids in (self.tokens[:, :-1], self.tokens[:, 1:]))
        try:
            outputs = engine.step("score", memory, tokens, targets)
        except BundleGraphError:
            return "the ONNX graph cannot run, as an index or a shape leaves its range"
        log_probs, state = self.result
        expected = log_probs.gather(2, self.tokens[:, 1:, None])[0, :, 0]
        apart = difference_of(torch.from_numpy(outputs["log_prob"][0].copy()), expected).max()
        if not bool(apart <= within):
            return f"the ONNX graph differs from the module by {float(apart):.2g} nats"
        new = {entry.input: torch.from_numpy(memory.array(entry)[:1].copy()) for entry in memory.entries}
        wrong = [name for name in new if not bool((difference_of(new[name], state[name]) <= 10 * within).all())]
        return f"the ONNX graph computes another state {wrong[0]!r} than the module" if wrong else None


class Horizon:
    """How many tokens of a document a module reads.

    Attributes:
        limit: most tokens; None: any number.
        compared: tokens of a document within which cuts were compared; None: the module has only steps.
        note: why there is a limit that the module does not name.
    """

    def __init__(self, trial: Trial, tokens: Tensor, limit: int | None) -> None:
        """Read a document as far as the checks need it, to compare cuts of tokens (1, N) there.

        Raises:
            ExportError: the module cannot read so much.
        """
        self.name = f"{type(trial.model).__name__}.{trial.forms[0]}"
        self.tokens, self.limit = tokens, limit
        self.note: str | None = None
        self.compared: int | None = None
        self.course: Course | None = None
        self.probes: list[Probe] = []
        self.walk, early = Walk(trial), None
        self.largest_axis = max((axis for value in self.walk.state.values() for axis in value.shape), default=1)
        goal, began = min(max(WALK, 2 * self.largest_axis), LARGEST_WALK), time.monotonic()
        try:
            if self.room > SNAPSHOTS * (EARLY + 1):
                early = Course(trial, self.walk, EARLY)
            self.course = self._read(trial, goal)
            if early is not None and early.stops(self.walk):
                self._judge(early.end(trial, [self.walk.token]))
        except End as end:
            self._judge(end)
        self.pace = (time.monotonic() - began) / max(1, self.walk.token)  # seconds of a token

    def _read(self, trial: Trial, goal: int) -> Course | None:
        """Read on to `goal` tokens and a few more; return the course of the second half, if the limit is not nearer."""
        span = SPACING << max(0, (goal - 1).bit_length() - WALK.bit_length() + 1)
        if self.limit is not None and self.room < goal + SPACING:
            self.walk.read(trial, self.room - self.walk.token)
            copy.copy(self.walk).read(trial, self.limit - self.walk.token)
            return None
        self.walk.read(trial, goal + FEW - (SNAPSHOTS - 1) * span - self.walk.token)
        return Course(trial, self.walk, span)

    @property
    def room(self) -> int:
        """Tokens to which a document can be read so that cuts can be compared behind it."""
        return UNLIMITED if self.limit is None else self.limit - LONGEST - CALLS

    def far(self, trial: Trial) -> Far:
        """Return a trial that begins as far into the document as it is read."""
        return Far(trial, self.walk.state, self.walk.token)

    def compare_cuts(self, trial: Trial) -> None:
        """Compare cuts of the tokens that follow those that the document was read."""
        if "segment" in trial.forms:
            check_cuts(self.far(trial), self.tokens)
            self.compared = self.walk.token + self.tokens.shape[1]

    def look_ahead(self, trial: Trial) -> None:
        """Try the module where its counters may end; raise ExportError if that is too early."""
        if self.course is None:
            return
        self._judge(self.course.growth())
        course, tokens = self.course, {self.course.token}
        last = (self.limit or UNLIMITED + course.length) - course.length
        if course.moves:
            wanted = {token - FEW // 2 for token in (*TOKENS, *course.bounds())} | {last}
            tokens |= {token for token in wanted if course.token < token <= last}
        self._judge(course.end(trial, sorted(tokens)))
        last = min(last, (self.limit or UNLIMITED + course.length) - course.length)
        self.probes = [course.probe(trial, token) for token in sorted(tokens) if token <= last]

    def check_graph(self, module: Any, n_token: int, engine: Any, within: float, seconds: float) -> None:
        """Compare the graph with the module; read on and compare cuts once more if that is cheap.

        Args:
            module: as in `check_module`.
            engine: the open bundle, an `Engine` or what has its `bundle`, `new_memory` and `step`.
            within: nats by which log-probabilities may differ.
            seconds: that the conversion has taken so far.

        Raises:
            ExportError: the graph holds for too few tokens, or cuts differ.
        """
        if (course := self.course) is None:
            return
        trial = Trial(module, n_token)

        def differs(token: int) -> bool:
            return course.probe(trial, token).difference(engine, within) is not None

        with many_calls(module):
            for probe in self.probes:
                if cause := probe.difference(engine, within):
                    bad = _first(course.token, probe.token, differs)
                    self._judge(End(bad + course.length - 1, cause))
                    break
            if FURTHER * self.pace > seconds / SHARE:
                return
            try:
                further = self._read(trial, FURTHER)
                self._judge(None if further is None else further.growth())
                self.compare_cuts(trial)
            except End as end:
                self._judge(end)

    def _judge(self, end: End | None) -> None:
        """Keep the number of tokens after which the module fails; raise ExportError if it is too small."""
        if end is None or end.tokens >= (self.limit or UNLIMITED):
            return
        problem = f"{self.name}: a document may have at most {end.tokens:,} tokens; then {end.cause}."
        own = f"set max_positions = {end.tokens} in the class, and longer documents are refused."
        if self.limit is not None and self.note is None:
            raise ExportError(f"{problem} Its max_positions is {self.limit:,}.", f"{end.hint} Or {own}")
        if end.tokens < ENOUGH:
            raise ExportError(problem, f"{end.hint} Or {own}")
        self.limit = min(end.tokens, LARGEST_LENGTH)
        self.note = f"Documents have at most {self.limit:,} tokens: then {end.cause}."


def _first(good: int, bad: int, fails: Callable[[int], bool]) -> int:
    """Return the first number above `good`, at most `bad`, that fails."""
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (good, middle) if fails(middle) else (middle, bad)
    return bad


def _growth(token: int, name: str, value: Tensor) -> End:
    cause = f"the state {name!r} grows beyond the range of {str(value.dtype).removeprefix('torch.')}"
    return End(token, cause, "Let it decay or normalise it, or carry a logarithm.")


def _cause(error: ExportError) -> str:
    """Return what an error of a trial says, without the method and the place."""
    problem = error.message.partition(": ")[2].partition("; ")[0].rstrip(".")
    problem = re.sub(r"^tokens of shape \(.*?\)", "the next tokens", problem)
    return re.sub(r" (at|from) token [\d,]+", "", problem)


def _wide(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value.long()


def _wrapped(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return differences of integers as their dtype has them; other numbers stay."""
    return value if dtype.is_floating_point or dtype == torch.bool else value.to(dtype).long()
