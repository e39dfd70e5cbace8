"""Read the tokens of a document in the amounts that a step needs, after those of its context."""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from .coming_documents import FileAfter
from .documents import (
    Document,
    Ids,
    TextCounts,
    TextPart,
    Tokenizer,
    TokenPiece,
    as_ids,
    check_ids,
    utf8_bytes,
    whole_characters,
)
from .errors import TextError
from .held_text import HeldText

__all__ = ["EarlierText", "TokenReader"]


class TokenReader:
    """A reader of a document's tokens, as many as a step needs at a time; those of its context come first.

    Args:
        before: token ids to return even before the context, as if they belonged to it.
        earlier: the text that goes on in this document; None: this is a text of its own.

    Attributes:
        counts: counts of the document without its context.
        held: at the document's end, its last text, whose tokens depend on the text behind it.
    """

    def __init__(
        self,
        document: Document,
        tokenizer: Tokenizer,
        vocab_size: int,
        before: Ids | None = None,
        earlier: EarlierText | None = None,
    ) -> None:
        self.document = document
        self.counts = TextCounts()
        self.held = HeldText()
        self._earlier = earlier
        self._vocab_size = vocab_size
        self._unk_id = tokenizer.unk_id
        self._read = 0
        self._buffer = TokenPiece(*np.zeros((3, 0), np.int64))
        self._pieces = self._open(tokenizer, before)

    def take(self, n: int) -> TokenPiece:
        """Return the next `n` tokens; fewer only at the document's end.

        Raises:
            TokenError, TextError, OSError: as the document is read.
        """
        self._fill(n)
        taken, self._buffer = self._buffer[:n], self._buffer[n:]
        return taken

    @property
    def at_hand(self) -> bool:
        """Whether the whole document is available: reading it never waits, as reading a pipe can."""
        source = self.document.source
        if isinstance(source, Path):
            return source.is_file()
        return isinstance(source, str | bytes | np.ndarray | list | tuple) or bool(getattr(source, "at_hand", False))

    def has(self, n: int) -> bool:
        """Return whether at least `n` tokens are left; read ahead to find out, and keep what was read."""
        self._fill(n)
        return len(self._buffer) >= n

    def context(self) -> Ids:
        """Return the ids (n,) of the context that are left; read ahead to find them, and keep what was read."""
        while self._buffer.context == len(self._buffer) and self.has(len(self._buffer) + 1):
            pass
        return self._buffer.ids[: self._buffer.context]

    @property
    def ahead(self) -> int:
        """Number of tokens that were read, but not taken."""
        return len(self._buffer)

    def _fill(self, n: int) -> None:
        while len(self._buffer) < n:
            piece = next(self._pieces, None)
            if piece is None:
                break
            own = piece.ids[piece.context :]
            check_ids(piece.ids[: piece.context], self._vocab_size, f"{self.document.name}, in its context")
            check_ids(own, self._vocab_size, self.document.name, self._read)
            self._read += len(own)
            if self._unk_id is not None:
                self.counts.unknown_tokens += int(np.count_nonzero(own == self._unk_id))
            starts = np.where(piece.ends > 0, np.maximum(piece.starts, 0), piece.starts)  # a first one may begin before
            parts = zip(vars(self._buffer).values(), (piece.ids, starts, piece.ends), strict=True)
            self._buffer = TokenPiece(*map(np.concatenate, parts))

    @property
    def at_end(self) -> bool:
        """Whether no token is left; reads ahead to find out."""
        return not self.has(1)

    def _open(self, tokenizer: Tokenizer, before: Ids | None) -> Iterator[TokenPiece]:
        name, source, context = self.document.name, self.document.source, self.document.context
        if before is not None:
            yield _of_context(before)
        text: str | bytes = b""
        if isinstance(context, str | bytes):
            text = context
        elif context is not None:
            yield _of_context(as_ids(context, f"{name}, in its context"))
        if isinstance(source, Path):
            with source.open("rb") as file:
                yield from self._of_text(_without_mark(file), text, tokenizer)
        elif isinstance(source, str | bytes):
            yield from self._of_text(io.BytesIO(utf8_bytes(source, name)), text, tokenizer)
        elif isinstance(source, io.TextIOBase):
            raise TextError(f"{name}: a file opened as text; bytes are needed.", hint="Open it with mode 'rb'.")
        elif hasattr(source, "read"):  # a file, though file-like objects need not inherit from anything
            opened = cast(BinaryIO, source)
            as_it_is = getattr(source, "is_text", False)  # its owner has dropped the mark, or wants it
            yield from self._of_text(opened if as_it_is else _without_mark(opened), text, tokenizer)
        else:
            if text:
                yield _of_context(tokenizer.encode(text))
            yield from _of_ids(source, name)

    def _of_text(self, file: BinaryIO, context: str | bytes, tokenizer: Tokenizer) -> Iterator[TokenPiece]:
        """Yield the tokens of a context and of a file, tokenized as one text; count only the file's text."""
        name = self.document.name
        raw = utf8_bytes(context, f"{name}, in its context")
        if self._earlier is None:
            yield from tokenizer.read(file, name, self.counts, self.document.limits, raw)
        else:
            yield from self._of_going_text(file, raw, tokenizer, self._earlier)

    def _of_going_text(
        self, file: BinaryIO, context: bytes, tokenizer: Tokenizer, earlier: EarlierText
    ) -> Iterator[TokenPiece]:
        """Yield the tokens that end in a document which goes on from earlier text, and into later text.

        Tokens of the context or of a separator come before it; those of an earlier document were read with that one.
        """
        name, limits = self.document.name, self.document.limits
        before = earlier.held.raw
        read, held = (tokenizer.in_units(raw, name) for raw in (before, before + earlier.between + context))
        place, previous = -len(held), earlier.last
        for part, is_rest in tokenizer.parts(file, name, self.counts, limits, held):
            whole: Any = part
            begun = earlier.held.begun or place > -len(held)
            if is_rest:
                self.held = HeldText(utf8_bytes(part, name), begun)
                for later in earlier.following(self.counts.ends_in_space):
                    if tokenizer.settled(whole) >= len(part):
                        break
                    whole += tokenizer.in_units(whole_characters(later), name)
            piece = tokenizer.placed(TextPart(whole, previous, begun, place, name, limits), self.counts)
            # A text may begin with a token without text.
            unread = piece.ends > len(read) - len(held) if read else True
            yield piece[unread & (piece.ends <= place + len(part))]
            previous = int(piece.ids[-1]) if len(piece) else previous
            place += len(part)


@dataclass(frozen=True)
class EarlierText:
    """The text that goes on in a document.

    Attributes:
        held: text before it whose tokens were read already, but which its tokens depend on.
        between: bytes after them, of a separator: they belong to no document.
        last: the last token that was read; None: none was.
        following: yields the text behind the document, given whether the document ended in white space.
    """

    held: HeldText
    between: bytes
    last: int | None
    following: Callable[[bool], Iterator[bytes]]


def _without_mark(file: BinaryIO) -> BinaryIO:
    """Return a file without a byte-order mark at its beginning."""
    first = b""
    while len(first) < len(codecs.BOM_UTF8) and (raw := file.read(len(codecs.BOM_UTF8) - len(first))):
        first += raw
    return cast(BinaryIO, FileAfter(first.removeprefix(codecs.BOM_UTF8), file))


def _of_context(ids: Ids) -> TokenPiece:
    return TokenPiece(ids, np.full(len(ids), -1, np.int64), np.zeros(len(ids), np.int64))


def _of_ids(source: Any, name: str) -> Iterator[TokenPiece]:
    """Yield the tokens of a document given as ids: an array, a list, or an iterator of arrays."""
    before = 0
    for part in [source] if isinstance(source, np.ndarray | list | tuple) else source:
        ids = as_ids(part, name)
        places = np.arange(before, before + len(ids), dtype=np.int64)
        before += len(ids)
        yield TokenPiece(ids, places, places + 1)
