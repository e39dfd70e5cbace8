"""Read the wire format of protocol buffers: fields and the places of their values, without their meaning."""

from __future__ import annotations

from collections.abc import Container

from .limits import Budget

__all__ = ["fields"]

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types; 3 and 4 are groups, which ONNX has never had
LONGEST_VARINT = 10
LARGEST_TAG = 1 << 32
PLACE_BYTES = 128  # of memory for the place of a field


def fields(data: bytes, start: int, end: int, wanted: Container[int], budget: Budget) -> list[tuple[int, int, int]]:
    """Return the places of texts, bytes and messages in the message `data[start:end]`.

    Args:
        wanted: numbers of the fields to return; the others are only counted.
        budget: is charged for the message and each of its fields.

    Returns:
        Number, begin and end of each field, in order. Begin and end are places of the value, without its length
        prefix. Nothing is copied.

    Raises:
        ValueError: the bytes are not a message.
        HintedError: the message exceeds the budget.
    """
    places, count, place = [], 0, start
    while place < end:
        begin, tag = place, data[place]
        if 8 <= tag < 128:
            place += 1
        else:
            tag, place = _varint(data, begin, end)
            if not 8 <= tag < LARGEST_TAG:
                raise ValueError(f"no field has number {tag >> 3}, as at byte {begin}")
        wire_type = tag & 7
        if wire_type == BYTES:
            if place < end and (size := data[place]) < 128:
                place += 1
            else:
                size, place = _varint(data, place, end)
            after = place + size
            if tag >> 3 in wanted:
                budget.charge(PLACE_BYTES)  # at once: a message may have nothing but empty fields
                places.append((tag >> 3, place, after))
        elif wire_type == VARINT:
            after = place + 1 if place < end and data[place] < 128 else _varint(data, place, end)[1]
        elif wire_type in (FIXED64, FIXED32):
            after = place + (8 if wire_type == FIXED64 else 4)
        else:
            raise ValueError(f"no field has wire type {wire_type}, as at byte {begin}")
        if after > end:
            raise ValueError(f"the field at byte {begin} ends outside its message")
        count += 1
        place = after
    budget.charge(0, 1 + count - len(places))
    return places


def _varint(data: bytes, start: int, end: int) -> tuple[int, int]:
    """Return the number that begins at `start`, and the place of its end."""
    value = 0
    for length in range(min(end - start, LONGEST_VARINT)):
        byte = data[start + length]
        value |= (byte & 127) << 7 * length
        if byte < 128:
            return value, start + length + 1
    raise ValueError(f"the number at byte {start} has no end")
