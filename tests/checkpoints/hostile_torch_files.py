"""Files in the two containers of `torch.save` with wrong sizes, offsets and names."""

from __future__ import annotations

import dataclasses
import functools
import io
import pickle
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.checkpoints.hostile_pickles import call, plain, text, value

FLOATS = struct.pack("<6f", *range(6))
FAR = 1 << 62
MAGIC = 0x1950A86A20F9469CFC6C


def tensor(
    size: Any = (2, 3),
    stride: Any = (3, 1),
    offset: Any = 0,
    count: Any = 6,
    key: str = "0",
    kind: str = "torch\nFloatStorage",
    view: tuple[Any, ...] = (),
) -> bytes:
    """Return the operations that make a tensor, without a pickle's beginning and end."""
    views = value(view[0]) if view else b""
    storage = b"(" + value("storage") + f"c{kind}\n".encode() + value(key) + value("cpu") + value(count) + views + b"tQ"
    rest = value(offset) + value(size) + value(stride) + b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + rest + b"tR"


@dataclasses.dataclass
class Entry:
    """A member of an archive; fields that are None get their correct values."""

    name: str
    data: bytes
    method: int = 0
    flags: int = 0
    crc: int | None = None
    size: int | None = None
    packed: int | None = None
    local: int | None = None
    local_name: bytes | None = None
    extra: bytes = b""


def zipped(entries: Sequence[Entry], count: int | None = None, shift: int = 0, after: bytes = b"") -> bytes:
    """Return an archive of the entries; `count` and `shift` falsify those of the directory."""
    content, directory = bytearray(), bytearray()
    for entry in entries:
        name = entry.name.encode("utf-8", "surrogateescape")
        local_name = name if entry.local_name is None else entry.local_name
        crc = zlib.crc32(entry.data) if entry.crc is None else entry.crc
        size = len(entry.data) if entry.size is None else entry.size
        packed = size if entry.packed is None else entry.packed
        local = len(content) if entry.local is None else entry.local
        header = (0, entry.flags, entry.method, 0, 0, crc, packed, size, len(name), len(entry.extra))
        directory += struct.pack("<4s6H3L5H2L", b"PK\1\2", 0, *header, 0, 0, 0, 0, local) + name + entry.extra
        if entry.local is None:
            content += struct.pack("<4s5H3L2H", b"PK\3\4", *header[:8], len(local_name), 0) + local_name
            content += entry.data
    number = len(entries) if count is None else count
    start, size = len(content) + shift, len(directory)
    long_end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, number, number, size, start)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(content) + size, 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, number & 0xFFFF, number & 0xFFFF, size, start, 0)
    if number > 0xFFFF:
        end = long_end + locator + end
    return bytes(content + directory + end + after)


def archive(body: bytes, *entries: Entry, storages: Sequence[bytes] = (FLOATS,), **falsified: Any) -> bytes:
    """Return the file that torch.save writes for a pickle's operations and its storages, with more entries."""
    members = [Entry("archive/data.pkl", plain(body))]
    members += [Entry(f"archive/data/{key}", data) for key, data in enumerate(storages)]
    return zipped([*members, Entry("archive/version", b"3\n"), *entries], **falsified)


def legacy(
    body: bytes,
    keys: Any = ("0",),
    data: bytes = struct.pack("<q", 6) + FLOATS,
    magic: Any = MAGIC,
    protocol: Any = 1001,
    little_endian: Any = True,
    system: Any = None,
) -> bytes:
    """Return the file that torch.save wrote before PyTorch 1.6 for a pickle's operations and its storages."""
    header = [magic, protocol, {"little_endian": little_endian} if system is None else system]
    pickles = b"".join(pickle.dumps(part, protocol=2) for part in header)
    return pickles + plain(body) + pickle.dumps(list(keys), protocol=2) + data


def saved(new: bool) -> bytes:
    """Return a small good file of torch.save."""
    file = io.BytesIO()
    weight = torch.arange(600.0).reshape(20, 30)
    content = {"model": {"weight": weight, "tied": weight, "half": weight.half()}, "step": 3, "words": ["a", "b"] * 50}
    torch.save(content, file, _use_new_zipfile_serialization=new)
    return file.getvalue()


def tensors() -> Iterator[tuple[str, bytes]]:
    """Yield operations of tensors that do not fit their storage of six numbers."""
    yield "too many rows", tensor(size=(3, 3))
    yield "beyond its end", tensor(offset=1)
    yield "far beyond its end", tensor(offset=FAR)
    yield "before its beginning", tensor(offset=-1)
    yield "backwards", tensor(stride=(-3, 1), offset=3)
    yield "a number many times", tensor(size=(1 << 40,), stride=(0,))
    yield "a number seven times", tensor(size=(7,), stride=(0,))
    yield "size below zero", tensor(size=(-2, -3))
    yield "size that overflows", tensor(size=(1 << 40, 1 << 40, 0), stride=(1, 1, 1))
    yield "size of 2**64", tensor(size=(1 << 64, 0), stride=(1, 1))
    yield "stride that overflows", tensor(size=(1, 0), stride=(1 << 63, 1))
    yield "stride of 2**80", tensor(size=(1,), stride=(1 << 80,))
    yield "size with more axes than stride", tensor(size=(1, 2, 3))
    yield "a thousand axes", tensor(size=(1,) * 1000, stride=(1,) * 1000)
    yield "size of texts", tensor(size=("2", "3"))
    yield "size of fractions", tensor(size=(2.0, 3.0))
    yield "size that is not a tuple", tensor(size=6)
    yield "size that is a list", tensor(size=[2, 3])
    yield "offset that is a text", tensor(offset="0")
    yield "storage of 2**62 numbers", tensor(count=FAR)
    yield "storage of -6 numbers", tensor(count=-6)
    yield "storage of no number", tensor(count="6")
    yield "storage of True numbers", tensor(count=True, size=(1,), stride=(1,))
    yield "storage larger than the file's", tensor(count=7)
    yield "storage of another type's size", tensor(kind="torch\nDoubleStorage")
    yield "storage of two types", b"(" + tensor() + tensor(kind="torch\nIntStorage") + b"l"
    yield "storage of an unknown type", tensor(kind="torch\nQInt8Storage")
    yield "storage of a class", tensor(kind="argparse\nNamespace")
    yield "storage that is not there", tensor(key="1")
    yield "storage elsewhere", tensor(key="../../0")
    yield "storage without a reference", b"ctorch._utils\n_rebuild_tensor_v2\n(NK\x00))\x89}tR"
    yield "too few arguments", b"ctorch._utils\n_rebuild_tensor_v2\n(NtR"
    yield "parameter that is not a tensor", b"ctorch._utils\n_rebuild_parameter\n(K\x01\x88}tR"
    typed = b"ctorch._tensor\n_rebuild_from_type_v2\n"
    yield "tensor of a type with a function", typed + b"(cos\nmkdir\nctorch\nTensor\n)}tR"
    yield "tensor of a type of a type", b"(" + typed + typed + b"ctorch\nTensor\n)}tR"
    yield "tensor of a type with a dict", typed + b"(ctorch._utils\n_rebuild_parameter\nctorch\nTensor\n}}tR"
    yield "tensor as key", b"}" + tensor() + b"Ns"
    yield "tensor for arguments by name", b"ctorch\nSize\n)" + tensor() + b"\x92"
    yield "tensor with attributes", tensor() + b"}" + value("data") + b"K\x01sb"
    yield "quantized tensor", b"ctorch._utils\n_rebuild_qtensor\n(K\x01tR"
    yield "sparse tensor", b"ctorch._utils\n_rebuild_sparse_tensor\n(K\x01tR"
    yield "tensor of a device's memory", b"ctorch._utils\n_rebuild_meta_tensor_no_storage\n(K\x01tR"
    yield "reference to a list", b"]Q"
    yield "reference of another kind", b"(" + value("file") + value("/etc/passwd") + b"tQ"


@functools.cache
def packed_zeros() -> bytes:
    """Return 300 MB of zeros, compressed, which takes a second."""
    bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
    return b"".join([bomb.compress(bytes(1 << 20)) for _ in range(300)]) + bomb.flush()


def archives() -> Iterator[tuple[str, bytes]]:
    """Yield archives with false declarations."""
    for name, body in tensors():
        yield f"archive, {name}", archive(body)
    good = tensor()
    yield "compressed member", archive(good, Entry("archive/data/1", packed_zeros(), method=8, size=300 << 20))
    yield "unknown compression", archive(good, Entry("archive/data/1", b"abc", method=99))
    yield "member of two sizes", archive(good, Entry("archive/data/1", b"abc", packed=2))
    yield "encrypted member", archive(good, Entry("archive/data/1", b"abc", flags=1))
    yield "wrong checksum", archive(good, Entry("archive/data/1", b"abc", crc=1))
    yield "member twice", archive(good, Entry("archive/data.pkl", b"N."))
    yield "members that overlap", archive(good, Entry("archive/data/1", b"", size=24, crc=0, local=0))
    yield (
        "thousand members in one place",
        archive(good, *(Entry(f"archive/data.pkl{i}", b"", local=0, local_name=b"") for i in range(1000))),
    )
    yield "member of 4 GB", archive(good, Entry("archive/data/1", b"abc", size=0xFFFFFFFE))
    far = struct.pack("<2H2Q", 1, 16, FAR, FAR)
    yield "member of 2**62 bytes", archive(good, Entry("archive/data/1", b"abc", size=0xFFFFFFFF, extra=far))
    yield "member of a size not said", archive(good, Entry("archive/data/1", b"", size=0xFFFFFFFF))
    place = struct.pack("<2HQ", 1, 8, FAR)
    yield "member at 2**62", archive(good, Entry("archive/data/1", b"abc", local=0xFFFFFFFF, extra=place))
    yield "member in the directory", archive(good, Entry("archive/data/1", b"abc", size=60))
    yield "member by another name", archive(good, Entry("archive/data/1", b"abc", local_name=b"archive/data/2"))
    yield "member up and away", archive(good, Entry("archive/../../../etc/cron.d/x", b"abc"))
    yield "member elsewhere", archive(good, Entry("/etc/passwd", b"abc"))
    yield "member outside the folder", archive(good, Entry("other/data/1", b"abc"))
    yield "member without a name", archive(good, Entry("", b"abc"))
    yield "member of undecodable name", archive(good, Entry("archive/\udcff", b"abc"))
    yield "member with a terminal's commands", archive(good, Entry("archive/\x1b[2J\n", b"abc", crc=1))


def wholes() -> Iterator[tuple[str, bytes]]:
    """Yield archives whose directory or contents torch.save would not write."""
    good = tensor()
    yield "two pickles", archive(good, Entry("other/data.pkl", b"N."))
    yield "no pickle", zipped([Entry("archive/data/0", FLOATS)])
    yield "no members", zipped([])
    yield "pickle outside a folder", zipped([Entry("data.pkl", b"\x80\x02N.")])
    yield "TorchScript", archive(good, Entry("archive/constants.pkl", b"N."), Entry("archive/code/x.py", b"exit()"))
    yield "big-endian", archive(good, Entry("archive/byteorder", b"big"))
    yield "unknown byte order", archive(good, Entry("archive/byteorder", b"middle"))
    yield "more members than it says", archive(good, count=2)
    yield "fewer members than it says", archive(good, count=9)
    yield "directory before its place", archive(good, shift=-1)
    yield "directory beyond the file", archive(good, shift=1 << 31)
    whole = archive(good)
    yield "something before its end", whole[:-22] + b"abc" + whole[-22:]
    for name, signature in (("end", b"PK\5\6"), ("entry", b"PK\1\2"), ("member", b"PK\3\4")):
        before, _, after = whole.rpartition(signature)
        yield f"{name} without its signature", before + b"abcd" + after
    inner = zipped([Entry("archive/data/2", FLOATS)])[: 30 + 14 + len(FLOATS)]
    outer = Entry("archive/data/1", inner)
    at = archive(good, outer).find(inner)
    yield "member in a member", archive(good, outer, Entry("archive/data/2", FLOATS, local=at))
    yield "something after its end", archive(good, after=b"abc")
    many = [Entry(f"archive/{i}", b"") for i in range(100_001)]
    yield "a hundred thousand members", archive(good, *many)
    yield "end only", b"PK\3\4" + zipped([])
    yield "2**62 members", archive(good, count=FAR)
    yield "end that is nowhere", b"PK\3\4" + struct.pack("<4sLQL", b"PK\6\7", 0, FAR, 1) + zipped([])


def torch_bombs() -> Iterator[tuple[str, bytes]]:
    """Yield archives with more storages or tensors than memory."""
    reference = (
        b"(" + value("storage") + b"ctorch\nFloatStorage\n" + value("0") + value("cpu") + value(6) + b"tr\0\1\0\0"
    )
    yield "references without end", archive(reference + b"(" + b"j\0\1\0\0Q" * 700_000 + b"l")
    rebuilt = b"ctorch._utils\n_rebuild_tensor_v2\nr\1\1\0\0(j\0\1\0\0QK\0))\x89}tr\2\1\0\0"
    yield "tensors without end", archive(reference + rebuilt + b"(" + b"j\1\1\0\0j\2\1\0\0R" * 300_000 + b"l")
    arguments = b"}r\1\1\0\0(j\0\1\0\0" + b"j\1\1\0\0" * 300_000 + b"tr\2\1\0\0"
    calls = b"ctorch._utils\n_rebuild_parameter\nr\3\1\0\0" + b"j\3\1\0\0j\2\1\0\0R" * 100_000
    yield "calls with many arguments without end", archive(b"(" + tensor() + b"r\0\1\0\0" + arguments + calls + b"l")
    shape = tensor()[len(b"ctorch._utils\n_rebuild_tensor_v2\n") : -2] + b"j\1\1\0\0" * 1_000_000 + b"tr\4\1\0\0"
    typed = b"ctorch._tensor\n_rebuild_from_type_v2\nr\5\1\0\0(ctorch._utils\n_rebuild_tensor_v2\nctorch\nTensor\n"
    calls = b"}r\1\1\0\0" + shape + typed + b"j\4\1\0\0}tr\6\1\0\0" + b"j\5\1\0\0j\6\1\0\0R0" * 100_000
    yield "calls with many arguments in an argument", archive(b"(" + calls + b"l")
    part = b"cmem_transformer\nDecoderLayer\n)\x81}" + value("_modules") + b"}"
    twice = b"0" + part + value("a") + b"h\x01s" + value("b") + b"h\x01ssbq\x01"
    yield "module that has another twice, and so on", archive(part + b"sbq\x01" + 20 * twice)
    yield "keys without end", legacy(tensor(), keys=[str(number) for number in range(400_000)])
    yield "system without end", legacy(tensor(), system=dict.fromkeys(range(700_000)))


def legacy_files() -> Iterator[tuple[str, bytes]]:
    """Yield files in the old container with false declarations."""
    for name, body in tensors():
        yield f"legacy, {name}", legacy(body)
    good = tensor()
    yield "another magic number", legacy(good, magic=MAGIC + 1)
    yield "magic number that is a list", legacy(good, magic=[MAGIC])
    yield "another protocol", legacy(good, protocol=1002)
    yield "legacy, big-endian", legacy(good, little_endian=False)
    yield "byte order that is a number", legacy(good, little_endian=1)
    yield "system that is a list", legacy(good, system=[1])
    yield "storage of another length", legacy(good, data=struct.pack("<q", 5) + FLOATS)
    yield "storage of 2**62", legacy(good, data=struct.pack("<q", FAR) + FLOATS)
    yield "storage of -1", legacy(good, data=struct.pack("<q", -1) + FLOATS)
    none = tensor(size=(0,), stride=(1,), count=-1)
    yield "storage of -1, as its tensors say", legacy(none, data=struct.pack("<q", -1) + FLOATS)
    yield "storage that ends early", legacy(good, data=struct.pack("<q", 6) + FLOATS[:-1])
    yield "no storage", legacy(good, data=b"")
    yield "no keys", legacy(good, keys=())
    yield "more keys", legacy(good, keys=("0", "1"))
    yield "key twice", legacy(good, keys=("0", "0"))
    yield "keys that are numbers", legacy(good, keys=(0,))
    yield "keys of two kinds", legacy(good, keys=(0, "0"))
    yield "keys that are lists", legacy(good, keys=([],))
    yield "view beyond its storage", legacy(tensor(count=6, view=(("1", 1, 6),)))
    yield "view before its storage", legacy(tensor(view=(("1", -1, 6),)))
    yield "view that is a text", legacy(tensor(view=("1",)))
    yield "view smaller than its tensor", legacy(tensor(view=(("1", 0, 5),)))
    yield "legacy, system", legacy(b"cos\nsystem\n(" + value("exit") + b"tR")
    source = b"(" + value("module") + b"cos\nsystem\n" + value("x.py") + value("exit()") + b"tQ)\x81"
    yield "class with source that is a function", legacy(source)


def cut(content: bytes) -> Iterator[bytes]:
    """Yield the file cut off at each hundredth of its length."""
    for percent in range(100):
        yield content[: len(content) * percent // 100]


def disguised_in_files(canary: Path) -> Iterator[tuple[str, bytes]]:
    """Yield files that hide a call from scanners by their container."""
    bad = plain(call("os", "mkdir", text(str(canary))))
    magic = plain(b"\x8a\x0a" + MAGIC.to_bytes(10, "little"))
    yield "pickle behind the magic number", magic + bad
    yield (
        "pickle in place of the keys",
        magic + plain(b"M\xe9\x03") + plain(b"}" + text("little_endian") + b"\x88s") + plain(b"}") + bad,
    )
    for name in ("evil.pkl", "DATA.PKL", "data.pkl/x", "data.pickle"):
        yield f"archive with {name}", zipped([Entry(f"archive/{name}", bad), Entry("archive/version", b"3\n")])
    yield "archive with another pickle", archive(tensor(), Entry("archive/code.pkl", bad, crc=1))
    for flags in (0x01, 0x21, 0x41, 0x2001):
        yield f"archive with flags {flags:#x}", zipped([Entry("archive/data.pkl", bad, flags=flags)])
    yield "archive with a wrong checksum", zipped([Entry("archive/data.pkl", bad, crc=1)])
    yield "archive with another local name", zipped([Entry("archive/data.pkl", bad, local_name=b"archive/data.pkI")])
    yield (
        "archive of one pickle twice",
        zipped([Entry("archive/data.pkl", plain(b"}")), Entry("archive/data.pkl", bad)]),
    )
    yield "archive of two folders", zipped([Entry("archive/data.pkl", plain(b"}")), Entry("b/data.pkl", bad)])
    yield "archive behind a pickle", plain(b"}") + archive(call("os", "mkdir", text(str(canary))))
    yield "archive before a pickle", archive(tensor()) + bad
    yield "7z", b"7z\xbc\xaf\x27\x1c\x00\x04" + struct.pack("<LQQL", 0, len(bad), 0, 0) + bad
    yield "gzip", b"\x1f\x8b\x08\x00" + bad
    yield "tar", b"archive/data.pkl".ljust(257, b"\0") + b"ustar\x0000" + bad.rjust(512, b"\0")
    yield "numpy's file", b"\x93NUMPY\x01\x00\x46\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n" + bad
