"""The zip archives that `torch.save` writes: plain members that lie in the file, none of which overlaps another."""

from __future__ import annotations

import encodings.cp437  # noqa: F401 -- zipfile decodes names with it; so reading a file imports nothing
import io
import mmap
import struct
import zipfile
from typing import BinaryIO, NamedTuple

from xlexport.checkpoints.safe_pickle.records import BadFileError
from xlexport.errors import CheckpointError
from xlruntime.limits import Limits

__all__ = ["ARCHIVE_MAGIC", "Member", "read_members"]

ARCHIVE_MAGIC = b"PK\x03\x04"
MOST_MEMBERS = 100_000
LARGEST_DIRECTORY, LARGEST_END = 10 << 20, 1 << 17  # bytes
DIRECTORY_ROOM = 10  # times the bytes of a directory is what zipfile's list of its members takes
DAMAGED = (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, OverflowError, EOFError, struct.error)


class Member(NamedTuple):
    """Where a member's bytes are in the file."""

    start: int
    end: int


class _Bounded(io.FileIO):
    """A file of which zipfile gets less than it asks for, if that is more than a directory or the archive's end."""

    largest = LARGEST_DIRECTORY

    def read(self, size: int | None = -1) -> bytes:
        return super().read(size if size is not None and 0 <= size <= self.largest else LARGEST_END)


def read_members(file: BinaryIO, data: mmap.mmap, limits: Limits, check: bool = True) -> dict[str, Member]:
    """Return the members of an archive by name; if `check`, their checksums are right.

    Raises:
        BadFileError: the archive is cut off or damaged, or not of the plain kind that torch.save writes.
        CheckpointError: it has more members than a limit.
    """
    bounded = _Bounded(file.fileno(), closefd=False)
    bounded.largest = min(LARGEST_DIRECTORY, limits.bytes // DIRECTORY_ROOM)
    try:
        with zipfile.ZipFile(bounded) as archive:
            limits.budget(str(file.name), CheckpointError).charge(operations=len(archive.infolist()))
            members = _plain_members(archive, data)
            if check and (name := archive.testzip()):
                raise BadFileError(f"{name[:60]!a} in it is damaged (wrong checksum)")
            return members
    except CheckpointError:
        raise
    except DAMAGED as error:
        raise BadFileError("its archive is cut off or damaged") from error


def _plain_members(archive: zipfile.ZipFile, data: mmap.mmap) -> dict[str, Member]:
    """Return the members; zipfile has only copied their sizes and places from the directory."""
    found = sorted(archive.infolist(), key=lambda info: info.header_offset)
    signature, count, comment = struct.unpack("<4s6xH8xH", data[-22:])
    if signature != b"PK\5\6" or comment or count != min(len(found), 0xFFFF) or len(found) > MOST_MEMBERS:
        raise BadFileError("its archive is cut off or damaged, or has more members than any checkpoint")
    members: dict[str, Member] = {}
    ends = [*(info.header_offset for info in found[1:]), archive.start_dir]
    for info, limit in zip(found, ends, strict=True):
        name = info.orig_filename
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise BadFileError("its archive has compressed or encrypted members, which torch.save never writes")
        if not name.isprintable() or name.startswith("/") or ".." in name.split("/") or name in members:
            raise BadFileError(f"its archive has an impossible member, or two of a name, {name[:60]!a}")
        name_size, extra_size = struct.unpack_from("<2H", data, info.header_offset + 26)
        start = info.header_offset + 30 + name_size + extra_size
        members[name] = Member(start, start + info.file_size)
        if info.compress_size != info.file_size or members[name].end > limit:
            raise BadFileError("its archive has members that overlap or do not fit in it")
    return members
