"""Read documents as token ids, piece by piece if the tokenizer allows it, with offsets and counts.

The tokenizers are in `tokenizers`; see `make_tokenizer`.
"""

from __future__ import annotations

import builtins
import codecs
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from .errors import OptionError, TextError, TokenError, TooLongError
from .evaluation import EvaluationSettings
from .limits import Limits
from .messages import quoted

__all__ = [
    "DOCUMENT_LIMITS",
    "IS_SPACE",
    "SPACES",
    "Context",
    "Document",
    "Ids",
    "Source",
    "Text",
    "TextCounts",
    "TextPart",
    "TokenPiece",
    "Tokenizer",
    "as_ids",
    "check_ids",
    "check_length",
    "encode",
    "encoding_hint",
    "no_boundaries",
    "text_pieces",
    "utf8_bytes",
    "utf8_text",
    "whole_characters",
]

# For a document that is held whole. Libraries use 270 bytes of memory per byte of English text, so 4.3 GB at the limit.
DOCUMENT_LIMITS = Limits(bytes=16 << 20)
SPACES = b" \t\n\r\v\f"  # ASCII white space, which is between words
IS_SPACE = np.isin(np.arange(256), np.frombuffer(SPACES, np.uint8))  # by byte
PIECE_BYTES = 1 << 14  # small compared to the memories, so that process memory stays flat
LOOKED_AT = 64  # pieces after a wrong byte, to guess the encoding

Ids = npt.NDArray[np.int64]
Text = str | bytes
Context = str | bytes | npt.NDArray[np.integer[Any]] | list[int]
Source = str | bytes | Path | BinaryIO | npt.NDArray[np.integer[Any]] | list[int] | Iterator[npt.NDArray[np.int64]]


@dataclass(frozen=True)
class Document:
    """A document to score.

    Attributes:
        name: identifies it in results and messages.
        source: text, bytes, a path, a file opened in binary mode, or token ids in an array, a list or an iterator of
            arrays.
        limits: bounds for the whole document if its tokenizer reads it whole (tokenizer.json, SentencePiece), or for
            a single word if the vocabulary is of words.
        context: text or ids that the model reads before the document without scoring them. A text is tokenized with
            the document's text; a token with text of both is the document's. Nothing is put between context and
            document: end the context with a space.
        columns: values that belong to the document, for the caller; no score depends on them.
    """

    name: str
    source: Source
    limits: Limits = DOCUMENT_LIMITS
    context: Context | None = None
    columns: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def begins_with_text(self) -> bool:
        """Whether its first tokens come from a text, or else are given as ids, which have all their tokens."""
        first = self.source if self.context is None or not len(self.context) else self.context
        return isinstance(first, str | bytes | Path) or hasattr(first, "read")


@dataclass(frozen=True)
class TokenPiece:
    """Consecutive tokens of a document.

    Attributes:
        ids: (n,) token ids.
        starts: (n,) where each token begins in the document; ends: (n,) where it ends. The unit is bytes for tokens
            that are bytes, characters for other text, and tokens for a document given as ids. Tokens of the document's
            context begin below 0 and end at 0 at the latest.
    """

    ids: Ids
    starts: Ids
    ends: Ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice | npt.NDArray[np.bool_]) -> TokenPiece:
        return TokenPiece(self.ids[part], self.starts[part], self.ends[part])

    @property
    def context(self) -> int:
        """Number of tokens at the beginning that belong to the document's context."""
        if len(self) and self.starts[0] >= 0:  # as nearly always
            return 0
        own = (self.starts >= 0) | (self.ends > 0)
        return int(own.argmax()) if own.any() else len(self)


@dataclass
class TextCounts:
    """Counts of a document, kept while it is read. For token ids, only unknown tokens are counted."""

    bytes: int = 0
    chars: int = 0
    words: int = 0
    first_token_bytes: int = 0  # covered by the first token, which has no context and so no score
    first_token_chars: int = 0
    dropped_bytes: int = 0  # covered by no token, as the vocabulary has no symbol for them: newlines
    dropped_chars: int = 0
    unknown_tokens: int = 0  # tokens `unk_id`, for text that the vocabulary lacks
    _in_word: bool = False

    def add(self, piece: builtins.bytes) -> None:
        """Count the next bytes of the document: UTF-8 characters, and words between ASCII white space."""
        if not piece:
            return
        values = np.frombuffer(piece, np.uint8)
        inside = ~IS_SPACE[values]
        before = np.concatenate([[self._in_word], inside[:-1]])
        self.bytes += len(piece)
        self.chars += int(np.count_nonzero((values & 0xC0) != 0x80))
        self.words += int(np.count_nonzero(inside & ~before))
        self._in_word = bool(inside[-1])

    @property
    def ends_in_space(self) -> bool:
        """Whether the last byte is white space."""
        return self.bytes > 0 and not self._in_word


@dataclass(frozen=True)
class TextPart:
    """A part of a text, for a tokenizer.

    Attributes:
        text: bytes if the tokenizer's `offsets_in_bytes`, else characters.
        previous: the last token before the part; None at the beginning of a document.
        begun: whether the part goes on after earlier text.
        place: where it begins in a document; negative in the text before the document.
        name: of the text, for messages; limits: of what a library makes of it.
    """

    text: Text
    previous: int | None = None
    begun: bool = False
    place: int = 0
    name: str = "the text"
    limits: Limits = DOCUMENT_LIMITS


class Tokenizer(ABC):
    """A tokenizer: text to ids and back.

    Attributes:
        vocab_size: number of ids that it can return; None if it returns none.
        unk_id: the id for text that the vocabulary lacks; None if it is missing.
        merges_newlines: whether it reads a newline as a space, so that tokens do not show line ends.
        offsets_in_bytes: whether the offsets of its tokens count bytes, not characters.
        joins: whether tokens at the end of a text depend on text behind it, so that texts in a row are read as one.
    """

    vocab_size: int | None = None
    unk_id: int | None = None
    merges_newlines: bool = False
    offsets_in_bytes: bool = False
    joins: bool = False

    def encode(self, text: str | bytes) -> Ids:
        """Return token ids (n,) of a whole text, the same as `read` yields.

        Raises:
            TextError, TokenError: as `read`.
        """
        return self.encode_piece(text, None)

    @abstractmethod
    def settled(self, text: Text) -> int:
        """Return how much of a text keeps its tokens, whatever follows: it and the rest can be tokenized apart.

        Args:
            text: bytes if `offsets_in_bytes`, else characters; it begins where an earlier call has cut, or a document.

        Raises:
            TextError: the tokenizer cannot say.
        """

    @abstractmethod
    def tokens(self, part: TextPart) -> TokenPiece:
        """Return the tokens of a part of a text, with their places in it. The part does not end the text.

        Raises:
            TextError, TokenError: as `read`.
        """

    def encode_piece(self, text: str | bytes, previous: int | None) -> Ids:
        """Return token ids (n,) of a piece of a text; None: the piece begins the text.

        Raises:
            TextError, TokenError: as `read`.
        """
        return self.tokens(TextPart(self.in_units(text, "the text"), previous, previous is not None)).ids

    def in_units(self, text: Text, name: str) -> Text:
        """Return a text in the unit of this tokenizer's places: bytes if `offsets_in_bytes`, else characters.

        Raises:
            TextError: it needs characters, and the text is not UTF-8.
        """
        return utf8_bytes(text, name) if self.offsets_in_bytes else utf8_text(text, name)

    @abstractmethod
    def decode(self, ids: Ids | list[int], special: bool = False) -> str:
        """Return the text of token ids, with `special` also the names of special tokens that stand for no text."""

    def text_of(self, token: int) -> str:
        """Return the text that a token adds behind others: many tokenizers drop the space of a first token."""
        first, both = self.decode([token]), self.decode([token, token])
        return both.removeprefix(first) if both.startswith(first) else first

    def id_of(self, name: str) -> int | None:
        """Return the id of the token that the vocabulary lists under this name; None if there is none."""
        return None

    def word_starts(self) -> list[int]:
        """Return the ids of tokens that begin with white space, and of those that end a text.

        Raises:
            OptionError: the tokens do not show where words end.
        """
        raise no_boundaries("this bundle has no tokenizer")

    def read(
        self, file: BinaryIO, name: str, counts: TextCounts, limits: Limits = DOCUMENT_LIMITS, before: bytes = b""
    ) -> Iterator[TokenPiece]:
        """Yield the tokens of a document in order, in settled parts, and add to `counts` on the way.

        Args:
            before: text before the document, which is tokenized with it: it has places below 0, and is not counted.

        Raises:
            TextError, TokenError: the document cannot be tokenized, or text beyond `limits` must be held at a time.
        """
        held = self.in_units(before, f"{name}, in its context")
        place, previous = -len(held), None
        for text, _ in self.parts(file, name, counts, limits, held):
            part = TextPart(text, previous, place > -len(held), place, name, limits)
            yield (piece := self.placed(part, counts))
            previous = int(piece.ids[-1]) if len(piece) else previous
            place += len(text)

    def parts(
        self, file: BinaryIO, name: str, counts: TextCounts, limits: Limits, held: Text = ""
    ) -> Iterator[tuple[Text, bool]]:
        """Yield the settled parts of a text, and whether each is the rest, which comes last; add to `counts`.

        Args:
            held: text before the file's, in characters, or in bytes if `offsets_in_bytes`.
        """
        whole: Any = held or (b"" if self.offsets_in_bytes else "")
        enough = 1
        for part in _pieces(file, counts) if self.offsets_in_bytes else text_pieces(file, name, counts):
            whole += part
            if len(whole) < enough:
                continue
            if settled := self.settled(whole):
                yield whole[:settled], False
                whole = whole[settled:]
            if len(whole) > limits.bytes:
                unit = "bytes" if self.offsets_in_bytes else "characters"
                raise TextError(
                    f"{name}: a word of more than {limits.bytes:,} {unit}.",
                    hint="Check that it is a text of words, or allow longer ones: --set max_document_bytes=N.",
                )
            enough = 2 * len(whole)  # so that a run without a boundary is not searched again for each part
        yield whole, True

    def placed(self, part: TextPart, counts: TextCounts) -> TokenPiece:
        """Return the tokens of a part with their places in the document; count what the document's first one covers."""
        piece, place = self.tokens(part), part.place
        if part.previous is None and len(piece):
            covered = utf8_bytes(part.text, part.name)[: self.bytes_of_first(part.text, piece)]
            # What is before has no token: white space. Before place 0 it is not the document's.
            counts.first_token_bytes = max(place + len(covered), 0)
            counts.first_token_chars = max(place + sum(byte & 0xC0 != 0x80 for byte in covered), 0)
        return TokenPiece(piece.ids, piece.starts + place, piece.ends + place)

    def bytes_of_first(self, text: Text, piece: TokenPiece) -> int:
        """Return how many bytes of a text its first token covers, with what comes before the token."""
        return len(utf8_bytes(text[: piece.ends[0]], "the text"))


def no_boundaries(why: str) -> OptionError:
    """Return the error for tokens that do not show where words end."""
    return OptionError(f"no correction for word boundaries: {why}.", hint="Leave it out.")


def as_ids(source: npt.ArrayLike, name: str) -> Ids:
    """Return token ids (n,) from a caller's array or list.

    Raises:
        TokenError: not whole numbers, or not along one axis.
    """
    try:
        ids = np.asarray(source)
    except ValueError as error:  # nested lists of unequal lengths
        raise TokenError(f"{name}: token ids must be whole numbers along one axis, found uneven lists.") from error
    if isinstance(source, list | tuple) and ids.dtype.kind == "i" and any(type(token) is bool for token in source):
        raise TokenError(f"{name}: token ids must be whole numbers along one axis, found true or false among them.")
    if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
        raise TokenError(
            f"{name}: token ids must be whole numbers along one axis, found {ids.dtype} of shape {ids.shape}."
        )
    return ids.astype(np.int64)


def check_ids(ids: Ids, vocab_size: int, name: str, first: int = 0) -> None:
    """Refuse token ids that the model lacks: ONNX Runtime would read another row, or past the table.

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
            f"{name}: token {first + at} has id {int(ids[at])}, expected 0 to {vocab_size - 1} ({len(wrong)} such).",
            hint="Tokenize it with the model's own vocabulary.",
        )


def check_length(tokens: int, evaluation: EvaluationSettings, name: str, length: str | None = None) -> None:
    """Refuse a document that is longer than the model can read, unless it may restart.

    Args:
        tokens: number of tokens in the document.
        length: the length as the message shows it; None: `tokens`.

    Raises:
        TooLongError: the message has the longest length.
    """
    longest, most = evaluation.longest_part, evaluation.longest_document
    if longest is not None and most is not None and tokens > most and not evaluation.restart:
        one_more = "" if evaluation.bidirectional else " and predicts one more"
        more = (
            " or give a larger segment_len," if evaluation.full_document and longest != evaluation.max_positions else ""
        )
        raise TooLongError(
            f"{name}: {length or f'{tokens:,} tokens'}, but at most {most:,} are possible: the model reads "
            f"{longest:,} tokens of a document{one_more}.",
            hint=f"Make it shorter,{more} or let it begin again every {longest:,} tokens (restart=True, --restart).",
        )


def encode(
    source: str | bytes | npt.NDArray[np.int64] | list[int], tokenizer: Tokenizer, vocab_size: int, name: str
) -> Ids:
    """Return token ids (n,), within the vocabulary, of a text that may go on, or of given ids.

    Raises:
        TokenError, TextError: it is not usable.
    """
    ids = tokenizer.encode_piece(source, None) if isinstance(source, str | bytes) else as_ids(source, name)
    check_ids(ids, vocab_size, name)
    return ids


def utf8_bytes(text: str | bytes, name: str) -> bytes:
    """Return the UTF-8 bytes of a text.

    Raises:
        TextError: the text has half of a surrogate pair.
    """
    if isinstance(text, bytes):
        return text
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TextError(
            f"{name}: character {error.start} is half of a surrogate pair (U+{ord(text[error.start]):04X}), which "
            "UTF-8 cannot hold.",
            hint="Give bytes, or replace it.",
        ) from error


def utf8_text(text: str | bytes, name: str) -> str:
    """Return the characters of a text.

    Raises:
        TextError: bytes that are not UTF-8, or half of a surrogate pair.
    """
    raw = utf8_bytes(text, name)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(name, error.start, error) from error


def whole_characters(raw: bytes) -> bytes:
    """Return UTF-8 bytes without a last character that is not complete."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    decoder.decode(raw)
    return raw[: len(raw) - len(decoder.getstate()[0])]


def _pieces(file: BinaryIO, counts: TextCounts) -> Iterator[bytes]:
    """Yield the bytes of a file, PIECE_BYTES at a time, and add to `counts` on the way."""
    while raw := file.read(PIECE_BYTES):
        counts.add(raw)
        yield raw


def text_pieces(file: BinaryIO, name: str, counts: TextCounts) -> Iterator[str]:
    """Yield the characters of a UTF-8 file piece by piece, and add to `counts` on the way.

    Raises:
        TextError: the file is not UTF-8; the message has the place of the byte.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for raw in _pieces(file, counts):
            yield decoder.decode(raw)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:  # its bytes begin with the rest of earlier pieces, and end here
        at = counts.bytes - len(error.object) + error.start
        raise _not_utf8(name, at, error, b"".join(itertools.islice(_pieces(file, TextCounts()), LOOKED_AT))) from error


def encoding_hint(raw: bytes, name: str) -> str:
    """Return what to do with a file that is not UTF-8, given bytes of it: bytes 0x80 to 0x9f are letters of cp1252."""
    encoding = "cp1252" if re.search("[\udc80-\udc9f]", raw.decode("utf-8", "surrogateescape")) else "latin1"
    return f"Convert it, for instance: iconv -f {encoding} -t utf-8 {quoted(name)} > text.txt"


def _not_utf8(name: str, at: int, error: UnicodeDecodeError, rest: bytes = b"") -> TextError:
    where = f"{name}: not UTF-8 at byte {at} (0x{error.object[error.start]:02x})"
    if error.reason == "unexpected end of data":
        hint = "Copy it again, or cut it before that byte. If it is in another encoding, convert it with iconv."
        return TextError(f"{where}: the text ends within a character.", hint=hint)
    return TextError(f"{where}, and the tokenizer needs text.", hint=encoding_hint(error.object + rest, name))
