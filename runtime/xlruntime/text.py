"""From documents to token ids, piece by piece where the tokenizer allows it, with offsets and counts."""

from __future__ import annotations

import builtins
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from . import spec
from .errors import BundleError, TextError, TokenError, XlruntimeError

__all__ = [
    "ByteTokenizer",
    "Document",
    "NoTokenizer",
    "Source",
    "TextCounts",
    "TokenPiece",
    "TokenReader",
    "Tokenizer",
    "TokenizersTokenizer",
    "as_ids",
    "check_ids",
    "make_tokenizer",
]

PIECE_BYTES = 1 << 14  # small beside the memories, or its coming and going would show in the process

Ids = npt.NDArray[np.int64]
Source = str | bytes | Path | BinaryIO | npt.NDArray[np.integer[Any]] | list[int]


@dataclass(frozen=True)
class Document:
    """Something to score: text, bytes, a path, an open binary file, or token ids; and a name to report it by."""

    name: str
    source: Source


@dataclass(frozen=True)
class TokenPiece:
    """Consecutive tokens of a document.

    Attributes:
        ids: (n,) token ids.
        starts: (n,) where each token begins in the document; ends: (n,) where it ends. Bytes for the byte tokenizer,
            characters for text tokenizers, token numbers for a document given as ids.
    """

    ids: Ids
    starts: Ids
    ends: Ids

    def __len__(self) -> int:
        return len(self.ids)


@dataclass
class TextCounts:
    """What a document consists of, counted as it is read. All zero for a document given as token ids."""

    bytes: int = 0
    chars: int = 0
    words: int = 0
    first_token_bytes: int = 0  # the first token has no context, so its bytes and characters are not scored
    first_token_chars: int = 0
    _in_word: bool = False

    def add(self, piece: builtins.bytes) -> None:
        """Count the next bytes of the document: UTF-8 characters, and words between ASCII white space."""
        if not piece:
            return
        values = np.frombuffer(piece, np.uint8)
        inside = ~np.isin(values, np.frombuffer(b" \t\n\r\v\f", np.uint8))
        before = np.concatenate([[self._in_word], inside[:-1]])
        self.bytes += len(piece)
        self.chars += int(np.count_nonzero((values & 0xC0) != 0x80))
        self.words += int(np.count_nonzero(inside & ~before))
        self._in_word = bool(inside[-1])


class Tokenizer(Protocol):
    """Text to ids and back."""

    @property
    def vocab_size(self) -> int | None:
        """Number of ids it may give; None where it gives none."""

    def encode(self, text: str | bytes) -> Ids:
        """Token ids (n,) of a text."""

    def decode(self, ids: Ids) -> str:
        """The text of token ids."""

    def read(self, file: BinaryIO, name: str, counts: TextCounts) -> Iterator[TokenPiece]:
        """Token ids of a document, in order, while `counts` grows."""


class ByteTokenizer:
    """Token id = byte. Any file is valid, and is read piece by piece."""

    vocab_size: int | None = 256

    def encode(self, text: str | bytes) -> Ids:
        """Ids (n,) of the bytes of `text`, in UTF-8 if it is a str."""
        return np.frombuffer(_utf8(text, "the text"), np.uint8).astype(np.int64)

    def decode(self, ids: Ids) -> str:
        """Text of the bytes; what is not UTF-8 becomes U+FFFD."""
        return ids.astype(np.uint8).tobytes().decode("utf-8", errors="replace")

    def read(self, file: BinaryIO, name: str, counts: TextCounts) -> Iterator[TokenPiece]:
        """Pieces of at most PIECE_BYTES tokens."""
        position = 0
        while raw := file.read(PIECE_BYTES):
            if position == 0:
                counts.first_token_bytes = 1
                counts.first_token_chars = int(raw[0] & 0xC0 != 0x80)
            counts.add(raw)
            starts = np.arange(position, position + len(raw), dtype=np.int64)
            yield TokenPiece(np.frombuffer(raw, np.uint8).astype(np.int64), starts, starts + 1)
            position += len(raw)


class TokenizersTokenizer:
    """A `tokenizer.json` of the `tokenizers` library. Documents must be UTF-8 and are tokenized whole.

    Raises:
        XlruntimeError: the `tokenizers` package is not installed.
        BundleError: the file is not a tokenizer.
    """

    def __init__(self, path: Path) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise XlruntimeError(
                f"{path.name} needs the tokenizers package, which is not installed. pip install 'xlexport[text]'"
            ) from error
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises a bare Exception
            raise BundleError(f"{path}: not a tokenizer of the tokenizers library: {error}.") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    @property
    def vocab_size(self) -> int | None:
        """Number of ids, added tokens included."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str | bytes) -> Ids:
        """Token ids (n,) of a text, without special tokens."""
        return np.array(self._encode(self._text(text, "the text")).ids, np.int64)

    def decode(self, ids: Ids) -> str:
        """The text of token ids."""
        return str(self._tokenizer.decode([int(token) for token in ids]))

    def read(self, file: BinaryIO, name: str, counts: TextCounts) -> Iterator[TokenPiece]:
        """The whole document as one piece: cutting text would change tokens at the cuts."""
        raw = file.read()
        counts.add(raw)
        text = self._text(raw, name)
        encoding = self._encode(text)
        offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        if len(offsets):
            counts.first_token_chars = int(offsets[0, 1])
            counts.first_token_bytes = len(text[: offsets[0, 1]].encode("utf-8"))
        yield TokenPiece(np.array(encoding.ids, np.int64), offsets[:, 0], offsets[:, 1])

    def _encode(self, text: str) -> Any:
        return self._tokenizer.encode(text, add_special_tokens=False)

    @staticmethod
    def _text(text: str | bytes, name: str) -> str:
        raw = _utf8(text, name)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise TextError(
                f"{name}: not UTF-8 at byte {error.start} (0x{raw[error.start]:02x}), and this bundle's tokenizer "
                f"needs text. Convert it, for instance: iconv -f latin1 -t utf-8 {name}"
            ) from error


class NoTokenizer:
    """Stands where a bundle has no tokenizer: token ids are welcome, text is refused."""

    vocab_size: int | None = None

    def encode(self, text: str | bytes) -> Ids:
        """Raise TextError."""
        raise self._refusal("the text")

    def decode(self, ids: Ids) -> str:
        """The ids themselves, separated by spaces."""
        return " ".join(str(int(token)) for token in ids)

    def read(self, file: BinaryIO, name: str, counts: TextCounts) -> Iterator[TokenPiece]:
        """Raise TextError."""
        raise self._refusal(name)

    @staticmethod
    def _refusal(name: str) -> TextError:
        return TextError(
            f"{name}: this bundle has no tokenizer, so it takes token ids, not text. "
            "Give ids, or convert the checkpoint with --tokenizer."
        )


def make_tokenizer(tokenizer: spec.Tokenizer, folder: Path) -> Tokenizer:
    """The tokenizer that a bundle in `folder` declares."""
    if tokenizer.kind == "bytes":
        return ByteTokenizer()
    if tokenizer.kind == "none":
        return NoTokenizer()
    kind: str = tokenizer.kind  # read from a file, so it may be anything
    if kind == "tokenizers" and tokenizer.file is not None:
        return TokenizersTokenizer(folder / tokenizer.file)
    raise BundleError(
        f"{folder}: unknown tokenizer {tokenizer.kind!r}; expected 'bytes', 'none', or 'tokenizers' with a file."
    )


def as_ids(source: npt.ArrayLike, name: str) -> Ids:
    """Token ids (n,) from what a caller passed as such.

    Raises:
        TokenError: not whole numbers, or not along one axis.
    """
    try:
        ids = np.asarray(source)
    except ValueError as error:  # nested lists of unequal lengths
        raise TokenError(f"{name}: token ids must be whole numbers along one axis, found uneven lists.") from error
    if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
        raise TokenError(
            f"{name}: token ids must be whole numbers along one axis, found {ids.dtype} of shape {ids.shape}."
        )
    return ids.astype(np.int64)


def check_ids(ids: Ids, vocab_size: int, name: str, first: int = 0) -> None:
    """Refuse token ids that the model does not have; ONNX Runtime would read another row, or past the table.

    Args:
        ids: (n,) token ids.
        first: index of the first of them in the document `name`, for the message.

    Raises:
        TokenError: an id is outside 0 … vocab_size - 1.
    """
    wrong = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if len(wrong):
        at = int(wrong[0])
        raise TokenError(
            f"{name}: token {first + at} has id {int(ids[at])}, expected 0 to {vocab_size - 1} ({len(wrong)} such). "
            "Tokenize it with the model's own vocabulary."
        )


def _utf8(text: str | bytes, name: str) -> bytes:
    if isinstance(text, bytes):
        return text
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TextError(
            f"{name}: character {error.start} is half of a surrogate pair (U+{ord(text[error.start]):04X}), which "
            "UTF-8 cannot hold. Give bytes, or replace it."
        ) from error


class TokenReader:
    """Hands out a document's tokens in the amounts that a step wants."""

    def __init__(self, document: Document, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.document = document
        self.counts = TextCounts()
        self._vocab_size = vocab_size
        self._read = 0
        self._buffer = TokenPiece(*(np.zeros(0, np.int64) for _ in range(3)))
        self._pieces = self._open(tokenizer)

    def take(self, n: int) -> TokenPiece:
        """The next `n` tokens; fewer only at the document's end.

        Raises:
            TokenError, TextError, OSError: as the document is read.
        """
        self._fill(n)
        taken, self._buffer = _split(self._buffer, n)
        return taken

    def _fill(self, n: int) -> None:
        while len(self._buffer) < n:
            piece = next(self._pieces, None)
            if piece is None:
                break
            check_ids(piece.ids, self._vocab_size, self.document.name, self._read)
            self._read += len(piece)
            self._buffer = _join(self._buffer, piece)

    @property
    def at_end(self) -> bool:
        """Whether every token has been handed out; reads ahead to find out."""
        if not len(self._buffer):
            self._fill(1)
        return not len(self._buffer)

    def _open(self, tokenizer: Tokenizer) -> Iterator[TokenPiece]:
        source = self.document.source
        if isinstance(source, Path):
            with source.open("rb") as file:
                yield from tokenizer.read(file, self.document.name, self.counts)
        elif isinstance(source, str | bytes):
            raw = _utf8(source, self.document.name)
            yield from tokenizer.read(io.BytesIO(raw), self.document.name, self.counts)
        elif isinstance(source, np.ndarray | list | tuple):
            ids = as_ids(source, self.document.name)
            places = np.arange(len(ids), dtype=np.int64)
            yield TokenPiece(ids, places, places + 1)
        elif isinstance(source, io.TextIOBase):
            raise TextError(f"{self.document.name}: a file opened as text; bytes are needed. Open it with mode 'rb'.")
        else:
            yield from tokenizer.read(source, self.document.name, self.counts)


def _join(left: TokenPiece, right: TokenPiece) -> TokenPiece:
    if not len(left):
        return right
    return TokenPiece(
        np.concatenate([left.ids, right.ids]),
        np.concatenate([left.starts, right.starts]),
        np.concatenate([left.ends, right.ends]),
    )


def _split(piece: TokenPiece, n: int) -> tuple[TokenPiece, TokenPiece]:
    head = TokenPiece(piece.ids[:n], piece.starts[:n], piece.ends[:n])
    return head, TokenPiece(piece.ids[n:], piece.starts[n:], piece.ends[n:])
