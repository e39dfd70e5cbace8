"""What a PyTorch file says about itself, read from its pickle's opcodes: nothing is unpickled, so nothing runs.

This is for telling formats apart and for messages. What keeps a hostile file from running is the reader of each format.
"""

from __future__ import annotations

import itertools
import pickletools
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from xlexport.errors import CheckpointError

__all__ = ["PickleSummary", "check_archive", "is_archive", "summarize"]

ARCHIVE_MAGIC = b"PK\x03\x04"
LARGEST_PICKLE = 64 << 20  # tensors are members of their own; the pickle beside them is small
PICKLES_IN_A_LEGACY_FILE = 4  # magic number, protocol, system, object
GET = {"GET", "BINGET", "LONG_BINGET"}
PUT = {"PUT", "BINPUT", "LONG_BINPUT"}
HARMLESS = {"torch", "collections", "numpy"}


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
        """What it refers to outside the packages that plain checkpoints are made of."""
        return [name for name in self.globals if name.partition(".")[0] not in HARMLESS]


def is_archive(path: Path) -> bool:
    """Whether the file begins as a zip archive does, which is what `torch.save` writes since PyTorch 1.6."""
    with path.open("rb") as file:
        return file.read(len(ARCHIVE_MAGIC)) == ARCHIVE_MAGIC


def summarize(path: Path) -> PickleSummary | None:
    """The summary of a PyTorch archive or of a bare pickle; None where the file is neither.

    Raises:
        CheckpointError: an archive that is cut off or damaged.
    """
    if not is_archive(path):
        with path.open("rb") as file:
            return _legacy_summary(file)
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl"]
            if len(names) != 1 or archive.getinfo(names[0]).file_size > LARGEST_PICKLE:
                return None
            with archive.open(names[0]) as file:
                return _summary(_operations(file))
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        raise CheckpointError(
            f"{path}: a PyTorch file that is cut off or damaged ({error}). Copy or save it again."
        ) from error


def check_archive(path: Path) -> None:
    """Check the archive's own checksums, which `torch.load` does not, and that it unpacks to no more than it is.

    Raises:
        CheckpointError: a member is damaged, or compressed, which `torch.save` never does.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise CheckpointError(f"{path}: has compressed members, which torch.save never writes. Save it again.")
            damaged = archive.testzip()
    except (zipfile.BadZipFile, EOFError, RuntimeError) as error:
        raise CheckpointError(f"{path}: the file is damaged ({error}). Copy or save it again.") from error
    if damaged is not None:
        raise CheckpointError(f"{path}: {damaged} in it is damaged (wrong checksum). Copy or save it again.")


def _legacy_summary(file: IO[bytes]) -> PickleSummary | None:
    """Of the pickles that stand one after another at the start of a file; None if there is not even one."""
    operations: list[tuple[str, Any]] = []
    for _ in range(PICKLES_IN_A_LEGACY_FILE):
        try:
            operations += list(_operations(file))
        except (ValueError, EOFError):
            break
    return _summary(iter(operations)) if operations else None


def _operations(file: IO[bytes]) -> Iterator[tuple[str, Any]]:
    return ((opcode.name, argument) for opcode, argument, _ in pickletools.genops(file))


def _summary(operations: Iterator[tuple[str, Any]]) -> PickleSummary:
    strings: list[str] = []
    names: dict[str, None] = {}
    memo: dict[int, str] = {}
    last = ""  # the string that a PUT would store
    for name, argument in operations:
        if name in PUT and last:
            memo[argument] = last
        elif name == "MEMOIZE":
            memo[len(memo)] = last
        elif name in ("GLOBAL", "INST"):
            names[argument.replace(" ", ".", 1)] = None
            last = ""
        elif name == "STACK_GLOBAL":
            names[".".join(strings[-2:])] = None
            last = ""
        elif name in GET:
            last = memo.get(argument, "")
            strings += [last] if last else []
        elif isinstance(argument, str):
            last = argument
            strings.append(last)
        else:
            last = ""
    return PickleSummary(tuple(strings), tuple(names))
