"""A document's text as a page shows it: in UTF-16, as JavaScript counts, with the end of each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from xlruntime.documents import Ids, Tokenizer
from xlruntime.tokenizers import ByteTokenizer, TrieTokenizer, VocabularyTokenizer

__all__ = ["PageText", "text_of_bytes", "text_of_ids", "token_labels"]


@dataclass(frozen=True)
class PageText:
    """A text. Bytes that are not UTF-8 appear as Python's `surrogateescape` writes them: byte 0xff is U+DCFF.

    Attributes:
        units: (u,) UTF-16 code units.
        after: (n + 1,) for each offset into the document, the number of units before it. Offsets are in the unit of
        the tokens' `ends` (bytes, characters or tokens). A character counts from its first byte on.
    """

    units: npt.NDArray[np.uint16]
    after: npt.NDArray[np.int64]


def text_of_bytes(raw: bytes, tokenizer: Tokenizer) -> PageText:
    """Return the text of a document that was given as bytes."""
    text = raw.decode("utf-8", "surrogateescape")
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    units = 1 + (points > 0xFFFF)
    if not tokenizer.offsets_in_bytes:
        return PageText(_utf16(text), np.concatenate([[0], np.cumsum(units)]))
    lengths = 1 + (points > 0x7F) + (points > 0x7FF) + (points > 0xFFFF)  # in bytes
    lengths[(points >= 0xDC80) & (points <= 0xDCFF)] = 1  # a byte that is not UTF-8
    starts = np.zeros(len(raw) + 1, np.int64)
    starts[np.cumsum(lengths) - lengths + 1] = units
    return PageText(_utf16(text), np.cumsum(starts))


def text_of_ids(ids: Ids, tokenizer: Tokenizer) -> PageText:
    """Return the text of a document that was given as token ids."""
    if tokenizer.offsets_in_bytes:
        parts = [_bytes_of(tokenizer, token) for token in ids.tolist()]
        ends = np.cumsum([0, *map(len, parts)])
        text = text_of_bytes(b"".join(parts), ByteTokenizer())
        return PageText(text.units, text.after[ends])
    pieces = [tokenizer.decode(ids[:1])] if len(ids) else []
    pieces += [_continued(tokenizer, before, token) for before, token in pairwise(ids)]
    units = [_utf16(piece) for piece in pieces]
    return PageText(np.concatenate([_utf16(""), *units]), np.cumsum([0, *map(len, units)]))


def token_labels(ids: Sequence[int], tokenizer: Tokenizer) -> dict[int, str]:
    """Return the text of each token, with bytes as in a `PageText`."""
    if tokenizer.offsets_in_bytes:
        return {token: _bytes_of(tokenizer, token).decode("utf-8", "surrogateescape") for token in ids}
    return {token: tokenizer.text_of(token) for token in ids}


def _continued(tokenizer: Tokenizer, before: np.int64, token: np.int64) -> str:
    """Return the text that `token` adds after `before`, because many tokenizers drop the space of a first token."""
    first, both = tokenizer.decode(np.array([before])), tokenizer.decode(np.array([before, token]))
    return both.removeprefix(first) if both.startswith(first) else tokenizer.decode(np.array([token]))


def _bytes_of(tokenizer: Tokenizer, token: int) -> bytes:
    """Return the bytes of a token whose places count bytes."""
    if isinstance(tokenizer, TrieTokenizer):
        return tokenizer.bytes_of(token)
    if isinstance(tokenizer, ByteTokenizer):
        byte = token - tokenizer.first_id
        return bytes([byte]) if 0 <= byte < 256 else b""
    assert isinstance(tokenizer, VocabularyTokenizer)
    symbol = tokenizer.vocabulary.symbols[token]
    return bytes([int(symbol)]) if symbol.isdigit() else tokenizer.decode(np.array([token])).encode()


def _utf16(text: str) -> npt.NDArray[np.uint16]:
    return np.frombuffer(text.encode("utf-16-le", "surrogatepass"), np.uint16)
