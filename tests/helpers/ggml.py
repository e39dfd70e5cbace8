"""Read the files of rwkv.cpp, and give their tensors the layout of the files of RWKV's authors."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import torch
from torch import Tensor


def authors_tensors(path: Path) -> dict[str, Tensor]:
    """Return the float32 tensors of a file, by the authors' names."""
    content, place = path.read_bytes(), struct.calcsize("=6i")
    tensors: dict[str, Tensor] = {}
    while place < len(content):
        dimensions, length, kind = struct.unpack_from("=3i", content, place)
        assert kind == 0  # float32
        shape = struct.unpack_from(f"={dimensions}i", content, place + 12)[::-1]
        place += 12 + 4 * dimensions
        name, place = content[place : place + length].decode(), place + length
        numbers = torch.frombuffer(bytearray(content), dtype=torch.float32, count=math.prod(shape), offset=place)
        place += 4 * math.prod(shape)
        tensors |= _authors(name, numbers.reshape(shape))
    return tensors


def _authors(name: str, tensor: Tensor) -> dict[str, Tensor]:
    prefix, _, last = name.rpartition(".")
    if last == "x_rwkvag":
        return {f"{prefix}.x_{letter}": part for letter, part in zip("rwkvag", tensor.split(1), strict=True)}
    if last[0] in "wavg" and last[1:] in ("1", "2"):
        return {name: tensor.T.contiguous()}
    if last == "time_decay":  # rwkv.cpp holds -exp(decay)
        return {name: (-tensor).log()}
    return {name: tensor.reshape(1, 1, -1) if last.startswith("time_mix") else tensor}
