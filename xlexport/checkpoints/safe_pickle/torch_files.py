"""Files of `torch.save`: the archives of PyTorch 1.6 and later, and the older files.

Tensors get their numbers only after every size that the file declares was compared with the file. They are views of a
private mapping of the file if the numbers are aligned in it (in archives they are), else of a copy. Tensors that shared
a storage when they were saved share it again.
"""

from __future__ import annotations

import encodings.cp437  # noqa: F401 -- zipfile decodes names with it; so reading a file imports nothing
import io
import math
import mmap
import struct
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NamedTuple

from xlexport.checkpoints.safe_pickle.machine import LIST_PLACE, LONGEST_KEY, Machine
from xlexport.checkpoints.safe_pickle.records import BUILDERS, BadFileError, Name
from xlexport.errors import CheckpointError
from xlruntime.limits import Budget, Limits

__all__ = ["ARCHIVE_MAGIC", "LEGACY_MAGIC", "LEGACY_PROTOCOL", "read_archive", "read_legacy", "read_members"]

ARCHIVE_MAGIC = b"PK\x03\x04"
MOST_MEMBERS = 100_000
LARGEST_DIRECTORY, LARGEST_END = 10 << 20, 1 << 17  # bytes
DIRECTORY_ROOM = 10  # times the bytes of a directory is what zipfile's list of its members takes
DAMAGED = (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, OverflowError, EOFError, struct.error)
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_PROTOCOL = 1001
NOT_TORCH = "not a file of torch.save", "Check the path."
BIG_ENDIAN = "saved on a big-endian machine", "Save it again on a little-endian one, as nearly all are."
TORCHSCRIPT = "a TorchScript archive, which holds code", "Save the state dict of the model that it was made from."
MOST_AXES = 16
LARGEST_NUMBER = 1 << 62
MOST_SHARING = 16  # a number of a storage is in so many tensors at most; tied weights are in four
ALWAYS_SHARED = 1 << 22  # numbers that may be in any number of tensors
TORCH_DTYPES = {  # by torch.save's name for the storage
    "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16", "DoubleStorage": "float64",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "storage.UntypedStorage": "uint8",
}  # fmt: skip


class _Member(NamedTuple):
    """The place of a member's bytes in the file."""

    start: int
    end: int


def read_archive(file: BinaryIO, data: mmap.mmap, limits: Limits) -> Any:
    """Read a zip archive with a pickle, and a member for each storage."""
    members = read_members(file, data, limits)
    roots = [name.removesuffix("data.pkl") for name in members if name.endswith("/data.pkl")]
    if len(roots) != 1 or not all(name.startswith(roots[0]) for name in members):
        raise BadFileError(*NOT_TORCH)
    root = roots[0]
    if root + "constants.pkl" in members:
        raise BadFileError(*TORCHSCRIPT)
    if (order := members.get(root + "byteorder")) and data[slice(*order)] != b"little":
        raise BadFileError(*BIG_ENDIAN)
    tensors = _Tensors(limits.budget(str(file.name), CheckpointError))
    value = tensors.machine.run(data, *members[root + "data.pkl"])
    tensors.bind(data, {name.removeprefix(root + "data/"): member for name, member in members.items()})
    return value


def read_legacy(data: mmap.mmap, budget: Budget) -> Any:
    """Read what follows the magic number: protocol, system, object, keys of storages, their lengths and numbers."""
    tensors = _Tensors(budget)
    protocol, system = tensors.machine.run(data), tensors.machine.run(data)
    if type(protocol) is not int or protocol != LEGACY_PROTOCOL or type(system) is not dict:
        raise BadFileError(*NOT_TORCH)
    if system.get("little_endian") is not True:
        raise BadFileError(*BIG_ENDIAN)
    value, keys = tensors.machine.run(data), tensors.machine.run(data)
    if type(keys) is not list or not all(type(key) is str for key in keys) or sorted(keys) != sorted(tensors.storages):
        raise BadFileError("the storages in it are not those of its tensors")
    places, position = {}, data.tell()
    for key in keys:
        start, storage = position + 8, tensors.storages[key]
        length = int.from_bytes(data[position:start], "little", signed=True)
        places[key] = _Member(start, start + length * storage.dtype.itemsize)
        position = start + storage.size
    tensors.bind(data, places)
    return value


class _Storage(NamedTuple):
    """Numbers of one kind in a row in the file."""

    key: str
    dtype: Any
    length: int
    size: int  # in bytes


class _Tensors:
    """The storages and tensors of one file; tensors have no numbers until `bind`."""

    def __init__(self, budget: Budget) -> None:
        import torch

        self.torch = torch
        self.storages: dict[str, _Storage] = {}
        self.bindings: list[tuple[Any, str, int, tuple[int, ...], tuple[int, ...]]] = []
        builders: dict[str, Callable[..., Any]] = {
            **dict.fromkeys(("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2"), self._tensor),
            "torch._utils._rebuild_parameter": self._parameter,
            "torch._utils._rebuild_parameter_with_state": self._parameter,
            "torch.nn.Parameter": self._parameter,
            "torch._tensor._rebuild_from_type_v2": self._with_attributes,
        }
        self.machine = Machine(budget, {**BUILDERS, **builders}, self._reference)

    def _reference(self, reference: Any) -> Any:
        """Return what a pickle of torch.save has outside of it: storages, in old files source text of classes too."""
        match reference:
            case ("module", Name() as name, *_):
                return name
            case ("storage", Name(name=name), str(key), _, count, *views) if views in ([], [None]):
                dtype = getattr(self.torch, TORCH_DTYPES.get(name.removeprefix("torch."), ""), None)
                is_possible = _are_sizes((count,)) and count < LARGEST_NUMBER and len(key) <= LONGEST_KEY
                if dtype is None or not is_possible:
                    raise BadFileError("a storage in it is of an unknown kind or an impossible size")
                storage = _Storage(key, dtype, count, count * dtype.itemsize)
                if self.storages.setdefault(key, storage) != storage:
                    raise BadFileError(f"storage {key[:60]!a} in it has two kinds or sizes")
                return storage
        raise BadFileError("its pickle refers to something that is not in the file, or to a part of a storage")

    def _tensor(self, _machine: Any, storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Any:
        """Return a tensor without its numbers, once they are known to be numbers of its storage."""
        are_sizes = type(storage) is _Storage and all(map(_are_sizes, (size, stride, (offset,))))
        if not are_sizes or math.prod(max(n, 1) for n in size) * max(stride, default=1) >= LARGEST_NUMBER:
            raise BadFileError("a tensor in it has an impossible shape")
        numbers, last = math.prod(size), sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if numbers and (offset + last >= storage.length or numbers > storage.length):
            raise BadFileError("a tensor in it is larger than its storage")
        tensor = self.torch.empty(0, dtype=storage.dtype)
        self.bindings.append((tensor, storage.key, offset if numbers else 0, size, stride))
        return tensor

    def _parameter(self, _machine: Any, tensor: Any, *_: Any) -> Any:
        if not isinstance(tensor, self.torch.Tensor):
            raise BadFileError("a parameter in it is not a tensor")
        return tensor

    def _with_attributes(self, machine: Any, builder: Any, _kind: Any, arguments: Any, *_: Any) -> Any:
        """Return a tensor that had Python attributes when it was saved, without them."""
        if type(builder) is not Name or builder.name != "torch._utils._rebuild_tensor_v2":
            raise BadFileError("a tensor in it is of an unknown kind")
        machine.charge(LIST_PLACE * len(arguments))
        return self._tensor(machine, *arguments)

    def bind(self, data: mmap.mmap, places: Mapping[str, _Member]) -> None:
        """Give the tensors their numbers, after their sizes were compared with where their storages are."""
        storages = {}
        for key, dtype, count, size in self.storages.values():
            place = places.get(key)
            if place is None or place.end != place.start + size or place.end > len(data):
                raise BadFileError(f"storage {key[:60]!a} in it is missing, or not of the size that its tensors say")
            if not count:
                storages[key] = self.torch.empty(0, dtype=dtype)
            elif place.start % dtype.itemsize == 0:
                storages[key] = self.torch.frombuffer(data, dtype=dtype, count=count, offset=place.start)
            else:
                storages[key] = self.torch.frombuffer(bytearray(memoryview(data)[slice(*place)]), dtype=dtype)
        numbers = sum(math.prod(shape) for _, _, _, shape, _ in self.bindings)
        if numbers > MOST_SHARING * sum(map(len, storages.values())) + ALWAYS_SHARED:
            raise BadFileError("its tensors hold the same numbers more often than those of any checkpoint do")
        for tensor, key, offset, shape, stride in self.bindings:
            tensor.set_(storages[key], offset, shape, stride)
        self.bindings.clear()  # the methods of this object, which its machine holds, would keep the tensors


def _are_sizes(numbers: Any) -> bool:
    """Return whether these are whole numbers for a few axes; more are not looked at, since that could take for ever."""
    few = type(numbers) is tuple and len(numbers) <= MOST_AXES
    return few and all(type(number) is int and number >= 0 for number in numbers)


def read_members(file: BinaryIO, data: mmap.mmap, limits: Limits, check: bool = True) -> dict[str, _Member]:
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


class _Bounded(io.FileIO):
    """A file of which zipfile gets less than it asks for, if that is more than a directory or the archive's end."""

    largest = LARGEST_DIRECTORY

    def read(self, size: int | None = -1) -> bytes:
        return super().read(size if size is not None and 0 <= size <= self.largest else LARGEST_END)


def _plain_members(archive: zipfile.ZipFile, data: mmap.mmap) -> dict[str, _Member]:
    """Return the members; zipfile has only copied their sizes and places from the directory."""
    entries = sorted(archive.infolist(), key=lambda info: info.header_offset)
    signature, count, comment = struct.unpack("<4s6xH8xH", data[-22:])
    if signature != b"PK\5\6" or comment or count != min(len(entries), 0xFFFF) or len(entries) > MOST_MEMBERS:
        raise BadFileError("its archive is cut off or damaged, or has more members than any checkpoint")
    members: dict[str, _Member] = {}
    ends = [*(info.header_offset for info in entries[1:]), archive.start_dir]
    for info, limit in zip(entries, ends, strict=True):
        name = info.orig_filename
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise BadFileError("its archive has compressed or encrypted members, which torch.save never writes")
        if not name.isprintable() or name.startswith("/") or ".." in name.split("/") or name in members:
            raise BadFileError(f"its archive has an impossible member, or two of a name, {name[:60]!a}")
        name_size, extra_size = struct.unpack_from("<2H", data, info.header_offset + 26)
        start = info.header_offset + 30 + name_size + extra_size
        members[name] = _Member(start, start + info.file_size)
        if info.compress_size != info.file_size or members[name].end > limit:
            raise BadFileError("its archive has members that overlap or do not fit in it")
    return members
