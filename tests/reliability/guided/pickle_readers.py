"""Targets: pickles and files of `torch.save`."""

from __future__ import annotations

import io
import pickle
import warnings
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from tests.reliability.guided.target import InputFile, Target
from xlexport.checkpoints import safe_pickle
from xlexport.errors import CheckpointError

__all__ = ["Pickle", "Summary", "TorchArchive", "TorchLegacy", "TorchPickle"]

NAMES = (
    *(b"collections\nOrderedDict\n", b"torch._utils\n_rebuild_tensor_v2\n", b"torch\nFloatStorage\n", b"os\nsystem\n"),
    *(b"storage", b"cpu", b"\x8c\x05torch", b"\x93", b"R", b"Q", b"\x95"),
)
MAGIC = pickle.dumps(0x1950A86A20F9469CFC6C, 2)
STORAGE = bytes(range(64))


class _RunsCode:
    """An object that a pickle must never create: reading it would call `print`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("this was run",)


class _Plain:
    """An object with attributes, which the reader turns into a record."""

    def __init__(self) -> None:
        self.sizes, self.name = [1, 2], "plain"


def _values() -> Iterator[Any]:
    shared = ["again"]
    yield from (None, True, 7, -(2**70), 1.5, "text", b"bytes", [1, [2, (3, {"a": shared, "b": shared})]])
    yield {"idx2sym": ["a", "b"], "sym2idx": OrderedDict(a=0, b=1), "counter": Counter("abca"), 3: {1, 2}}
    yield {"epoch": np.float64(1.5), "array": np.arange(3), "frozen": frozenset({"x"}), "raw": bytearray(b"ab")}
    yield _Plain()
    yield _RunsCode()


def _tensors() -> Iterator[Any]:
    weight = torch.arange(16, dtype=torch.float32).reshape(2, 8)
    yield {"weight": weight, "same": weight.t(), "whole": weight.int(), "none": None}
    yield OrderedDict(parameter=torch.nn.Parameter(weight), empty=torch.empty(0, 3))
    yield {"format": "xltraining", "version": 3, "state_dict": {"a.b": weight[0, 1:]}, "strings": ["x"]}
    yield [_Plain(), _RunsCode()]


def _saved(value: Any, archive: bool) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=archive)
    return file.getvalue()


def _used(value: Any) -> list[Any]:
    """Use what was read as a reader of checkpoints does."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return [
        part.flatten()[-1].item() if isinstance(part, torch.Tensor) and part.numel() else type(part) for part in parts
    ]


class _File(Target):
    errors = (CheckpointError,)
    words: ClassVar[tuple[bytes, ...]] = NAMES

    def __init__(self, folder: Path) -> None:
        warnings.simplefilter("ignore")
        self._file = InputFile(folder / "file.pt")


class Pickle(_File):
    """A plain pickle."""

    def seeds(self) -> Iterable[bytes]:
        yield from (pickle.dumps(value, protocol) for value in _values() for protocol in (0, 1, 2, 4))

    def read(self, raw: bytes) -> object:
        return _used(safe_pickle.read(self._file.write(raw)))


class Summary(_File):
    """A file of which only names and texts are read."""

    def seeds(self) -> Iterable[bytes]:
        yield from (pickle.dumps(value, protocol) for value in _values() for protocol in (2, 4))
        yield from (_saved(value, archive) for value in _tensors() for archive in (False, True))

    def read(self, raw: bytes) -> object:
        return safe_pickle.summarize(self._file.write(raw))


class TorchPickle(_File):
    """The pickle in an otherwise sound archive with the storages 0 and 1."""

    def seeds(self) -> Iterable[bytes]:
        for value in _tensors():
            with zipfile.ZipFile(io.BytesIO(_saved(value, archive=True))) as archive:
                yield archive.read("archive/data.pkl")

    def read(self, raw: bytes) -> object:
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            for name, member in (("data.pkl", raw), ("byteorder", b"little"), ("data/0", STORAGE), ("data/1", STORAGE)):
                archive.writestr(zipfile.ZipInfo(f"archive/{name}"), member)
        return _used(safe_pickle.read(self._file.write(content.getvalue())))


class TorchArchive(_File):
    """An archive of `torch.save`: members, directory, checksums."""

    words = (*NAMES, b"PK\3\4", b"PK\1\2", b"PK\5\6", b"PK\6\6", b"PK\6\7", b"archive/data.pkl", b"archive/data/0")

    def seeds(self) -> Iterable[bytes]:
        yield from (_saved(value, archive=True) for value in _tensors())
        for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            content = io.BytesIO()
            with zipfile.ZipFile(content, "w", method) as archive:
                archive.writestr("a/data.pkl", pickle.dumps({"x": 1}, 2))
                archive.writestr("a/constants.pkl", b"N.")
            yield content.getvalue()

    def read(self, raw: bytes) -> object:
        return _used(safe_pickle.read(self._file.write(raw)))


class TorchLegacy(_File):
    """The content after the magic number of an older file: several pickles, and the numbers."""

    def seeds(self) -> Iterable[bytes]:
        yield from (_saved(value, archive=False).removeprefix(MAGIC) for value in _tensors())

    def read(self, raw: bytes) -> object:
        return _used(safe_pickle.read(self._file.write(MAGIC + raw)))
