"""The memory of a batch of rows: buffers that stay on the device, and the counters that say what they hold."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import OptionError
from .providers import Device
from .session import device_value
from .spec import UNBOUNDED_WINDOW, Evaluation, Memory

__all__ = ["Mark", "RingMemory", "check_room"]


@dataclass(frozen=True)
class Mark:
    """Where a memory stood: its counters, and copies of its recent rows. Rings are not copied (see `rewind`)."""

    offset: int
    memory_length: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]
    recent: Mapping[str, npt.NDArray[Any]]


class RingMemory:
    """The buffers of every memory of a bundle, one row per batch entry: rings of `capacity` slots, or recent rows.

    All rows write at the same slot of a ring, so they share `offset`; each row has its own `position` and restarts on
    its own. Buffers always hold finite numbers: a masked NaN would still poison the product.

    A ring is read and written in place. Recent rows have two buffers that change places: a step may still read the old
    rows after it has written the new ones, in whatever order ONNX Runtime runs its nodes.

    Attributes:
        offset: rows written to the rings so far.
        memory_length: (B,) int64, rows of memory that each batch row may see; at most mem_len.
        position: (B,) int64, tokens of the row's own document that have been read; the next one stands there.
    """

    def __init__(
        self,
        entries: Sequence[Memory],
        first_rows: Mapping[str, npt.NDArray[np.float32]],
        constants: Mapping[str, Any],
        evaluation: Evaluation,
        batch_size: int,
        capacity: int,
        device: Device,
    ) -> None:
        self.entries = tuple(entries)
        self.constants = dict(constants)
        self.evaluation = evaluation
        self.batch_size = batch_size
        self.capacity = capacity
        self.device = device
        self.offset = 0
        self._first_rows = first_rows
        self._arrays: dict[str, npt.NDArray[Any] | None] = {}
        self.values: dict[str, Any] = {}
        self._next: dict[str, tuple[npt.NDArray[Any] | None, Any]] = {}  # where a step writes recent rows
        for entry in self.entries:
            # Written, not just reserved: pages touched for the first time would slow the first steps down.
            array = np.empty(_sizes(entry, batch_size, capacity), entry.dtype)
            array[:] = 0 if entry.first_value is None else self._first_row(entry)
            self._bind(entry, array)
        start = evaluation.mem_len if evaluation.first_memory == "zeros" else 0
        self.memory_length = np.full(batch_size, start, np.int64)
        self.position = np.zeros(batch_size, np.int64)

    @property
    def max_segment(self) -> int:
        """Longest step that does not overwrite what its first query still sees."""
        return self.evaluation.max_segment(self.capacity)

    @property
    def room(self) -> npt.NDArray[np.int64]:
        """(B,): tokens that each row can still read before its document must end or restart."""
        longest = self.evaluation.longest_part
        if longest is None:
            return np.full(self.batch_size, UNBOUNDED_WINDOW, np.int64)
        if self.evaluation.whole:
            return np.where(self.position > 0, 0, longest)
        return longest - self.position

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers, positional keys not counted."""
        return sum(_nbytes(entry, self.values[entry.input].shape()) for entry in self.entries)

    def feeds(self) -> dict[str, npt.NDArray[np.int64]]:
        """The step inputs that describe this memory."""
        feeds = {
            "offset": np.array([self.offset % self.capacity], np.int64),
            "position": self.position.copy(),
            "memory_length": self.memory_length.copy(),
            "window": np.array([self.evaluation.window], np.int64),
        }
        if self.evaluation.n_hashes is not None:
            feeds["n_hashes"] = np.array([self.evaluation.n_hashes], np.int64)
        return feeds

    def target(self, entry: Memory) -> Any:
        """The OrtValue that a step writes the next value of `entry` to."""
        return self._next[entry.input][1] if entry.layout == "recent" else self.values[entry.input]

    def put(self, entry: Memory, array: npt.NDArray[Any]) -> None:
        """Take `array` as what a step has written of `entry`, where the step made it instead of writing in place."""
        array = np.ascontiguousarray(array)
        if entry.layout == "recent":
            self._next[entry.input] = self._buffer(array)
        else:
            self._arrays[entry.input], self.values[entry.input] = self._buffer(array)

    def context(self, segment_len: int) -> npt.NDArray[np.int64]:
        """(B, S): how many of its document's tokens each query of the next step sees, itself included."""
        steps = np.arange(segment_len, dtype=np.int64)
        own = np.minimum(self.position, self.evaluation.mem_len)[:, None] + steps[None, :] + 1
        return np.minimum(own, self.evaluation.window)

    def advance(self, segment_len: int) -> None:
        """Count a step of `segment_len` tokens that the graph has just written."""
        mem_len = self.evaluation.mem_len
        self.offset += segment_len
        self.memory_length = np.minimum(self.memory_length + segment_len, mem_len)
        self.position = self.position + segment_len
        for name, written in self._next.items():
            self._next[name] = self._arrays[name], self.values[name]
            self._arrays[name], self.values[name] = written

    def restart(self, row: int, refill: bool = False) -> None:
        """Let `row` start a new document; its neighbours go on.

        Under the `empty` rule hiding the old rows is enough; under `zeros` the row is refilled, since its first
        rows are attended to. `refill` does so in any case: needed where the old rows may not be finite.
        """
        zeros = self.evaluation.first_memory == "zeros"
        if zeros or refill:
            self.refill(row)
        self.memory_length[row] = self.evaluation.mem_len if zeros else 0
        self.position[row] = 0

    def refill(self, row: int) -> None:
        """Overwrite everything that `row` holds with its first value."""
        for entry in self.entries:
            array = self.array(entry)
            array[row] = 0 if entry.first_value is None else self._first_row(entry)[0]
            if self.device.kind != "cpu":
                self.values[entry.input].update_inplace(array)

    def take(self, rows: Sequence[int]) -> RingMemory:
        """A memory that holds copies of `rows` only, in that order: a batch shrunk to the documents that remain."""
        taken = RingMemory.__new__(RingMemory)
        taken.__dict__.update(self.__dict__)
        taken.batch_size = len(rows)
        taken.memory_length = self.memory_length[list(rows)]
        taken.position = self.position[list(rows)]
        taken._arrays, taken.values, taken._next = {}, {}, {}
        for entry in self.entries:
            taken._bind(entry, np.ascontiguousarray(self.array(entry)[list(rows)]))
        return taken

    def mark(self) -> Mark:
        """Where this memory stands, for `rewind`."""
        recent = {entry.input: self.array(entry).copy() for entry in self.entries if entry.layout == "recent"}
        return Mark(self.offset, self.memory_length.copy(), self.position.copy(), recent)

    def rewind(self, mark: Mark, wipe: bool = False) -> None:
        """Go back to where `mark` was made, if at most `max_segment` tokens were run since and no row restarted.

        A ring has slots for so many rows beside those that the next query sees: what was written since lies in these
        slots and is hidden again. `wipe` overwrites it: needed where it may not be finite.
        """
        written = (mark.offset + np.arange(self.offset - mark.offset)) % self.capacity
        assert len(written) <= self.max_segment
        for entry in self.entries:
            if entry.layout == "recent":
                self._bind(entry, mark.recent[entry.input].copy())
            elif wipe:
                array = self.array(entry)
                slots: list[Any] = [slice(None)] * array.ndim
                slots[entry.row_axis] = written
                array[tuple(slots)] = 0 if entry.first_value is None else self._first_row(entry)
                if self.device.kind != "cpu":
                    self.values[entry.input].update_inplace(array)
        self.offset = mark.offset
        self.memory_length, self.position = mark.memory_length.copy(), mark.position.copy()

    def array(self, entry: Memory) -> npt.NDArray[Any]:
        """What `entry` holds, as numpy: the buffer itself on the CPU, a copy from another device."""
        array = self._arrays[entry.input]
        return self.values[entry.input].numpy() if array is None else array

    def by_age(self, entry: Memory, row: int) -> npt.NDArray[Any]:
        """The rows of `entry` that batch row `row` may see, oldest first, along the axis of rows."""
        array, axis = self.array(entry)[row], entry.row_axis - 1
        if entry.layout == "recent":
            rows = array.shape[axis]
            slots = np.arange(rows - min(int(self.position[row]), rows), rows)
        else:
            length = int(self.memory_length[row])
            slots = (self.offset - length + np.arange(length)) % self.capacity
        return np.take(array, slots, axis=axis)

    def load_rows(self, arrays: Mapping[str, npt.NDArray[Any]], offset: int, capacity: int) -> None:
        """Fill the buffers from saved ones, of `capacity` slots at `offset`; another capacity is laid out anew."""
        for entry in self.entries:
            saved = arrays[entry.input]
            if capacity == self.capacity or entry.layout == "recent":
                ring = np.array(saved, entry.dtype)
            else:
                kept = min(self.evaluation.mem_len, capacity, self.capacity)
                ages = offset - kept + np.arange(kept)
                ring = self.array(entry).copy()
                target: list[Any] = [slice(None)] * ring.ndim
                target[entry.row_axis] = ages % self.capacity
                ring[tuple(target)] = np.take(saved, ages % capacity, axis=entry.row_axis)
            self._bind(entry, np.ascontiguousarray(ring))
        self.offset = offset

    def _first_row(self, entry: Memory) -> npt.NDArray[np.float32]:
        """The first value of a slot, shaped to broadcast over the ring (1, H, 1, d_head)."""
        assert entry.first_value is not None
        return np.expand_dims(self._first_rows[entry.first_value], (0, entry.row_axis))

    def _bind(self, entry: Memory, array: npt.NDArray[Any]) -> None:
        self._arrays[entry.input], self.values[entry.input] = self._buffer(array)
        if entry.layout == "recent":
            self._next[entry.input] = self._buffer(array.copy())

    def _buffer(self, array: npt.NDArray[Any]) -> tuple[npt.NDArray[Any] | None, Any]:
        """An OrtValue of `array`, after the array itself where they share their memory: it must live as long."""
        return (array if self.device.kind == "cpu" else None), device_value(array, self.device)


def check_room(entries: Sequence[Memory], batch_size: int, capacity: int) -> None:
    """Refuse buffers larger than the machine: Linux would promise them, and end the process when they are filled.

    Raises:
        OptionError: says how large they would be.
    """
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not a system that tells
        return
    nbytes = sum(_nbytes(entry, _sizes(entry, batch_size, capacity)) for entry in entries)
    if nbytes > machine > 0:
        raise OptionError(
            f"the memory of {batch_size:,} batch rows of {capacity:,} slots would take {nbytes / 1e9:,.1f} GB, but "
            f"this machine has {machine / 1e9:,.1f} GB. Choose a smaller mem_len, segment_len or batch size."
        )


def _sizes(entry: Memory, batch_size: int, capacity: int) -> list[int]:
    free = {"batch": batch_size, "capacity": capacity}
    return [axis if isinstance(axis, int) else free[axis] for axis in entry.shape]


def _nbytes(entry: Memory, sizes: Sequence[int]) -> int:
    """Bytes of its buffers."""
    return math.prod(sizes) * np.dtype(entry.dtype).itemsize * (2 if entry.layout == "recent" else 1)
