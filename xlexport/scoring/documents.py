"""Documents of files: text, token ids or lines of JSON, packed by gzip or not. They open when their turn comes.

A document that cannot be read fails when it is read, as part of the scoring: the caller can go on with the next.
"""

from __future__ import annotations

import glob
import gzip
import io
import itertools
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from xlexport.scoring.inputs import CHUNK, GZIP, Input, Reading, nothing_in
from xlruntime import Document, TextError, TokenError
from xlruntime.documents import Ids, utf8_bytes
from xlruntime.messages import listed

__all__ = ["TextSource", "documents", "documents_by_input", "ids_of_words", "kept", "only_document"]

MARK = b"\xef\xbb\xbf"  # that some editors put before UTF-8
SHOWN = 40  # characters of what was found


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


def documents(inputs: Sequence[Input], reading: Reading, stdin: BinaryIO, keep: bool) -> Iterator[Document]:
    """The documents in inputs, none of which is opened before it is read.

    Args:
        keep: their sources are `TextSource`s that keep what is read until `let_go`.
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


def only_document(inputs: Sequence[Input], reading: Reading, stdin: BinaryIO) -> Document:
    """Return the one document in inputs, which is not opened unless it is a line of JSON.

    Raises:
        TextError: there are several, or none.
    """
    found = list(itertools.islice(documents(inputs, reading, stdin, keep=False), 2))
    names = ", ".join(given.name for given in inputs[:2])
    if not found:
        raise nothing_in([names], "lines that are not blank")
    if len(found) > 1:
        raise TextError(
            f"{names}: several documents, expected one.", repair="Give one of them; `xlexport score` takes several."
        )
    return found[0]


def kept(document: Document) -> Document:
    """Return a document that can be read several times: what only can be read once is read now.

    Raises:
        OSError, TextError, TokenError: it cannot be read, or does not hold token ids.
    """
    source: Any = document.source
    if isinstance(source, str | bytes | Path | np.ndarray | list):
        return document
    if (read := getattr(source, "read", None)) is not None:
        return Document(document.name, read())
    return Document(document.name, np.concatenate([np.zeros(0, np.int64), *source]))  # ids, piece by piece


def _open(given: Input, stdin: BinaryIO) -> BinaryIO:
    """The bytes of an input, unpacked where its content is gzip's or its name says so."""
    if given.path is None:
        file: Any = _Shared(stdin if hasattr(stdin, "peek") else io.BufferedReader(cast(io.RawIOBase, stdin)))
    elif glob.has_magic(given.name) and not os.path.lexists(given.path):
        raise FileNotFoundError(f"{given.name}: no file matches. Check the pattern.")
    else:
        if os.path.isdir(given.path):
            os.scandir(given.path).close()  # fails if it may not be read
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
            raise _no_ids(source.name, f"{len(raw):,} bytes without white space")
        yield ids_of_words(raw[:cut].split(), source.name)
        left = raw[cut:]
    yield ids_of_words(left.split(), source.name)


def _json_lines(source: TextSource, reading: Reading, keep: bool) -> Iterator[Document]:
    """Yield a document for each line that is not blank. If a line is not such an object, reading its document fails."""
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
            text, own_name = _field_of(line, name, reading.field, reading.id_field, reading.ids)
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


def ids_of_words(words: Sequence[bytes], name: str) -> Ids:
    """Token ids that are written as numbers.

    Raises:
        TokenError: one is not, or has more than 64 bits.
    """
    ids = np.empty(len(words), np.int64)
    for place, word in enumerate(words):
        try:
            ids[place] = int(word)
        except (ValueError, OverflowError) as error:
            shown = word[:SHOWN].decode("utf-8", "backslashreplace")
            raise _no_ids(name, repr(shown) + ("…" if len(word) > SHOWN else "")) from error
    return ids


def _no_ids(name: str, found: str) -> TokenError:
    """That a document does not hold token ids."""
    return TokenError(
        f"{name}: not token ids separated by white space (found {found}).", repair="Leave out --ids for text."
    )


def _field_of(line: bytes, name: str, field: str | None, id_field: str | None, ids: bool) -> tuple[Any, str]:
    """What the field of a line of JSON holds, and the document's name.

    Args:
        name: of the document where `id_field` has none.
        ids: it must be a list, not text.

    Raises:
        TextError: the line is not an object, or its field has another type.
    """
    try:
        value = json.loads(line.strip().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise TextError(
            f"{name}: not JSON ({_json_problem(error)}).", repair="With --field, each line is an object."
        ) from error
    if not isinstance(value, dict):
        raise TextError(f"{name}: {_json_kind(value)}, expected a JSON object with field {field!r}.")
    text = value.get(field)
    if isinstance(text, list if ids else str):
        own = value.get(id_field) if id_field is not None else None
        if own is None:
            return text, name
        return text, own if isinstance(own, str) else json.dumps(own, ensure_ascii=False)
    what = "token ids in a list" if ids else "text"
    fields = listed(repr(other[:SHOWN]) for other in value) or "nothing"
    found = f"{_json_kind(text)} there" if field in value else f"only {fields}"
    raise TextError(f"{name}: expected {what} in field {field!r}, found {found}.", repair="Check --field.")


def _json_problem(error: ValueError | RecursionError) -> str:
    """Return what is wrong with a line that is not JSON, and where."""
    if isinstance(error, json.JSONDecodeError):
        found = error.doc[error.pos : error.pos + 20]
        what = error.msg[:1].lower() + error.msg[1:].removesuffix(" at").removesuffix(" starting")
        return f"{what} at character {error.pos + 1}: {found!r}" if found else f"{what} at its end"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start + 1}"
    return "nested too deeply" if isinstance(error, RecursionError) else "a number of too many digits"


def _json_kind(value: Any) -> str:
    """What JSON calls a value like this."""
    kinds = {bool: "true or false", str: "a string", list: "a list", dict: "an object", type(None): "null"}
    return kinds.get(type(value), "a number")
