"""Files of `torch.save`: the archives of PyTorch 1.6 and later, and the older files.

Tensors get their numbers only after every size that the file declares was compared with the file. They are views of a
private mapping of the file if the numbers are aligned in it (in archives they are), else of a copy. Tensors that shared
a storage when they were saved share it again.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NamedTuple

from xlexport.checkpoints.safe_pickle.machine import LIST_PLACE, LONGEST_KEY, Machine
from xlexport.checkpoints.safe_pickle.names import BUILDERS
from xlexport.checkpoints.safe_pickle.records import BadFileError, Name
from xlexport.checkpoints.safe_pickle.zip_archive import Member, read_members
from xlexport.errors import CheckpointError
from xlruntime.limits import Budget, Limits

__all__ = ["LEGACY_MAGIC", "LEGACY_PROTOCOL", "read_archive", "read_legacy"]

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_PROTOCOL = 1001
NOT_TORCH = "not a file of torch.save", "Check the path."
BIG_ENDIAN = "saved on a big-endian machine", "Save it again on a little-endian one, as nearly all are."
TORCHSCRIPT = "a TorchScript archive, which holds code", "Save the state dict of the model that it was made from."
MOST_AXES = 16
LARGEST_NUMBER = 1 << 62
MOST_SHARING = 16  # a number of a storage is in so many tensors at most; tied weights are in four
ALWAYS_SHARED = 1 << 22  # numbers that may be in any number of tensors
DTYPES = {  # by torch.save's name for the storage
    "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16", "DoubleStorage": "float64",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "storage.UntypedStorage": "uint8",
}  # fmt: skip


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
        places[key] = Member(start, start + length * storage.dtype.itemsize)
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
                dtype = getattr(self.torch, DTYPES.get(name.removeprefix("torch."), ""), None)
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

    def bind(self, data: mmap.mmap, places: Mapping[str, Member]) -> None:
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
        taken = sum(math.prod(shape) for _, _, _, shape, _ in self.bindings)
        if taken > MOST_SHARING * sum(map(len, storages.values())) + ALWAYS_SHARED:
            raise BadFileError("its tensors hold the same numbers more often than those of any checkpoint do")
        for tensor, key, offset, shape, stride in self.bindings:
            tensor.set_(storages[key], offset, shape, stride)


def _are_sizes(numbers: Any) -> bool:
    """Return whether these are whole numbers for a few axes; more are not looked at, since that could take for ever."""
    few = type(numbers) is tuple and len(numbers) <= MOST_AXES
    return few and all(type(number) is int and number >= 0 for number in numbers)
