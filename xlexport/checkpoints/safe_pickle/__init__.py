"""Read pickles and files of `torch.save` that nobody vouches for, with inert records in place of their objects.

This module is the only entry; the others of the folder are private to it. Nothing of a pickle is imported or called,
and nothing falls back to an unpickler that would. A name that is not in the table of `allowlist.py` is refused; one
error lists all such names of a file. What comes out is a finite tree: it does not contain itself, is not deep, and is
not huge even if shared parts are counted at every place.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlexport.checkpoints.safe_pickle.allowlist import is_known
from xlexport.checkpoints.safe_pickle.machine import Machine
from xlexport.checkpoints.safe_pickle.records import BadFileError, Record, opened
from xlexport.checkpoints.safe_pickle.torch_files import read_archive, read_legacy
from xlexport.checkpoints.safe_pickle.zip_archive import ARCHIVE_MAGIC, read_members

__all__ = ["PickleSummary", "Record", "is_archive", "read_pickle", "read_torch", "summarize"]

PICKLES_IN_A_LEGACY_FILE = 4  # magic number, protocol, system, object


def read_pickle(path: Path) -> Any:
    """Read a file that `pickle.dump` wrote, running nothing of it.

    `OrderedDict`, `Counter` and `defaultdict` come out as dicts, numpy's single numbers as plain ones. All other
    objects, numpy's arrays too, come out as a `Record`; texts and byte strings of more than a mebibyte as views of the
    file. A Python 2 `str` is read as UTF-8, or if that does not fit as Latin-1.

    Raises:
        CheckpointNotFoundError: there is no such file.
        CheckpointError: it is damaged, or has objects that could run code; the message names all of them.
    """
    with opened(path) as (_, data):
        value, end = Machine().run(data, 0, len(data))
        if end != len(data):
            raise BadFileError(f"{len(data) - end:,} bytes follow the pickle in it")
        return value


def read_torch(path: Path) -> Any:
    """Read a file that `torch.save` wrote, running nothing of it.

    Tensors and parameters come out as CPU tensors, which may be changed without changing the file; for all else see
    `read_pickle`.

    Raises:
        CheckpointNotFoundError: there is no such file.
        CheckpointError: it is damaged, of the other byte order, or has objects that could run code; the message names
            all of them.
    """
    with opened(path) as (file, data):
        return (read_archive if data[:4] == ARCHIVE_MAGIC else read_legacy)(file, data)


@dataclass(frozen=True)
class PickleSummary:
    """Texts and names of classes or functions in a pickle, in their order. It serves to recognize formats."""

    strings: tuple[str, ...]
    globals: tuple[str, ...]  # "module.name", each once

    def has_entry(self, key: str, value: str) -> bool:
        """Return whether a dict in it maps `key` to the string `value`."""
        return (key, value) in itertools.pairwise(self.strings)

    @property
    def foreign_globals(self) -> list[str]:
        """Return the names that the readers refuse."""
        return [name for name in self.globals if not is_known(name)]


def is_archive(path: Path) -> bool:
    """Return whether the file begins as a zip archive, which `torch.save` writes since PyTorch 1.6."""
    with path.open("rb") as file:
        return file.read(len(ARCHIVE_MAGIC)) == ARCHIVE_MAGIC


def summarize(path: Path) -> PickleSummary | None:
    """Return what the pickle in a PyTorch file says, as far as it is sound; None if the file is not one.

    Raises:
        CheckpointError: the file is an archive that is cut off or damaged.
    """
    found = path.stat()
    return _summarize(path, found.st_size, found.st_mtime_ns)


@functools.lru_cache(maxsize=1)  # each format asks for the same file
def _summarize(path: Path, _size: int, _changed: int) -> PickleSummary | None:
    machine = Machine(persistent=lambda reference: None)
    with opened(path) as (file, data):
        start, end, pickles = 0, len(data), PICKLES_IN_A_LEGACY_FILE
        if data[:4] == ARCHIVE_MAGIC:
            members = read_members(file, data, check=False)
            found = [member for name, member in members.items() if name.endswith("/data.pkl")]
            if len(found) != 1:
                return None
            start, end, pickles = found[0].start, sum(found[0]), 1
        with contextlib.suppress(BadFileError):  # a pickle that is cut off still says what it was
            for _ in range(pickles):
                _, start = machine.run(data, start, end)
        if pickles > 1 and data[:1] != b"\x80" and not machine.has_ended:
            return None  # any text may begin like a pickle without a protocol
    return PickleSummary(tuple(text for text in machine.texts if type(text) is str), tuple(machine.names))
