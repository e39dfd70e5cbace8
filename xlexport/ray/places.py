"""Files on local disks and in object stores, through pyarrow's file systems."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any, BinaryIO, cast

__all__ = ["Place", "files_at"]

ROW_ENDINGS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".jsonl.gz", ".ndjson.gz", ".csv.gz", ".tsv.gz")
COPIED = 1 << 20


class Place:
    """A path on a file system: `s3://bucket/key`, `gs://…`, or a path on a disk that all machines see.

    Attributes:
        uri: as it was given; system: pyarrow's file system; path: the path on it.
    """

    def __init__(self, uri: str) -> None:
        from pyarrow import fs

        self.uri = uri
        system, path = fs.FileSystem.from_uri(uri) if "://" in uri else (fs.LocalFileSystem(), os.path.abspath(uri))
        self.system: Any = system
        self.path: str = path

    def at(self, name: str) -> Place:
        """Return the place of a file in this folder."""
        return Place(f"{self.uri.rstrip('/')}/{name}")

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

        found = self.system.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(entry.base_name for entry in found if entry.is_file)

    def open(self) -> BinaryIO:
        """Open the file to read; gzip is unpacked if its name ends in .gz."""
        return cast(BinaryIO, self.system.open_input_stream(self.path))

    def open_table(self) -> BinaryIO:
        """Open the file to read from any position."""
        return cast(BinaryIO, self.system.open_input_file(self.path))

    def read(self) -> bytes:
        """Return the whole file."""
        with self.open() as file:
            return file.read()

    def write(self, content: bytes | Path) -> None:
        """Write the file, which appears whole: object stores publish it when it is closed, disks by a new name."""
        from pyarrow import fs

        is_local = isinstance(self.system, fs.LocalFileSystem)
        path = f"{self.path}.{uuid.uuid4().hex}.unfinished" if is_local else self.path
        with self.system.open_output_stream(path) as file:
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


def files_at(uri: str, rows: bool) -> list[str]:
    """Return the files of a folder, sorted, or the file itself.

    Args:
        rows: whether to take only files with rows from folders.
    """
    from pyarrow import fs

    place = Place(uri)
    if place.kind != "folder":
        return [uri]
    found = [
        entry.path
        for entry in place.system.get_file_info(fs.FileSelector(place.path, recursive=True))
        if entry.is_file and not os.path.basename(entry.path).startswith((".", "_"))
    ]
    prefix = uri.rstrip("/")
    names = [f"{prefix}{path.removeprefix(place.path.rstrip('/'))}" for path in sorted(found)]
    return [name for name in names if not rows or name.endswith(ROW_ENDINGS)]
