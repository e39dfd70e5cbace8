"""Bound the memory, operations and time of reading one untrusted file."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from .errors import HintedError
from .messages import first_line, shown

__all__ = ["Budget", "Limits", "parse_json", "read_at_most", "read_json"]

HINT = "Copy the file again, or write it again."
PIECE = 1 << 20  # bytes that are read at once
TIME_EVERY = 1 << 12  # operations between two checks of the clock
JSON_ARRAY, JSON_OBJECT, JSON_VALUE = 72, 232, 100  # bytes in Python, with the place in its container
LONGEST_WHOLE = 20  # characters of a number of 64 bits


@dataclass(frozen=True)
class Limits:
    """Limits for reading one file. The default of each reader suffices for the largest honest file.

    Attributes:
        bytes: memory for the file's content after reading.
        operations: steps of the reader, such as operations of a pickle, values of a JSON text or entries of an index.
        seconds: processor time of the thread that reads.
    """

    bytes: int = 1 << 30
    operations: int = 20_000_000
    seconds: float = 60.0

    def budget(self, name: str, error: type[HintedError], hint: str = HINT) -> Budget:
        """Return a budget for reading the file `name`; it raises `error` if a limit is exceeded.

        Args:
            hint: what a user can do about a damaged file.
        """
        return Budget(self, name, error, hint)


class Budget:
    """The rest of the limits while one file is read."""

    def __init__(self, limits: Limits, name: str, error: type[HintedError], hint: str) -> None:
        """Start with all of `limits` left."""
        self.limits, self.name, self.error, self.hint = limits, name, error, hint
        self.bytes, self.operations = limits.bytes, limits.operations
        self._deadline = time.thread_time() + limits.seconds
        self._next_look = max(0, self.operations - TIME_EVERY)

    def charge(self, size: int = 0, operations: int = 1) -> None:
        """Count bytes before they are allocated, and operations before they run.

        Raises:
            HintedError: of the class `error`, if a limit is exceeded.
        """
        self.bytes -= size
        self.operations -= operations
        if self.bytes < 0 or self.operations < self._next_look:
            self._look()

    def _look(self) -> None:
        """Compare all limits, of which time is the slowest to read."""
        if self.bytes < 0:
            raise self._exceeded(f"{self.limits.bytes:,} bytes of memory")
        if self.operations < 0:
            raise self._exceeded(f"{self.limits.operations:,} operations")
        self._next_look = max(0, self.operations - TIME_EVERY)
        if time.thread_time() > self._deadline:
            raise self._exceeded(f"{self.limits.seconds:g} seconds")

    def _exceeded(self, limit: str) -> HintedError:
        return self.error(f"{self.name}: reading it would take more than {limit}.", "Check where the file comes from.")


def read_at_most(file: BinaryIO, budget: Budget) -> bytes:
    """Read a file to its end, but at most one byte more than the budget has left.

    Raises:
        HintedError: of the budget's class, if the file is longer.
        OSError: the file cannot be read.
    """
    pieces: list[bytes] = []
    left = budget.bytes + 1
    while left and (piece := file.read(min(left, PIECE))):  # read(left) would reserve all of it
        pieces.append(piece)
        left -= len(piece)
    budget.charge(budget.bytes + 1 - left)
    return b"".join(pieces)


def parse_json(raw: bytes, budget: Budget, *, strict: bool = False) -> Any:
    """Count the values of a JSON text in UTF-8, then parse it: Python may need thirty times the text's bytes.

    Brackets and commas within strings are counted too, which only makes the bound stricter.

    Args:
        strict: refuse what another reader may understand otherwise: two members of one name, whole numbers beyond
            64 bits, and numbers that are not finite.

    Raises:
        HintedError: of the budget's class, if the values exceed the budget, or the text is not JSON.
    """
    arrays, objects, others = raw.count(b"["), raw.count(b"{"), raw.count(b",") + raw.count(b":")
    size = JSON_ARRAY * arrays + JSON_OBJECT * objects + JSON_VALUE * others + 2 * len(raw)
    budget.charge(size, arrays + objects + others)
    try:
        return json.loads(raw.decode("utf-8-sig"), **(STRICT if strict else {}))
    except (ValueError, RecursionError) as error:
        raise budget.error(f"{budget.name}: not valid JSON ({first_line(error)[:100]}).", budget.hint) from error


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    if twice := [name for name, count in Counter(name for name, _ in members).items() if count > 1]:
        raise ValueError(f"two members {shown(twice[0])}")
    return dict(members)


def _whole(text: str) -> int:
    if len(text) > LONGEST_WHOLE or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"the whole number {text[:LONGEST_WHOLE]} is beyond 64 bits")
    return int(text)


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"the number {text[:LONGEST_WHOLE]} is not finite")
    return number


STRICT: Mapping[str, Any] = {
    "object_pairs_hook": _unique, "parse_int": _whole, "parse_float": _finite, "parse_constant": _finite,
}  # fmt: skip


def read_json(path: Path, limits: Limits, error: type[HintedError], hint: str = HINT, *, strict: bool = False) -> Any:
    """Read the JSON text in the file `path`, within `limits`; `strict` as in `parse_json`.

    Raises:
        HintedError: of the class `error`, if the file exceeds the limits or is not JSON.
        OSError: the file cannot be read.
    """
    budget = limits.budget(str(path), error, hint)
    with path.open("rb") as file:
        return parse_json(read_at_most(file, budget), budget, strict=strict)
