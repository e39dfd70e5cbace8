"""The bytes of a document: opened at the first read, and unpacked if they are gzip data."""

from __future__ import annotations

import glob
import gzip
import io
import os
import shlex
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, cast

from xlexport.scoring.inputs import CHUNK, GZIP, Input
from xlruntime import TextError

__all__ = ["TextSource", "bounded_lines", "open_input", "unpacked"]

LOOKED_AT = 1024  # bytes at the beginning of a text, which have no zero byte
OTHER_ENCODINGS = {  # by the mark at the beginning; the longer marks come first
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


class TextSource(io.RawIOBase):
    """A document's bytes: opened at the first read, closed at the end. It can keep the bytes that were read.

    Attributes:
        at_hand: whether all bytes are available without waiting.
        kept: with `keep`, the bytes from number `base` on that were read and not let go.
        base: number of the first kept byte; it may be set before the first read.
        held: bytes of memory that the source takes before it is read (a line of JSON).
        edges: the bytes at which regions of the document begin, except the first.
    """

    def __init__(self, name: str, opener: Callable[[], BinaryIO], at_hand: bool, keep: bool = False) -> None:
        super().__init__()
        self.name = name
        self.at_hand = at_hand
        self.kept = bytearray()
        self.base = 0
        self.held = 0
        self.edges: Sequence[int] = ()
        self._opener = opener
        self._file: BinaryIO | None = None
        self._keep = keep
        self._read = 0
        self._ended = False

    def readable(self) -> bool:
        """Return True, as binary files must."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Read like any binary file, but return fewer bytes only at the end.

        Raises:
            TextError: packed data is broken. OSError: it cannot be opened or read.
        """
        if self._ended:
            return b""
        try:
            if self._file is None:
                self._file = self._opener()
            raw = _read(self._file, size)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise TextError(
                f"{self.name}: broken gzip data ({error}).", hint="Pack the file again, or unpack it."
            ) from error
        if size < 0 or len(raw) < size:
            self._ended = True
            self._file.close()
        self._read += len(raw)
        if self._keep and self._read > self.base:
            self.kept += raw[max(0, len(raw) - (self._read - self.base)) :]
        return raw

    def tell(self) -> int:
        """Return the number of bytes that have been read."""
        return self._read

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer like any binary file."""
        raw = self.read(len(buffer))
        buffer[: len(raw)] = raw
        return len(raw)

    def close(self) -> None:
        """Close the underlying file."""
        if self._file is not None:
            self._file.close()
        super().close()

    def let_go(self, before: int) -> None:
        """Forget the bytes before byte number `before`."""
        del self.kept[: max(0, before - self.base)]
        self.base = before


def open_input(given: Input, stdin: BinaryIO, binary: bool = False) -> BinaryIO:
    """Open the bytes of an input, unpacked if its content is gzip data or its name says so.

    Args:
        binary: whether to open it even if it is not a text in UTF-8.

    Raises:
        TextError: its beginning has a zero byte, or the mark of another encoding.
        OSError, EOFError: it cannot be opened, or is broken gzip data.
    """
    if given.path is None:
        file: Any = _Shared(stdin if hasattr(stdin, "peek") else io.BufferedReader(cast(io.RawIOBase, stdin)))
    elif glob.has_magic(given.name) and not os.path.lexists(given.path):
        raise FileNotFoundError(f"{given.name}: no file matches. Check the pattern.")
    else:
        if os.path.isdir(given.path):
            os.scandir(given.path).close()  # fails without permission to read it
        file = given.path.open("rb")
    return unpacked(file, given.name, given.path is not None and given.path.suffix == ".gz", binary)


def unpacked(file: Any, name: str, packed: bool, binary: bool) -> BinaryIO:
    """Return the bytes of an open file, unpacked if it is gzip data; close it if they are refused.

    Args:
        file: a buffered file at its beginning.
        packed: whether its name says that it is gzip data. binary: as for `open_input`.

    Raises:
        TextError, EOFError: as `open_input`.
    """
    opened: Any = _Unpacked(file) if packed or file.peek(2)[:2] == GZIP else file
    if not binary:
        try:
            _check_text(opened.peek(LOOKED_AT)[:LOOKED_AT], name)
        except BaseException:
            opened.close()
            raise
    return cast(BinaryIO, opened)


def _check_text(beginning: bytes, name: str) -> None:
    """Refuse a file that is not a text in UTF-8, also for bundles that read bytes."""
    for mark, encoding in OTHER_ENCODINGS.items():
        if beginning.startswith(mark):
            raise TextError(
                f"{name}: text in {encoding}, expected UTF-8.",
                hint=f"Convert it: iconv -f {encoding} -t UTF-8 {shlex.quote(name)} > text.txt",
            )
    at = beginning.find(b"\0")
    if at >= 0:
        raise TextError(
            f"{name}: not a text: byte {at:,} is zero.", hint="Leave it out, or score its bytes with --set binary=true."
        )


def bounded_lines(source: TextSource, longest: int) -> Iterator[bytes | None]:
    """Yield each line with its newline; None for a line of more than `longest` bytes.

    Raises:
        TextError, OSError: as the source is read.
    """
    lines = io.BufferedReader(source, CHUNK)
    while line := lines.readline(longest + 1):  # the newline does not count
        is_whole = len(line) <= longest or line.endswith(b"\n")
        while not is_whole and not lines.readline(CHUNK).endswith(b"\n") and lines.peek(1):
            pass
        yield line if is_whole else None


def _read(file: BinaryIO, size: int) -> bytes:
    """Read at most `size` bytes. This takes memory only for existing bytes; Python's files reserve `size` bytes."""
    if size <= CHUNK:
        return file.read(size)
    parts: list[bytes] = []
    while size and (raw := file.read(min(size, CHUNK))):
        parts.append(raw)
        size -= len(raw)
    return b"".join(parts)


class _Shared:
    """Standard input, which stays open for others."""

    def __init__(self, file: Any) -> None:
        self.read, self.peek = file.read, file.peek

    def close(self) -> None:
        """Do nothing."""


class _Unpacked(gzip.GzipFile):
    """A packed file that closes what it reads."""

    def __init__(self, file: Any) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._packed = file

    def close(self) -> None:
        super().close()
        self._packed.close()
