"""A target with planted bugs, to show that the search finds them and keeps their inputs."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tests.reliability.guided.target import Target

__all__ = ["HARM", "Planted"]


def _run_on() -> None:
    while True:
        pass


HARM: Mapping[bytes, Callable[[], object]] = {  # actions that end the process or never end
    b"abort": os.abort,
    b"segfault": lambda: ctypes.string_at(0),
    b"hang": _run_on,
    b"sleep": lambda: time.sleep(3600),
    b"memory": lambda: len(bytearray(400 << 20)),
    b"exit": sys.exit,
}


class Planted(Target):
    """A reader of a header; some bytes in it cause forbidden results."""

    errors = (ValueError,)

    def __init__(self, folder: Path) -> None:
        """Need nothing."""

    def seeds(self) -> Iterable[bytes]:
        return [b"XL\1.", b"other"]

    def read(self, raw: bytes) -> object:
        if raw[:2] != b"XL":
            raise ValueError("not a header")
        if len(raw) < 4 or raw[2] & 0x80:
            raise ValueError("no size")
        if raw[3:5] == b"!?":
            return {}[raw[2]]
        if raw[3:] in HARM:
            HARM[raw[3:]]()
        if raw[3:4] == b"\x1b":
            raise ValueError("control characters: \x1b[2J")
        return raw[2]
