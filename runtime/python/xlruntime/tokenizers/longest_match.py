"""Symbols of several characters or bytes: at each place of a text, the longest symbol is its next token.

`TrieTokenizer` reads bytes this way, with a vocabulary of kind `trie` such as RWKV World's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from ..documents import SPACES, Ids, Text, TextPart, Tokenizer, TokenPiece, utf8_bytes
from ..errors import TokenError
from .vocabulary import Vocabulary

__all__ = ["LongestMatch", "TrieTokenizer"]


class LongestMatch:
    """A set of symbols, all of them characters or all bytes, and none empty.

    Attributes:
        longest: length of the longest symbol.
    """

    def __init__(self, symbols: Iterable[Text]) -> None:
        self._symbols: list[Any] = sorted(symbols)
        self._known: frozenset[Text] = frozenset(self._symbols)
        self.longest = max(map(len, self._symbols), default=0)
        lengths: dict[Text, set[int]] = {}  # of the symbols with these first two characters
        for symbol in self._symbols:
            lengths.setdefault(symbol[:2], set()).add(len(symbol))
        self._lengths = {start: tuple(sorted(found, reverse=True)) for start, found in lengths.items()}

    def at(self, text: Text, place: int) -> int:
        """Return the length of the longest symbol at a place of a text; 0: there is none."""
        for length in self._lengths.get(text[place : place + 2], ()):
            if place + length <= len(text) and text[place : place + length] in self._known:
                return length
        return int(text[place : place + 1] in self._known)

    def may_grow(self, text: Text, place: int) -> bool:
        """Return whether later text may complete a symbol that is longer than all of the text from a place on."""
        if len(text) - place >= self.longest:
            return False
        following = bisect_right(self._symbols, text[place:])
        return following < len(self._symbols) and self._symbols[following].startswith(text[place:])

    def settled(self, text: Text) -> int:
        """Return the first place of a text at which a longer symbol may still come, or else the text's length."""
        place = 0
        while place < len(text) and not self.may_grow(text, place):
            place += self.at(text, place) or 1
        return place


class TrieTokenizer(Tokenizer):
    """A tokenizer of bytes that takes the longest symbol at each place. Invalid UTF-8 is text like any other."""

    offsets_in_bytes = True
    joins = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.vocab_size = len(vocabulary)
        self.unk_id = vocabulary.id_of(vocabulary.unk)
        self._texts = [bytes.fromhex(symbol) for symbol in vocabulary.symbols]
        self._ids = {text: number for number, text in enumerate(self._texts) if text}
        self._match = LongestMatch(self._ids)

    def settled(self, text: Text) -> int:
        """Return how many bytes of a text keep their tokens, whatever follows."""
        return self._match.settled(utf8_bytes(text, "the text"))

    def tokens(self, part: TextPart) -> TokenPiece:
        """Return the tokens of a part of a text, with their places in bytes."""
        raw, places, place = utf8_bytes(part.text, part.name), [0], 0
        while place < len(raw):
            place += self._match.at(raw, place) or 1
            places.append(place)
        ids = [self._ids.get(raw[start:end], self.unk_id) for start, end in pairwise(places)]
        if None in ids:
            at = places[ids.index(None)]
            raise TokenError(
                f"{part.name}: no symbol of the vocabulary begins with byte 0x{raw[at]:02x}, as the text does at byte "
                f"{part.place + at:,}.",
                hint="Prepare the text as the training text was, or replace it.",
            )
        return TokenPiece(np.array(ids, np.int64), np.array(places[:-1], np.int64), np.array(places[1:], np.int64))

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes of a token; none if it has no text."""
        return self._texts[token] if 0 <= token < len(self._texts) else b""

    def decode(self, ids: Ids | list[int], special: bool = False) -> str:
        """Return the text of the tokens; invalid UTF-8 becomes U+FFFD."""
        return b"".join(self.bytes_of(int(token)) for token in ids).decode("utf-8", "replace")

    def id_of(self, name: str) -> int | None:
        """Return the id of a symbol, given as the hex of its bytes."""
        return self.vocabulary.id_of(name) if name else None

    def word_starts(self) -> list[int]:
        """Return the ids of tokens that begin with white space, and of those without text, which end a text."""
        return [number for number, text in enumerate(self._texts) if not text or text[0] in SPACES]
