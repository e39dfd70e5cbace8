"""Targets: pickles, archives of `torch.save`, TensorFlow's tables, vocabularies."""

from __future__ import annotations

import contextlib
import io
import math
import pickle
import warnings
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import torch

from tests.checkpoints import tensor_bundle_writer as writer
from tests.helpers.paths import ROOT
from tests.reliability.target import InputFile, Target
from xlexport.checkpoints import safe_pickle, tensorflow_bundle
from xlexport.checkpoints.tensorflow_bundle import open_tensor_bundle
from xlexport.checkpoints.vocabularies import describe_vocabulary, read_vocabulary
from xlexport.errors import CheckpointError
from xlruntime.tokenizers.vocabulary import Vocabulary

NAMES = (
    *(b"collections\nOrderedDict\n", b"torch._utils\n_rebuild_tensor_v2\n", b"torch\nFloatStorage\n", b"os\nsystem\n"),
    *(b"storage", b"cpu", b"\x8c\x05torch", b"\x93", b"R", b"Q", b"\x95"),
)
MAGIC = pickle.dumps(0x1950A86A20F9469CFC6C, 2)
STORAGE = bytes(range(64))
TENSORFLOW = ROOT / "tests" / "families" / "transformer_xl" / "data" / "tensorflow"


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


class Pickle(Target):
    """A plain pickle, read as a checkpoint and for its names and texts only."""

    errors = (CheckpointError,)
    words: ClassVar[tuple[bytes, ...]] = NAMES

    def __init__(self, folder: Path) -> None:
        warnings.simplefilter("ignore")
        self._file = InputFile(folder / "file.pt")

    def seeds(self) -> Iterable[bytes]:
        yield from (pickle.dumps(value, protocol) for value in _values() for protocol in (0, 1, 2, 4))

    def content(self, raw: bytes) -> bytes:
        """Return the content of a file for an input."""
        return raw

    def read(self, raw: bytes) -> object:
        path = self._file.write(self.content(raw))
        with contextlib.suppress(CheckpointError):
            safe_pickle.summarize(path)
        value = safe_pickle.read(path)
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        return [part.flatten()[-1].item() for part in parts if isinstance(part, torch.Tensor) and part.numel()]


class TorchPickle(Pickle):
    """The pickle in an otherwise sound archive with the storages 0 and 1."""

    def seeds(self) -> Iterable[bytes]:
        for value in _tensors():
            with zipfile.ZipFile(io.BytesIO(_saved(value, archive=True))) as archive:
                yield archive.read("archive/data.pkl")

    def content(self, raw: bytes) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name, member in (("data.pkl", raw), ("byteorder", b"little"), ("data/0", STORAGE), ("data/1", STORAGE)):
                archive.writestr(zipfile.ZipInfo(f"archive/{name}"), member)
        return file.getvalue()


class TorchArchive(Pickle):
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


class TorchLegacy(Pickle):
    """The content after the magic number of an older file: several pickles, and the numbers."""

    def seeds(self) -> Iterable[bytes]:
        yield from (_saved(value, archive=False).removeprefix(MAGIC) for value in _tensors())

    def content(self, raw: bytes) -> bytes:
        return MAGIC + raw


class TensorFlowTable(Target):
    """The index of a checkpoint with checksums that are always right; the data file is all zeros."""

    errors = (CheckpointError,)
    words = (tensorflow_bundle.TABLE_MAGIC, b"transformer/", b"/Adam", b"\x08\x01\x12", b"\x1a\x02\x08\x01")

    def __init__(self, folder: Path) -> None:
        self._prefix = folder / "model.ckpt"
        self._file = InputFile(folder / "model.ckpt.index")
        (folder / "model.ckpt.data-00000-of-00001").write_bytes(bytes(1 << 14))

    def seeds(self) -> Iterable[bytes]:
        shapes, records, offset = {b"a/b": (2, 3), b"a/bc": (3,), b"d": ()}, [(b"", writer.header())], 0
        for name, shape in shapes.items():
            size = 4 * math.prod(shape)
            records.append((name, writer.entry(shape, offset=offset, crc=writer.masked_crc32c(bytes(size)))))
            offset += size
        yield from (writer.table(records, per_block) for per_block in (1, 9))
        yield writer.table([(b"", writer.header(2, 1))])
        yield (TENSORFLOW / "plain" / "model.ckpt-12.index").read_bytes()

    def read(self, raw: bytes) -> object:
        self._file.write(raw)
        with mock.patch.object(tensorflow_bundle, "_masked_crc", lambda data: mock.ANY):
            bundle = open_tensor_bundle(self._prefix)
            return [bundle.read(name) for name in list(bundle.entries)[:3]]


class VocabularyFile(Target):
    """A file that comes with a checkpoint: `vocab.txt`, `cache.pt`, `vocab.pkl` or `vocabulary.json`."""

    errors = (CheckpointError,)
    words = tuple(b"<unk> <eos> <S> <UNK> idx2sym sym2idx unk_idx lower_case delimiter special".split())

    def __init__(self, folder: Path) -> None:
        self._file = InputFile(folder / "vocabulary")

    def seeds(self) -> Iterable[bytes]:
        yield from (b"<unk>\n<eos>\nthe 120\nof 90\n", b"<S> 3\n<UNK> 0\na 1\n", b"_ 3\na\nb\n")
        yield b"\xef\xbb\xbf10 5\r\n32 4\r\n"
        words = ["was", "the", "best"]
        fields = {"idx2sym": ["<unk>", "<eos>", *words], "lower_case": True, "unk_idx": 0, "special": ["<eos>"]}
        table = {"sym2idx": OrderedDict((word, place) for place, word in enumerate(words)), "delimiter": ""}
        for value in (fields, table, {**fields, **table}, {"vocab": fields}, ["a"]):
            yield pickle.dumps(value, 2)
        yield Vocabulary("characters", ("<unk>", "a", "_"), unk="<unk>", space="_").to_json().encode()

    def read(self, raw: bytes) -> object:
        return describe_vocabulary(read_vocabulary(self._file.write(raw)))
