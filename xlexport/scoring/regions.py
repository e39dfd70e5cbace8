"""Find the beginnings of units of a text that white space alone does not show.

Regions, such as the parts that readers see one after another, are marked by `|` or given in another field. Punctuation
around words may be apart. Each unit includes the white space before it, and the last one also that after it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import re
import sys
import unicodedata
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from xlexport.scoring.inputs import TextSource
from xlruntime import TextError
from xlruntime.documents import IS_SPACE, SPACES, utf8_bytes
from xlruntime.limits import Limits, read_at_most
from xlruntime.messages import shown

__all__ = ["MARK", "CutSource", "joined_rows", "marked_regions", "punctuation_apart", "regions_of_field"]

MARK = b"|"
WORD = re.compile(rb"[^%s]+" % re.escape(SPACES))
HINT = f"Separate regions by {MARK.decode()}, or give the numbers of the characters at which regions begin, from 0."


def marked_regions(raw: bytes, name: str) -> tuple[bytes, list[int]]:
    """Return a text without its marks, and the bytes of it at which regions begin, except the first.

    If a mark has white space on both sides, the white space after it is left out, too. A mark at the beginning or the
    end of the text does not count.

    Raises:
        TextError: a region is empty.
    """
    parts = raw.split(MARK)
    first = 1 if len(parts) > 1 and not parts[0].strip(SPACES) else 0
    last = len(parts) - (1 if len(parts) - first > 1 and not parts[-1].strip(SPACES) else 0)
    text, begins = bytearray(), []
    for number, part in enumerate(parts):
        if first < number < last:
            begins.append(len(text))
            if not part.strip(SPACES):
                raise TextError(f"{name}: region {number - first + 1} is empty.", hint="Remove a mark.")
        text += part.lstrip(SPACES) if text[-1:].isspace() else part
    return bytes(text), _edges(bytes(text), begins, name)


def regions_of_field(text: str, value: Any, field: str, name: str) -> list[int]:
    """Return the bytes of a text at which regions begin, except the first, from the value of another field.

    Args:
        value: the text with marks, or numbers of characters in a list or a text.

    Raises:
        TextError: the value is of another kind, or does not fit the text.
    """
    raw = utf8_bytes(text, name)
    if value is None:
        return _edges(raw, [], name)
    if isinstance(value, str) and MARK.decode() in value:
        marked, edges = marked_regions(utf8_bytes(value, name), name)
        if marked != raw:
            pairs = zip(marked, raw, strict=False)
            at = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(marked), len(raw)))
            raise TextError(f"{name}: field {field!r} without its marks differs from the text at byte {at}.", hint=HINT)
        return edges
    numbers = _numbers(value)
    if (
        numbers is None
        or numbers != sorted(set(numbers))
        or (numbers and not 0 <= numbers[0] <= numbers[-1] < len(text))
    ):
        raise TextError(
            f"{name}: field {field!r} holds {shown(value)}, expected rising numbers from 0 to {len(text) - 1}.",
            hint=HINT,
        )
    places = np.flatnonzero((np.frombuffer(raw, np.uint8) & 0xC0) != 0x80)  # of the characters
    return _edges(raw, [int(places[number]) for number in numbers if number], name)


def joined_rows(texts: Sequence[str], join: str, name: str) -> tuple[str, list[int]]:
    """Return the text of rows, and the bytes of it at which rows begin, except the first.

    Args:
        texts: those of the rows, each with more than white space; join: comes between them, unless white space does.
    """
    parts, begins, size = [texts[0]], [], 0
    for before, text in itertools.pairwise(texts):
        size += len(utf8_bytes(parts[-1], name))
        begins.append(size)
        parts.append(text if before[-1:].isspace() or text[:1].isspace() else join + text)
    return "".join(parts), _edges(utf8_bytes("".join(parts), name), begins, name)


def _numbers(value: Any) -> list[int] | None:
    """Return whole numbers from a list or a text; None if the value holds something else."""
    if isinstance(value, str):
        words = value.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
        if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
            return None
        return [int(word) for word in words]
    values = value if isinstance(value, list) else [value]
    return list(values) if all(type(value) is int for value in values) else None


def _edges(raw: bytes, begins: Sequence[int], name: str) -> list[int]:
    """Move each beginning before the white space in front of it; add that of the white space at the end.

    Raises:
        TextError: a region has only white space.
    """
    values = np.frombuffer(raw, np.uint8)
    inside = np.flatnonzero(~IS_SPACE[values])  # what is not white space
    before: npt.NDArray[np.int64] = np.searchsorted(inside, np.array([*begins, len(raw)], np.int64))
    counts = np.diff(before, prepend=0)
    if begins and not counts.all():
        raise TextError(f"{name}: region {int(np.flatnonzero(counts == 0)[0]) + 1} has only white space.", hint=HINT)
    edges = [int(inside[count - 1]) + 1 for count in before.tolist() if count]
    return edges if edges and edges[-1] < len(raw) else edges[:-1]


def punctuation_apart(raw: bytes) -> list[int]:
    """Return the bytes of a text at which words begin, except the first, if punctuation around a word is a word."""
    marks, begins = _punctuation(), []
    for word in WORD.finditer(raw):
        text = word[0].decode("utf-8", "surrogateescape")
        inner = text.strip(marks)
        before, _, after = text.partition(inner) if inner else ("", "", "")
        begin = word.start()
        for part in (before, inner or text, after):
            if part:
                begins.append(begin)
                begin += len(part.encode("utf-8", "surrogateescape"))
    return _edges(raw, begins[1:], "")


@functools.cache
def _punctuation() -> str:
    """Return all characters that Unicode calls punctuation."""
    characters = map(chr, range(sys.maxunicode + 1))
    return "".join(character for character in characters if unicodedata.category(character).startswith("P"))


class CutSource(TextSource):
    """A document that is read whole, because its text marks its units; the marks are removed."""

    def __init__(
        self,
        name: str,
        opener: Callable[[], BinaryIO],
        at_hand: bool,
        cut: Literal["marks", "punctuation"],
        limits: Limits,
        keep: bool = False,
    ) -> None:
        super().__init__(name, partial(self._cut, opener, cut, limits), at_hand, keep)

    def _cut(self, opener: Callable[[], BinaryIO], cut: Literal["marks", "punctuation"], limits: Limits) -> BinaryIO:
        with contextlib.closing(opener()) as file:
            raw = read_at_most(file, limits.budget(self.name, TextError))
        raw, edges = marked_regions(raw, self.name) if cut == "marks" else (raw, punctuation_apart(raw))
        self.edges = np.array(edges, np.int64)
        return io.BytesIO(raw)
