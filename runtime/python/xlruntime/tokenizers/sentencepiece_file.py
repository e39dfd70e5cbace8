"""Check sizes and parts of a SentencePiece model that the library itself does not check."""

from __future__ import annotations

from pathlib import Path

from ..errors import VocabularyError
from ..limits import Budget, Limits, read_at_most
from ..protobuf import fields
from .charsmap import longest_replacement

__all__ = ["read_sentencepiece"]

# Numbers of the fields that the library reads.
PIECE, TRAINER, NORMALIZER, DENORMALIZER = 1, 2, 3, 5
CHARSMAP = 2  # of a normalizer
PIECE_COST = 400  # bytes of the library's memory for a piece and its places in tries
LONGEST_PIECE, LONGEST_TRAINER = 1000, 1 << 20  # bytes
EVERY = range(1 << 29)  # numbers that fields can have


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
    for number, start, end in _fields(raw, 0, len(raw), path, budget):
        size = end - start
        budget.charge(PIECE_COST + size if number == PIECE else size)
        if size > {PIECE: LONGEST_PIECE, TRAINER: LONGEST_TRAINER}.get(number, size):
            raise _not_a_model(path, f"field {number} has {size:,} bytes")
        if number in (NORMALIZER, DENORMALIZER):
            for inner, first, last in _fields(raw, start, end, path, budget):
                if inner == CHARSMAP and last > first:
                    growth = max(growth, longest_replacement(raw[first:last], budget))
    return raw, growth


def _fields(raw: bytes, start: int, end: int, path: Path, budget: Budget) -> list[tuple[int, int, int]]:
    """Return number, begin and end of each field with a length in a protobuf message."""
    try:
        return fields(raw, start, end, EVERY, budget)
    except VocabularyError:
        raise
    except ValueError as error:
        raise _not_a_model(path, str(error)) from error


def _not_a_model(path: Path, problem: str) -> VocabularyError:
    return VocabularyError(
        f"{path}: not a SentencePiece model ({problem}).", hint="Give the file that the library itself has written."
    )
