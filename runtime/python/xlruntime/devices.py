"""Devices: where steps run and memories live."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from .errors import OptionError

__all__ = ["Device", "parse_device"]


@dataclass(frozen=True)
class Device:
    """Where steps run and memories live; `parse_device` reads `str(device)` back.

    Attributes:
        kind: `cpu` or `cuda`; index: number of the CUDA device.
    """

    kind: Literal["cpu", "cuda"]
    index: int = 0

    @property
    def provider(self) -> str:
        """The execution provider that serves this device."""
        return "CUDAExecutionProvider" if self.kind == "cuda" else "CPUExecutionProvider"

    def __str__(self) -> str:
        return f"cuda:{self.index}" if self.kind == "cuda" else "cpu"


def parse_device(text: str) -> Device:
    """Read `cpu`, `cuda` (the first CUDA device) or `cuda:1`.

    Raises:
        OptionError: the text names another device.
    """
    match = re.fullmatch(r"cpu|cuda(?::(?P<index>[0-9]{1,3}))?", text)
    if match is None:
        raise OptionError(f"device {text!r}: expected cpu, cuda or cuda:N, for example cuda:1.")
    return Device("cpu") if text == "cpu" else Device("cuda", int(match["index"] or 0))
