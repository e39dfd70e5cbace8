"""Say what each axis of a graph is: rows of a batch, the stream, a cache that grows with it, or a fixed size."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from xlexport.graph_proof.graph_file import UNNAMED, Port

__all__ = ["Layout", "apart", "find_layouts", "is_stream"]

BATCH = re.compile(r"(?i)bs|.*batch.*")
SHORT = re.compile(r"(?i)[bn]")  # rows, or samples
IMAGE = re.compile(r"(?i)h|w|height|width")
STREAM = re.compile(r"(?i)[tsl]|.*(seq|time|len|frame|sample|chunk|step).*")


@dataclass(frozen=True)
class Layout:
    """The free axes of a graph by name.

    Attributes:
        rows: names of the axis of rows; several if states and other inputs call it differently.
        stream: name of the axis along which a step may read any number; None: a step has a fixed size.
        beside: axes without a name that go with the stream, in other inputs.
        is_guess: whether names do not say what the rows are.
        grows: names of axes of states that grow as the stream does.
    """

    rows: frozenset[str]
    stream: str | None
    beside: frozenset[str] = frozenset()
    is_guess: bool = False
    grows: frozenset[str] = frozenset()

    def size(self, axis: int | str, rows: int, length: int, past: int) -> int:
        """Return the size of an axis.

        Args:
            length: of the free axis of the stream in this call.
            past: size of the caches that grow.
        """
        if isinstance(axis, int):
            return axis
        if axis in self.rows:
            return rows
        if axis == self.stream or axis in self.beside:
            return length
        if axis in self.grows:
            return past
        if len(parts := axis.replace(" ", "").split("+")) > 1:
            return sum(self.size(int(part) if part.isdecimal() else part, rows, length, past) for part in parts)
        return past + length if self.grows or self.stream is None else 1

    def shape(self, port: Port, rows: int, length: int, past: int) -> tuple[int, ...]:
        """Return the shape of an input; arguments as `size`."""
        return tuple(self.size(axis, rows, length, past) for axis in port.shape or ())

    def place(self, port: Port, names: Iterable[str | None]) -> int | None:
        """Return the first axis of a port that has one of these names, or None."""
        wanted = set(names)
        if self.stream in wanted:
            wanted |= self.beside
        return next((at for at, axis in enumerate(port.shape or ()) if axis in wanted), None)


def is_stream(axis: int | str) -> bool:
    """Return whether an axis has a name that streams have, such as `time`."""
    return isinstance(axis, str) and bool(STREAM.fullmatch(axis)) and not BATCH.fullmatch(axis)


def apart(state: Port, read: Sequence[Port]) -> Port:
    """Return a state whose axes have other names than the stream: both may be called `seq`, and differ in size."""
    named = {axis for port in read for axis in port.shape or () if is_stream(axis)}
    axes = (f"{state.name}{UNNAMED}{at}" if axis in named else axis for at, axis in enumerate(state.shape or ()))
    return state if state.shape is None else replace(state, shape=tuple(axes))


def find_layouts(read: Sequence[Port], states: Sequence[Port]) -> Iterator[Layout]:
    """Yield what the free axes can be, the likeliest first: by their names, or by their places if they have none.

    `grows` is empty, as only a run shows it.

    Args:
        read: the inputs that are no states.
        states: the inputs that are, `apart`.
    """
    read = sorted(read, key=_is_mask)  # it may be as long as a cache
    axes = [axis for port in read for axis in port.shape or () if isinstance(axis, str) and "+" not in axis]
    free_of_states = [[axis for axis in port.shape or () if isinstance(axis, str)] for port in states]
    of_states = {axis for free in free_of_states for axis in free}
    first = {free[0] for free in free_of_states if free}
    alike = {axis for axis in first if UNNAMED in axis or BATCH.fullmatch(axis) or SHORT.fullmatch(axis)}
    if shared := sorted((axis for axis in axes if axis in of_states), key=lambda axis: not BATCH.fullmatch(axis)):
        yield _layout(read, of_states, {shared[0]})
        return
    has_rows = alike or all(len(port.shape or ()) < 2 for port in states)
    batch = [axis for axis in axes if BATCH.fullmatch(axis) or (SHORT.fullmatch(axis) and has_rows)]
    places = [axis for axis in axes if UNNAMED in axis and axis.startswith(f"{read[0].name}{UNNAMED}")]
    if batch:
        guesses = [{batch[0]} | alike, {batch[0]}]
    elif alike or len(places) > 1:
        at = [axis.rpartition(UNNAMED)[2] for axis in places]
        guesses = [{f"{port.name}{UNNAMED}{place}" for port in read} | alike for place in at]
    else:
        guesses = []
    for rows in guesses:
        yield _layout(read, of_states, rows, is_guess=True)
    yield _layout(read, of_states, set())


def _is_mask(port: Port) -> bool:
    return "mask" in port.name.lower()


def _layout(read: Sequence[Port], of_states: set[str], rows: set[str], is_guess: bool = False) -> Layout:
    free = [
        (at, axis)
        for port in read
        for at, axis in enumerate(port.shape or ())
        if isinstance(axis, str) and "+" not in axis and axis not in rows and axis not in of_states
        if not (BATCH.fullmatch(axis) or IMAGE.fullmatch(axis))
    ]
    place, stream = next((one for one in free if is_stream(one[1])), free[0] if free else (0, None))
    beside = {axis for at, axis in free if at == place and UNNAMED in axis and axis != stream}
    if of_states - rows:  # caches, along which a mask reaches
        beside -= {axis for port in read if _is_mask(port) for axis in port.shape or () if isinstance(axis, str)}
    return Layout(frozenset(rows), stream, frozenset(beside), is_guess)
