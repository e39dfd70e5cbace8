"""The zip archives that `torch.save` writes, read strictly: plain members, none of which overlaps another."""

from __future__ import annotations

import itertools
import mmap
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from xlexport.checkpoints.safe_pickle.opcodes import BadFileError

__all__ = ["ARCHIVE_MAGIC", "Member", "check_sums", "read_members"]

ARCHIVE_MAGIC = b"PK\x03\x04"
MOST_MEMBERS = 100_000
PIECE = 1 << 20
ENCRYPTED = 1
IN_ZIP64 = 0xFFFFFFFF  # stands where the number is in the longer, later form
ZIP64_EXTRA = 1

END = struct.Struct("<4s4H2LH")
END_LOCATOR_64 = struct.Struct("<4sLQL")
END_64 = struct.Struct("<4sQ2H2L4Q")
ENTRY = struct.Struct("<4s6H3L5H2L")
LOCAL = struct.Struct("<4s5H3L2H")
EXTRA = struct.Struct("<2H")
NUMBER_64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Member:
    """Where a member's bytes stand, and their CRC-32."""

    start: int
    size: int
    crc: int


def read_members(data: mmap.mmap) -> dict[str, Member]:
    """The members of an archive by name.

    Raises:
        BadFileError: the archive is cut off or damaged, or not of the plain kind that torch.save writes.
    """
    count, start, size = _directory(data)
    if count > MOST_MEMBERS:
        raise BadFileError(f"its archive has {count:,} members, more than any checkpoint")
    members: dict[str, Member] = {}
    places: list[tuple[int, int]] = []
    position, directory_end = start, start + size
    for _ in range(count):
        name, member, local, position = _entry(data, position)
        if name.startswith("/") or ".." in name.split("/"):
            raise BadFileError(f"its archive has a member that leads out of it, {name[:60]!a}")
        if name in members:
            raise BadFileError(f"its archive has two members {name[:60]!a}")
        if member.start + member.size > start:
            raise _damaged()
        members[name] = member
        places.append((local, member.start + member.size))
    places.sort()
    if position != directory_end or any(one[1] > other[0] for one, other in itertools.pairwise(places)):
        raise BadFileError("its archive has members that overlap or do not fit in it")
    return members


def check_sums(path: Path, members: dict[str, Member]) -> None:
    """Compare the checksum of every member, which torch.load does not.

    Raises:
        BadFileError: one differs.
    """
    with path.open("rb") as file:
        for name, member in members.items():
            file.seek(member.start)
            crc = 0
            for offset in range(0, member.size, PIECE):
                crc = zlib.crc32(file.read(min(PIECE, member.size - offset)), crc)
            if crc != member.crc:
                raise BadFileError(f"{name[:60]!a} in it is damaged (wrong checksum)")


def _damaged() -> BadFileError:
    return BadFileError("its archive is cut off or damaged")


def _unpack(form: struct.Struct, signature: bytes, data: mmap.mmap, position: int) -> tuple[int, ...]:
    """A header's numbers, after its signature."""
    if not 0 <= position <= len(data) - form.size:
        raise _damaged()
    found, *numbers = form.unpack_from(data, position)
    if found != signature:
        raise _damaged()
    return tuple(numbers)


def _directory(data: mmap.mmap) -> tuple[int, int, int]:
    """Number of entries, position and size of the directory at the archive's end."""
    end = len(data) - END.size
    _, _, _, count, size, start, _ = _unpack(END, b"PK\5\6", data, end)
    locator = end - END_LOCATOR_64.size
    if locator >= 0 and data[locator : locator + 4] == b"PK\6\7":
        _, end, _ = _unpack(END_LOCATOR_64, b"PK\6\7", data, locator)
        *_, count, size, start = _unpack(END_64, b"PK\6\6", data, end)
    if start + size != end:
        raise _damaged()
    return count, start, size


def _entry(data: mmap.mmap, position: int) -> tuple[str, Member, int, int]:
    """One entry of the directory: name, member, position of the member's own header, position after the entry."""
    _, _, flags, method, _, _, crc, packed, size, *lengths, _, _, _, local = _unpack(ENTRY, b"PK\1\2", data, position)
    name_length, extra_length, comment_length = lengths
    name_start = position + ENTRY.size
    extra_start = name_start + name_length
    after = extra_start + extra_length + comment_length
    name = data[name_start:extra_start]
    if method or flags & ENCRYPTED:
        kind = "compressed" if method else "encrypted"
        raise BadFileError(f"its archive has {kind} members, which torch.save never writes")
    size, packed, local = _numbers_64(data[extra_start : extra_start + extra_length], [size, packed, local])
    *_, local_name_length, local_extra_length = _unpack(LOCAL, ARCHIVE_MAGIC, data, local)
    local_name = local + LOCAL.size
    if packed != size or data[local_name : local_name + local_name_length] != name:
        raise _damaged()
    start = local_name + local_name_length + local_extra_length
    try:
        return name.decode("utf-8"), Member(start, size, crc), local, after
    except UnicodeDecodeError as error:
        raise _damaged() from error


def _numbers_64(extra: bytes, numbers: list[int]) -> list[int]:
    """Sizes and offset of an entry, those that are too large for it from its extra field."""
    position = 0
    longer: list[int] = []
    while position + EXTRA.size <= len(extra):
        kind, size = EXTRA.unpack_from(extra, position)
        position += EXTRA.size
        if kind == ZIP64_EXTRA:
            field = extra[position : position + size]
            longer = [number for (number,) in NUMBER_64.iter_unpack(field[: len(field) // 8 * 8])]
        position += size
    found = []
    for number in numbers:
        if number == IN_ZIP64 and not longer:
            raise _damaged()
        found.append(longer.pop(0) if number == IN_ZIP64 else number)
    return found
