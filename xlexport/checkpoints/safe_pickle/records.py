"""Files that nobody vouches for, what is wrong with them, and the inert stand-ins for the objects in them."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from xlexport.errors import CheckpointError, CheckpointNotFoundError
from xlruntime.limits import Budget

__all__ = ["BadFileError", "Name", "Record", "check_tree", "opened"]

DEEPEST = 100
LARGEST_TREE = 5_000_000  # the two tables and the counts of 800,000 words are half of it


class BadFileError(Exception):
    """A file is damaged or unsafe; the message continues a sentence that begins with the file's name."""

    def __init__(self, message: str, hint: str = "Copy or save it again.") -> None:
        super().__init__(f"{message}.")
        self.hint = hint


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
    items: Any = None

    def get(self, attribute: str, default: Any = None) -> Any:
        """Return an attribute from its state."""
        return self.state.get(attribute, default) if isinstance(self.state, dict) else default

    def __repr__(self) -> str:
        """Return its name alone: shared contents, written out at every place, may be more than memory holds."""
        return f"<{self.name[:60]!a}>"


class Name(Record):
    """A class or function that a pickle refers to; as a value, a record without contents."""

    __slots__ = ()


CONTAINERS: Mapping[type[Any], Callable[[Any], Collection[Any]]] = {  # and what they contain
    list: lambda value: value,
    tuple: lambda value: value,
    dict: dict.values,
    Record: lambda value: (value.arguments, value.state, value.items),
}


def check_tree(root: Any, budget: Budget) -> None:
    """Refuse a tree that contains itself, is deep, or is huge with shared parts counted at every place.

    A reader may then follow it by simple recursion, and ends in time.
    """
    size, level = 0, [root]
    for _ in range(DEEPEST + 1):
        branches = [CONTAINERS[type(value)](value) for value in level if type(value) in CONTAINERS]
        if not branches:
            return
        step = len(branches) + sum(map(len, branches))
        budget.charge(operations=step)
        size += step
        if size > LARGEST_TREE:
            raise BadFileError("its pickle expands to far more than any checkpoint holds")
        level = [part for parts in branches for part in parts if type(part) in CONTAINERS]
    raise BadFileError("its pickle has an object that contains itself, or is nested more deeply than any checkpoint")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, mmap.mmap]]:
    """Open a file, map it so that changes of the mapping stay in memory, and make every error a CheckpointError."""
    try:
        if not path.is_file():  # opening a pipe or a device could wait forever
            if path.is_symlink() or path.exists():
                raise CheckpointError(f"{path}: not a file, or a link that leads to none.", "Check the path.")
            raise CheckpointNotFoundError(f"{path}: no such file.", "Check the path.")
        with path.open("rb") as file:
            if not file.seek(0, 2):
                raise BadFileError("the file is empty")
            yield file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except BadFileError as error:
        raise CheckpointError(f"{path}: {error}", error.hint) from error
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}).", "Check its permissions.") from error
