"""What `score` reads: files, folders, patterns, standard input, JSON lines, gzip. Documents open when their turn comes.

A document that cannot be read fails when it is read, as part of the scoring: whoever scores can go on with the next.
"""

from __future__ import annotations

import fnmatch
import glob
import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from xlexport.scoring.documents import MARK, field_of, ids_of_words, no_ids
from xlexport.terminal import counted
from xlruntime import Document, TextError
from xlruntime.bundle import MANIFEST
from xlruntime.documents import Ids, utf8_bytes

__all__ = [
    "STDIN",
    "Input",
    "Reading",
    "TextSource",
    "digest_inputs",
    "documents",
    "documents_by_input",
    "find_inputs",
    "nothing_in",
]

STDIN = "standard input"
GZIP = b"\x1f\x8b"
CHUNK = 1 << 20
JSON_LINES = ("*.jsonl", "*.ndjson", "*.jsonl.gz", "*.ndjson.gz")
LISTED = 1000  # files up to which each one's digest is kept
LOOKED_AT = 1024  # bytes of a file's beginning, in which text has no zero byte


@dataclass(frozen=True)
class Input:
    """One file to read, or standard input, whose path is None."""

    name: str
    path: Path | None

    @property
    def repeatable(self) -> bool:
        """Whether it can be read again, as a pipe cannot."""
        return self.path is not None and (os.path.isfile(self.path) or not os.path.exists(self.path))

    @property
    def size(self) -> int | None:
        """Bytes of its text, unpacked; None where only reading would tell."""
        if self.path is None or not os.path.isfile(self.path):
            return None
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < 18 or file.read(2) != GZIP:
                    return size
                file.seek(-4, os.SEEK_END)  # where gzip says it, for files up to 4 GB of one member
                return max(int.from_bytes(file.read(4), "little"), size)
        except OSError:
            return None

    @property
    def is_binary(self) -> bool:
        """Whether it is a file whose beginning is nothing that text begins with."""
        if self.path is None or not os.path.isfile(self.path):
            return False
        try:
            with self.path.open("rb") as file:
                beginning = file.read(LOOKED_AT)
        except OSError:
            return False
        return b"\0" in beginning and beginning[:2] != GZIP


@dataclass(frozen=True)
class Reading:
    """How inputs become documents.

    Attributes:
        ids: they hold token ids, not text.
        field: they are JSON lines, each an object with a document in this field; None: each input is a document.
        id_field: the field that names such a document, where it is there.
    """

    ids: bool = False
    field: str | None = None
    id_field: str | None = None


class TextSource(io.RawIOBase):
    """A document's bytes: opened at the first read, closed at the end; may keep what was read.

    Attributes:
        at_hand: whether it is all there, and need not be waited for.
        kept: with `keep`, the bytes read that have not been let go, from byte number `base` on.
        base: may be set before the first read: nothing before it is kept.
    """

    def __init__(self, name: str, opener: Callable[[], BinaryIO], at_hand: bool, keep: bool = False) -> None:
        super().__init__()
        self.name = name
        self.at_hand = at_hand
        self.kept = bytearray()
        self.base = 0
        self._opener = opener
        self._file: BinaryIO | None = None
        self._keep = keep
        self._read = 0
        self._ended = False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """As of any binary file, but with fewer bytes only at the end.

        Raises:
            TextError: packed data is broken. OSError: it cannot be opened or read.
        """
        if self._ended:
            return b""
        try:
            if self._file is None:
                self._file = self._opener()
            raw = self._file.read(size)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise TextError(
                f"{self.name}: broken gzip data ({error}).", repair="Pack the file again, or unpack it."
            ) from error
        if size < 0 or len(raw) < size:
            self._ended = True
            self._file.close()
        self._read += len(raw)
        if self._keep and self._read > self.base:
            self.kept += raw[max(0, len(raw) - (self._read - self.base)) :]
        return raw

    def readinto(self, buffer: Any) -> int:
        """As of any binary file."""
        raw = self.read(len(buffer))
        buffer[: len(raw)] = raw
        return len(raw)

    def close(self) -> None:
        """Close what it reads."""
        if self._file is not None:
            self._file.close()
        super().close()

    def let_go(self, before: int) -> None:
        """Forget the bytes before byte number `before`."""
        del self.kept[: max(0, before - self.base)]
        self.base = before


def find_inputs(
    arguments: Sequence[Path],
    include: Sequence[str],
    reading: Reading,
    leave_out: Sequence[Path],
    tell: Callable[[str], None],
) -> list[Input]:
    """The files that arguments stand for, in their order: a folder for those in it, a pattern for what it matches.

    Args:
        include: patterns of file names; of a folder, others are left out.
        leave_out: files that are never taken from folders or patterns: those that are being written.
        tell: is told which files of a folder are taken.

    Raises:
        TextError: there is none, or a folder is a bundle and no pattern says what is wanted of it.
    """
    patterns = include or (JSON_LINES if reading.field is not None else ())
    named = _named(patterns)
    inputs: list[Input] = []
    unwanted = {os.path.realpath(path) for path in leave_out}
    for argument in arguments:
        name = str(argument)
        if name == "-":
            inputs.append(Input(STDIN, None))
        elif os.path.isdir(argument):
            if not patterns and os.path.isfile(argument / MANIFEST):
                raise TextError(f"{name}: a bundle, not a folder of texts.", repair="Give documents to score.")
            inputs += _in_folder(argument, patterns, unwanted, tell)
        elif glob.has_magic(name) and not os.path.exists(argument):
            folders: set[Path] = set()
            for match in sorted(glob.glob(name, recursive=True)) or [name]:
                path = Path(match)
                if not folders.isdisjoint(path.parents):
                    continue  # '**' gives folders and what is in them, which comes with its folder
                if os.path.isdir(path):
                    folders.add(path)
                    inputs += _in_folder(path, patterns, unwanted, tell)
                elif os.path.realpath(path) not in unwanted:
                    inputs.append(Input(match, path))
        else:
            inputs.append(Input(name, argument))
    if not inputs:
        raise nothing_in([str(argument) for argument in arguments], f"files{named}")
    return inputs


def nothing_in(arguments: Sequence[str], looked_for: str) -> TextError:
    """That there is no document in what was given."""
    return TextError(f"{', '.join(arguments)}: no document in there; looked for {looked_for}.", repair="Give a text.")


def _named(patterns: Sequence[str]) -> str:
    return f" named {' or '.join(patterns)}" if patterns else ""


def _in_folder(folder: Path, patterns: Sequence[str], unwanted: set[str], tell: Callable[[str], None]) -> list[Input]:
    taken: list[Path] = []
    hidden = others = bundles = 0
    closed: list[OSError] = []
    for here, folders, files in os.walk(folder, onerror=closed.append):
        if not patterns and MANIFEST in files:
            bundles, folders[:] = bundles + 1, []
            continue
        hidden += sum(name.startswith(".") for name in folders)
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = Path(here, name)
            if name.startswith("."):
                hidden += 1
            elif os.path.realpath(path) in unwanted or not os.path.isfile(path):
                continue
            elif patterns and not any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
                others += 1
            else:
                taken.append(path)
    counts = ((others, counted(others, "other")), (bundles, counted(bundles, "bundle")), (hidden, f"{hidden:,} hidden"))
    left_out = " and ".join(what for n, what in counts if n)
    tell(f"{folder}: {counted(len(taken), 'file')}{_named(patterns)}{f', without {left_out}' if left_out else ''}")
    taken += [Path(error.filename) for error in closed]  # which cannot be read, as is then said
    return [Input(str(path), path) for path in sorted(taken, key=lambda path: path.parts)]


def digest_inputs(inputs: Sequence[Input]) -> dict[str, Any]:
    """What tells whether inputs are the same ones again: their names and contents."""
    everything = hashlib.sha256()
    files: list[list[str]] = []
    for given in inputs:
        content = hashlib.sha256()
        try:
            with (given.path or Path(os.devnull)).open("rb") as file:
                while raw := file.read(CHUNK):
                    content.update(raw)
            found = content.hexdigest()
        except OSError as error:
            found = str(error.strerror)
        everything.update(f"{given.name}\0{found}\0".encode("utf-8", "surrogateescape"))
        files.append([given.name, found[:16]])
    return {
        "count": len(inputs),
        "sha256": everything.hexdigest(),
        "files": files if len(files) <= LISTED else None,
    }


def documents(inputs: Sequence[Input], reading: Reading, stdin: BinaryIO, keep: bool) -> Iterator[Document]:
    """The documents in inputs, none of which is opened before it is read.

    Args:
        keep: their sources are `TextSource`s that keep what is read until they are told to let go.
    """
    return (document for _, document in documents_by_input(inputs, reading, stdin, keep))


def documents_by_input(
    inputs: Sequence[Input], reading: Reading, stdin: BinaryIO, keep: bool
) -> Iterator[tuple[Input, Document]]:
    """The documents, as `documents` gives them, each with the input that it is in."""
    for given in inputs:
        is_text = reading.field is None  # and not lines, of which each document keeps its own text
        source = TextSource(given.name, partial(_open, given, stdin), given.repeatable, keep and is_text)
        if not is_text:
            yield from ((given, document) for document in _json_lines(source, reading, keep))
        elif reading.ids:
            yield given, Document(given.name, _ids(source))
        else:
            yield given, Document(given.name, cast(BinaryIO, source))


def _open(given: Input, stdin: BinaryIO) -> BinaryIO:
    """The bytes of an input, unpacked where its content is gzip's or its name says so."""
    if given.path is None:
        file: Any = _Shared(stdin if hasattr(stdin, "peek") else io.BufferedReader(cast(io.RawIOBase, stdin)))
    elif glob.has_magic(given.name) and not os.path.lexists(given.path):
        raise FileNotFoundError(f"{given.name}: no file matches. Check the pattern.")
    else:
        if os.path.isdir(given.path):
            os.scandir(given.path).close()  # says so where it must not be looked into
        file = given.path.open("rb")
    named = given.path is not None and given.path.suffix == ".gz"
    return cast(BinaryIO, _Unpacked(file) if named or file.peek(2)[:2] == GZIP else file)


class _Shared:
    """Standard input, which stays open for others."""

    def __init__(self, file: Any) -> None:
        self.read, self.peek = file.read, file.peek

    def close(self) -> None:
        """Nothing to do."""


class _Unpacked(gzip.GzipFile):
    """A packed file that closes what it reads."""

    def __init__(self, file: Any) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._packed = file

    def close(self) -> None:
        super().close()
        self._packed.close()


def _ids(source: TextSource) -> Iterator[Ids]:
    """Token ids separated by white space, piece by piece."""
    left = source.read(len(MARK)).removeprefix(MARK)
    while raw := source.read(CHUNK):
        raw = left + raw
        cut = max(map(raw.rfind, (b" ", b"\n", b"\t", b"\r"))) + 1
        if not cut and len(raw) > CHUNK:
            raise no_ids(source.name, f"{len(raw):,} bytes without white space")
        yield ids_of_words(raw[:cut].split(), source.name)
        left = raw[cut:]
    yield ids_of_words(left.split(), source.name)


def _json_lines(source: TextSource, reading: Reading, keep: bool) -> Iterator[Document]:
    """A document a line; blank lines are none. A line that is no such object is a document that cannot be read."""
    number = 0
    lines = io.BufferedReader(source, CHUNK)
    while True:
        name = f"{source.name}:{number + 1}"
        try:
            line = lines.readline()
        except (TextError, OSError) as error:  # nothing can be read behind it
            yield Document(source.name if number == 0 else name, _refused(error))
            return
        if not line:
            return
        number += 1
        if not line.strip():
            continue
        try:
            text, own_name = field_of(line, name, reading.field, reading.id_field, reading.ids)
        except TextError as error:
            yield Document(name, _refused(error))
            continue
        if reading.ids:
            yield Document(own_name, cast(Any, text))
        else:
            yield Document(own_name, cast(BinaryIO, TextSource(own_name, partial(_text, text, own_name), True, keep)))


def _text(text: str, name: str) -> BinaryIO:
    return io.BytesIO(utf8_bytes(text, name))


def _refused(error: Exception) -> BinaryIO:
    """A source that fails when it is read."""

    def fail() -> BinaryIO:
        raise error

    return cast(BinaryIO, TextSource("", fail, at_hand=True))
