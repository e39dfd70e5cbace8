"""Targets: tensors of TensorFlow's checkpoints and of safetensors files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import safetensors.torch
import torch

from tests.checkpoints import tensor_bundle_writer as writer
from tests.helpers.paths import ROOT
from tests.reliability.guided.target import InputFile, Target
from xlexport.checkpoints import tensorflow_bundle
from xlexport.checkpoints.files import read_tensors, safetensors_names
from xlexport.checkpoints.tensorflow_bundle import open_tensor_bundle
from xlexport.errors import CheckpointError

__all__ = ["Safetensors", "TensorFlowIndex", "TensorFlowTable"]

SAMPLES = ROOT / "tests" / "checkpoints" / "data" / "tensorflow"
SHARD = ".data-00000-of-00001"


class TensorFlowIndex(Target):
    """The index of a checkpoint, whose blocks have checksums; the data file is all zeros."""

    errors = (CheckpointError,)
    words = (tensorflow_bundle.TABLE_MAGIC, b"transformer/", b"/Adam", b"\x08\x01\x12", b"\x1a\x02\x08\x01")

    def __init__(self, folder: Path) -> None:
        self._prefix = folder / "model.ckpt"
        self._file = InputFile(folder / "model.ckpt.index")
        (folder / f"model.ckpt{SHARD}").write_bytes(bytes(1 << 14))

    def seeds(self) -> Iterable[bytes]:
        shapes, records, offset = {b"a/b": (2, 3), b"a/bc": (3,), b"d": ()}, [(b"", writer.header())], 0
        for name, shape in shapes.items():
            size = 4 * math.prod(shape)
            crc = writer.masked_crc32c(bytes(size))
            records.append((name, writer.entry(shape, offset=offset, crc=crc)))
            offset += size
        for per_block in (1, 9):
            yield writer.table(records, per_block)
        yield writer.table([(b"", writer.header(2, 1))])
        yield (SAMPLES / "plain" / "model.ckpt-12.index").read_bytes()

    def read(self, raw: bytes) -> object:
        self._file.write(raw)
        bundle = open_tensor_bundle(self._prefix)
        return [bundle.read(name) for name in list(bundle.entries)[:3]]


class TensorFlowTable(TensorFlowIndex):
    """The same with checksums that are always right, so that the search can go beyond them."""

    def read(self, raw: bytes) -> object:
        with mock.patch.object(tensorflow_bundle, "_masked_crc", lambda data: mock.ANY):
            return super().read(raw)


class Safetensors(Target):
    """A safetensors file of weights."""

    errors = (CheckpointError,)
    of_library = True
    words = tuple(b'"dtype": "shape": "data_offsets": "__metadata__": "F32" "BF16" "F8_E4M3" "I64"'.split())

    def __init__(self, folder: Path) -> None:
        self._file = InputFile(folder / "model.safetensors")

    def seeds(self) -> Iterable[bytes]:
        weight = torch.arange(6, dtype=torch.float32).reshape(2, 3)
        tensors = {"a": weight, "b": weight.bfloat16(), "c": weight.bool(), "d": torch.empty(0, 2)}
        yield safetensors.torch.save(tensors, {"format": "pt"})
        kinds = ("F4", "F6_E2M3", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F16", "F64", "C64", "I8", "U16", "U64")
        for kind in kinds:
            header = json.dumps({"x": {"dtype": kind, "shape": [2], "data_offsets": [0, 2]}}).encode()
            yield len(header).to_bytes(8, "little") + header + bytes(2)

    def read(self, raw: bytes) -> object:
        path = self._file.write(raw)
        safetensors_names(path)
        return {name: (tensor.dtype, tensor.shape) for name, tensor in read_tensors(path).items()}
