"""Step models: bundles that map numbers to numbers, such as the policy of a robot or a filter of a signal."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from .bundle import RUN, Feed
from .check_once import open_checked
from .engine import Engine
from .errors import ArgumentError, OptionError, StateMismatchError, TooLongError
from .held_text import HeldText
from .known_answers import CheckResult, check
from .load_options import LoadKeywords, LoadOptions
from .memory import Memory
from .messages import counted, first_line, listed, named, shown
from .state import State

__all__ = ["StepModel", "StepStream", "as_input", "load_step_model"]

Arrays = Mapping[str, Any]  # what numpy.asarray takes

KINDS_OF_NUMBERS = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}  # that an input takes, by its own kind


def load_step_model(folder: str | Path, **options: Unpack[LoadKeywords]) -> StepModel:
    """Open the bundle of a step model; options and errors are those of `load`."""
    return open_checked(StepModel, folder, LoadOptions.of(options))


class StepModel(Engine):
    """An open step model. Safe to share between threads."""

    kind = "step model"

    @property
    def inputs(self) -> dict[str, Feed]:
        """The arrays that a step takes, by name: dtype and shape, as `bundle.json` declares them."""
        feeds = self.bundle.graphs[self.main_graph(RUN)].inputs
        return {name: feed for name, feed in feeds.items() if feed.feed == "input"}

    def check(self) -> CheckResult:
        """Run the steps of the bundle's known answers, and compare with what the module computed; see `Model.check`."""
        with self._files.unchanged():
            return check(self)

    def stream(self, rows: int | None = None) -> StepStream:
        """Return a stream of this many independent rows; None: one, or the number that the graphs fix.

        Raises:
            OptionError: it is no such number, or the graphs fix another one.
        """
        count: Any = self.bundle.fixed.get("batch", 1) if rows is None else rows
        if not isinstance(count, int | np.integer) or isinstance(count, bool):
            raise OptionError(f"rows is {shown(rows)}, expected a whole number from 1 on.")
        return StepStream(self, int(count))

    def restore(self, file: str | Path) -> StepStream:
        """Continue a stream that `StepStream.save` wrote, with all of its rows.

        Raises:
            StateError: the file is not a stream's state, is damaged, or belongs to another bundle.
            FileNotFoundError: the file does not exist.
        """
        path = Path(file)
        state = State.read(path)
        evaluation, positions = state.evaluation(self, path), state.rows("history")
        if len(positions) != (rows := self.bundle.fixed.get("batch", len(positions))):
            raise StateMismatchError(f"{path}: a stream of {len(positions)} rows, but the graphs fix {rows}.")
        stream = StepStream(self, len(positions))
        stream.memory = self.new_memory(evaluation, len(positions), state.capacity)
        lengths = [state.length] * len(positions)
        stream.memory.load_rows(state.memory, state.offset, state.capacity, lengths, positions)
        return stream

    def __repr__(self) -> str:
        return f"StepModel({named(self.folder)!r}: {listed(self.inputs)}, {self.bundle.precision}, {self.device})"


class StepStream:
    """The steps of some independent rows, of any number at constant memory. Only one thread at a time may use it.

    Attributes:
        model: runs the steps; shared with other streams.
        memory: the carried memory; `memory.nbytes` is its size in bytes.
    """

    def __init__(self, model: StepModel, rows: int) -> None:
        self.model = model
        self.memory = model.new_memory(model.bundle.settings, rows)

    def __repr__(self) -> str:
        return f"StepStream({listed(map(str, self.position))} steps read, memory of {self.memory.nbytes:,} bytes)"

    @property
    def position(self) -> list[int]:
        """The steps that each row has read since its beginning."""
        return list(map(int, self.memory.position))

    def run(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """Read the next steps of all rows. Where a long series is cut does not matter.

        Args:
            inputs: an array (B, S, …) for each input of the model, by name; or (B, …) for a single step.

        Returns:
            The outputs by name, (B, S, …) or (B, …).

        Raises:
            ArgumentError: an input is missing, unknown, of another shape or dtype, or not finite.
            TooLongError: a row would have more steps than the model reads.
            BundleError, StepTimeoutError: a step fails. After any error, the stream is unchanged.
        """
        arrays, single = self._checked(inputs)
        S = next(iter(arrays.values())).shape[1]
        longest = self.memory.evaluation.longest_part
        if longest is not None and (steps := max(self.position) + S) > longest:
            raise TooLongError(
                f"a row of {steps:,} steps, but the model reads at most {longest:,}.", hint="Reset the row."
            )
        parts, most = [], self.memory.max_segment
        before = self.memory if S == 1 else self._copy()  # several graphs may run
        try:
            for begin in range(0, S, most):
                part = {name: array[:, begin : begin + most] for name, array in arrays.items()}
                parts.append(self.model.run(RUN, self.memory, part))
        except BaseException:
            self.memory = before
            raise
        outputs = {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}
        return {name: array[:, 0] for name, array in outputs.items()} if single else outputs

    def fork(self) -> StepStream:
        """Return an independent stream with copies of all rows; bit-equal if fed the same."""
        twin = copy.copy(self)
        twin.memory = self._copy()
        return twin

    def reset(self, row: int | None = None) -> None:
        """Begin anew on one row, or on all.

        Raises:
            ArgumentError: there is no such row.
        """
        rows = range(self.memory.batch_size)
        if row is not None and not (hasattr(row, "__index__") and row in rows):
            raise ArgumentError(f"row is {shown(row)}, expected 0 to {rows[-1]}.")
        for each in rows if row is None else [row]:
            self.memory.restart(each, refill=True)

    def save(self, file: str | Path) -> None:
        """Write the state of all rows (safetensors), from which `StepModel.restore` goes on bit-equal.

        The file appears whole or not at all.

        Raises:
            OSError: the file cannot be written; an older one stays as it was.
        """
        memory, positions = self.memory, tuple(self.position)
        counter = positions[0] if len(positions) == 1 else positions
        state = State(
            fingerprint=self.model.bundle.fingerprint,
            settings=memory.evaluation.to_dict(),
            capacity=memory.capacity,
            offset=memory.offset,
            length=0,
            history=counter,
            pending=None,
            position=counter,
            held=HeldText(),
            tokenizer="",
            memory=memory.arrays(),
        )
        state.write(Path(file))

    def _copy(self) -> Memory:
        return self.memory.take(range(self.memory.batch_size))

    def _checked(self, inputs: Arrays) -> tuple[dict[str, npt.NDArray[Any]], bool]:
        """Return inputs as arrays (B, S, …) of their dtypes, and whether they had no axis S."""
        feeds = self.model.inputs
        names = {*inputs} if hasattr(inputs, "keys") else {shown(inputs)}
        if names != {*feeds}:
            raise ArgumentError(
                f"the inputs are {listed(sorted(map(str, names))) or 'none'}, expected {listed(feeds)}."
            )
        arrays = {name: _array(name, inputs[name]) for name in feeds}
        single = all(array.ndim == len(feeds[name].shape) - 1 for name, array in arrays.items())
        if single:
            arrays = {name: array[:, None] for name, array in arrays.items()}
        S = next((array.shape[1] for array in arrays.values() if array.ndim > 1), 0)
        for name, feed in feeds.items():
            array, rows, steps = arrays[name], self.memory.batch_size, max(S, 1)
            if array.shape != (rows, steps, *feed.shape[2:]):
                found = array.shape[:1] + array.shape[2:] if single else array.shape
                axes = ", ".join(map(str, ("batch", *feed.shape[2:]) if single else feed.shape))
                raise ArgumentError(
                    f"the input {named(name)} has shape {found}, expected ({axes}), with {counted(rows, 'row')} "
                    f"and {counted(steps, 'step')}."
                )
            arrays[name] = as_input(name, array, feed)
        return arrays, single


def _array(name: str, value: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(value)
    except Exception as error:  # such as lists of different lengths, and tensors with gradients
        raise ArgumentError(f"the input {named(name)} is no array: {first_line(error)}.") from error


def as_input(name: str, array: npt.NDArray[Any], feed: Feed) -> npt.NDArray[Any]:
    """Return an array in the dtype of an input.

    Raises:
        ArgumentError: it is of another kind, or has numbers that are not finite or that the dtype does not have.
    """
    if array.dtype.kind not in KINDS_OF_NUMBERS[np.dtype(feed.dtype).kind]:
        raise ArgumentError(f"the input {named(name)} is {array.dtype}, expected {feed.dtype}.")
    with np.errstate(over="ignore"):
        value = np.ascontiguousarray(array, feed.dtype)
    if not (np.isfinite(value).all() if value.dtype.kind == "f" else np.array_equal(value, array)):
        raise ArgumentError(f"the input {named(name)} has numbers that {feed.dtype} cannot hold.")
    return value
