"""Inert stand-ins for the objects of a pickle, and the check that what holds them is a finite tree."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from xlexport.checkpoints.safe_pickle.opcodes import BadFileError

__all__ = ["Name", "Record", "check_tree"]

DEEPEST = 100
LARGEST_TREE = 5_000_000  # the two tables and the counts of 800,000 words are half of it


@dataclass(eq=False, slots=True, repr=False)
class Record:
    """An inert stand-in for an object, a function's result or a class: what its pickle says about it, and no more.

    Attributes:
        name: its class or function, `mem_transformer.MemTransformerLM`.
        arguments: what it would have been made from.
        state: what it would have been given as state, usually its attributes by name; `{}` if none.
        items: its elements, if it is a list or dict of some kind.
    """

    name: str
    arguments: tuple[Any, ...] = ()
    state: Any = field(default_factory=dict)
    items: list[Any] | dict[Any, Any] | None = None

    def get(self, attribute: str, default: Any = None) -> Any:
        """An attribute from its state."""
        return self.state.get(attribute, default) if isinstance(self.state, dict) else default

    def __repr__(self) -> str:
        """Its name alone: what is shared, written out at every place, may be more than memory holds."""
        return f"<{self.name[:60]!a}>"


class Name(Record):
    """A class or function that a pickle refers to; where it stands as a value, a record without anything."""

    __slots__ = ()


def check_tree(root: Any) -> None:
    """Refuse what contains itself, is very deep, or is huge once what is shared counts at every place.

    A reader may then follow it by simple recursion, and is done in time.

    Raises:
        BadFileError: it is none of what a checkpoint holds.
    """
    if type(root) in BRANCHES:
        _measure(root, {}, 1)


def _measure(value: Any, known: dict[int, tuple[int, int] | None], depth: int) -> tuple[int, int]:
    """Height and size of a container; `known` has those of others by id, and None for those that hold this one."""
    if id(value) in known:
        measure = known[id(value)]
        if measure is None:
            raise BadFileError("its pickle has an object that contains itself")
        return measure
    if depth > DEEPEST:
        raise BadFileError("its pickle is nested more deeply than any checkpoint")
    known[id(value)] = None
    branches = _branches(value)
    height, size = 1, 1 + len(branches)
    for branch in branches:
        if type(branch) in BRANCHES:
            branch_height, branch_size = _measure(branch, known, depth + 1)
            height = max(height, branch_height + 1)
            size += branch_size
    if height > DEEPEST or size > LARGEST_TREE:
        raise BadFileError("its pickle stands for far more than the file has bytes")
    known[id(value)] = height, size
    return height, size


def _branches(value: Any) -> Collection[Any]:
    if isinstance(value, Record):
        return value.arguments, value.state, value.items
    return value.values() if isinstance(value, dict) else value


BRANCHES = {list, tuple, dict, Record}
