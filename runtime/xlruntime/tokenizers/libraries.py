"""Tokenizers that other libraries run: `tokenizers` and `sentencepiece`, imported when a bundle needs them."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..documents import Ids, TextCounts, TokenPiece, utf8_text
from ..errors import BundleError, XlruntimeError
from ..messages import first_line

__all__ = ["SentencePieceTokenizer", "TokenizersTokenizer"]


class _LibraryTokenizer:
    """Documents must be UTF-8 and are tokenized whole: cutting text would change tokens at the cuts."""

    @abstractmethod
    def _encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids, and where each begins and ends in `text`, in characters."""

    @cached_property
    def merges_newlines(self) -> bool:
        """Whether a newline gives the same tokens as a space."""
        return self._encode("a\nb")[0] == self._encode("a b")[0]

    def encode(self, text: str | bytes) -> Ids:
        """Token ids (n,) of a text, without special tokens."""
        return np.array(self._encode(utf8_text(text, "the text"))[0], np.int64)

    def encode_piece(self, text: str | bytes, previous: int | None) -> Ids:
        """As `encode`: at a cut there may be other tokens than the whole text would give."""
        return self.encode(text)

    def read(self, file: BinaryIO, name: str, counts: TextCounts) -> Iterator[TokenPiece]:
        """The whole document as one piece."""
        raw = file.read()
        counts.add(raw)
        text = utf8_text(raw, name)
        ids, places = self._encode(text)
        offsets = np.array(places, np.int64).reshape(-1, 2)
        if len(offsets):
            counts.first_token_chars = int(offsets[0, 1])
            counts.first_token_bytes = len(text[: offsets[0, 1]].encode("utf-8"))
        yield TokenPiece(np.array(ids, np.int64), offsets[:, 0], offsets[:, 1])


class TokenizersTokenizer(_LibraryTokenizer):
    """A `tokenizer.json` of the `tokenizers` library.

    Raises:
        XlruntimeError: the `tokenizers` package is not installed.
        BundleError: the file is not a tokenizer.
    """

    def __init__(self, path: Path) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise _not_installed("tokenizers", path) from error
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises a bare Exception
            raise BundleError(f"{path}: not a tokenizer of the tokenizers library: {first_line(error)}.") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocab_size: int | None = int(self._tokenizer.get_vocab_size())
        self.unk_id: int | None = self._unk_id()

    def decode(self, ids: Ids | list[int]) -> str:
        """The text of token ids."""
        return str(self._tokenizer.decode([int(token) for token in ids]))

    def _encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def _unk_id(self) -> int | None:
        """A model has either the id or the token."""
        model: dict[str, Any] = json.loads(self._tokenizer.to_str())["model"]
        token = model.get("unk_token")
        number = model.get("unk_id") if token is None else self._tokenizer.token_to_id(token)
        return None if number is None else int(number)


class SentencePieceTokenizer(_LibraryTokenizer):
    """A model file of the `sentencepiece` library.

    Raises:
        XlruntimeError: the `sentencepiece` package is not installed.
        BundleError: the file is not such a model.
    """

    def __init__(self, path: Path) -> None:
        try:
            import sentencepiece
        except ImportError as error:
            raise _not_installed("sentencepiece", path) from error
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes() or b" ")
        except RuntimeError as error:
            raise BundleError(f"{path}: not a SentencePiece model ({' '.join(str(error).split())}).") from error
        self.vocab_size: int | None = int(self._processor.vocab_size())
        self.unk_id: int | None = int(self._processor.unk_id())

    def decode(self, ids: Ids | list[int]) -> str:
        """The text of token ids."""
        return str(self._processor.decode([int(token) for token in ids]))

    def _encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = self._processor.encode(text, return_type="offset_mapping", return_bytes=False)
        return encoding["ids"], encoding["offsets"]


def _not_installed(package: str, path: Path) -> XlruntimeError:
    return XlruntimeError(
        f"{path.name} needs the {package} package, which is not installed.", repair="pip install 'xlexport[text]'"
    )
