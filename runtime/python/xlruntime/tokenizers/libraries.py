"""Tokenizers of other libraries, `tokenizers` and `sentencepiece`, imported when a bundle needs them."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..documents import DOCUMENT_LIMITS, Ids, TextCounts, Tokenizer, TokenPiece, no_boundaries, utf8_text
from ..errors import TextError, VocabularyError, XlruntimeError
from ..limits import Limits, read_at_most
from ..messages import first_line
from .sentencepiece_file import read_sentencepiece
from .tokenizer_file import read_tokenizer_json

__all__ = ["TOKENIZER_LIMITS", "SentencePieceTokenizer", "TokenizersTokenizer"]

TOKENIZER_LIMITS = Limits()  # of a file; the largest published files need half


MEASURED_AT_ONCE = 1024  # characters
MOST_GROWTH = 2  # by the tokenizer, of a document at the length limit

META_SPACE = "\u2581"  # how SentencePiece and its like write a space
# How tokens of each kind write white space at their beginning: a space, \t, \n, \v, \f and \r of ByteLevel.
MARKS = {"ByteLevel": "\u0120\u0109\u010a\u010b\u010c\u010d", "Metaspace": META_SPACE, "Replace": META_SPACE}
SPACE_BYTES = {f"<0x{byte:02X}>" for byte in b" \t\n\v\f\r"}  # tokens of single bytes


class _LibraryTokenizer(Tokenizer):
    """A library's tokenizer. Documents must be UTF-8, and are read whole: cuts would change tokens.

    Attributes:
        growth: most bytes that the library makes of one byte of text, before it cuts the text into tokens.
    """

    growth: int

    @abstractmethod
    def _ids(self, text: str) -> list[int]:
        """Return ids; other threads run meanwhile."""

    @abstractmethod
    def _tokens(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return ids, and the begin and end of each in `text`, in characters."""

    @abstractmethod
    def _text(self, ids: list[int]) -> str:
        """Return the text of ids."""

    @abstractmethod
    def _normalized(self, text: str) -> str:
        """Return the text that the library cuts into tokens."""

    @cached_property
    def merges_newlines(self) -> bool:  # type: ignore[override]  # it takes two calls of the library
        """Whether a newline has the same tokens as a space."""
        try:
            return bool(np.array_equal(self.encode("a\nb"), self.encode("a b")))
        except TextError:  # the vocabulary lacks them, and has no unknown token
            return False

    def encode(self, text: str | bytes) -> Ids:
        """Return token ids (n,) of a text, without special tokens."""
        return np.array(self._encode(utf8_text(text, "the text"), "the text", self._ids), np.int64)

    def decode(self, ids: Ids | list[int]) -> str:
        """Return the text of token ids.

        Raises:
            TextError: the library fails on them.
        """
        with _errors_of_library(TextError, "the library cannot turn the token ids into text"):
            return self._text([int(token) for token in ids])

    def read(
        self, file: BinaryIO, name: str, counts: TextCounts, limits: Limits = DOCUMENT_LIMITS
    ) -> Iterator[TokenPiece]:
        """Yield the whole document as one piece.

        Raises:
            TextError: the document exceeds `limits`, or the library fails on it.
        """
        raw = read_at_most(file, limits.budget(name, TextError))
        counts.add(raw)
        text = utf8_text(raw, name)
        ids, places = self._encode(text, name, self._tokens, limits)
        offsets = np.array(places, np.int64).reshape(-1, 2)
        if len(offsets):
            counts.first_token_chars = int(offsets[0, 1])
            counts.first_token_bytes = len(text[: offsets[0, 1]].encode("utf-8"))
        yield TokenPiece(np.array(ids, np.int64), offsets[:, 0], offsets[:, 1])

    def _encode(self, text: str, name: str, function: Callable[[str], Any], limits: Limits = DOCUMENT_LIMITS) -> Any:
        with _errors_of_library(TextError, f"{name}: the bundle's tokenizer fails on this text"):
            self._check_growth(text, name, limits)
            return function(text)

    def _check_growth(self, text: str, name: str, limits: Limits) -> None:
        """Refuse a text that the library would expand to more than MOST_GROWTH times the limit.

        The expanded text is measured piece by piece, unless the whole certainly fits.
        """
        most = MOST_GROWTH * limits.bytes
        if 4 * len(text) * self.growth <= most:
            return
        budget = Limits(most, limits.operations, limits.seconds).budget(
            f"{name}, as its tokenizer writes it", TextError
        )
        for start in range(0, len(text), MEASURED_AT_ONCE):
            written = self._normalized(text[start : start + MEASURED_AT_ONCE])
            budget.charge(len(written.encode("utf-8", "replace")))


class TokenizersTokenizer(_LibraryTokenizer):
    """A `tokenizer.json` of the `tokenizers` library.

    Raises:
        TextError: the `tokenizers` package is not installed.
        VocabularyError: the file is not a tokenizer, or has parts not known to be harmless.
    """

    def __init__(self, path: Path, limits: Limits = TOKENIZER_LIMITS) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise _not_installed("tokenizers", path) from error
        fields, text, self.growth = read_tokenizer_json(path, limits)
        with _errors_of_library(VocabularyError, f"{path}: not a tokenizer of the tokenizers library"):
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            self.vocab_size = int(self._tokenizer.get_vocab_size())
            self.unk_id = self._unk_id(fields["model"])
        self._kinds = _kinds({name: fields.get(name) for name in ("normalizer", "pre_tokenizer", "decoder")})

    def word_starts(self) -> list[int]:
        """Return the ids of tokens that begin with white space, and of special tokens except the unknown one.

        Raises:
            OptionError: the tokens do not show white space.
        """
        marks = {mark for kind, symbols in MARKS.items() if kind in self._kinds for mark in symbols}
        if not marks:
            raise no_boundaries("the tokens of this tokenizer.json do not show white space")
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        starts = {number for name, number in vocabulary.items() if name[:1] in marks or name in SPACE_BYTES}
        added = self._tokenizer.get_added_tokens_decoder().items()
        ends = {number for number, token in added if token.special and number != self.unk_id}
        return sorted(starts | ends) if starts else []

    def _normalized(self, text: str) -> str:
        normalizer = self._tokenizer.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def _text(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids))

    def id_of(self, name: str) -> int | None:
        """Return the id of the token of this name; None if there is none."""
        number = self._tokenizer.token_to_id(name)
        return None if number is None else int(number)

    def _ids(self, text: str) -> list[int]:
        # Only calls for lists let other threads run.
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def _tokens(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def _unk_id(self, model: dict[str, Any]) -> int | None:
        """Return the id of the unknown token; a model has either its id or its text."""
        token = model.get("unk_token")
        number = model.get("unk_id") if token is None else self._tokenizer.token_to_id(token)
        return None if number is None else int(number)


class SentencePieceTokenizer(_LibraryTokenizer):
    """A model file of the `sentencepiece` library.

    Raises:
        TextError: the `sentencepiece` package is not installed.
        VocabularyError: the file is not such a model.
    """

    def __init__(self, path: Path, limits: Limits = TOKENIZER_LIMITS) -> None:
        try:
            import sentencepiece
        except ImportError as error:
            raise _not_installed("sentencepiece", path) from error
        raw, self.growth = read_sentencepiece(path, limits)
        with _errors_of_library(VocabularyError, f"{path}: not a SentencePiece model"):
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=raw or b" ")
            self.vocab_size = int(self._processor.vocab_size())
            self.unk_id = int(self._processor.unk_id())

    def word_starts(self) -> list[int]:
        """Return the ids of pieces that begin with white space, and of control pieces such as the end of a text."""
        model = self._processor
        names = [(number, model.id_to_piece(number)) for number in range(model.vocab_size())]
        return [
            number
            for number, name in names
            if name[:1] == META_SPACE or name in SPACE_BYTES or model.is_control(number)
        ]

    def _normalized(self, text: str) -> str:
        return str(self._processor.normalize(text))

    def _text(self, ids: list[int]) -> str:
        return str(self._processor.decode(ids))

    def id_of(self, name: str) -> int | None:
        """Return the id of the piece of this name; None if there is none."""
        number = int(self._processor.piece_to_id(name))  # of the unknown token, if the model lacks the piece
        return number if self._processor.id_to_piece(number) == name else None

    def _ids(self, text: str) -> list[int]:
        return self._processor.encode(text, out_type=int)

    def _tokens(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = self._processor.encode(text, return_type="offset_mapping", return_bytes=False)
        return encoding["ids"], encoding["offsets"]


def _kinds(part: Any) -> set[str]:
    """Return the types of all parts of a section of tokenizer.json."""
    if isinstance(part, list):
        return set().union(*map(_kinds, part))
    if not isinstance(part, dict):
        return set()
    own = {part["type"]} if isinstance(part.get("type"), str) else set()
    return own.union(*map(_kinds, part.values()))


@contextlib.contextmanager
def _errors_of_library(kind: type[XlruntimeError], what: str) -> Iterator[None]:
    """Turn a library's exception into an error of the class `kind`.

    A panic of Rust derives from BaseException alone, and has already printed a line on standard error.
    """
    try:
        yield
    except (XlruntimeError, MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise kind(
            f"{what} ({first_line(error)}).",
            hint="Check where the tokenizer and the text come from.",
        ) from error


def _not_installed(package: str, path: Path) -> TextError:
    return TextError(
        f"{path.name} needs the {package} package, which is not installed.",
        hint=f"Install it: pip install {package}.",
    )
