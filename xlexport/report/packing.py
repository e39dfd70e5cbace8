"""Pack the scores of a document's tokens for a page: columns of small integers, deflated, in base64.

Each CHUNK of tokens becomes two blocks. A page reads `main` (text, ends of tokens, surprisal, entropy) when it opens,
and `detail` when somebody looks at these tokens. A block is the sequence of its columns. A column of b-byte integers
holds all lowest bytes first, then all next bytes, and so on, because this order deflates best.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.report.page_text import PageText
from xlruntime import TokenScores
from xlruntime.scores import LN2

__all__ = ["CHUNK", "NO_SCORE", "Chunk", "Packer", "bytes_for", "pack", "planes"]

CHUNK = 1 << 16  # tokens
STEPS = 100  # steps per bit, for surprisal and entropy
NO_SCORE = 0xFFFF  # surprisal of a token without context

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Chunk:
    """A packed sequence of consecutive tokens.

    Attributes:
        tokens, units: number of tokens, and number of UTF-16 units of their text.
        width_bytes: bytes of an integer in the column of widths.
        main: units (2 bytes), width of each token in them, surprisal and entropy (2 bytes each, in hundredths of a bit,
            NO_SCORE: none). A token that shares a character with the one before it has width 0; text between tokens is
            the later one's.
        detail: ids, ranks from 0, how many tokens were seen (4 bytes, each less the one before, modulo 2^32), and for
            each place among the likeliest tokens the ids, then for each the square root of the probability (1 byte, in
            255ths; 0: not listed).
    """

    tokens: int
    units: int
    width_bytes: int
    main: str
    detail: str


@dataclass
class _Columns:
    """Columns of tokens that are not packed yet."""

    ends: Array
    ids: Array
    bits: Array
    rank: Array
    entropy: Array
    context: Array
    top_ids: Array
    top_roots: Array

    def split(self, n: int) -> tuple[_Columns, _Columns]:
        columns = [getattr(self, field.name) for field in fields(self)]
        return _Columns(*(column[:n] for column in columns)), _Columns(*(column[n:] for column in columns))


class Packer:
    """Packs the parts of one document, scored with `top`, in their order.

    Attributes:
        used: ids of the tokens that occur in the text or among the likeliest tokens.
    """

    def __init__(self, text: PageText, vocab_size: int, top: int) -> None:
        self._text = text
        self._id_bytes = bytes_for(vocab_size - 1)
        self._top = top
        self._waiting: list[_Columns] = []
        self._units = 0  # packed ones
        self._is_used = np.zeros(vocab_size, np.bool_)

    @property
    def used(self) -> list[int]:
        """The ids of all tokens that occurred."""
        return [int(token) for token in np.flatnonzero(self._is_used)]

    def add(self, part: TokenScores) -> Iterator[Chunk]:
        """Take a part and return the chunks that it completes; the document's last part completes all chunks."""
        if part.first is not None:
            none = np.zeros(1, np.int64)
            unscored = none + NO_SCORE
            tops = np.zeros((1, self._top), np.int64)
            self._take(_Columns(part.first.ends, part.first.ids, unscored, none + 1, unscored, none, tops, tops))
        if len(part):
            assert part.rank is not None and part.entropy is not None
            assert part.top_ids is not None and part.top_log_probs is not None
            roots = np.rint(np.exp(part.top_log_probs / 2) * 255)
            listed = np.where(roots > 0, part.top_ids, 0)
            bits = _hundredths(-part.log_probs.astype(np.float64) / LN2)
            entropy = _hundredths(part.entropy / LN2)
            self._take(_Columns(part.ends, part.tokens, bits, part.rank, entropy, part.context, listed, roots))
        yield from self._chunks(CHUNK if part.summary is None else 1)

    def _take(self, columns: _Columns) -> None:
        self._is_used[columns.ids] = True
        self._is_used[columns.top_ids[columns.top_roots > 0]] = True
        self._waiting.append(columns)

    def _chunks(self, at_least: int) -> Iterator[Chunk]:
        """Pack the waiting tokens while there are enough of them."""
        count = sum(len(columns.ids) for columns in self._waiting)
        if count < at_least:
            return
        columns = _Columns(*(np.concatenate([getattr(w, f.name) for w in self._waiting]) for f in fields(_Columns)))
        while count >= at_least:
            chunk, columns = columns.split(CHUNK)
            count = len(columns.ids)
            yield self._packed(chunk, is_last=count == 0 and at_least == 1)
        self._waiting = [columns]

    def _packed(self, columns: _Columns, is_last: bool) -> Chunk:
        ends = np.maximum.accumulate(np.maximum(self._text.after[columns.ends], self._units))
        widths = np.diff(ends, prepend=self._units)
        units = self._text.units[self._units : None if is_last else ends[-1]]
        self._units = int(ends[-1])
        width_bytes = bytes_for(int(widths.max()))
        steps = np.diff(columns.context, prepend=0) & 0xFFFFFFFF
        main = [planes(units, 2), planes(widths, width_bytes), planes(columns.bits, 2), planes(columns.entropy, 2)]
        detail = [
            planes(columns.ids, self._id_bytes),
            planes(columns.rank - 1, self._id_bytes),
            planes(steps, 4),
            *(planes(column, self._id_bytes) for column in columns.top_ids.T),
            *(planes(column, 1) for column in columns.top_roots.T),
        ]
        return Chunk(len(columns.ids), len(units), width_bytes, pack(b"".join(main)), pack(b"".join(detail)))


def planes(values: Array, size: int) -> bytes:
    """Write non-negative integers (n,) in `size` bytes each: the lowest bytes of all, then the next bytes."""
    numbers = np.ascontiguousarray(values, "<i8").view(np.uint8).reshape(-1, 8)
    return numbers[:, :size].T.tobytes()


def pack(raw: bytes) -> str:
    """Deflate bytes, with zlib's header, and return them in base64."""
    return base64.b64encode(zlib.compress(raw, 9)).decode("ascii")


def bytes_for(largest: int) -> int:
    """Return the number of bytes of an integer that holds 0 to `largest`."""
    return max(1, (largest.bit_length() + 7) // 8)


def _hundredths(bits: npt.NDArray[np.float64]) -> Array:
    """Return bits in whole hundredths; NaN becomes NO_SCORE."""
    rounded = np.rint(bits * STEPS).clip(0, NO_SCORE - 1)
    return np.where(np.isnan(rounded), NO_SCORE, rounded).astype(np.int64)
