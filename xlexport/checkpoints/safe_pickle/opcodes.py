"""The operations of a pickle, read one by one without carrying any of them out.

A pickle is a program for a small stack machine. What is here only decodes it: every length that it declares is checked
against the bytes that are there, and texts of more than a mebibyte stay views of the file. `machine.py` gives the
operations their meaning, `pickles.py` summarizes them. The operations are those of Python's `pickletools`.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["BadFileError", "Buffer", "operations"]

MOST_OPERATIONS = 12_000_000  # a vocabulary of 800,000 words takes eight million at most; these take six seconds
LONGEST_TEXT = 1 << 20  # longer ones are arrays or source text, which nothing here needs
LONGEST_NAME = 1 << 10
LONGEST_NUMBER = 64  # bytes of a whole number, digits of a written one

Buffer = bytes | mmap.mmap
Reader = Callable[[Buffer, int, int], tuple[Any, int]]


class BadFileError(ValueError):
    """A file that is damaged or not what is read here.

    Args:
        message: what is wrong; it goes on from the file's name and is without a full stop.
        repair: what the user may do, as a sentence.
    """

    def __init__(self, message: str, repair: str = "Copy or save it again.") -> None:
        super().__init__(message)
        self.repair = repair


def operations(data: Buffer, start: int, end: int) -> Iterator[tuple[str, Any]]:
    """Each operation's name and argument, up to and with STOP, whose argument is the position after it.

    Raises:
        BadFileError: cut off, damaged, or longer than anything that is read here.
    """
    position = start
    for _ in range(MOST_OPERATIONS):
        if position >= end:
            raise _cut_off()
        known = OPERATIONS.get(data[position])
        if known is None:
            raise BadFileError(f"its pickle is damaged at byte {position:,}")
        name, read = known
        argument = None
        position += 1
        if read is not None:
            argument, position = read(data, position, end)
        yield name, argument
        if name == "STOP":
            return
    raise BadFileError(f"its pickle has more than {MOST_OPERATIONS:,} operations, more than any checkpoint")


def _cut_off() -> BadFileError:
    return BadFileError("its pickle is cut off")


def _number(form: str) -> Reader:
    size, unpack = struct.calcsize(form), struct.Struct(form).unpack_from

    def read(data: Buffer, position: int, end: int) -> tuple[Any, int]:
        if position + size > end:
            raise _cut_off()
        return unpack(data, position)[0], position + size

    return read


def _counted(form: str, convert: Callable[[bytes], Any], longest: int | None = None) -> Reader:
    """A length of the form `form`, then as many bytes."""
    length = _number(form)

    def read(data: Buffer, position: int, end: int) -> tuple[Any, int]:
        size, position = length(data, position, end)
        after = position + size
        if not position <= after <= end:
            raise _cut_off()
        if longest is not None and size > longest:
            raise BadFileError(f"its pickle has a whole number of {size:,} bytes")
        if size > LONGEST_TEXT:
            return memoryview(data)[position:after], after
        return convert(data[position:after]), after

    return read


def _line(convert: Callable[[bytes], Any], longest: int, lines: int = 1) -> Reader:
    """Bytes up to a line's end, or several lines as a tuple."""

    def read(data: Buffer, position: int, end: int) -> tuple[Any, int]:
        found = []
        for _ in range(lines):
            line_end = data.find(b"\n", position, min(end, position + longest + 1))
            if line_end < 0:
                raise _cut_off()
            try:
                found.append(convert(data[position:line_end]))
            except ValueError as error:
                raise BadFileError(f"its pickle is damaged at byte {position:,}") from error
            position = line_end + 1
        return (found[0] if lines == 1 else tuple(found)), position

    return read


def _utf8(data: bytes) -> str:
    try:
        return str(data, "utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise BadFileError("its pickle has text that is not UTF-8") from error


def _python2_text(data: bytes) -> str:
    """A `str` of Python 2, which may have been text or bytes: UTF-8 where that fits, else one character a byte."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _quoted_text(line: bytes) -> str:
    """A `str` as Python 2 wrote it in protocol 0: in quotes, with escapes."""
    if len(line) < 2 or line[:1] not in (b"'", b'"') or line[-1:] != line[:1]:
        raise ValueError("not in quotes")
    return _python2_text(re.sub(rb"\\(x[0-9a-fA-F]{2}|.)", _unescaped, line[1:-1]))


def _unescaped(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    return bytes([int(code[1:], 16)]) if len(code) == 3 else {b"n": b"\n", b"r": b"\r", b"t": b"\t"}.get(code, code)


def _integer(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _written_integer(line: bytes) -> int:
    if line in (b"00", b"01"):  # how protocols 0 and 1 write False and True
        return line == b"01"
    return int(line.removesuffix(b"L"))


def _stop(data: Buffer, position: int, end: int) -> tuple[int, int]:
    return position, position


def _frame(data: Buffer, position: int, end: int) -> tuple[None, int]:
    """Only says that what follows may be read ahead."""
    size, position = _LENGTH(data, position, end)
    if size > end - position:
        raise _cut_off()
    return None, position


_LENGTH = _number("<Q")
_NAME = _line(_utf8, LONGEST_NAME, lines=2)
_WRITTEN_NUMBER = _line(_written_integer, LONGEST_NUMBER)

OPERATIONS: dict[int, tuple[str, Reader | None]] = {
    ord(code): (name, read)
    for code, name, read in [
        ("(", "MARK", None),
        (".", "STOP", _stop),
        ("0", "POP", None),
        ("1", "POP_MARK", None),
        ("2", "DUP", None),
        ("N", "NONE", None),
        ("\x88", "NEWTRUE", None),
        ("\x89", "NEWFALSE", None),
        ("I", "INT", _WRITTEN_NUMBER),
        ("L", "LONG", _WRITTEN_NUMBER),
        ("F", "FLOAT", _line(float, LONGEST_NUMBER)),
        ("J", "BININT", _number("<i")),
        ("K", "BININT1", _number("<B")),
        ("M", "BININT2", _number("<H")),
        ("\x8a", "LONG1", _counted("<B", _integer, LONGEST_NUMBER)),
        ("\x8b", "LONG4", _counted("<I", _integer, LONGEST_NUMBER)),
        ("G", "BINFLOAT", _number(">d")),
        ("S", "STRING", _line(_quoted_text, LONGEST_TEXT)),
        ("T", "BINSTRING", _counted("<I", _python2_text)),
        ("U", "SHORT_BINSTRING", _counted("<B", _python2_text)),
        ("V", "UNICODE", _line(lambda line: str(line, "raw-unicode-escape"), LONGEST_TEXT)),
        ("X", "BINUNICODE", _counted("<I", _utf8)),
        ("\x8c", "SHORT_BINUNICODE", _counted("<B", _utf8)),
        ("\x8d", "BINUNICODE8", _counted("<Q", _utf8)),
        ("B", "BINBYTES", _counted("<I", bytes)),
        ("C", "SHORT_BINBYTES", _counted("<B", bytes)),
        ("\x8e", "BINBYTES8", _counted("<Q", bytes)),
        ("\x96", "BYTEARRAY8", _counted("<Q", bytes)),
        ("]", "EMPTY_LIST", None),
        ("l", "LIST", None),
        ("a", "APPEND", None),
        ("e", "APPENDS", None),
        (")", "EMPTY_TUPLE", None),
        ("t", "TUPLE", None),
        ("\x85", "TUPLE1", None),
        ("\x86", "TUPLE2", None),
        ("\x87", "TUPLE3", None),
        ("}", "EMPTY_DICT", None),
        ("d", "DICT", None),
        ("s", "SETITEM", None),
        ("u", "SETITEMS", None),
        ("\x8f", "EMPTY_SET", None),
        ("\x90", "ADDITEMS", None),
        ("\x91", "FROZENSET", None),
        ("p", "PUT", _WRITTEN_NUMBER),
        ("q", "BINPUT", _number("<B")),
        ("r", "LONG_BINPUT", _number("<I")),
        ("\x94", "MEMOIZE", None),
        ("g", "GET", _WRITTEN_NUMBER),
        ("h", "BINGET", _number("<B")),
        ("j", "LONG_BINGET", _number("<I")),
        ("c", "GLOBAL", _NAME),
        ("\x93", "STACK_GLOBAL", None),
        ("i", "INST", _NAME),
        ("o", "OBJ", None),
        ("R", "REDUCE", None),
        ("\x81", "NEWOBJ", None),
        ("\x92", "NEWOBJ_EX", None),
        ("b", "BUILD", None),
        ("P", "PERSID", _line(bytes, LONGEST_NAME)),
        ("Q", "BINPERSID", None),
        ("\x80", "PROTO", _number("<B")),
        ("\x95", "FRAME", _frame),
        ("\x82", "EXT1", _number("<B")),
        ("\x83", "EXT2", _number("<H")),
        ("\x84", "EXT4", _number("<i")),
        ("\x97", "NEXT_BUFFER", None),
        ("\x98", "READONLY_BUFFER", None),
    ]
}
