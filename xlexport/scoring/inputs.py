"""Open inputs (files, standard input), unpack them, and read them as documents are read."""

from __future__ import annotations

import codecs
import glob
import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Literal, cast

import numpy as np
import numpy.typing as npt

from xlexport.scoring.traits import TraitCounter
from xlruntime import TextError
from xlruntime.documents import DOCUMENT_LIMITS
from xlruntime.limits import Limits
from xlruntime.messages import quoted

__all__ = [
    "CHUNK",
    "LOOKED_AT",
    "Input",
    "Reading",
    "RowFormat",
    "TextSource",
    "bounded_lines",
    "digest_inputs",
    "extent",
    "nothing_in",
    "open_input",
    "open_text",
]

GZIP = b"\x1f\x8b"
CHUNK = 1 << 20
RowFormat = Literal["json", "csv", "tsv", "parquet"]
ROW_FORMATS: dict[str, RowFormat] = {".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
LISTED = 1000  # up to this many files, the digest of each is kept
LINE_LIMITS = Limits(bytes=64 << 20)  # of a row
LOOKED_AT = 1024  # bytes at the beginning of a text, which have no zero byte
OTHER_ENCODINGS = {  # by the mark at the beginning; the longer marks come first
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
PACKED = {
    b"BZh9": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"7z\xbc\xaf": "7z",
    b"PK\x03\x04": "ZIP",
}
SAVE_AS = {  # formats of other programs, by their endings
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".ods"), "CSV"),
    **dict.fromkeys((".docx", ".doc", ".odt"), "plain text"),
}


@dataclass(frozen=True)
class Input:
    """One file to read, or standard input, whose path is None."""

    name: str
    path: Path | None

    @property
    def repeatable(self) -> bool:
        """Whether the input can be read again, unlike a pipe."""
        return self.path is not None and (os.path.isfile(self.path) or not os.path.exists(self.path))

    @property
    def size(self) -> int | None:
        """Size of the unpacked text in bytes; None if only reading would show it."""
        if self.path is None or not os.path.isfile(self.path):
            return None
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < 18 or file.read(2) != GZIP:
                    return size
                file.seek(-4, os.SEEK_END)  # gzip writes the size here; right for files of one member up to 4 GB
                return max(int.from_bytes(file.read(4), "little"), size)
        except OSError:
            return None

    @property
    def is_packed(self) -> bool:
        """Whether the name says that the file is gzip data."""
        return self.path is not None and self.path.suffix == ".gz"

    @property
    def row_format(self) -> RowFormat:
        """The format of its rows, if it has rows: by the ending of its name, or else JSON lines."""
        if self.path is None:
            return "json"
        suffix = self.path.with_suffix("").suffix if self.is_packed else self.path.suffix
        return ROW_FORMATS.get(suffix.lower(), "json")

    def open(self, stdin: BinaryIO | None) -> Any:
        """Open the bytes as they are stored, with a method `peek`.

        Args:
            stdin: only for standard input.

        Raises:
            OSError: it cannot be opened.
        """
        if self.path is None:
            return _Shared(stdin if hasattr(stdin, "peek") else io.BufferedReader(cast(io.RawIOBase, stdin)))
        if glob.has_magic(self.name) and not os.path.lexists(self.path):
            raise FileNotFoundError(f"{self.name}: no file matches. Check the pattern.")
        if os.path.isdir(self.path):
            os.scandir(self.path).close()  # fails without permission to read it
        return self.path.open("rb")

    def open_table(self) -> BinaryIO:
        """Open the file to read from any position."""
        return Path(self.path or self.name).open("rb")

    def digest(self) -> str:
        """Return what distinguishes the content from a later version of it.

        Raises:
            OSError: it cannot be read.
        """
        with (self.path or Path(os.devnull)).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Reading:
    """Rules for turning inputs into documents.

    Attributes:
        ids: whether inputs hold token ids instead of text.
        field: the field of each row that holds a document; None: each input is one document. Rows are lines of JSON,
            or rows of a table.
        id_field: the field of a row that holds the document's name; it may be missing.
        context_field: the field of a row that holds the text before the document.
        keep: the columns that records repeat; None: all other columns of the first row.
        separator: the text between context and document, unless there is white space.
        cut: where the text of a document itself says that units begin: at marks between regions, unless
            `region_field` is given, or at punctuation around words; None: only at white space.
        region_field: the field of a row that holds its regions.
        binary: whether texts may have zero bytes, or be UTF-16; a byte-order mark then belongs to the text.
        delimiter: what separates the columns of tables; None: the header shows it. A file whose ending is not that of
            a table is one if this is given.
        group: the field whose value consecutive rows of one document share; None: each row is a document. The rows'
            texts, with `join` between them unless there is white space, are one text.
        na: what a context or a text holds if it is missing; None: nothing.
        line_limits: longest row; a row is held in memory as a whole.
        document_limits: longest document for a tokenizer that reads it as a whole, see `Document`.
    """

    ids: bool = False
    field: str | None = None
    id_field: str | None = None
    cut: Literal["marks", "punctuation"] | None = None
    region_field: str | None = None
    context_field: str | None = None
    keep: tuple[str, ...] | None = None
    separator: str = " "
    binary: bool = False
    delimiter: str | None = None
    group: str | None = None
    join: str = " "
    na: str | None = None
    line_limits: Limits = LINE_LIMITS
    document_limits: Limits = DOCUMENT_LIMITS


def nothing_in(arguments: Sequence[str], looked_for: str, hint: str | None = None) -> TextError:
    """Return the error for arguments without any document."""
    return TextError(f"{', '.join(arguments)}: no documents found; looked for {looked_for}.", hint=hint)


def digest_inputs(inputs: Sequence[Input]) -> dict[str, Any]:
    """Return the names and digests of inputs, to recognize the same inputs in a later run."""
    everything = hashlib.sha256()
    files: list[list[str]] = []
    for entry in inputs:
        try:
            digest = entry.digest()
        except OSError as error:
            digest = str(error.strerror)
        everything.update(f"{entry.name}\0{digest}\0".encode("utf-8", "surrogateescape"))
        files.append([entry.name, digest[:16]])
    return {
        "count": len(inputs),
        "sha256": everything.hexdigest(),
        "files": files if len(files) <= LISTED else None,
    }


def extent(inputs: Sequence[Input], reading: Reading) -> tuple[int | None, int | None]:
    """Return the number of documents in inputs, and the bytes of their text; None if only reading shows it."""
    sizes = [entry.size for entry in inputs]
    known_sizes = [size for size in sizes if size is not None]
    of_text = len(known_sizes) == len(sizes) and not reading.ids  # offsets in a file of ids do not count bytes
    return len(inputs) if reading.field is None else None, sum(known_sizes) if of_text else None


class TextSource(io.RawIOBase):
    """A document's bytes: opened at the first read, closed at the end. It can keep the bytes that were read.

    Attributes:
        at_hand: whether all bytes are available without waiting.
        kept: with `keep`, the bytes from number `base` on that were read and not let go.
        base: number of the first kept byte; it may be set before the first read.
        held: bytes of memory that the source takes before it is read (a line of JSON).
        edges: the bytes at which units of the document begin, except the first; None: white space says it.
        by_ends: whether a token counts for the unit in which it ends, as in texts joined from rows.
        traits: counts what is read; None: nothing is counted.
    """

    is_text = True  # for the runtime: a byte-order mark at the beginning was dropped, or is wanted

    def __init__(self, name: str, opener: Callable[[], BinaryIO], at_hand: bool, keep: bool = False) -> None:
        super().__init__()
        self.name = name
        self.at_hand = at_hand
        self.kept = bytearray()
        self.base = 0
        self.held = 0
        self.edges: npt.NDArray[np.int64] | None = None
        self.by_ends = False
        self.traits: TraitCounter | None = None
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
        if self.traits is not None:
            self.traits.add(raw, self._ended)
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


def open_input(entry: Input, stdin: BinaryIO | None, binary: bool = False) -> BinaryIO:
    """Open the bytes of an input, unpacked if its content is gzip data or its name says so.

    A byte-order mark at the beginning of a text is left out.

    Args:
        stdin: only for an input without a path.
        binary: whether to open it even if it is not a text in UTF-8.

    Raises:
        TextError: its beginning has a zero byte, or the mark of another encoding.
        OSError, EOFError: it cannot be opened, or is broken gzip data.
    """
    opened = file = entry.open(stdin)
    if entry.is_packed or file.peek(2)[:2] == GZIP:
        opened = gzip.GzipFile(fileobj=file, mode="rb")
        opened.myfileobj = file  # which it then closes
    if not binary:
        try:
            beginning = opened.peek(LOOKED_AT)[:LOOKED_AT]
            _check_text(beginning, entry.name)
            if beginning.startswith(codecs.BOM_UTF8):
                opened.read(len(codecs.BOM_UTF8))
        except BaseException:
            opened.close()
            raise
    return cast(BinaryIO, opened)


def open_text(path: Path) -> BinaryIO:
    """Open a file as `open_input` does."""
    return open_input(Input(str(path), path), None)


def _check_text(beginning: bytes, name: str) -> None:
    """Refuse a file that is not UTF-8 text, also for bundles that read bytes."""
    for mark, encoding in OTHER_ENCODINGS.items():
        if beginning.startswith(mark):
            raise TextError(
                f"{name}: text in {encoding}, expected UTF-8.",
                hint=f"Convert it: iconv -f {encoding} -t UTF-8 {quoted(name)} > text.txt",
            )
    at, suffix = beginning.find(b"\0"), PurePath(name).suffix.lower()
    packed = next((how for mark, how in PACKED.items() if beginning.startswith(mark)), None)
    if suffix in SAVE_AS and (packed or at >= 0):
        raise TextError(
            f"{name}: a file of another program, not a text.", hint=f"Save it as {SAVE_AS[suffix]} in UTF-8."
        )
    if packed is not None and (packed != "ZIP" or suffix == ".zip"):
        raise TextError(f"{name}: packed by {packed}.", hint="Unpack it first: only gzip is unpacked here.")
    if at >= 0:
        raise TextError(
            f"{name}: not a text: byte {at:,} is zero.", hint="Leave it out, or score its bytes with --set binary=true."
        )


def bounded_lines(lines: io.BufferedReader, longest: int) -> Iterator[bytes | None]:
    """Yield each line with its newline; None for a line of more than `longest` bytes.

    Raises:
        TextError, OSError: as the source is read.
    """
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
