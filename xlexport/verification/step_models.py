"""Show that a bundle of a step model computes what the module does, over many carried segments of inputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.array_files import read_arrays
from xlexport.callbacks import Progress, no_progress
from xlexport.errors import ArrayFileError, ParityError
from xlexport.families.step_model import ARCHITECTURE
from xlexport.families.step_model.inputs import InputSpec
from xlexport.verification.tolerances import OWN_ERRORS
from xlruntime.bundle import RUN, Feed
from xlruntime.engine import Engine
from xlruntime.errors import ArgumentError
from xlruntime.messages import listed, named
from xlruntime.step_model import as_input

__all__ = [
    "RANDOM",
    "Series",
    "StepParityReport",
    "TensorDifference",
    "exact_module",
    "random_series",
    "read_series",
    "read_steps",
    "verify_steps",
]

SEGMENTS = 1000
LENGTHS = (1, 2, 3, 5, 8, 13)  # steps of segments in turn; every `LONG`th has the bundle's own length
LONG = 50
ROWS = 2
FLOOR = 1e-5  # of a tensor's largest number so far: the sums of float32 in another order
WITHOUT_FLOAT64 = 1e-4  # if the module cannot compute in float64, so that its own error is unknown
FLIPS = 1e-4  # of integers and booleans: near a threshold, rounding decides
MOST_NUMBERS = 1 << 25  # of random inputs in memory; longer series repeat them
RANDOM = "random inputs"

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Series:
    """Inputs to verify on.

    Attributes:
        arrays: (B, N, …) by name of the input.
        name: of their file, or `RANDOM`.
        steps: of the series, which repeats the arrays if it is longer than they are.
    """

    arrays: Arrays
    name: str
    steps: int

    def segments(self, count: int, longest: int) -> Iterator[Arrays]:
        """Yield consecutive segments (B, S, …) of different lengths: `count` of them, or as many as there are."""
        begin = 0
        for length in itertools.islice(_lengths(longest), count):
            if begin >= self.steps:
                return
            places = np.arange(begin, end := min(begin + length, self.steps))
            yield {name: array[:, places % array.shape[1]] for name, array in self.arrays.items()}
            begin = end


def _lengths(longest: int) -> Iterator[int]:
    for number, length in enumerate(itertools.cycle(LENGTHS)):
        yield longest if number % LONG == len(LENGTHS) else min(length, longest)


def random_series(specs: Mapping[str, InputSpec], rows: int, longest: int, segments: int, limit: int | None) -> Series:
    """Return random inputs in the ranges of their specs, for this many segments, or for `limit` steps at most."""
    import torch

    random, numbers = torch.Generator().manual_seed(0), sum(math.prod(spec.shape) for spec in specs.values())
    steps = int(min(sum(itertools.islice(_lengths(longest), segments)), limit or math.inf))
    kept = min(steps, max(longest, MOST_NUMBERS // (rows * numbers)))
    return Series({name: spec.random(rows, kept, random).numpy() for name, spec in specs.items()}, RANDOM, steps)


def read_series(path: Path, feeds: Mapping[str, Feed], rows: int, limit: int | None) -> Series:
    """Read inputs from a file .npz: arrays (N, …) or (B, N, …) by the names of inputs.

    Args:
        rows: the batch rows that read an array without the axis of rows, each the same.
        limit: most steps of a series.

    Raises:
        ArrayFileError: the file is missing, too large or damaged, or its arrays are not the inputs.
    """
    arrays = read_arrays(path)
    if arrays.keys() != feeds.keys():
        hint = "Save them with numpy.savez(file, name=array)."
        found = listed(map(named, arrays)) or "none"
        raise ArrayFileError(f"{path}: arrays {found}, expected {listed(feeds)}.", hint=hint)
    series, lengths = {}, set()
    for name, feed in feeds.items():
        array, rank = arrays[name], len(feed.shape)
        series[name] = array = np.repeat(array[None], rows, axis=0) if array.ndim == rank - 1 else array
        lengths.add(array.shape[:2])
        if array.shape[2:] != feed.shape[2:] or array.ndim != rank or len(lengths) > 1 or not array.size:
            shape = "".join(f", {axis}" for axis in feed.shape[2:])
            what = f"{named(name)} is {arrays[name].shape}, expected (N{shape}) or (B, N{shape})"
            raise ArrayFileError(f"{path}: {what}.", hint="Give all inputs as many rows and steps.")
        try:
            series[name] = as_input(name, array, feed)
        except ArgumentError as error:
            raise ArrayFileError(
                f"{path}: {error.message}", hint="Save it in that type, without other numbers."
            ) from error
    steps = next(iter(series.values())).shape[1]
    if limit is not None and steps > limit:
        what = f"{path}: {steps:,} steps, but the module reads at most {limit:,}."
        raise ArrayFileError(what, hint="Give fewer steps.")
    return Series(series, path.name, steps)


@dataclass
class TensorDifference:
    """How one output or state differs, segment by segment.

    Attributes:
        dtype: of floats, differences are absolute; of others, they are the fraction of numbers that differ.
        per_segment: the largest difference of each segment, between graph and module.
        own: the module's own differences, in float32 against itself in float64; empty: it cannot compute in float64.
        sizes, counts: the largest finite number of the module in each segment, and how many numbers there are.
    """

    dtype: str
    per_segment: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    @property
    def largest(self) -> float:
        """The largest finite number of the module."""
        return max(self.sizes)

    @property
    def difference(self) -> float:
        """The largest difference; of integers and booleans, the fraction of all."""
        return self._over_all(self.per_segment)

    @property
    def limit(self) -> float:
        """The largest difference that counts as rounding."""
        return float(self._limits[-1])

    @property
    def first_over(self) -> int | None:
        """The first segment that differs by more than rounding; what is no number differs."""
        over = ~(np.array(self.per_segment) <= self._limits)
        if not self.is_float:
            over = (np.array(self.per_segment) > 0) & (self.difference > self.limit)
        return int(over.argmax()) if over.any() else None

    @property
    def is_float(self) -> bool:
        """Whether it has floating-point numbers."""
        return self.dtype.startswith("float")

    @property
    def _limits(self) -> npt.NDArray[np.float64]:
        """The limit of each segment, by the numbers up to there; the first ones are too few to tell their size."""
        count = len(self.per_segment)
        if not self.is_float:
            return np.full(count, max(FLIPS, OWN_ERRORS * self._over_all(self.own)))
        upto = np.maximum(np.arange(count), min(LONG, count) - 1)
        sizes = np.maximum.accumulate(self.sizes)[upto]
        if not self.own:
            return WITHOUT_FLOAT64 * sizes
        return np.maximum(FLOOR * sizes, OWN_ERRORS * np.maximum.accumulate(self.own)[upto])

    def _over_all(self, values: list[float]) -> float:
        if self.is_float or not sum(self.counts):
            return float(np.max(values, initial=0.0))
        return float(np.average(values, weights=self.counts)) if values else 0.0

    def to_dict(self, per_segment: bool = True) -> dict[str, Any]:
        """Return all figures for JSON; `per_segment` includes those of each segment."""
        fields = {"dtype": self.dtype, "difference": self.difference, "limit": self.limit, "largest": self.largest}
        fields |= {"own": self._over_all(self.own) if self.own else None, "passed": self.first_over is None}
        return fields | ({"per_segment": self.per_segment} if per_segment else {})

    def add(self, graph: npt.NDArray[Any], model: Any, exact: Any = None) -> None:
        """Add a segment's values of the graph, of the module, and of the module in float64, if it has any."""
        expected = model.numpy()
        sizes = np.abs(expected.astype(np.float64))
        self.sizes.append(float(sizes.max(initial=0.0, where=np.isfinite(sizes))))
        self.counts.append(expected.size)
        self.per_segment.append(self._between(graph, expected))
        if exact is not None:
            self.own.append(self._between(expected, exact.numpy()))

    def _between(self, value: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
        if not self.is_float:
            return float(np.mean(value != expected)) if value.size else 0.0
        wide = value.astype(np.float64), expected.astype(np.float64)
        with np.errstate(invalid="ignore"):
            apart = np.where(wide[0] == wide[1], 0.0, np.abs(wide[0] - wide[1]))
        return float(apart.max(initial=0.0))


@dataclass(frozen=True)
class StepParityReport:
    """The result of verifying a step model, whose text is a table.

    Attributes:
        segments, steps, batch_rows: carried segments, steps of each row, and rows that were compared.
        outputs, states: the difference of each, by name.
        kernels: of custom operators.
        cuts_compared: steps within which the conversion compared cuts; None: it did not.
        verified_on: the name of the inputs.
    """

    segments: int
    steps: int
    batch_rows: int
    outputs: Mapping[str, TensorDifference]
    states: Mapping[str, TensorDifference]
    kernels: str
    verified_on: str
    cuts_compared: int | None = None

    @property
    def passed(self) -> bool:
        """Whether all differences are within their limits."""
        return self.first_segment_over_limit is None

    @property
    def first_segment_over_limit(self) -> int | None:
        """The first segment with a difference above its limit."""
        return min((one.first_over for one in self._all.values() if one.first_over is not None), default=None)

    @property
    def _all(self) -> dict[str, TensorDifference]:
        outputs = {f"output {name}": one for name, one in self.outputs.items()}
        return outputs | {f"state {name}": one for name, one in self.states.items()}

    def to_dict(self, per_segment: bool = True) -> dict[str, Any]:
        """Return all figures for JSON; `per_segment` includes the figures of each segment."""
        figures = {
            kind: {name: one.to_dict(per_segment) for name, one in getattr(self, kind).items()}
            for kind in ("outputs", "states")
        }
        own = {"passed": self.passed, "first_segment_over_limit": self.first_segment_over_limit}
        return {**vars(self), **figures, **own}

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of a table for people."""
        rows = [("segments", f"{self.segments:,} carried, {self.steps:,} steps, {self.batch_rows} batch rows")]
        for name, one in self._all.items():
            rows.append((name, f"{_amount(one, one.difference)}{_limit(one)}, largest number {one.largest:.4g}"))
        if self.cuts_compared is not None:
            rows.append(("cuts compared", f"{self.cuts_compared:,} steps into a series"))
        return [*rows, ("kernels", self.kernels), ("equal", "yes" if self.passed else "NO")]

    def problem(self) -> ParityError | None:
        """Return an error with the first tensor that differs; None: the bundle passed."""
        for name, one in self._all.items():
            if one.first_over is not None:
                return ParityError(
                    f"the graph differs from the module: {name} by up to {_amount(one, one.difference)}{_limit(one)}; "
                    f"first segment over the limit: {one.first_over}.",
                    hint="Make sure that bundle and module have the same weights; else compute it by other operators.",
                )
        return None

    def require_passed(self) -> None:
        """Raise the error of `problem`, unless the bundle passed."""
        if (error := self.problem()) is not None:
            raise error


def _amount(one: TensorDifference, value: float) -> str:
    return f"{value:.2e}" if one.is_float else f"{value:.2%} of numbers"


def _limit(one: TensorDifference) -> str:
    return f" (≤ {_amount(one, one.limit)})"


def verify_steps(
    engine: Engine,
    build_model: Callable[[], Any],
    series: Series,
    *,
    segments: int = SEGMENTS,
    progress: Progress = no_progress,
) -> StepParityReport:
    """Read a series with graph and module, both with carried states, and compare all outputs and states.

    Args:
        engine: the open bundle; its steps take inputs by name.
        build_model: returns a new `StepEager`.
        series: the inputs, of as many rows as the graph takes.
        segments: most segments to read.
        progress: called after every segment with their number and the largest possible number.

    Raises:
        ParityError: the module has other inputs, outputs or states than the bundle.
        ExportError: the module raises an exception.
        BundleError: a graph fails.
    """
    from xlexport.families.recurrent.trial import many_calls

    model = build_model()
    _check_same(model, engine)
    exact = exact_module(build_model, next(series.segments(1, 1)))
    readers: list[Any] = [model] if exact is None else [model, exact]
    graph = engine.bundle.graphs[engine.main_graph(RUN)]
    outputs = {name: TensorDifference(tensor.dtype) for name, tensor in graph.outputs.items()}
    states = {entry.input: TensorDifference(entry.dtype) for entry in engine.bundle.memory}
    rows = next(iter(series.arrays.values())).shape[0]
    memory = engine.new_memory(engine.bundle.settings, rows)
    carried: list[Any] = [None] * len(readers)
    count = steps = 0
    with many_calls(model):
        for arrays in series.segments(segments, memory.max_segment):
            results = []
            for number, reader in enumerate(readers):
                result, carried[number] = read_steps(reader, arrays, carried[number])
                results.append((result, carried[number]))
            computed = engine.run(RUN, memory, {name: np.ascontiguousarray(array) for name, array in arrays.items()})
            for name, difference in outputs.items():
                difference.add(computed[name], *(result[name] for result, _ in results))
            for entry in memory.entries:
                states[entry.input].add(memory.array(entry), *(state[entry.input] for _, state in results))
            count, steps = count + 1, steps + next(iter(arrays.values())).shape[1]
            progress(count, segments)
    kernels = engine.kernels_used(engine.main_graph(RUN))
    return StepParityReport(count, steps, rows, outputs, states, kernels, series.name)


def _check_same(model: Any, engine: Engine) -> None:
    """Refuse a module whose inputs, outputs or states are not those of the bundle."""
    graph = engine.bundle.graphs[engine.main_graph(RUN)]
    feeds = {name: feed for name, feed in graph.inputs.items() if feed.feed == "input"}
    tensors: dict[str, Any] = {**feeds, **graph.outputs}
    expected = [(name, each.dtype, each.shape[2:]) for name, each in tensors.items()]
    expected += [(entry.input, entry.dtype, entry.shape[1:]) for entry in engine.bundle.memory]
    found = [(name, spec.dtype, spec.shape) for name, spec in {**model.inputs, **model.outputs}.items()]
    for name, value in model.module.first_state().items():
        found.append((name, str(value.dtype).removeprefix("torch."), tuple(value.shape)))
    if {*found} != {*expected}:
        only = [
            listed(f"{name} {dtype} {shape}" for name, dtype, shape in these if (name, dtype, shape) not in those)
            for these, those in ((found, expected), (expected, found))
        ]
        what = f"{engine.folder}: the module has {only[0] or 'fewer tensors'}, expected {only[1] or 'no others'}."
        raise ParityError(what, hint="Give the module of its conversion.")


def exact_module(build_model: Callable[[], Any], arrays: Arrays) -> Any | None:
    """Return the module in float64; None if it reads inputs (B, S, …) only in float32."""
    try:
        exact = ARCHITECTURE.in_float64(build_model())
        read_steps(exact, arrays, None)
    except Exception:  # a user's module may raise anything in a precision that it does not expect
        return None
    return exact


def read_steps(reader: Any, arrays: Arrays, state: Any) -> tuple[Any, Any]:
    """Run a module on inputs (B, S, …) after a state, None for the first one, in its own precision."""
    import torch

    tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    rows = next(iter(tensors.values())).shape[0]
    weights = next((weight.dtype for weight in reader.parameters()), torch.float32)
    own = {name: value.to(weights) if value.is_floating_point() else value for name, value in tensors.items()}
    return reader(own, reader.first_memory(rows) if state is None else state)
