"""Read pickles and files of `torch.save` that nobody vouches for, with inert records in place of their objects.

This module is the only entry; the others of the folder are private to it. Nothing of a pickle is imported or called,
and nothing falls back to an unpickler that would. A name that is not in the table of `records.py` is refused; one
error lists all such names of a file. What comes out is a finite tree: it does not contain itself, is not deep, and is
not huge even if shared parts are counted at every place.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from xlexport.checkpoints.safe_pickle.machine import PICKLE_LIMITS, Machine
from xlexport.checkpoints.safe_pickle.records import BadFileError, Record
from xlexport.checkpoints.safe_pickle.torch_files import (
    ARCHIVE_MAGIC,
    LEGACY_MAGIC,
    read_archive,
    read_legacy,
    read_members,
)
from xlexport.errors import CheckpointError, CheckpointNotFoundError
from xlruntime.limits import Limits

__all__ = ["PICKLE_LIMITS", "PickleSummary", "Record", "is_archive", "read", "summarize"]

PICKLES_IN_A_LEGACY_FILE = 4  # magic number, protocol, system, object


def read(path: Path, limits: Limits = PICKLE_LIMITS) -> Any:
    """Read a file that `torch.save` or `pickle.dump` wrote, running nothing of it.

    Tensors and parameters come out as CPU tensors, which may be changed without changing the file. `OrderedDict`,
    `Counter` and `defaultdict` come out as dicts, numpy's single numbers as plain ones. All other objects, numpy's
    arrays too, come out as a `Record`; texts and byte strings of more than a mebibyte as views of the file. A Python 2
    `str` is read as UTF-8, or if that does not fit as Latin-1.

    Raises:
        CheckpointNotFoundError: the file does not exist.
        CheckpointError: it is damaged, of the other byte order, would take more than a limit, or has objects that
            could run code; the message names all of them.
    """
    with _mapped(path) as (file, data):
        if data[: len(ARCHIVE_MAGIC)] == ARCHIVE_MAGIC:
            return read_archive(file, data, limits)
        budget = limits.budget(str(path), CheckpointError)
        value = Machine(budget).run(data)
        if type(value) is int and value == LEGACY_MAGIC:
            return read_legacy(data, limits.budget(str(path), CheckpointError))
        if rest := len(data) - data.tell():
            raise BadFileError(f"{rest:,} bytes follow the pickle in it")
        return value


@dataclass(frozen=True)
class PickleSummary:
    """Texts and names of classes or functions in a pickle, in their order. It serves to recognize formats."""

    strings: tuple[str, ...]
    globals: tuple[str, ...]  # "module.name", each once
    foreign_globals: tuple[str, ...]  # refused by the readers


def is_archive(path: Path) -> bool:
    """Return whether the file begins as a zip archive, which `torch.save` writes since PyTorch 1.6."""
    with path.open("rb") as file:
        return file.read(len(ARCHIVE_MAGIC)) == ARCHIVE_MAGIC


def summarize(path: Path, limits: Limits = PICKLE_LIMITS) -> PickleSummary | None:
    """Return what the pickle in a PyTorch file says, as far as it is sound; None if the file is not one.

    Raises:
        CheckpointError: the file is an archive that is cut off or damaged.
    """
    status = path.stat()
    return _summarize(path, limits, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=1)  # each format asks for the same file
def _summarize(path: Path, limits: Limits, _size: int, _changed: int) -> PickleSummary | None:
    machine = Machine(limits.budget(str(path), CheckpointError), persistent=lambda reference: None)
    with _mapped(path) as (file, data):
        places: list[tuple[int, int] | tuple[()]] = [()] * PICKLES_IN_A_LEGACY_FILE  # one after the other
        if is_archive := data[: len(ARCHIVE_MAGIC)] == ARCHIVE_MAGIC:
            members = read_members(file, data, limits, check=False)
            places = [member for name, member in members.items() if name.endswith("/data.pkl")]
            if len(places) != 1:
                return None
        with contextlib.suppress(BadFileError, CheckpointError):  # a pickle that is cut off still says what it was
            for place in places:
                machine.run(data, *place)
        if not is_archive and data[:1] != b"\x80" and not machine.has_ended:
            return None  # any text may begin like a pickle without a protocol
    foreign = (name for name, is_known in machine.names.items() if not is_known)
    return PickleSummary(tuple(machine.texts), tuple(machine.names), tuple(foreign))


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[tuple[BinaryIO, mmap.mmap]]:
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
