"""A target with planted bugs, to show that the search finds them and keeps what shows them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from reliability.guided.target import Target

__all__ = ["Planted"]


class Planted(Target):
    """Reads a header; some bytes in it do what no input may do."""

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
        if raw[3:4] == b"\x1b":
            raise ValueError("control characters: \x1b[2J")
        return raw[2]
