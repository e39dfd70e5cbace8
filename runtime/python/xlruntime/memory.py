"""The memory of a batch of rows: buffers on the device, and counters that describe their contents."""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .bundle import Feed, Graph, MemoryEntry
from .devices import Device
from .errors import OptionError
from .evaluation import UNBOUNDED_WINDOW, EvaluationSettings
from .providers import device_value

__all__ = ["Mark", "Memory", "MemoryPlan", "check_room"]

ALIGNED = 64  # bytes at whose multiples the buffers of a block begin
WIDEST = 2**30  # window that graphs get: no ring has so many slots, and OpenVINO computes integers in 32 bits


@dataclass(frozen=True)
class MemoryPlan:
    """The properties that all memories of one walk share, for any number of rows.

    Attributes:
        entries: the carried tensors of the bundle.
        first_values: first values of entries, by `MemoryEntry.first_value`; an entry without one begins with zeros.
        constants: graph inputs that depend only on settings and capacities, as values of the session.
        evaluation: the evaluation settings of the walk.
        capacity: slots of the largest ring; the others have as many spare slots.
        device: the device of the buffers.
    """

    entries: tuple[MemoryEntry, ...]
    first_values: Mapping[str, npt.NDArray[np.float32]]
    constants: Mapping[str, Any]
    evaluation: EvaluationSettings
    capacity: int
    device: Device

    @property
    def max_segment(self) -> int:
        """Longest step that does not overwrite rows that its first query sees."""
        return self.evaluation.max_segment(self.capacity)

    @functools.cached_property
    def slots(self) -> Mapping[str, int]:
        """Slots of the rings, by the symbol of their capacity."""
        return {symbol: self.evaluation.slots(symbol, self.capacity) for symbol in self.evaluation.rules.rings}

    def has_two(self, entry: MemoryEntry) -> bool:
        """Return whether a carried tensor has two buffers, one that a step reads and one that it writes."""
        return entry.layout != "ring" or not self.device.entry.in_place

    def sizes(self, entry: MemoryEntry, batch_size: int) -> list[int]:
        """Return the sizes of all axes of a carried tensor."""
        free = {"batch": batch_size, **self.slots}
        return [axis if isinstance(axis, int) else free[axis] for axis in entry.shape]

    def first_value(self, entry: MemoryEntry) -> npt.NDArray[np.float32] | int:
        """Return the first value of every slot, or of the state, shaped to broadcast over (B, …)."""
        if entry.first_value is None:
            return 0
        value = self.first_values[entry.first_value]
        return np.expand_dims(value, 0 if entry.row_axis is None else (0, entry.row_axis))

    def seen(self, entry: MemoryEntry, offset: int, length: int, position: int) -> tuple[int, int]:
        """Return the first slot of a batch row that a query may see, modulo all slots, and the number of such slots."""
        if entry.symbol is not None:
            count = min(length, self.evaluation.rows(entry.symbol))
            return offset - count, count
        rows = self.sizes(entry, 1)[entry.row_axis or 0]
        count = rows if self.evaluation.fresh_memory == "zeros" else min(position, rows)
        return rows - count, count

    def hide(self, arrays: Mapping[str, Any], offset: int, length: Sequence[int], position: Sequence[int]) -> None:
        """Overwrite the slots of arrays (B, …) that no query may see with first values; counters as in `Memory`."""
        for entry in self.entries:
            if entry.row_axis is None:
                continue
            array, value = arrays[entry.input], self.first_value(entry)
            rows, before = array.shape[entry.row_axis], [slice(None)] * (entry.row_axis - 1)
            for row, counters in enumerate(zip(length, position, strict=False)):
                first, count = self.seen(entry, offset, *counters)
                begin = (first + count) % rows
                for part in (slice(begin, begin + rows - count), slice(0, max(begin - count, 0))):
                    array[(row, *before, part)] = value if isinstance(value, int) else value[0]

    def buffers(self, batch_size: int) -> dict[str, npt.NDArray[Any]]:
        """Return buffers of `batch_size` rows, by the names of inputs; nothing is written yet.

        They share a block: for a large one, numpy asks Linux for pages of 2 MB, which a token reads faster.
        """
        kinds = [(entry, self.sizes(entry, batch_size), np.dtype(entry.dtype)) for entry in self.entries]
        counts = [math.prod(sizes) * kind.itemsize for _, sizes, kind in kinds]
        ends = list(itertools.accumulate(-(-count // ALIGNED) * ALIGNED for count in counts))
        block = np.empty(sum(ends[-1:]), np.uint8)
        return {
            entry.input: block[begin : begin + count].view(kind).reshape(sizes)
            for (entry, sizes, kind), count, begin in zip(kinds, counts, [0, *ends], strict=False)
        }


@dataclass(frozen=True)
class Mark:
    """A state to which `Memory.rewind` returns: counters, and copies of windows and states."""

    offset: int
    memory_length: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]
    copies: Mapping[str, npt.NDArray[Any]]


class Memory:
    """The buffers of every memory of a bundle, one row per batch entry.

    All rows write at the same slots of the rings, so they share `offset`. Each row has its own `position` and restarts
    on its own. Buffers always hold finite numbers: NaN times an attention weight of 0 is still NaN.

    A ring is read and written in place, if the execution provider can. Windows and states have two buffers that change
    places, because ONNX Runtime runs nodes in any order: a step may read the old buffer after it has written the new
    one.

    Attributes:
        entries, evaluation, device, capacity, max_segment, slots: as in `MemoryPlan`.
        offset: rows written to the rings so far.
        memory_length: (B,) int64, visible rows of each batch row in the ring that keeps the most.
        position: (B,) int64, number of tokens read of the row's own document.
        values: values that sessions bind, by the names of inputs.
    """

    def __init__(
        self,
        plan: MemoryPlan,
        arrays: Mapping[str, npt.NDArray[Any]],
        offset: int,
        memory_length: npt.NDArray[np.int64],
        position: npt.NDArray[np.int64],
    ) -> None:
        self.plan = plan
        self.entries, self.evaluation, self.device = plan.entries, plan.evaluation, plan.device
        self.capacity, self.max_segment, self.slots = plan.capacity, plan.max_segment, plan.slots
        self.offset = offset
        self.memory_length = memory_length
        self.position = position
        self.values: dict[str, Any] = {}
        self._arrays: dict[str, npt.NDArray[Any] | None] = {}
        self._next: dict[str, tuple[npt.NDArray[Any] | None, Any]] = {}  # targets of a step's windows and states
        for entry in plan.entries:
            self._bind(entry, arrays[entry.input])

    @classmethod
    def fresh(cls, plan: MemoryPlan, batch_size: int) -> Memory:
        """Return memory for `batch_size` new documents."""
        arrays = plan.buffers(batch_size)
        for entry in plan.entries:  # first touches of pages would slow the first steps down
            arrays[entry.input][:] = plan.first_value(entry)
        length = np.full(batch_size, _first_length(plan.evaluation), np.int64)
        return cls(plan, arrays, 0, length, np.zeros(batch_size, np.int64))

    @property
    def constants(self) -> Mapping[str, Any]:
        """Inputs of the graphs that stay the same for the whole walk."""
        return self.plan.constants

    def set_constants(self, constants: Mapping[str, Any]) -> None:
        """Replace the constants, such as the encoded sources of the rows."""
        self.plan = replace(self.plan, constants=constants)

    @property
    def batch_size(self) -> int:
        """Rows of the batch."""
        return len(self.position)

    @property
    def room(self) -> npt.NDArray[np.int64]:
        """Tokens (B,) that each row can still read before its document must end or restart."""
        longest = self.evaluation.longest_part
        if longest is None:
            return np.full(self.batch_size, UNBOUNDED_WINDOW, np.int64)
        if self.evaluation.full_document:
            return np.where(self.position > 0, 0, longest)
        return longest - self.position

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers, without constants."""
        return sum(_nbytes(self.plan, entry, self.values[entry.input].shape()) for entry in self.entries)

    def feeds(
        self,
        graph: Graph,
        segment: Mapping[str, npt.NDArray[Any]],
        memory_length: npt.NDArray[np.int64] | None = None,
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the inputs of a graph's next step, but for memories and constants, which sessions bind.

        Args:
            segment: arrays (B, S, …): `tokens`, and `targets` the token after each; or a step model's inputs by name.
            memory_length: (B,) visible rows, which grow while a segment runs in parts; None: those of the memory.
        """
        visible = self.memory_length if memory_length is None else memory_length
        slots, values = self.slots, self.evaluation.values
        feed_of: dict[str, Callable[[Feed], npt.NDArray[np.int64]]] = {
            "position": lambda feed: self.position.copy(),
            "offset": lambda feed: _number(self.offset % slots[feed.ring]),
            "length": lambda feed: self._length(feed.ring, visible),
            "window": lambda feed: _number(min(self.evaluation.window(feed.ring), WIDEST)),
            "slots": lambda feed: _number(slots[feed.ring]),
            "setting": lambda feed: _number(values[feed.setting]),
        }
        feeds: dict[str, npt.NDArray[Any]] = {}
        for name, feed in graph.inputs.items():
            if feed.feed in feed_of:
                feeds[name] = feed_of[feed.feed](feed)
            elif (key := name if feed.feed == "input" else feed.feed) in segment:
                feeds[name] = segment[key]
        return feeds

    def _length(self, symbol: str, visible: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the kept rows (B,) of a ring that each batch row may see, of `visible` ones in the ring with most."""
        beyond = np.maximum(visible - self.evaluation.most_rows, 0)
        return np.minimum(visible, self.evaluation.rows(symbol)) + beyond

    def target(self, entry: MemoryEntry) -> Any:
        """Return the OrtValue for the next value of `entry` that a step writes."""
        return self._next[entry.input][1] if self.plan.has_two(entry) else self.values[entry.input]

    def bind(self, binding: Any, graph: Graph) -> None:
        """Bind the values of all entries, and the constants that the graph reads; the step writes in place."""
        for name, value in self.constants.items():
            if name in graph.inputs:
                binding.bind_ortvalue_input(name, value)
        for entry in self.entries:
            binding.bind_ortvalue_input(entry.input, self.values[entry.input])
            binding.bind_ortvalue_output(entry.output, self.target(entry))

    def put(self, entry: MemoryEntry, array: npt.NDArray[Any]) -> None:
        """Store `array` as the new value of `entry`, if a step returned it instead of writing in place."""
        array = np.ascontiguousarray(array)
        if self.plan.has_two(entry):
            self._next[entry.input] = self._buffer(array)
        else:
            self._arrays[entry.input], self.values[entry.input] = self._buffer(array)

    def context(self, segment_len: int) -> npt.NDArray[np.int64]:
        """Return how many tokens of its document each query of the next step sees, itself included: (B, S).

        A state may depend on every earlier token.
        """
        steps = np.arange(segment_len, dtype=np.int64)
        if any(entry.layout == "state" for entry in self.entries):
            return self.position[:, None] + steps[None, :] + 1
        rows = np.minimum(self.position, self.evaluation.most_rows)
        return np.minimum(rows[:, None] + steps[None, :] + 1, self.evaluation.widest_window)

    def advance(self, segment_len: int) -> None:
        """Count a step of `segment_len` tokens that the graph has just written."""
        self.offset += segment_len
        self.memory_length = np.minimum(self.memory_length + segment_len, self.evaluation.most_rows)
        self.position = self.position + segment_len
        for name, written in self._next.items():
            self._next[name] = self._arrays[name], self.values[name]
            self._arrays[name], self.values[name] = written

    def restart(self, row: int, refill: bool = False) -> None:
        """Start a new document on `row`; the other rows continue.

        States begin with their first value. For rings and windows under the `empty` rule, it is enough to hide the old
        rows. Under `zeros` the row is refilled, because queries attend to its first rows. `refill` refills in any case,
        which is needed if the old rows may not be finite.
        """
        refill = refill or self.evaluation.fresh_memory == "zeros"
        for entry in self.entries:
            if refill or entry.layout == "state":
                self._refill(entry, row)
        self.memory_length[row] = _first_length(self.evaluation)
        self.position[row] = 0

    def again(self, batch_size: int) -> Memory:
        """Return memory for `batch_size` new documents, at most as many as here, in the buffers of this one.

        This memory is used up. The device must be the host.
        """
        arrays = {entry.input: self.array(entry)[:batch_size] for entry in self.entries}
        memory = Memory(self.plan, arrays, 0, self.memory_length[:batch_size], self.position[:batch_size])
        for row in range(batch_size):
            memory.restart(row)
        return memory

    def take(self, rows: Sequence[int], back: int = 0) -> Memory:
        """Return a smaller memory with copies of only these `rows`, in this order; hidden slots have the first value.

        Args:
            back: tokens to forget, at most `max_segment`, all read since each row restarted. Only rings can go back.
        """
        assert not back or all(entry.layout == "ring" for entry in self.entries)
        chosen = list(rows)
        length, position = self.memory_length[chosen], self.position[chosen] - back
        if back:
            length = np.maximum(np.minimum(position, self.evaluation.most_rows), _first_length(self.evaluation))
        arrays = self.plan.buffers(len(chosen))
        for entry in self.entries:
            np.take(self.array(entry), chosen, axis=0, out=arrays[entry.input], mode="clip")  # without a copy between
        self.plan.hide(arrays, self.offset - back, length.tolist(), position.tolist())
        return Memory(self.plan, arrays, self.offset - back, length, position)

    def row(self, row: int, back: int = 0) -> Memory:
        """Return a copy of one row, without the last `back` tokens that it has read; see `take`."""
        return self.take([row], back)

    def place(self, row: int, alone: Memory) -> None:
        """Copy the memory of one document, of the same capacity, into `row`; the other rows stay as they are."""
        assert alone.capacity == self.capacity and alone.batch_size == 1
        for entry in self.entries:
            array, value = self.array(entry), alone.array(entry)[0]
            if entry.symbol is not None and entry.row_axis is not None:
                value = np.roll(value, self.offset - alone.offset, entry.row_axis - 1)
            array[row] = value
            self._upload(entry, array)
        self.memory_length[row], self.position[row] = alone.memory_length[0], alone.position[0]

    def mark(self) -> Mark:
        """Return the place of this memory, for `rewind`."""
        copies = {entry.input: self.array(entry).copy() for entry in self.entries if entry.layout != "ring"}
        return Mark(self.offset, self.memory_length.copy(), self.position.copy(), copies)

    def rewind(self, mark: Mark, wipe: bool = False) -> None:
        """Go back to `mark`, if at most `max_segment` tokens were run since then and no row restarted.

        A ring has `max_segment` spare slots besides the rows that the next query sees. Rows written since `mark` are in
        these slots, and are hidden again. `wipe` overwrites them, which is needed if they may not be finite.
        """
        assert self.offset - mark.offset <= self.max_segment
        for entry in self.entries:
            if entry.symbol is None:
                self._bind(entry, mark.copies[entry.input].copy())
        self.offset = mark.offset
        self.memory_length, self.position = mark.memory_length.copy(), mark.position.copy()
        if wipe:
            self.arrays()

    def array(self, entry: MemoryEntry) -> npt.NDArray[Any]:
        """Return the value of `entry` as an array: the buffer itself on the CPU, a copy from another device."""
        array = self._arrays[entry.input]
        return self.values[entry.input].numpy() if array is None else array

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the values (B, …) for a saved state: all slots that no query may see get their first value."""
        arrays = {entry.input: self.array(entry) for entry in self.entries}
        self.plan.hide(arrays, self.offset, self.memory_length.tolist(), self.position.tolist())
        for entry in self.entries:
            self._upload(entry, arrays[entry.input])
        return arrays

    def by_age(self, entry: MemoryEntry, row: int) -> npt.NDArray[Any]:
        """Return the rows of `entry` that batch row `row` may see, oldest first; for a state, the whole state."""
        array = self.array(entry)[row]
        if entry.row_axis is None:
            return array
        first, count = self.plan.seen(entry, self.offset, int(self.memory_length[row]), int(self.position[row]))
        slots = (first + np.arange(count)) % array.shape[entry.row_axis - 1]
        return np.take(array, slots, axis=entry.row_axis - 1)

    def load_rows(
        self, arrays: Mapping[str, Any], offset: int, capacity: int, length: Sequence[int], position: Sequence[int]
    ) -> None:
        """Take saved counters, and of saved buffers of `capacity` slots the rows that queries may see."""
        self.offset = offset
        self.memory_length, self.position = np.array(length, np.int64), np.array(position, np.int64)
        loaded = {}
        for entry in self.entries:
            saved = arrays[entry.input]
            if capacity == self.capacity or entry.symbol is None:
                array = np.array(saved, entry.dtype, order="C")
            else:
                slots = self.slots[entry.symbol]
                saved_slots = slots - self.capacity + capacity
                rows = min(self.evaluation.rows(entry.symbol), saved_slots, slots)
                ages = offset - rows + np.arange(rows)
                array = self.array(entry).copy()
                array[_at(entry, ages % slots)] = saved[_at(entry, ages % saved_slots)]
            loaded[entry.input] = array
        self.plan.hide(loaded, offset, length, position)
        for entry in self.entries:
            self._bind(entry, loaded[entry.input])

    def _refill(self, entry: MemoryEntry, row: int) -> None:
        """Overwrite `row` of `entry` with its first value."""
        array, value = self.array(entry), self.plan.first_value(entry)
        array[row] = value if isinstance(value, int) else value[0]
        self._upload(entry, array)

    def _upload(self, entry: MemoryEntry, array: npt.NDArray[Any]) -> None:
        """Copy a changed array back to the device; on the CPU it is the buffer itself."""
        if not self.device.on_host:
            self.values[entry.input].update_inplace(array)

    def _bind(self, entry: MemoryEntry, array: npt.NDArray[Any]) -> None:
        self._arrays[entry.input], self.values[entry.input] = self._buffer(array)
        if self.plan.has_two(entry):
            self._next[entry.input] = self._buffer(array.copy())

    def _buffer(self, array: npt.NDArray[Any]) -> tuple[npt.NDArray[Any] | None, Any]:
        """Return `array` (None unless the OrtValue shares its memory and so needs it) and an OrtValue of it."""
        return (array if self.device.on_host else None), device_value(array, self.device)


def check_room(plan: MemoryPlan, batch_size: int) -> None:
    """Refuse buffers of more than three quarters of the machine's memory: Linux grants them, and kills processes later.

    Raises:
        OptionError: they are too large; the message has both sizes.
    """
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # a system that does not report its memory
        return
    nbytes = sum(_nbytes(plan, entry, plan.sizes(entry, batch_size)) for entry in plan.entries)
    if nbytes > 3 / 4 * machine > 0:
        raise OptionError(
            f"the memory of {batch_size:,} batch rows of {plan.capacity:,} slots would take {nbytes / 1e9:,.1f} GB, "
            f"more than three quarters of this machine's {machine / 1e9:,.1f} GB.",
            hint="Choose a smaller mem_len, segment_len or batch size.",
        )


def _first_length(evaluation: EvaluationSettings) -> int:
    """Return the rows that a fresh batch row may see in the ring that keeps the most."""
    return evaluation.most_rows if evaluation.fresh_memory == "zeros" else 0


def _at(entry: MemoryEntry, slots: npt.NDArray[np.int64]) -> tuple[Any, ...]:
    """Return an index of these slots of a ring, in all rows of the batch."""
    assert entry.row_axis is not None
    return (*[slice(None)] * entry.row_axis, slots)


def _number(value: int) -> npt.NDArray[np.int64]:
    return np.array([value], np.int64)


def _nbytes(plan: MemoryPlan, entry: MemoryEntry, sizes: Sequence[int]) -> int:
    """Return the bytes of an entry's buffers."""
    return math.prod(sizes) * np.dtype(entry.dtype).itemsize * (2 if plan.has_two(entry) else 1)
