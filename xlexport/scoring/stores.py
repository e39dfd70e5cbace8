"""Read inputs from object stores, and write an output to one, through pyarrow's file systems."""

from __future__ import annotations

import fnmatch
import functools
import glob
import io
import os
import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from xlexport.errors import OutputExistsError
from xlexport.scoring.inputs import Input
from xlexport.scoring.partial_file import PartialFile
from xlruntime import OptionError
from xlruntime.messages import first_line

__all__ = ["Location", "StoredFile", "StoredInput", "inputs_at"]

COPIED = 1 << 20
STORES = 16  # file systems that stay open


class Location:
    """The location of a file or a folder in a store, such as `s3://bucket/key`.

    Attributes:
        uri: its address; system: pyarrow's file system; path: the path on it.

    Raises:
        OptionError: pyarrow knows no such file system.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        address, query = _parts(uri)
        scheme, _, rest = address.partition("://")
        bucket, _, key = rest.partition("/")
        self.system, root = _file_system(f"{scheme}://{bucket}/{query}")
        self.path = f"{root.rstrip('/')}/{key}".rstrip("/")

    def at(self, name: str) -> Location:
        """Return the location of a file in this folder."""
        address, query = _parts(self.uri)
        return Location(f"{address.rstrip('/')}/{name}{query}")

    @property
    def status(self) -> Any:
        """Pyarrow's description: type, size and time of the last change."""
        return self.system.get_file_info(self.path)

    @property
    def kind(self) -> str:
        """`File`, `Directory` or `NotFound`."""
        return str(self.status.type.name)

    def write(self, content: Path) -> None:
        """Copy a file to here. It appears whole: stores publish it when it is closed, disks by a new name."""
        from pyarrow import fs

        is_local = isinstance(self.system, fs.LocalFileSystem)
        path = f"{self.path}.{uuid.uuid4().hex}.unfinished" if is_local else self.path
        with self.system.open_output_stream(path, compression=None) as target, content.open("rb") as source:
            while raw := source.read(COPIED):
                target.write(raw)
        if is_local:
            self.system.move(path, self.path)


@dataclass(frozen=True)
class StoredInput(Input):
    """A file in a store; its name is its address."""

    @property
    def repeatable(self) -> bool:
        """Whether the input can be read again."""
        return True

    @functools.cached_property
    def _status(self) -> Any:
        return Location(self.name).status

    @property
    def size(self) -> int | None:
        """Size of the text in bytes; None if it may be packed, or does not exist."""
        return None if self.is_packed else cast(int | None, self._status.size)

    def open(self, stdin: BinaryIO | None) -> Any:
        """Open the bytes as they are stored."""
        location = Location(self.name)
        return io.BufferedReader(location.system.open_input_stream(location.path, compression=None))

    def open_table(self) -> BinaryIO:
        """Open the file to read from any position."""
        location = Location(self.name)
        return cast(BinaryIO, location.system.open_input_file(location.path))

    def digest(self) -> str:
        """Return size and time of the last change, since a digest would cost a transfer of the whole file."""
        return f"{self._status.size} {self._status.mtime}"


class StoredFile(PartialFile):
    """An output in a store. It grows in the current folder, and is copied when it is complete."""

    def __init__(self, uri: str, finish: Callable[[Path, Path], None] | None = None) -> None:
        super().__init__(Path(f"{Path(_parts(uri)[0]).name}.upload"), finish)
        self.name, self._location = uri, Location(uri)

    @property
    def is_complete(self) -> bool:
        """Whether an earlier run has written the whole output."""
        return self._location.kind == "File" and not self.partial.exists()

    def check(self, force: bool, resume: bool) -> None:
        """Refuse to replace existing files, as `PartialFile.check`."""
        super().check(force, resume)
        if self._location.kind != "NotFound" and not (force or resume):
            raise OutputExistsError(f"{self._location.uri}: exists already.", hint="Replace it with --force.")

    def publish(self) -> None:
        """Copy the complete output to the store."""
        self.sync()
        with tempfile.TemporaryDirectory(dir=self.partial.parent) as folder:
            whole = self.partial if self._finish is None else Path(folder, "whole")
            if self._finish is not None:
                self._finish(self.partial, whole)
            self._location.write(whole)
        self.discard()


def inputs_at(uri: str, patterns: Sequence[str] = ()) -> list[Input]:
    """Return the files of a folder or of a pattern in a store, sorted, or the file itself.

    Hidden files, and those whose name begins with `_`, are left out.

    Args:
        patterns: the names of the files to take from a folder; none: all.
    """
    from fsspec.implementations.arrow import ArrowFSWrapper

    address, query = _parts(uri)
    parts = address.split("/")
    named = next((number for number, part in enumerate(parts) if number > 2 and glob.has_magic(part)), len(parts))
    folder = Location("/".join(parts[:named]).rstrip("/") + query)
    if named == len(parts) and folder.kind != "Directory":
        return [_input(folder)]
    system = ArrowFSWrapper(folder.system)
    matches = system.glob("/".join([folder.path, *parts[named:]])) if parts[named:] else [folder.path]
    inside = sorted({str(path) for match in matches for path in system.find(match)})
    names = [path.removeprefix(folder.path).strip("/") for path in inside]
    bases = [(name, os.path.basename(name)) for name in names]
    return [
        _input(folder.at(name))
        for name, base in bases
        if not base.startswith((".", "_"))
        and (not patterns or any(fnmatch.fnmatch(base, pattern) for pattern in patterns))
    ]


def _input(location: Location) -> Input:
    return StoredInput(location.uri, Path(location.path))


def _parts(uri: str) -> tuple[str, str]:
    """Return an address and its query, which says how to reach the store."""
    address, mark, query = uri.partition("?")
    return (address, mark + query) if "=" in query else (uri, "")  # a pattern may have a ?, too


@functools.lru_cache(STORES)
def _file_system(root: str) -> tuple[Any, str]:
    """Return the file system of the root of a store, and the path of the root.

    Raises:
        OptionError: pyarrow knows no such file system.
    """
    import pyarrow
    from pyarrow import fs

    try:
        return cast(tuple[Any, str], fs.FileSystem.from_uri(root))
    except (pyarrow.ArrowException, ValueError, OSError) as error:
        raise OptionError(
            f"{root}: cannot be reached ({first_line(error)[:300]}).",
            hint="Check the address, and the settings and keys of the object store.",
        ) from error
