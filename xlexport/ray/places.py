"""Read files on local disks and in object stores through pyarrow, and divide them into parts.

A part is what is scored, written and, after an interruption, skipped.
"""

from __future__ import annotations

import fnmatch
import functools
import glob
import io
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from xlexport.scoring.chunks import Chunk, chunks
from xlexport.scoring.documents import CarriedColumns, file_document, items
from xlexport.scoring.inputs import Input, Reading, TextSource, unpacked
from xlexport.scoring.rows import Row, rows_of
from xlruntime import OptionError, TextError
from xlruntime.messages import first_line

__all__ = ["File", "Part", "Place", "chunks_of", "documents_of_rows", "files_at", "is_address", "parts_of"]

COPIED = 1 << 20
STORES = 16  # file systems that stay open
MOST_ROWS = 4096  # of a part


def is_address(place: str) -> bool:
    """Return whether a text is the address of an object store, such as `s3://bucket/key`."""
    return "://" in place


class Place:
    """A path on a file system: `s3://bucket/key`, `gs://…`, or a path on a disk that all machines see.

    Attributes:
        uri: as it was given; system: pyarrow's file system; path: the path on it.

    Raises:
        OptionError: pyarrow knows no such file system.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        address, self._query = _parts(uri)
        self.system: Any
        self.path: str
        if is_address(uri):
            scheme, _, rest = address.partition("://")
            bucket, _, key = rest.partition("/")
            self.system, root = _file_system(f"{scheme}://{bucket}/{self._query}")
            self.path = f"{root.rstrip('/')}/{key}".rstrip("/")
        else:
            self.system, root = _file_system("")
            self.path = os.path.abspath(uri)

    def at(self, name: str) -> Place:
        """Return the place of a file in this folder."""
        address, query = _parts(self.uri)
        return Place(f"{address.rstrip('/')}/{name}{query}")

    @property
    def status(self) -> Any:
        """Pyarrow's description: type, size and time of the last change."""
        return self.system.get_file_info(self.path)

    @property
    def kind(self) -> str:
        """`file`, `folder`, or `nothing`."""
        return {"File": "file", "Directory": "folder"}.get(self.status.type.name, "nothing")

    def names(self) -> list[str]:
        """Return the names of the files in this folder, sorted; none if it does not exist."""
        from pyarrow import fs

        entries = self.system.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(entry.base_name for entry in entries if entry.is_file)

    def open(self, name: str, binary: bool) -> BinaryIO:
        """Open the file to read, as `scoring.inputs.open_input` does."""
        raw = self.system.open_input_stream(self.path, compression=None)
        return unpacked(io.BufferedReader(raw), name, self.path.endswith(".gz"), binary)

    def open_table(self) -> BinaryIO:
        """Open the file to read from any position."""
        return cast(BinaryIO, self.system.open_input_file(self.path))

    def read(self) -> bytes:
        """Return the whole file."""
        with self.system.open_input_stream(self.path, compression=None) as file:
            return cast(bytes, file.read())

    def write(self, content: bytes | Path) -> None:
        """Write the file, which appears whole: object stores publish it when it is closed, disks by a new name."""
        from pyarrow import fs

        is_local = isinstance(self.system, fs.LocalFileSystem)
        path = f"{self.path}.{uuid.uuid4().hex}.unfinished" if is_local else self.path
        with self.system.open_output_stream(path, compression=None) as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                with content.open("rb") as source:
                    while raw := source.read(COPIED):
                        file.write(raw)
        if is_local:
            self.system.move(path, self.path)

    def remove(self) -> None:
        """Remove the file."""
        self.system.delete_file(self.path)

    def make_folder(self) -> None:
        """Make the folder, if the file system has folders."""
        self.system.create_dir(self.path, recursive=True)


@dataclass(frozen=True)
class File:
    """A file of a run.

    Attributes:
        name: as it was given; uri: an address, or an absolute path that all machines see.
        number: of the file in the run.
    """

    name: str
    uri: str
    number: int

    def identity(self) -> list[Any]:
        """Return what distinguishes the file from a later version of it.

        Raises:
            TextError: it does not exist.
        """
        status = Place(self.uri).status
        if status.type.name == "NotFound":
            raise TextError(
                f"{self.name}: no such file.", hint="Check the path; all machines of the cluster must see it."
            )
        return [self.uri, status.size, str(status.mtime)]

    def rows(self, reading: Reading) -> Iterator[Row]:
        """Yield the rows of the file, by the ending of its name."""
        place = Place(self.uri)
        source = TextSource(self.name, functools.partial(place.open, self.name, reading.binary), at_hand=True)
        return rows_of(Input(self.name, Path(place.path)), source, reading, place.open_table)


def files_at(uri: str, patterns: Sequence[str] = ()) -> list[str]:
    """Return the files of a folder or of a pattern in an object store, sorted, or the file itself.

    Hidden files, and those whose name begins with `_`, are left out.

    Args:
        patterns: the names of the files to take from a folder; none: all.
    """
    from fsspec.implementations.arrow import ArrowFSWrapper

    address, query = _parts(uri)
    parts = address.split("/")
    named = next((number for number, part in enumerate(parts) if number > 2 and glob.has_magic(part)), len(parts))
    folder = Place("/".join(parts[:named]).rstrip("/") + query)
    if named == len(parts) and folder.kind != "folder":
        return [uri]
    system = ArrowFSWrapper(folder.system)
    matches = system.glob("/".join([folder.path, *parts[named:]])) if parts[named:] else [folder.path]
    inside = sorted({str(path) for match in matches for path in system.find(match)})
    names = [path.removeprefix(folder.path).strip("/") for path in inside]
    bases = [(name, name.rpartition("/")[2]) for name in names]
    names = [
        name
        for name, base in bases
        if not base.startswith((".", "_"))
        and (not patterns or any(fnmatch.fnmatch(base, pattern) for pattern in patterns))
    ]
    return [folder.at(name).uri for name in names]


def _parts(uri: str) -> tuple[str, str]:
    """Return an address and its query, which says how to reach the store; a path on a disk has none."""
    if not is_address(uri):
        return uri, ""
    address, mark, query = uri.partition("?")
    return (address, mark + query) if "=" in query else (uri, "")  # a pattern may have a ?, too


@functools.lru_cache(STORES)
def _file_system(root: str) -> tuple[Any, str]:
    """Return the file system of the root of a store, or of this machine if `root` is empty, and the path of the root.

    Raises:
        OptionError: pyarrow knows no such file system.
    """
    import pyarrow
    from pyarrow import fs

    if not root:
        return fs.LocalFileSystem(), "/"
    try:
        return cast(tuple[Any, str], fs.FileSystem.from_uri(root))
    except (pyarrow.ArrowException, ValueError, OSError) as error:
        raise OptionError(
            f"{root}: cannot be reached ({first_line(error)[:300]}).",
            hint="Check the address, and the settings and keys of the object store.",
        ) from error


@dataclass(frozen=True)
class Part:
    """Some consecutive rows of a file, or a file that is one document.

    Attributes:
        number: of the part in the file.
        rows: None if the file is one document, which is opened where it is scored.
    """

    file: File
    number: int
    rows: tuple[Row, ...] | None

    @property
    def name(self) -> str:
        """The name of the part's output, without ending."""
        return f"part-{self.file.number:07}-{self.number:07}"


def parts_of(file: File, reading: Reading, part_bytes: int) -> Iterator[Part]:
    """Yield the parts of a file. Where they begin depends on the file alone."""
    if reading.field is None:
        yield Part(file, 0, None)
        return
    rows: list[Row] = []
    size = number = 0
    for row in file.rows(reading):
        rows.append(row)
        size += row.size
        if size >= part_bytes or len(rows) >= MOST_ROWS:
            yield Part(file, number, tuple(rows))
            rows, size, number = [], 0, number + 1
    if rows:
        yield Part(file, number, tuple(rows))


def chunks_of(part: Part, reading: Reading, keep: bool) -> Iterator[Chunk]:
    """Yield the documents of a part in chunks.

    Args:
        keep: whether sources keep the text that was read, for records of lines and words.
    """
    name = part.file.name
    entry = Input(name, None)
    if part.rows is not None:
        return documents_of_rows(part.rows, entry, reading, keep)
    opener = functools.partial(Place(part.file.uri).open, name, reading.binary)
    return iter([[(entry, file_document(name, opener, True, reading, keep))]])


def documents_of_rows(rows: tuple[Row, ...], entry: Input, reading: Reading, keep: bool) -> Iterator[Chunk]:
    """Yield the documents of rows in chunks; each repeats the columns that `reading.keep` names."""
    columns = CarriedColumns(reading, (), lambda line: None)
    return chunks((entry, document) for document in items(iter(rows), entry.name, reading, keep, columns))
