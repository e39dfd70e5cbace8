"""The container of TensorFlow's checkpoints (a "tensor bundle"), read without TensorFlow.

    PREFIX.index                       a sorted table: "" -> header, name -> dtype, shape and place of a tensor
    PREFIX.data-00000-of-00001, ...    the tensors' bytes in row-major order

The table is LevelDB's: blocks of records whose keys share their beginnings, each block followed by its type and a
masked CRC-32C, and a footer that leads to a block of block addresses. The values are protocol buffers
(`BundleHeaderProto`, `BundleEntryProto`). Sources: LevelDB's doc/table_format.md, TensorFlow's
core/protobuf/tensor_bundle.proto.

A file is not trusted: its declarations are compared with the files' sizes before memory is taken, blocks must follow
one another, and every checksum is verified. Data files are mapped into memory, not read.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.checkpoints.files import inside
from xlexport.errors import CheckpointError
from xlexport.extras import require
from xlruntime.limits import Budget, Limits

__all__ = ["INDEX_LIMITS", "BundleEntry", "TensorBundle", "ends_as_table", "open_tensor_bundle"]

TABLE_MAGIC = 0xDB4775248B80FB57.to_bytes(8, "little")
FOOTER = 48  # two block handles, padded to 40 bytes, and the magic number
BLOCK_TRAILER = 5  # type and checksum
COMPRESSIONS = {1: "snappy", 2: "zlib"}
NEWEST_VERSION = 1  # of the bundle: the only version so far
INDEX_LIMITS = Limits(bytes=128 << 20, operations=200_000)
"""For an index and its data files. The largest published model with its optimizer's state takes a fiftieth of this."""
ENTRY_ROOM = 1200  # bytes that Python needs to describe a tensor or a data file; each is also one operation
INDEX_ROOM = 16  # bytes that Python needs for a byte of the index
MOST_SHARDS = 99_999  # five digits in the names of the data files
LONGEST_NAME = 512
LONGEST_VALUE = 1 << 16
MOST_AXES = 32
CHUNK = 1 << 20
COPY = "Copy the checkpoint's files again."
TENSORFLOW_DTYPES: Mapping[int, str] = {
    **{1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 9: "int64", 10: "bool"},
    **{17: "uint16", 19: "float16", 22: "uint32", 23: "uint64"},
}
"""TensorFlow's numbers of the types that numpy also has."""


@dataclass(frozen=True)
class BundleEntry:
    """The index's description of one tensor.

    Attributes:
        dtype: numpy's name, or `TensorFlow type N` if numpy has no such type.
        shape: sizes of its axes.
        shard: number of the data file that holds it.
        offset: first byte in that file.
        size: number of bytes.
        checksum: masked CRC-32C of the bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


class TensorBundle:
    """A checkpoint whose index has been read and checked; tensors are read one by one.

    Attributes:
        prefix: path that the names of all its files begin with.
        entries: description of each tensor by name, sorted by name.
        files: the index and the data files.
    """

    def __init__(self, prefix: Path, entries: Mapping[str, BundleEntry], shards: Mapping[int, _Shard]) -> None:
        self.prefix = prefix
        self.entries = entries
        self.files = (_index_of(prefix), *(shard.path for shard in shards.values()))
        self._shards = shards

    def read(self, name: str) -> npt.NDArray[Any]:
        """Return one tensor and verify its checksum. The array is a private view: writing does not change the file.

        Raises:
            CheckpointError: its bytes were changed, or numpy does not have its type.
        """
        entry = self.entries[name]
        shard = self._shards[entry.shard]
        if entry.dtype not in TENSORFLOW_DTYPES.values():
            raise CheckpointError(
                f"{shard.path}: {name} is of {entry.dtype}, which no numpy array holds.", hint="Save it as float32."
            )
        if entry.size == 0:
            raise CheckpointError(f"{shard.path}: {name} is empty.", hint="Use a checkpoint of a whole model.")
        content = shard.data[entry.offset : entry.offset + entry.size]
        if _masked_crc(content) != entry.checksum:
            raise CheckpointError(f"{shard.path}: {name} is damaged (wrong checksum).", hint=COPY)
        values = np.frombuffer(content, np.dtype(entry.dtype).newbyteorder("<"))
        return np.require(values, requirements="A").reshape(entry.shape)  # a copy only if its address is not aligned


@dataclass(frozen=True)
class _Shard:
    path: Path
    data: memoryview


class _DamagedError(Exception):
    """An index that TensorFlow cannot have written."""


class _UnreadableError(Exception):
    """A sound index with something that this reader does not read; the message ends with the hint."""


def ends_as_table(path: Path) -> bool:
    """Return whether a file ends like the index of a checkpoint."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(TABLE_MAGIC)))
        return file.read() == TABLE_MAGIC


def open_tensor_bundle(prefix: Path, limits: Limits = INDEX_LIMITS) -> TensorBundle:
    """Read the index of a checkpoint and check it against the data files.

    Args:
        prefix: path of the files without `.index` and `.data-00000-of-00001`.
        limits: for the index; the tensors are as large as their files.

    Raises:
        CheckpointError: files are missing, damaged, unsupported, lead out of their folder, or take more than a limit.
        MissingDependencyError: google-crc32c is not installed.
    """
    require("convert")
    path = _index_of(prefix)
    if prefix.is_file() and ends_as_table(prefix) and not path.exists():
        raise CheckpointError(
            f"{prefix}: of TensorFlow's first format, without index and data files, or an index that was renamed.",
            hint=f"Name it {path.name}, or restore it in TensorFlow and save it again.",
        )
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file, but a TensorFlow checkpoint needs its index.", hint=COPY)
    inside(path.parent, path.name)
    budget = limits.budget(str(path), CheckpointError)
    try:
        with path.open("rb") as file:
            budget.charge(INDEX_ROOM * (size := path.stat().st_size))
            shard_count, entries = _read_index(file.read(size), budget)
        shards = _open_shards(prefix, shard_count, {entry.shard for entry in entries.values()}, budget)
        _check_places(entries, shards)
    except _UnreadableError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except _DamagedError as error:
        raise CheckpointError(
            f"{path}: not the index of a TensorFlow checkpoint, or damaged ({error}).", hint=COPY
        ) from error
    return TensorBundle(prefix, entries, shards)


def _index_of(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + ".index")


def _read_index(index: bytes, budget: Budget) -> tuple[int, dict[str, BundleEntry]]:
    """Return the number of data files and the checked entries."""
    records = _table_records(index)
    first, header = next(records, (None, b""))
    if first != b"":
        raise _DamagedError("the header does not come first")
    shard_count = _check_header(header)
    entries: dict[str, BundleEntry] = {}
    for key, value in records:
        if key.startswith(b"\0"):  # the names of slices, which sort before those of whole tensors
            raise _sliced()
        name = key.decode("ascii", "replace")
        if not (name.isascii() and name.isprintable()):
            raise _DamagedError(f"a name that TensorFlow would not give: {name[:60]!a}")
        budget.charge(ENTRY_ROOM)
        entries[name] = _read_entry(name, value, shard_count)
    return shard_count, entries


def _check_header(header: bytes) -> int:
    """Return the number of data files after checking that this reader can read them."""
    fields = _Message(header)
    if fields.number(2) != 0:
        raise _UnreadableError("written on a big-endian machine. Restore it and save it again on a little-endian one.")
    if _Message(fields.last_bytes(3)).number(2) > NEWEST_VERSION:
        raise _UnreadableError(f"of a newer kind than version {NEWEST_VERSION}, the newest known. Update xlexport.")
    shard_count = fields.number(1)
    if not 1 <= shard_count <= MOST_SHARDS:
        raise _DamagedError(f"{shard_count:,} data files")
    return shard_count


def _read_entry(name: str, value: bytes, shard_count: int) -> BundleEntry:
    fields = _Message(value)
    if fields.all_bytes(7):
        raise _sliced()
    shape_fields = _Message(fields.last_bytes(2))
    axes = shape_fields.all_bytes(2)
    if len(axes) > MOST_AXES or shape_fields.number(3):
        raise _DamagedError(f"{name} has no shape of at most {MOST_AXES} axes")
    shape = tuple(_Message(axis).number(1) for axis in axes)
    code = fields.number(1)
    dtype = TENSORFLOW_DTYPES.get(code, f"TensorFlow type {code}")
    shard, offset, size = fields.number(3), fields.number(4), fields.number(5)
    if shard >= shard_count:
        raise _DamagedError(f"{name} is in data file {shard}, of {shard_count}")
    if code in TENSORFLOW_DTYPES and size != math.prod(shape) * np.dtype(dtype).itemsize:
        raise _DamagedError(f"{name} has {size} bytes, too many or too few for {dtype} of shape {shape}")
    return BundleEntry(dtype, shape, shard, offset, size, fields.number(6))


def _open_shards(prefix: Path, shard_count: int, used: set[int], budget: Budget) -> dict[int, _Shard]:
    budget.charge(ENTRY_ROOM * len(used), len(used))
    paths = {shard: prefix.with_name(f"{prefix.name}.data-{shard:05}-of-{shard_count:05}") for shard in sorted(used)}
    missing = [path.name for path in paths.values() if not path.is_file()]
    if missing:
        names = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise CheckpointError(f"{prefix}: data files are missing: {names}.", hint="Put them into the index's folder.")
    shards = {}
    for shard, path in paths.items():
        inside(path.parent, path.name)
        with path.open("rb") as file:  # an empty file cannot be mapped
            empty = path.stat().st_size == 0
            shards[shard] = _Shard(
                path, memoryview(b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
            )
    return shards


def _check_places(entries: Mapping[str, BundleEntry], shards: Mapping[int, _Shard]) -> None:
    """Check that each tensor lies within its file and does not overlap another."""
    previous = ""
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].shard, item[1].offset, item[1].size)):
        end, length = entry.offset + entry.size, len(shards[entry.shard].data)
        if end > length:
            path = shards[entry.shard].path
            raise CheckpointError(f"{path}: ends after {length:,} bytes, but {name} ends at {end:,}.", hint=COPY)
        if previous and entries[previous].shard == entry.shard:
            before = entries[previous]
            if before.offset + before.size > entry.offset:
                raise _DamagedError(f"{previous} and {name} overlap")
        previous = name


def _sliced() -> _UnreadableError:
    return _UnreadableError(
        "holds variables cut into slices (a partitioner was used), which this reader does not put together. "
        "Restore it in TensorFlow and save it again without a partitioner."
    )


def _table_records(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield all keys and values of a table, and check that the keys strictly rise."""
    if len(table) < FOOTER or not table.endswith(TABLE_MAGIC):
        raise _DamagedError("its end is not that of a table")
    at = len(table) - FOOTER
    handles = []
    for _ in range(4):
        number, at = _varint(table, at)
        handles.append(number)
    _block(table, *handles[:2])  # the block of properties, always empty: verifies its checksum
    end, previous = 0, None
    for _, handle in _block_records(_block(table, *handles[2:])):
        offset, at = _varint(handle, 0)
        size, at = _varint(handle, at)
        if offset < end:
            raise _DamagedError("its blocks overlap")
        end = offset + size + BLOCK_TRAILER
        for key, value in _block_records(_block(table, offset, size)):
            if previous is not None and key <= previous:
                raise _DamagedError("its names are not sorted")
            previous = key
            yield key, value


def _block(table: bytes, offset: int, size: int) -> bytes:
    """Return one block without its trailer, and verify its checksum."""
    end = offset + size + BLOCK_TRAILER
    if end > len(table) - FOOTER:
        raise _DamagedError(f"a block ends at byte {end:,} of {len(table):,}")
    kind, checksum = table[offset + size], int.from_bytes(table[offset + size + 1 : end], "little")
    if _masked_crc(memoryview(table)[offset : offset + size + 1]) != checksum:
        raise _DamagedError("a wrong checksum")
    if kind != 0:
        name = COMPRESSIONS.get(kind, f"method {kind}")
        raise _UnreadableError(
            f"compressed with {name}, as TensorFlow's own savers do not. Restore it and save it again."
        )
    return table[offset : offset + size]


def _block_records(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values; each key is stored without the beginning that it shares with the key before."""
    restarts = int.from_bytes(block[-4:], "little")  # places of whole keys; not needed to read all records
    end = len(block) - 4 * (restarts + 1)
    if end < 0:
        raise _DamagedError("a block is too short")
    at, key = 0, b""
    while at < end:
        shared, at = _varint(block, at)
        own, at = _varint(block, at)
        length, at = _varint(block, at)
        value_at = at + own
        if shared > len(key) or shared + own > LONGEST_NAME or length > LONGEST_VALUE or value_at + length > end:
            raise _DamagedError("a record does not fit its block")
        key = key[:shared] + block[at:value_at]
        at = value_at + length
        yield key, block[value_at:at]


class _Message:
    """The fields of a protocol buffer: numbers and bytes by field number. The last of repeated numbers counts."""

    def __init__(self, data: bytes) -> None:
        self._fields: dict[int, list[int | bytes]] = {}
        at = 0
        while at < len(data):
            tag, at = _varint(data, at)
            field, wire_type = tag >> 3, tag & 7
            value: int | bytes
            if wire_type == 0:
                value, at = _varint(data, at)
            elif wire_type in (1, 5):
                width = 8 if wire_type == 1 else 4
                value, at = int.from_bytes(data[at : at + width], "little"), at + width
            elif wire_type == 2:
                length, at = _varint(data, at)
                value, at = data[at : at + length], at + length
            else:
                raise _DamagedError(f"a field of type {wire_type}")
            if at > len(data):
                raise _DamagedError("a field goes on after its message")
            self._fields.setdefault(field, []).append(value)

    def number(self, field: int) -> int:
        """Return a field's number, zero if it is absent. Negative numbers appear as huge ones, which checks refuse."""
        value = self._fields.get(field, [0])[-1]
        if not isinstance(value, int):
            raise _DamagedError(f"field {field} is not a number")
        return value

    def all_bytes(self, field: int) -> list[bytes]:
        """Return every value of a repeated field."""
        values = [value for value in self._fields.get(field, []) if isinstance(value, bytes)]
        if len(values) != len(self._fields.get(field, [])):
            raise _DamagedError(f"field {field} is not a message")
        return values

    def last_bytes(self, field: int) -> bytes:
        """Return a field's last value, empty if it is absent."""
        return (self.all_bytes(field) or [b""])[-1]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number stored as seven bits a byte, least significant first, and the place behind it."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise _DamagedError("ends within a number")
        byte, at = data[at], at + 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise _DamagedError("a number of more than ten bytes")


def _masked_crc(data: memoryview) -> int:
    """Return the CRC-32C, rotated and shifted as LevelDB stores it (a CRC of data that contains CRCs is weak)."""
    import google_crc32c

    crc = 0
    for start in range(0, len(data), CHUNK):
        crc = google_crc32c.extend(crc, bytes(data[start : start + CHUNK]))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
