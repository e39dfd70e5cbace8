"""What `torch.save` wrote, in the archives of PyTorch 1.6 and later and in the older files, with tensors of the file.

The pickle runs on the restricted machine. Its tensors are bound to their numbers only after every size that the file
declares was checked against the file. They are views of a private mapping of the file where the numbers stand aligned
in it (they do in archives), else of a copy. Tensors that shared a storage when they were saved share it again.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlexport.checkpoints.safe_pickle import BUILDERS, map_file
from xlexport.checkpoints.safe_pickle.machine import Machine
from xlexport.checkpoints.safe_pickle.opcodes import BadFileError
from xlexport.checkpoints.safe_pickle.records import Name
from xlexport.checkpoints.safe_pickle.zip_archive import ARCHIVE_MAGIC, check_sums, read_members
from xlexport.errors import CheckpointError

__all__ = ["read_torch"]

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_PROTOCOL = 1001
LEGACY_HEADER = 1 << 12  # bytes of each pickle before the object's, at most
LEGACY_KEY = 64  # bytes of a storage's key in their list, at most
MOST_AXES = 16
LARGEST_NUMBER = 1 << 62

STORAGES = {  # torch.save's name for it: dtype, bytes of a number
    "FloatStorage": ("float32", 4),
    "HalfStorage": ("float16", 2),
    "BFloat16Storage": ("bfloat16", 2),
    "DoubleStorage": ("float64", 8),
    "LongStorage": ("int64", 8),
    "IntStorage": ("int32", 4),
    "ShortStorage": ("int16", 2),
    "CharStorage": ("int8", 1),
    "ByteStorage": ("uint8", 1),
    "BoolStorage": ("bool", 1),
    "storage.UntypedStorage": ("uint8", 1),  # a row of bytes
}


def read_torch(path: Path) -> Any:
    """Read a file that `torch.save` wrote, running nothing of it.

    Tensors and parameters come out as CPU tensors, which may be changed without changing the file; for all else see
    `read_pickle`.

    Raises:
        CheckpointNotFoundError: no such file.
        CheckpointError: damaged, of the other byte order, or with objects that could run code; all of them are named.
    """
    data = map_file(path)
    try:
        return _read_archive(path, data) if data[:4] == ARCHIVE_MAGIC else _read_legacy(path, data)
    except BadFileError as error:
        raise CheckpointError(f"{path}: {error}. {error.repair}") from error


def _read_archive(path: Path, data: mmap.mmap) -> Any:
    members = read_members(data)
    roots = [name.removesuffix("data.pkl") for name in members if name.endswith("/data.pkl")]
    if len(roots) != 1 or not all(name.startswith(roots[0]) for name in members):
        raise _of_another_kind()
    root = roots[0]
    if root + "constants.pkl" in members:
        raise BadFileError(
            "a TorchScript archive, which holds code", "Save the state dict of the model that it was made from."
        )
    check_sums(path, members)
    order = members.get(root + "byteorder")
    if order is not None and data[order.start : order.start + order.size] != b"little":
        raise _big_endian()
    tensors = _Tensors()
    pickle = members[root + "data.pkl"]
    value, _ = tensors.machine().run(data, pickle.start, pickle.start + pickle.size)
    starts = {}
    for key, storage in tensors.storages.items():
        member = members.get(f"{root}data/{key}")
        if member is None or member.size != storage.count * storage.item_size:
            raise BadFileError(f"storage {key[:60]!a} in it is missing or not of the size that its tensors say")
        starts[key] = member.start
    tensors.bind(path, data, starts)
    return value


def _read_legacy(path: Path, data: mmap.mmap) -> Any:
    """Magic number, protocol, system, object, keys of the storages, then each storage's length and numbers."""
    header: list[Any] = []
    position = 0
    for _ in range(3):
        try:
            value, position = Machine(BUILDERS).run(data, position, min(position + LEGACY_HEADER, len(data)))
        except BadFileError as error:
            if not header:
                raise _of_another_kind() from error
            raise
        header.append(value)
        if header[0] != LEGACY_MAGIC:
            raise _of_another_kind()
    _, protocol, system = header
    if protocol != LEGACY_PROTOCOL or not isinstance(system, dict):
        raise BadFileError("of a version of torch.save that nothing wrote")
    if system.get("little_endian") is not True:
        raise _big_endian()
    tensors = _Tensors()
    value, position = tensors.machine().run(data, position, len(data))
    keys_end = min(position + LEGACY_HEADER + LEGACY_KEY * len(tensors.storages), len(data))
    keys, position = Machine(BUILDERS).run(data, position, keys_end)
    known = type(keys) is list and all(type(key) is str for key in keys)
    if not known or sorted(keys) != sorted(tensors.storages):
        raise BadFileError("the storages in it are not those of its tensors")
    starts = {}
    for key in keys:
        storage = tensors.storages[key]
        start = position + 8
        position = start + storage.count * storage.item_size
        if position > len(data) or struct.unpack_from("<q", data, start - 8)[0] != storage.count:
            raise BadFileError(f"storage {key[:60]!a} in it is cut off or not of the size that its tensors say")
        starts[key] = start
    tensors.bind(path, data, starts)
    return value


def _of_another_kind() -> BadFileError:
    return BadFileError("not a file of torch.save", "Check the path.")


def _big_endian() -> BadFileError:
    return BadFileError("saved on a big-endian machine", "Save it again on a little-endian one, as nearly all are.")


@dataclass(frozen=True, slots=True)
class _Storage:
    """Numbers of one kind that stand in a row in the file."""

    dtype: str
    item_size: int
    count: int


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a storage that a tensor may use: all of it, but for views in old files."""

    key: str
    offset: int
    count: int


@dataclass(frozen=True, slots=True)
class _Binding:
    """Which numbers of a storage belong to a tensor that has none yet."""

    tensor: Any
    key: str
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class _Tensors:
    """The storages and tensors of one file."""

    def __init__(self) -> None:
        self.storages: dict[str, _Storage] = {}
        self.bindings: list[_Binding] = []
        self.builders: dict[str, Callable[..., Any]] = {
            "torch._utils._rebuild_tensor": self._tensor,
            "torch._utils._rebuild_tensor_v2": self._tensor,
            "torch._utils._rebuild_parameter": self._parameter,
            "torch._utils._rebuild_parameter_with_state": self._parameter,
            "torch.nn.parameter.Parameter": self._parameter,
        }

    def machine(self) -> Machine:
        typed = {"torch._tensor._rebuild_from_type_v2": self._typed}
        return Machine({**BUILDERS, **self.builders, **typed}, persistent=self._reference)

    def _reference(self, reference: Any) -> Any:
        """What a pickle of torch.save has outside of it: storages, and in old files the source text of classes."""
        match reference:
            case ("module", Name() as name, *_):
                return name
            case ("storage", Name(name=name), str(key), _, int(count), *views) if (
                name.removeprefix("torch.") in STORAGES and 0 <= count < LARGEST_NUMBER
            ):
                storage = _Storage(*STORAGES[name.removeprefix("torch.")], count)
                if self.storages.setdefault(key, storage) != storage:
                    raise BadFileError(f"storage {key[:60]!a} in it has two kinds or sizes")
                return self._part(key, count, *views)
        raise BadFileError("its pickle refers to something that is not in the file")

    def _part(self, key: str, count: int, view: Any = None) -> _Part:
        match view:
            case None:
                return _Part(key, 0, count)
            case (_, int(offset), int(size)) if 0 <= offset <= offset + size <= count:
                return _Part(key, offset, size)
        raise BadFileError("a view of a storage in it does not fit in it")

    def _tensor(self, part: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Any:
        """A tensor without its numbers, once they are known to be numbers of its storage."""
        import torch

        axes = [*_whole(size), *_whole(stride), *_whole((offset,))]
        if type(part) is not _Part or len(size) > MOST_AXES or min(axes) < 0:
            raise BadFileError("a tensor in it has an impossible shape")
        last = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        numbers = math.prod(size)
        if numbers and (offset + last >= part.count or numbers > part.count):
            raise BadFileError("a tensor in it is larger than its storage")
        if math.prod(max(n, 1) for n in size) * max(stride, default=1) >= LARGEST_NUMBER:
            raise BadFileError("a tensor in it has an impossible shape")
        tensor = torch.empty(0, dtype=getattr(torch, self.storages[part.key].dtype))
        offset = part.offset + offset if numbers else 0
        self.bindings.append(_Binding(tensor, part.key, offset, tuple(size), tuple(stride)))
        return tensor

    def _parameter(self, tensor: Any, *_: Any) -> Any:
        import torch

        if not isinstance(tensor, torch.Tensor):
            raise BadFileError("a parameter in it is not a tensor")
        return tensor

    def _typed(self, function: Any, _type: Any, arguments: Any, *_: Any) -> Any:
        """A tensor with Python attributes, which are left out."""
        if type(function) is not Name or function.name not in self.builders:
            raise BadFileError("a tensor in it is of an unknown kind")
        return self.builders[function.name](*arguments)

    def bind(self, path: Path, data: mmap.mmap, starts: Mapping[str, int]) -> None:
        """Give the tensors their numbers. All sizes were checked before.

        Args:
            starts: where in `data` each storage begins, by key.
        """
        import torch

        storages = {}
        with path.open("rb") as file:
            for key, start in starts.items():
                storage = self.storages[key]
                dtype = getattr(torch, storage.dtype)
                if not storage.count:
                    storages[key] = torch.empty(0, dtype=dtype)
                elif start % storage.item_size == 0:
                    storages[key] = torch.frombuffer(data, dtype=dtype, count=storage.count, offset=start)
                else:
                    numbers = bytearray(storage.count * storage.item_size)
                    file.seek(start)
                    if file.readinto(numbers) != len(numbers):
                        raise BadFileError("it became shorter while it was read")
                    storages[key] = torch.frombuffer(numbers, dtype=dtype)
        for binding in self.bindings:
            binding.tensor.set_(storages[binding.key], binding.offset, binding.size, binding.stride)


def _whole(numbers: Any) -> tuple[int, ...]:
    if type(numbers) is not tuple or not all(type(number) is int for number in numbers):
        raise BadFileError("a tensor in it has an impossible shape")
    return numbers
