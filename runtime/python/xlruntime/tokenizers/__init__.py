"""The tokenizers of bundles: open the declared one, and define the ones without a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from .. import bundle
from ..documents import (
    DOCUMENT_LIMITS,
    SPACES,
    Ids,
    Text,
    TextCounts,
    TextPart,
    Tokenizer,
    TokenPiece,
    utf8_bytes,
)
from ..errors import TextError, VocabularyError
from ..limits import Limits, read_json
from .libraries import TOKENIZER_LIMITS, SentencePieceTokenizer, TokenizersTokenizer
from .longest_match import TrieTokenizer
from .vocabulary import Vocabulary
from .vocabulary_tokenizer import VocabularyTokenizer

__all__ = [
    "ByteTokenizer",
    "NoTokenizer",
    "TrieTokenizer",
    "Vocabulary",
    "VocabularyTokenizer",
    "make_tokenizer",
    "tokenizer_of",
]


class ByteTokenizer(Tokenizer):
    """A tokenizer with id = byte + `first_id`. Any file is valid and can be read in pieces of any size."""

    offsets_in_bytes = True

    def __init__(self, first_id: int = 0) -> None:
        self.first_id = first_id
        self.vocab_size = first_id + 256

    def encode(self, text: str | bytes) -> Ids:
        """Return ids (n,) of the bytes of `text`; a str is encoded as UTF-8."""
        return np.frombuffer(utf8_bytes(text, "the text"), np.uint8).astype(np.int64) + self.first_id

    def decode(self, ids: Ids | list[int], special: bool = False) -> str:
        """Return the text of the bytes; invalid UTF-8 becomes U+FFFD. Ids without a byte are left out."""
        values = np.asarray(ids, np.int64) - self.first_id
        return values[(values >= 0) & (values < 256)].astype(np.uint8).tobytes().decode("utf-8", errors="replace")

    def settled(self, text: Text) -> int:
        """Return the length of the text: each byte is a token."""
        return len(text)

    def tokens(self, part: TextPart) -> TokenPiece:
        """Return the tokens of a part of a text."""
        ids = self.encode(part.text)
        places = np.arange(len(ids), dtype=np.int64)
        return TokenPiece(ids, places, places + 1)

    def word_starts(self) -> list[int]:
        """Return the ids of white space."""
        return [self.first_id + space for space in SPACES]


class NoTokenizer(Tokenizer):
    """A placeholder for bundles without a tokenizer: accepts token ids, refuses text."""

    def encode(self, text: str | bytes) -> Ids:
        """Raise TextError."""
        raise self._refusal("the text")

    def settled(self, text: Text) -> int:
        """Raise TextError."""
        raise self._refusal("the text")

    def tokens(self, part: TextPart) -> TokenPiece:
        """Raise TextError."""
        raise self._refusal(part.name)

    def decode(self, ids: Ids | list[int], special: bool = False) -> str:
        """Return the ids themselves, separated by spaces."""
        return " ".join(str(int(token)) for token in ids)

    def text_of(self, token: int) -> str:
        """Return the id itself."""
        return self.decode([token])

    def id_of(self, name: str) -> int | None:
        """Return the id that `name` writes as a decimal number; None if it is not a number."""
        return int(name) if name.isascii() and name.isdigit() and len(name) < 10 else None

    def read(
        self, file: BinaryIO, name: str, counts: TextCounts, limits: Limits = DOCUMENT_LIMITS, before: bytes = b""
    ) -> Iterator[TokenPiece]:
        """Raise TextError."""
        raise self._refusal(name)

    @staticmethod
    def _refusal(name: str) -> TextError:
        return TextError(
            f"{name}: this bundle has no tokenizer, so it takes token ids, not text.",
            hint="Give ids, or convert the checkpoint with --tokenizer.",
        )


def make_tokenizer(tokenizer: bundle.TokenizerEntry, folder: Path, limits: Limits = TOKENIZER_LIMITS) -> Tokenizer:
    """Return the declared tokenizer of a bundle in `folder`; its file is read within `limits`.

    Raises:
        VocabularyError: the file does not fit the kind.
        TextError: the tokenizer's library is not installed.
    """
    path = folder / str(tokenizer.file)
    match tokenizer.kind:
        case "bytes":
            return ByteTokenizer(tokenizer.first_id)
        case "none":
            return NoTokenizer()
        case "tokenizers":
            return TokenizersTokenizer(path, limits, tokenizer.settled)
        case "sentencepiece":
            return SentencePieceTokenizer(path, limits, tokenizer.settled)
        case "vocabulary":
            fields = read_json(path, limits, VocabularyError, "Convert the checkpoint again.", strict=True)
            return tokenizer_of(Vocabulary.from_fields(fields, str(path)))


def tokenizer_of(vocabulary: Vocabulary) -> TrieTokenizer | VocabularyTokenizer:
    """Return the tokenizer of a vocabulary of any kind."""
    return TrieTokenizer(vocabulary) if vocabulary.kind == "trie" else VocabularyTokenizer(vocabulary)
