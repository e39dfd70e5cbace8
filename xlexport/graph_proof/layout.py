"""Say what each axis of a graph is: rows of a batch, the stream, a cache that grows with it, or a fixed size."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from xlexport.graph_proof.graph_file import Port

__all__ = ["UNNAMED", "Layout", "find_layouts"]

BATCH = re.compile(r"(?i)b|n|bs|.*batch.*")
UNNAMED = "/"  # in the name of an axis that the graph does not name
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


def find_layouts(read: Sequence[Port], states: Sequence[Port]) -> Iterator[Layout]:
    """Yield what the free axes can be, the likeliest first: by their names, or by their places if they have none.

    `grows` is empty, as only a run shows it.

    Args:
        read: the inputs that are no states.
        states: the inputs that are.
    """
    axes = [axis for port in read for axis in port.shape or () if isinstance(axis, str) and "+" not in axis]
    free_of_states = [[axis for axis in port.shape or () if isinstance(axis, str)] for port in states]
    of_states = [axis for free in free_of_states for axis in free]
    shared = next((axis for axis in axes if axis in of_states), None)
    batch = shared or next((axis for axis in axes if BATCH.fullmatch(axis)), None)
    alike = {free[0] for free in free_of_states if free and (UNNAMED in free[0] or BATCH.fullmatch(free[0]))}
    if batch is not None:
        yield _layout(axes, of_states, {batch} | (set() if shared else alike))
        return
    first = [axis for axis in axes if UNNAMED in axis and axis.startswith(f"{read[0].name}/")]
    for axis in first if alike or len(first) > 1 else ():
        at = axis.partition(UNNAMED)[2]
        yield _layout(axes, of_states, {f"{port.name}/{at}" for port in read} | alike)
    yield _layout(axes, of_states, set())


def _layout(axes: Sequence[str], of_states: Sequence[str], rows: set[str]) -> Layout:
    free = [axis for axis in axes if axis not in rows and axis not in of_states]
    return Layout(frozenset(rows), next((axis for axis in free if STREAM.fullmatch(axis)), free[0] if free else None))
