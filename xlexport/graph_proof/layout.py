"""Say what each axis of a graph is: rows of a batch, the stream, a cache that grows with it, or a fixed size."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xlexport.graph_proof.graph_file import Port

__all__ = ["Layout", "find_layout"]

BATCH = re.compile(r"(?i)b|n|bs|.*batch.*")
STREAM = re.compile(r"(?i)[tsl]|.*(seq|time|len|frame|sample|chunk|step).*")


@dataclass(frozen=True)
class Layout:
    """The free axes of a graph by name.

    Attributes:
        rows: names of the axis of rows; several if states and other inputs call it differently.
        stream: name of the axis along which a step may read any number; None: a step has a fixed size.
        grows: names of axes of states that grow as the stream does.
    """

    rows: frozenset[str]
    stream: str | None
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
        if axis == self.stream:
            return length
        if axis in self.grows:
            return past
        if len(parts := axis.replace(" ", "").split("+")) > 1:
            return sum(self.size(int(part) if part.isdecimal() else part, rows, length, past) for part in parts)
        return past + length if self.grows else 1

    def shape(self, port: Port, rows: int, length: int, past: int) -> tuple[int, ...]:
        """Return the shape of an input; arguments as `size`."""
        return tuple(self.size(axis, rows, length, past) for axis in port.shape or ())

    def place(self, port: Port, names: Iterable[str | None]) -> int | None:
        """Return the first axis of a port that has one of these names, or None."""
        wanted = set(names)
        return next((at for at, axis in enumerate(port.shape or ()) if axis in wanted), None)


def find_layout(read: Sequence[Port], states: Sequence[Port]) -> Layout:
    """Return what the free axes are, by names and by where they occur; `grows` is empty, as only a run shows it.

    Args:
        read: the inputs that are no states.
        states: the inputs that are.
    """
    axes = [axis for port in read for axis in port.shape or () if isinstance(axis, str) and "+" not in axis]
    of_states = [axis for port in states for axis in port.shape or () if isinstance(axis, str)]
    batch = next((axis for axis in axes if axis in of_states), None)
    batch = batch or next((axis for axis in axes if BATCH.fullmatch(axis)), None)
    if batch is None:
        firsts = [port.shape[0] for port in read if port.shape and isinstance(port.shape[0], str)]
        free = sum(isinstance(axis, str) for axis in (read[0].shape or ())) if read else 0
        if firsts and (of_states or free > 1) and "/" in firsts[0]:
            batch = firsts[0]
    rows = {batch} if batch else set()
    if batch is not None and batch not in of_states:  # the same axis, without a name or with one of its own
        firsts_of_states = [next((axis for axis in port.shape or () if isinstance(axis, str)), None) for port in states]
        rows |= {axis for axis in firsts_of_states if axis is not None and ("/" in axis or BATCH.fullmatch(axis))}
    if batch is not None:
        rows |= {f"{port.name}/0" for port in read if port.shape and "/" in str(port.shape[0]) and "/" in batch}
    free_axes = [axis for axis in axes if axis not in rows and axis not in of_states]
    stream = next((axis for axis in free_axes if STREAM.fullmatch(axis)), free_axes[0] if free_axes else None)
    return Layout(frozenset(rows), stream)
