"""Write TensorFlow's checkpoint files, valid or invalid, from the format's description, not from the reader.

Sources: LevelDB's doc/table_format.md; TensorFlow's tensor_bundle.proto, tensor_shape.proto and versions.proto.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

CODES = {"float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int64": 9, "bool": 10, "float16": 19}
MAGIC = bytes.fromhex("57fb808b247547db")
Records = Iterable[tuple[bytes, bytes]]


def masked_crc32c(data: bytes) -> int:
    """Compute the masked CRC-32C bit by bit, from the polynomial."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % (1 << 32)


def varint(value: int) -> bytes:
    value %= 1 << 64  # as negative numbers are written
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def number(field: int, value: int) -> bytes:
    """Return the field of a number, empty for zero: an absent field is zero."""
    return varint(field << 3) + varint(value) if value else b""


def fixed(field: int, value: int) -> bytes:
    return varint(field << 3 | 5) + struct.pack("<I", value)


def chunk(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def header(shards: int = 1, endianness: int = 0, needs: int = 0) -> bytes:
    """Return a BundleHeaderProto; `needs` is the oldest version that can read it."""
    return number(1, shards) + number(2, endianness) + chunk(3, number(1, 1) + number(2, needs))


def entry(
    shape: Sequence[int] = (), dtype: int = 1, shard: int = 0, offset: int = 0, size: int | None = None, crc: int = 0
) -> bytes:
    """Return a BundleEntryProto; the default size is that of float32."""
    axes = b"".join(chunk(2, number(1, axis)) for axis in shape)
    size = 4 * math.prod(shape) if size is None else size
    return number(1, dtype) + chunk(2, axes) + number(3, shard) + number(4, offset) + number(5, size) + fixed(6, crc)


def block(records: Records, interval: int = 16) -> bytes:
    """Return a block of records whose keys omit the part shared with the key before, except every `interval`-th."""
    content, restarts, previous = b"", [], b""
    for place, (key, value) in enumerate(records):
        shared = 0
        if place % interval == 0:
            restarts.append(len(content))
        else:
            while shared < min(len(key), len(previous)) and key[shared] == previous[shared]:
                shared += 1
        content += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        previous = key
    restarts = restarts or [0]
    return content + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def sealed(content: bytes, kind: int = 0) -> bytes:
    """Return a block with its type and checksum."""
    content += bytes([kind])
    return content + struct.pack("<I", masked_crc32c(content))


def footer(properties: tuple[int, int], index: tuple[int, int]) -> bytes:
    handles = b"".join(map(varint, (*properties, *index)))
    return handles.ljust(40, b"\0") + MAGIC


def table(records: Records, per_block: int = 1000, kind: int = 0) -> bytes:
    """Return a whole table; its records need not be sorted, although those of a valid table are."""
    records = list(records)
    content, handles = b"", []
    for start in range(0, len(records), per_block):
        part = records[start : start + per_block]
        data = block(part)
        # Keys that separate blocks: a block's last key, or the shortest greater key if no block follows.
        last = part[-1][0]
        key = last if start + per_block < len(records) else bytes([last[0] + 1]) if last else b""
        handles.append((key, varint(len(content)) + varint(len(data))))
        content += sealed(data, kind)
    places = []
    for data in (block([]), block(handles, interval=1)):
        places.append((len(content), len(data)))
        content += sealed(data)
    return content + footer(*places)


def write_bundle(prefix: Path, tensors: Mapping[str, npt.NDArray[Any]], shards: int = 1, per_block: int = 1000) -> None:
    """Write a checkpoint, with its tensors in turn in each of the data files."""
    contents = [b""] * shards
    records = [(b"", header(shards))]
    for place, name in enumerate(sorted(tensors)):
        tensor = np.ascontiguousarray(tensors[name]).reshape(tensors[name].shape)
        data, shard = tensor.tobytes(), place % shards
        code, offset, crc = CODES[tensor.dtype.name], len(contents[shard]), masked_crc32c(data)
        records.append((name.encode(), entry(tensor.shape, code, shard, offset, len(data), crc)))
        contents[shard] += data
    prefix.parent.mkdir(parents=True, exist_ok=True)
    prefix.with_name(f"{prefix.name}.index").write_bytes(table(records, per_block))
    for shard, content in enumerate(contents):
        prefix.with_name(f"{prefix.name}.data-{shard:05}-of-{shards:05}").write_bytes(content)
