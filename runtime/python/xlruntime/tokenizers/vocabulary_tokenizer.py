"""Convert text to the ids of a vocabulary, piece by piece, with offsets into the original text.

A line ends with a newline, a carriage return or both, as in Python's text files. A byte-order mark at the beginning of
a text is skipped. White space between words belongs to the word or line end after it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from ..documents import (
    DOCUMENT_LIMITS,
    SPACES,
    Ids,
    Text,
    TextCounts,
    TextPart,
    Tokenizer,
    TokenPiece,
    no_boundaries,
    utf8_bytes,
    utf8_text,
)
from ..errors import TokenError
from ..limits import Limits
from ..messages import listed, shown
from .longest_match import LongestMatch
from .vocabulary import Vocabulary, is_byte

__all__ = ["VocabularyTokenizer"]

BYTE_ORDER_MARK = "\ufeff"
NEWLINES = ("\n", "\r", "\r\n")
WORDS = re.compile(r"\r\n|[\r\n]|\S+")
CHARACTERS = re.compile(r"\r\n|.", re.DOTALL)
SINGLE_CHARACTERS = re.compile(r".", re.DOTALL)
NEWLINE_BYTE = ord("\n")
DROPPED, UNKNOWN = -1, -2


class VocabularyTokenizer(Tokenizer):
    """A tokenizer for documents of any length at constant memory; words and characters must be UTF-8.

    Args:
        skip_unknown: leave out text that the vocabulary lacks, instead of using `unk` or refusing the text.
    """

    def __init__(self, vocabulary: Vocabulary, skip_unknown: bool = False) -> None:
        self.vocabulary = vocabulary
        self.vocab_size = len(vocabulary)
        self.unk_id = vocabulary.id_of(vocabulary.unk)
        self.merges_newlines = vocabulary.kind == "words" and vocabulary.line_end is None
        self.offsets_in_bytes = vocabulary.kind == "bytes"
        self.skip_unknown = skip_unknown
        texts = vocabulary.index.keys() - {vocabulary.unk, vocabulary.line_end}
        self.match = LongestMatch(texts) if vocabulary.kind == "symbols" else None

    def encode(self, text: str | bytes) -> Ids:
        """Return ids (n,) of a whole text."""
        pieces = self.read(io.BytesIO(utf8_bytes(text, "the text")), "the text", TextCounts())
        return np.concatenate([np.zeros(0, np.int64), *(piece.ids for piece in pieces)])

    def settled(self, text: Text) -> int:
        """Return how much of a text keeps its tokens: up to the last white space for words, else nearly all."""
        if self.offsets_in_bytes:
            return len(text)
        text = utf8_text(text, "the text")
        end = len(text) - text.endswith("\r")  # a newline may follow
        if self.match is not None:
            return self.match.settled(text[:end])
        if self.vocabulary.kind == "words":
            return next((after for after in range(end, 0, -1) if text[after - 1].isspace()), 0)
        return end

    def tokens(self, part: TextPart) -> TokenPiece:
        """Return the tokens of a part of a text after the token `previous`; None: the part begins a text."""
        return self._encoder(part.name, TextCounts(), previous=part.previous).take(self.in_units(part.text, part.name))

    def _encoder(
        self, name: str, counts: TextCounts, place: int = 0, previous: int | None = None
    ) -> _TextEncoder | _ByteEncoder:
        if self.offsets_in_bytes:
            return _ByteEncoder(self, name, counts, place)
        return _TextEncoder(self, name, counts, place, previous)

    def decode(self, ids: Ids | list[int], special: bool = False) -> str:
        """Return words joined by spaces, with a newline for each line end; or the original bytes or characters."""
        vocabulary = self.vocabulary
        symbols = [vocabulary.symbols[int(number)] for number in ids]
        if vocabulary.kind == "words":
            return _joined(vocabulary, symbols)
        texts = {vocabulary.space: " ", vocabulary.line_end: "\n"}
        parts = [texts.get(symbol, symbol) for symbol in symbols]
        if vocabulary.kind != "bytes":
            return "".join(parts)
        raw = b"".join(bytes([int(part)]) if part.isdigit() else part.encode("utf-8") for part in parts)
        return raw.decode("utf-8", errors="replace")

    def text_of(self, token: int) -> str:
        """Return the text of a symbol; of a word, without the space before it."""
        return self.decode([token])

    def id_of(self, name: str) -> int | None:
        """Return the id of a symbol; None if the vocabulary lacks it."""
        return self.vocabulary.id_of(name)

    def word_starts(self) -> list[int]:
        """Return the ids of symbols that begin with white space, and of line ends."""
        vocabulary, kind = self.vocabulary, self.vocabulary.kind
        if kind == "words":
            raise no_boundaries("each token is a whole word, whose end is certain")
        ends = {vocabulary.line_end, vocabulary.space} - {None}
        return [
            number
            for number, symbol in enumerate(vocabulary.symbols)
            if symbol in ends
            or (is_byte(symbol) and int(symbol) in SPACES if kind == "bytes" else symbol[0].encode() in SPACES)
        ]

    def read(
        self, file: BinaryIO, name: str, counts: TextCounts, limits: Limits = DOCUMENT_LIMITS, before: bytes = b""
    ) -> Iterator[TokenPiece]:
        """Yield pieces of a document, and add to `counts`. Only a single word, held until its end, must fit `limits`.

        Raises:
            TextError: the vocabulary is of words or characters, and the document is not UTF-8 or a word is too long.
            TokenError: the vocabulary lacks symbols and has no `unk`; the message has the symbols and their places.
        """
        held = self.in_units(before, f"{name}, in its context")
        encoder = self._encoder(name, counts, -len(held))
        for text, _ in self.parts(file, name, counts, limits, held):
            yield encoder.take(text)
        yield encoder.end()


class _TextEncoder:
    """Encode a document of words or characters, from a place on: below 0 is text before the document."""

    def __init__(
        self, tokenizer: VocabularyTokenizer, name: str, counts: TextCounts, place: int, previous: int | None
    ) -> None:
        self._vocabulary, self._name, self._counts = (vocabulary := tokenizer.vocabulary), name, counts
        self._unk, self._skip_unknown, self._match = tokenizer.unk_id, tokenizer.skip_unknown, tokenizer.match
        self._words = vocabulary.kind == "words"
        self._line_start = vocabulary.id_of(vocabulary.line_start)
        newline = None if self._words else vocabulary.id_of("\n")
        self._line_end = vocabulary.id_of(vocabulary.line_end) if newline is None else None
        self._newline = self._line_end if newline is None else newline
        carriage_returns = "\r" in vocabulary.index and not self._words
        self._pattern = WORDS if self._words else SINGLE_CHARACTERS if carriage_returns else CHARACTERS
        self._place = place
        self._chars = self._bytes = 0  # of the document up to its first token
        self._line = 1
        self._begun = previous is not None and previous != self._line_end  # the line's line_start, if any, was returned
        self._open = False  # the line has text, and no newline yet
        self._first = previous is None  # no text yet
        self._empty = previous is None  # no token yet

    def take(self, text: Text) -> TokenPiece:
        """Return the tokens of the next part of the text, which what follows does not change."""
        text = utf8_text(text, self._name)
        ids, starts, ends = self._tokens(text)
        piece = _piece(ids, starts, ends, self._place)
        if self._empty and (ids or self._words):  # text before the first word has no token of its own
            covered = text[max(0 if self._words else starts[0], -self._place) : ends[0] if ids else None]
            self._chars, self._bytes = self._chars + len(covered), self._bytes + len(covered.encode("utf-8"))
            if ids:
                self._counts.first_token_chars, self._counts.first_token_bytes = self._chars, self._bytes
                self._empty = False
        self._place += len(text)
        return piece

    def end(self) -> TokenPiece:
        """Return the tokens that end a last line without newline."""
        marks = [None if self._begun else self._line_start, self._line_end] if self._open else []
        ids = [number for number in marks if number is not None]
        return _piece(ids, [0] * len(ids), [0] * len(ids), self._place)

    def _tokens(self, text: str) -> tuple[list[int], list[int], list[int]]:
        ids: list[int] = []
        starts: list[int] = []
        ends: list[int] = []
        missing: dict[str, int] = {}
        index, begin = self._vocabulary.index, self._skip_mark(text)
        self._open |= begin < len(text)
        for unit, start, end in self._units(text, begin):
            is_newline = unit in NEWLINES and unit not in index
            numbers = self._newline_ids(unit, start) if is_newline else self._ids(unit, missing)
            if not self._begun and self._line_start is not None:
                ids.append(self._line_start)
                starts.append(start)
                ends.append(start)
            self._begun = not is_newline
            ids += numbers
            starts += [start, *[end] * len(numbers)][: len(numbers)]  # lower-casing may turn one character into two
            ends += [end] * len(numbers)
            if is_newline:
                self._line += 1
                self._open = end < len(text)
        if missing:
            self._refuse(missing)
        return ids, starts, ends

    def _units(self, text: str, place: int) -> Iterator[tuple[str, int, int]]:
        """Yield each word, symbol, character or newline of a text, and its begin and end."""
        if self._match is None:
            yield from ((match.group(), *match.span()) for match in self._pattern.finditer(text, place))
            return
        while place < len(text):
            length = self._match.at(text, place) or (2 if text.startswith("\r\n", place) else 1)
            yield text[place : place + length], place, place + length
            place += length

    def _skip_mark(self, text: str) -> int:
        """Return where the text begins: after a byte-order mark."""
        first, self._first = self._first, self._first and not text
        if not first or not text.startswith(BYTE_ORDER_MARK) or BYTE_ORDER_MARK in self._vocabulary.index:
            return 0
        if not self._words:
            self._drop(BYTE_ORDER_MARK, 0)
        return 1

    def _newline_ids(self, newline: str, start: int) -> list[int]:
        if self._newline is not None:
            return [self._newline]
        if not self._words:
            self._drop(newline, start)
        return []

    def _drop(self, text: str, start: int) -> None:
        """Count text without a token, unless it is before the document."""
        if self._place + start >= 0:
            self._counts.dropped_chars += len(text)
            self._counts.dropped_bytes += len(text.encode("utf-8"))

    def _ids(self, unit: str, missing: dict[str, int]) -> list[int]:
        """Return ids of a word or character; add symbols without id to `missing`, with their line."""
        vocabulary = self._vocabulary
        unit = unit.lower() if vocabulary.lower_case else unit
        numbers = []
        for symbol in [unit] if self._words or self._match is not None else unit:
            number = vocabulary.index.get(symbol)
            if number is None and symbol == " ":
                number = vocabulary.id_of(vocabulary.space)
            if number is None and not self._skip_unknown:
                number = self._unk
                if number is None:
                    missing.setdefault(symbol, self._line)
            if number is not None:
                numbers.append(number)
        return numbers

    def _refuse(self, missing: dict[str, int]) -> None:
        symbols = listed(f"{shown(symbol)} in line {line:,}" for symbol, line in missing.items())
        raise TokenError(
            f"{self._name}: {symbols} not in the vocabulary of {len(self._vocabulary):,} {self._vocabulary.kind}, "
            "which has no token for unknown text.",
            hint="Prepare the text as the training text was, or replace them.",
        )


class _ByteEncoder:
    """Encode a document of bytes."""

    def __init__(self, tokenizer: VocabularyTokenizer, name: str, counts: TextCounts, place: int) -> None:
        self._vocabulary, self._name, self._counts = (vocabulary := tokenizer.vocabulary), name, counts
        unk = DROPPED if tokenizer.skip_unknown else tokenizer.unk_id
        table = [vocabulary.index.get(str(byte), UNKNOWN if unk is None else unk) for byte in range(256)]
        self._line_end = None
        if str(NEWLINE_BYTE) not in vocabulary.index:
            self._line_end = vocabulary.id_of(vocabulary.line_end)
            table[NEWLINE_BYTE] = DROPPED if self._line_end is None else self._line_end
        self._table = np.array(table, np.int64)
        self._place = place
        self._open = False
        self._empty = True

    def take(self, text: Text) -> TokenPiece:
        """Return the tokens of the next bytes."""
        raw = utf8_bytes(text, self._name)
        values = np.frombuffer(raw, np.uint8)
        numbers = self._table[values]
        if (unknown := np.flatnonzero(numbers == UNKNOWN)).size:
            self._refuse(raw, unknown.tolist())
        (places,) = np.nonzero(numbers != DROPPED)
        dropped = int(np.count_nonzero(numbers[max(-self._place, 0) :] == DROPPED))
        self._counts.dropped_bytes += dropped
        self._counts.dropped_chars += dropped  # newlines, so characters too
        if self._empty and len(places):
            self._counts.first_token_bytes = int(places[0] + self._place >= 0)
            self._counts.first_token_chars = int(places[0] + self._place >= 0 and values[places[0]] & 0xC0 != 0x80)
            self._empty = False
        starts = places + self._place
        self._place += len(raw)
        self._open = raw[-1:] != b"\n" if raw else self._open
        return TokenPiece(numbers[places], starts, starts + 1)

    def end(self) -> TokenPiece:
        """Return the tokens that end a last line without newline."""
        ids = [self._line_end] if self._open and self._line_end is not None else []
        return _piece(ids, [0] * len(ids), [0] * len(ids), self._place)

    def _refuse(self, raw: bytes, unknown: list[int]) -> None:
        places: dict[int, int] = {}
        for at in unknown:
            places.setdefault(raw[at], self._place + at)
        unknown_bytes = listed(f"{byte} (0x{byte:02x}) at byte {at:,}" for byte, at in places.items())
        raise TokenError(
            f"{self._name}: {unknown_bytes} not in the vocabulary of {len(self._vocabulary)} bytes, which has no token "
            "for unknown bytes.",
            hint="Prepare the text as the training text was, or replace them.",
        )


def _joined(vocabulary: Vocabulary, symbols: list[str]) -> str:
    """Join words to a text. A symbol that both starts and ends lines starts one if no line has begun."""
    parts: list[str] = []
    begun = False
    for symbol in symbols:
        if symbol == vocabulary.line_start and not begun:
            begun = True
        elif symbol == vocabulary.line_end:
            parts.append("\n")
            begun = False
        else:
            parts.append(f" {symbol}" if parts and parts[-1] != "\n" else symbol)
            begun = True
    return "".join(parts)


def _piece(ids: list[int], starts: list[int], ends: list[int], before: int) -> TokenPiece:
    return TokenPiece(np.array(ids, np.int64), np.array(starts, np.int64) + before, np.array(ends, np.int64) + before)
