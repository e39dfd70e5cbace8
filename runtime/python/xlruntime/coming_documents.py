"""The documents to come in a continuous run: the end of a document has its tokens only when more text is known."""

from __future__ import annotations

import codecs
import io
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, cast

from .documents import SPACES, Document, utf8_bytes
from .errors import XlruntimeError

__all__ = ["PEEKED", "ComingDocuments", "FileAfter"]

PEEKED = 4096  # bytes of a document


class ComingDocuments:
    """An iterator of documents that shows the beginnings of those to come, with a separator between two of them."""

    def __init__(self, documents: Iterable[Document], separator: str) -> None:
        self._documents = iter(documents)
        self._separator = separator.encode("utf-8")
        self._waiting: deque[Document] = deque()

    def __iter__(self) -> Iterator[Document]:
        return self

    def __next__(self) -> Document:
        return self._waiting.popleft() if self._waiting else next(self._documents)

    def text(self, in_space: bool) -> Iterator[bytes]:
        """Yield the text that follows, a document at a time, with separators; it ends before token ids.

        Args:
            in_space: whether the text before it ends in white space, so that no separator is due.
        """
        for place in itertools.count():
            if place == len(self._waiting):
                self._waiting.extend(itertools.islice(self._documents, 1))
            beginning = self._beginning(place) if place < len(self._waiting) else None
            if beginning is None:
                return
            raw = beginning if in_space else self._separator + beginning
            in_space = raw[-1:] != b"" and raw[-1] in SPACES
            yield raw
            if len(beginning) >= PEEKED:  # what follows these bytes was not read
                return

    def _beginning(self, place: int) -> bytes | None:
        """Return the first bytes of a waiting document; None if it is not text, or cannot be read."""
        document = self._waiting[place]
        source = document.source
        try:
            if isinstance(source, Path):
                with source.open("rb") as opened:
                    return opened.read(PEEKED).removeprefix(codecs.BOM_UTF8)
            if isinstance(source, str | bytes):
                return utf8_bytes(source[:PEEKED], document.name)
            if not hasattr(source, "read") or isinstance(source, io.TextIOBase):
                return None
            file = cast(BinaryIO, source)
            raw = file.read(PEEKED)
        except (OSError, XlruntimeError):  # told when the document's turn comes
            return None
        is_text = getattr(file, "is_text", False)
        self._waiting[place] = replace(document, source=cast(BinaryIO, FileAfter(raw, file, is_text)))
        return raw if is_text else raw.removeprefix(codecs.BOM_UTF8)


class FileAfter:
    """A file of which some bytes were read ahead.

    Attributes:
        is_text: whether a byte-order mark at its beginning belongs to its text.
    """

    def __init__(self, raw: bytes, file: BinaryIO, is_text: bool = True) -> None:
        self._raw, self._file, self.is_text = io.BytesIO(raw), file, is_text

    def read(self, size: int = -1) -> bytes:
        """Return at most `size` bytes, fewer only where the first bytes end or the file does."""
        raw = self._raw.read(size)
        return raw + self._file.read() if size < 0 else raw or self._file.read(size)
