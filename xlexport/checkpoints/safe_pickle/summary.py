"""What a PyTorch file says about itself, read from its pickle's operations: nothing is unpickled, so nothing runs.

This is for telling formats apart and for messages. What keeps a hostile file from running is the reader of each format.
"""

from __future__ import annotations

import functools
import itertools
import mmap
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlexport.checkpoints.safe_pickle import map_file
from xlexport.checkpoints.safe_pickle.allowlist import is_known
from xlexport.checkpoints.safe_pickle.opcodes import BadFileError, operations
from xlexport.checkpoints.safe_pickle.zip_archive import ARCHIVE_MAGIC, read_members
from xlexport.errors import CheckpointError

__all__ = ["PickleSummary", "is_archive", "summarize"]

PICKLES_IN_A_LEGACY_FILE = 4  # magic number, protocol, system, object
ROOM = 64 << 20  # bytes for strings and names: those of a model come before its vocabulary
SLOT, PLACE = 8, 100  # bytes that a value takes in a list or a dict, beside its own
PROTOCOL = b"\x80"
GET = {"GET", "BINGET", "LONG_BINGET"}
PUT = {"PUT", "BINPUT", "LONG_BINPUT"}


@dataclass(frozen=True)
class PickleSummary:
    """Strings and names of classes or functions in a pickle, in the order in which they stand."""

    strings: tuple[str, ...]
    globals: tuple[str, ...]  # "module.name", each once

    def has_entry(self, key: str, value: str) -> bool:
        """Whether a dict in it maps `key` to the string `value`."""
        return (key, value) in itertools.pairwise(self.strings)

    @property
    def foreign_globals(self) -> list[str]:
        """Those that the restricted reader refuses."""
        return [name for name in self.globals if not is_known(name)]


def is_archive(path: Path) -> bool:
    """Whether the file begins as a zip archive does, which is what `torch.save` writes since PyTorch 1.6."""
    with path.open("rb") as file:
        return file.read(len(ARCHIVE_MAGIC)) == ARCHIVE_MAGIC


def summarize(path: Path) -> PickleSummary | None:
    """The summary of a PyTorch archive or of a bare pickle; None where the file is neither.

    Raises:
        CheckpointError: an archive that is cut off or damaged.
    """
    found = path.stat()
    return _summarize(path, found.st_size, found.st_mtime_ns)


@functools.lru_cache(maxsize=1)  # each format asks for the same file
def _summarize(path: Path, _size: int, _changed: int) -> PickleSummary | None:
    data = map_file(path)
    if data[: len(ARCHIVE_MAGIC)] != ARCHIVE_MAGIC:
        return _legacy_summary(data)
    try:
        pickles = [member for name, member in read_members(data).items() if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            return None
        return _summary(operations(data, pickles[0].start, pickles[0].start + pickles[0].size))
    except BadFileError as error:
        raise CheckpointError(f"{path}: {error}. {error.repair}") from error


def _legacy_summary(data: mmap.mmap) -> PickleSummary | None:
    """Of the pickles that stand one after another at the start of a file; None if it does not begin with one."""
    if data[:1] == PROTOCOL or _is_pickle(data):  # one that is cut off after its protocol still says what it was
        return _summary(_legacy_operations(data))
    return None


def _is_pickle(data: mmap.mmap) -> bool:
    try:
        return all(operations(data, 0, len(data)))
    except BadFileError:
        return False


def _legacy_operations(data: mmap.mmap) -> Iterator[tuple[str, Any]]:
    position = 0
    for _ in range(PICKLES_IN_A_LEGACY_FILE):
        try:
            for name, argument in operations(data, position, len(data)):
                yield name, argument
                position = argument if name == "STOP" else position
        except BadFileError:
            return


def _summary(found: Iterator[tuple[str, Any]]) -> PickleSummary:
    strings: list[str] = []
    names: dict[str, None] = {}
    memo: dict[int, str] = {}
    last = ""  # the string that a PUT would store
    room = ROOM
    for name, argument in found:
        if name in PUT and last:
            memo[argument] = last
            room -= PLACE
        elif name == "MEMOIZE":
            memo[len(memo)] = last
            room -= PLACE
        elif name in ("GLOBAL", "INST", "STACK_GLOBAL"):
            full = ".".join(argument or strings[-2:])
            names[full] = None
            room -= PLACE + sys.getsizeof(full)
            last = ""
        elif name in GET:
            last = memo.get(argument, "")
            strings += [last] if last else []
            room -= SLOT
        elif isinstance(argument, str):
            last = argument
            strings.append(last)
            room -= SLOT + sys.getsizeof(last)
        else:
            last = ""
        if room < 0:
            break
    return PickleSummary(tuple(strings), tuple(names))
