"""Files of `torch.save`: the archives of PyTorch 1.6 and later, and the older files.

Tensors get their numbers only after every size that the file declares was compared with the file. They are views of a
private mapping of the file if the numbers are aligned in it (in archives they are), else of a copy. Tensors that shared
a storage when they were saved share it again.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NamedTuple

from xlexport.checkpoints.safe_pickle.builders import BUILDERS
from xlexport.checkpoints.safe_pickle.machine import Machine
from xlexport.checkpoints.safe_pickle.records import BadFileError, Name
from xlexport.checkpoints.safe_pickle.zip_archive import read_members

__all__ = ["read_archive", "read_legacy"]

LEGACY_MAGIC, LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
LEGACY_HEADER, LEGACY_KEY = 1 << 12, 64  # bytes of a pickle beside the object's, and for each key in it, at most
NOT_TORCH = "not a file of torch.save", "Check the path."
BIG_ENDIAN = "saved on a big-endian machine", "Save it again on a little-endian one, as nearly all are."
TORCHSCRIPT = "a TorchScript archive, which holds code", "Save the state dict of the model that it was made from."
IMPOSSIBLE = "a tensor in it has an impossible shape"
MOST_AXES = 16
LARGEST_NUMBER = 1 << 62
DTYPES = {  # by torch.save's name for the storage
    "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16", "DoubleStorage": "float64",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "storage.UntypedStorage": "uint8",
}  # fmt: skip


def read_archive(file: BinaryIO, data: mmap.mmap) -> Any:
    """Read a zip archive with a pickle, and a member for each storage."""
    members = read_members(file, data)
    roots = [name.removesuffix("data.pkl") for name in members if name.endswith("/data.pkl")]
    if len(roots) != 1 or not all(name.startswith(roots[0]) for name in members):
        raise BadFileError(*NOT_TORCH)
    if roots[0] + "constants.pkl" in members:
        raise BadFileError(*TORCHSCRIPT)
    if (order := members.get(roots[0] + "byteorder")) and data[order.start : order.start + order.size] != b"little":
        raise BadFileError(*BIG_ENDIAN)
    tensors = _Tensors()
    start, size = members[roots[0] + "data.pkl"]
    value, _ = tensors.machine.run(data, start, start + size)
    starts = {}
    for key, storage in tensors.storages.items():
        member = members.get(f"{roots[0]}data/{key}")
        if member is None or member.size != storage.size:
            raise BadFileError(f"storage {key[:60]!a} in it is missing or not of the size that its tensors say")
        starts[key] = member.start
    tensors.bind(file, data, starts)
    return value


def read_legacy(file: BinaryIO, data: mmap.mmap) -> Any:
    """Read magic number, protocol, system, object, keys of the storages, then each storage's length and numbers."""
    try:
        magic, position = Machine().run(data, 0, min(LEGACY_HEADER, len(data)))
    except BadFileError as error:
        raise BadFileError(*NOT_TORCH) from error
    if magic != LEGACY_MAGIC:
        raise BadFileError(*NOT_TORCH)
    protocol, position = Machine().run(data, position, min(position + LEGACY_HEADER, len(data)))
    system, position = Machine().run(data, position, min(position + LEGACY_HEADER, len(data)))
    if protocol != LEGACY_PROTOCOL or type(system) is not dict:
        raise BadFileError("of a version of torch.save that nothing wrote")
    if system.get("little_endian") is not True:
        raise BadFileError(*BIG_ENDIAN)
    tensors = _Tensors()
    value, position = tensors.machine.run(data, position, len(data))
    keys_end = position + LEGACY_HEADER + LEGACY_KEY * len(tensors.storages)
    keys, position = Machine().run(data, position, min(keys_end, len(data)))
    if type(keys) is not list or not all(type(key) is str for key in keys) or sorted(keys) != sorted(tensors.storages):
        raise BadFileError("the storages in it are not those of its tensors")
    starts = {}
    for key in keys:
        storage, starts[key] = tensors.storages[key], position + 8
        position = starts[key] + storage.size
        if position > len(data) or struct.unpack_from("<q", data, starts[key] - 8)[0] != storage.length:
            raise BadFileError(f"storage {key[:60]!a} in it is cut off or not of the size that its tensors say")
    tensors.bind(file, data, starts)
    return value


class _Storage(NamedTuple):
    """Numbers of one kind in a row in the file."""

    dtype: Any
    length: int
    size: int  # in bytes


class _Part(NamedTuple):
    """The part of a storage that a tensor may use: all of it, except in old files."""

    key: str
    offset: int
    length: int


class _Tensors:
    """The storages and tensors of one file; tensors have no numbers until `bind`."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.storages: dict[str, _Storage] = {}
        self.bindings: list[tuple[Any, str, int, tuple[int, ...], tuple[int, ...]]] = []
        self.builders: dict[str, Callable[..., Any]] = {
            **dict.fromkeys(("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2"), self._tensor),
            "torch._utils._rebuild_parameter": self._parameter,
            "torch._utils._rebuild_parameter_with_state": self._parameter,
            "torch.nn.parameter.Parameter": self._parameter,
        }
        typed = {"torch._tensor._rebuild_from_type_v2": self._typed}
        self.machine = Machine({**BUILDERS, **self.builders, **typed}, self._reference)

    def _reference(self, reference: Any) -> Any:
        """Return what a pickle of torch.save has outside of it: storages, in old files source text of classes too."""
        match reference:
            case ("module", Name() as name, *_):
                return name
            case ("storage", Name(name=name), str(key), _, count, *views) if _are_sizes((count,)):
                dtype = DTYPES.get(name.removeprefix("torch."))
                if dtype is None or count >= LARGEST_NUMBER:
                    raise BadFileError("a storage in it is of an unknown kind or an impossible size")
                kind = getattr(self.torch, dtype)
                storage = _Storage(kind, count, count * kind.itemsize)
                if self.storages.setdefault(key, storage) != storage:
                    raise BadFileError(f"storage {key[:60]!a} in it has two kinds or sizes")
                match views:
                    case [] | [None]:
                        return _Part(key, 0, count)
                    case [(_, offset, size)] if _are_sizes((offset, size)) and offset + size <= count:
                        return _Part(key, offset, size)
                raise BadFileError("a view of a storage in it does not fit in it")
        raise BadFileError("its pickle refers to something that is not in the file")

    def _tensor(self, part: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Any:
        """Return a tensor without its numbers, once they are known to be numbers of its storage."""
        if type(part) is not _Part or not all(map(_are_sizes, (size, stride, (offset,)))):
            raise BadFileError(IMPOSSIBLE)
        numbers, last = math.prod(size), sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if numbers and (offset + last >= part.length or numbers > part.length):
            raise BadFileError("a tensor in it is larger than its storage")
        if math.prod(max(n, 1) for n in size) * max(stride, default=1) >= LARGEST_NUMBER:
            raise BadFileError(IMPOSSIBLE)
        tensor = self.torch.empty(0, dtype=self.storages[part.key].dtype)
        self.bindings.append((tensor, part.key, part.offset + offset if numbers else 0, size, stride))
        return tensor

    def _parameter(self, tensor: Any, *_: Any) -> Any:
        if not isinstance(tensor, self.torch.Tensor):
            raise BadFileError("a parameter in it is not a tensor")
        return tensor

    def _typed(self, function: Any, _type: Any, arguments: Any, *_: Any) -> Any:
        """Return a tensor with Python attributes, without those."""
        if type(function) is not Name or function.name not in self.builders:
            raise BadFileError("a tensor in it is of an unknown kind")
        return self.builders[function.name](*arguments)

    def bind(self, file: BinaryIO, data: mmap.mmap, starts: Mapping[str, int]) -> None:
        """Give the tensors their numbers, all sizes of which were checked; `starts` says where storages begin."""
        storages = {}
        for key, start in starts.items():
            dtype, count, size = self.storages[key]
            if not count:
                storages[key] = self.torch.empty(0, dtype=dtype)
            elif start % dtype.itemsize == 0:
                storages[key] = self.torch.frombuffer(data, dtype=dtype, count=count, offset=start)
            else:
                numbers = bytearray(size)
                file.seek(start)
                if file.readinto(numbers) != size:  # type: ignore[attr-defined]
                    raise BadFileError("it became shorter while it was read")
                storages[key] = self.torch.frombuffer(numbers, dtype=dtype)
        for tensor, key, offset, shape, stride in self.bindings:
            tensor.set_(storages[key], offset, shape, stride)


def _are_sizes(numbers: Any) -> bool:
    """Return whether these are whole numbers for a few axes; more are not looked at, since that could take for ever."""
    few = type(numbers) is tuple and len(numbers) <= MOST_AXES
    return few and all(type(number) is int and number >= 0 for number in numbers)
