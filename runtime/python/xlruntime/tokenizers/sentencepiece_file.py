"""Check a SentencePiece model before the library reads it: sizes, and parts that the library does not check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..errors import VocabularyError
from ..limits import Limits, read_at_most
from .charsmap import longest_replacement

__all__ = ["read_sentencepiece"]

# Numbers of the fields that the library reads.
PIECE, TRAINER, NORMALIZER, DENORMALIZER = 1, 2, 3, 5
CHARSMAP = 2  # of a normalizer
PIECE_COST = 400  # bytes of the library's memory for a piece and its places in tries
LONGEST_PIECE, LONGEST_TRAINER = 1000, 1 << 20  # bytes
VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5  # wire types
VARINT_BYTES = 10  # at most


def read_sentencepiece(path: Path, limits: Limits) -> tuple[bytes, int]:
    """Read a model for the library; return its bytes, and the most bytes that it makes of one byte of text.

    Raises:
        VocabularyError: the file is too large or not a model, or its character map leads out of itself.
        OSError: the file cannot be read.
    """
    budget = limits.budget(str(path), VocabularyError)
    with path.open("rb") as file:
        raw = read_at_most(file, budget)
    growth = 3  # a space becomes a mark of three bytes
    for number, start, end in _fields(raw, 0, len(raw), path):
        size = end - start
        budget.charge(PIECE_COST + size if number == PIECE else size)
        if size > {PIECE: LONGEST_PIECE, TRAINER: LONGEST_TRAINER}.get(number, size):
            raise _not_a_model(path, f"field {number} has {size:,} bytes")
        if number in (NORMALIZER, DENORMALIZER):
            for inner, first, last in _fields(raw, start, end, path):
                if inner == CHARSMAP and last > first:
                    growth = max(growth, longest_replacement(raw[first:last], budget))
    return raw, growth


def _fields(raw: bytes, start: int, end: int, path: Path) -> Iterator[tuple[int, int, int]]:
    """Yield the fields of a protobuf message: number, and begin and end of the content."""
    while start < end:
        tag, start = _varint(raw, start, end, path)
        kind = tag & 7
        if kind == VARINT:
            following = _varint(raw, start, end, path)[1]
        elif kind == BYTES:
            size, start = _varint(raw, start, end, path)
            following = start + size
        elif kind in (EIGHT, FOUR):
            following = start + (8 if kind == EIGHT else 4)
        else:
            raise _not_a_model(path, f"wire type {kind} at byte {start:,}")
        if following > end:
            raise _not_a_model(path, f"ends within field {tag >> 3}")
        yield tag >> 3, start, following
        start = following


def _varint(raw: bytes, start: int, end: int, path: Path) -> tuple[int, int]:
    """Return an integer of seven bits per byte, and the place of its end."""
    value = 0
    for place in range(start, min(end, start + VARINT_BYTES)):
        value |= (raw[place] & 0x7F) << 7 * (place - start)
        if raw[place] < 0x80:
            return value, place + 1
    raise _not_a_model(path, f"ends within a number at byte {start:,}")


def _not_a_model(path: Path, found: str) -> VocabularyError:
    return VocabularyError(
        f"{path}: not a SentencePiece model ({found}).", hint="Give the file that the library itself has written."
    )
