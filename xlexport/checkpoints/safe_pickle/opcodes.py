"""Read the arguments of a pickle's operations, without carrying any of them out.

No length that a pickle declares decides how much memory is taken: texts of more than a mebibyte stay views of the file,
numbers and names are short. An argument that is cut off ends behind the file.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Callable
from typing import Any

__all__ = ["READERS", "Buffer", "Reader"]

LONGEST_TEXT = 1 << 20  # longer ones are arrays or source text, which no reader needs
LONGEST_NAME, LONGEST_NUMBER = 1 << 11, 64  # bytes; a written number has as many digits
ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}

Buffer = bytes | mmap.mmap
Reader = Callable[[Buffer, int], tuple[Any, int]]  # data, position: argument, position after it


def _number(form: str) -> Reader:
    size, unpack = struct.calcsize(form), struct.Struct(form).unpack_from
    return lambda data, position: (unpack(data, position)[0], position + size)


def _counted(form: str, convert: Callable[[bytes], Any]) -> Reader:
    length = _number(form)

    def read(data: Buffer, position: int) -> tuple[Any, int]:
        size, start = length(data, position)
        if size > LONGEST_TEXT:
            return memoryview(data)[start : start + size], start + size
        return convert(data[start : start + size]), start + size

    return read


def _lines(convert: Callable[[bytes], Any], longest: int = LONGEST_NUMBER, lines: int = 1) -> Reader:
    def read(data: Buffer, position: int) -> tuple[Any, int]:
        after = position
        for _ in range(lines):
            after = data.find(b"\n", after, position + longest + 1) + 1
            if not after:
                return None, len(data) + 1
        return convert(data[position : after - 1]), after

    return read


def _frame(data: Buffer, position: int) -> tuple[Any, int]:
    """Pass over the announcement that as many bytes follow."""
    size, position = _number("<Q")(data, position)
    return None, position if size <= len(data) - position else len(data) + 1


def _utf8(data: bytes) -> str:
    return str(data, "utf-8", "surrogatepass")


def _python2_text(data: bytes) -> str:
    """Decode a `str` of Python 2, text or bytes: as UTF-8 if that fits, else one character a byte."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _quoted_text(line: bytes) -> str:
    """Decode a `str` as Python 2 wrote it in protocol 0: in quotes, with escapes."""
    if len(line) < 2 or line[:1] not in (b"'", b'"') or line[-1:] != line[:1]:
        raise ValueError("not in quotes")
    return _python2_text(re.sub(rb"\\(?:x([0-9a-fA-F]{2})|(.))", _unescaped, line[1:-1]))


def _unescaped(escape: re.Match[bytes]) -> bytes:
    return bytes([int(escape[1], 16)]) if escape[1] else ESCAPED.get(escape[2], escape[2])


def _integer(data: bytes) -> int:
    if len(data) > LONGEST_NUMBER:
        raise ValueError("too long")
    return int.from_bytes(data, "little", signed=True)


def _written_integer(line: bytes) -> int:
    return line == b"01" if line in (b"00", b"01") else int(line.removesuffix(b"L"))  # 00 and 01 are False and True


LENGTHS = {"1": "<B", "4": "<I", "8": "<Q"}
READERS: dict[str, Reader] = {  # by the name that pickletools gives to the kind of an argument
    **{kind: _number(form) for kind, form in (("uint1", "<B"), ("uint2", "<H"), ("uint4", "<I"), ("int4", "<i"))},
    **{f"unicodestring{size}": _counted(form, _utf8) for size, form in LENGTHS.items()},
    **{f"string{size}": _counted(form, _python2_text) for size, form in LENGTHS.items()},
    **{f"bytes{size}": _counted(form, bytes) for size, form in LENGTHS.items()},
    **dict.fromkeys(("decimalnl_short", "decimalnl_long"), _lines(_written_integer)),
    "bytearray8": _counted("<Q", bytes),
    "long1": _counted("<B", _integer),
    "float8": _number(">d"),
    "floatnl": _lines(float),
    "stringnl": _lines(_quoted_text, LONGEST_TEXT),
    "unicodestringnl": _lines(lambda line: str(line, "raw-unicode-escape"), LONGEST_TEXT),
    "stringnl_noescape_pair": _lines(lambda lines: _utf8(lines).split("\n"), LONGEST_NAME, lines=2),
    "uint8": _frame,  # the only operation of this kind
}
