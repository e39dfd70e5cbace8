"""Tokenizers of other libraries, `tokenizers` and `sentencepiece`, imported when a bundle needs them."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import unicodedata
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

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
from ..errors import TextError, VocabularyError, XlruntimeError
from ..limits import Limits, read_at_most
from ..messages import first_line
from .longest_match import LongestMatch
from .sentencepiece_file import read_sentencepiece
from .tokenizer_file import LONGEST_TOKEN, read_tokenizer_json

__all__ = ["TOKENIZER_LIMITS", "SentencePieceTokenizer", "TokenizersTokenizer"]

TOKENIZER_LIMITS = Limits()  # of a file; the largest published files need half

MEASURED_AT_ONCE = 1024  # characters
MOST_GROWTH = 2  # by the tokenizer, of a document at the length limit

META_SPACE = "\u2581"  # how SentencePiece and its like write a space
BYTE_SPACE = "\u0120"  # how byte-level vocabularies write it
ANCHOR = "\uf8ff"  # a character for private use, whose tokens merge with no others
ENOUGH = 256  # characters of which pieces are known: more than the last two have
# Parts of a tokenizer.json that put a space before each text.
PREFIXING = ('"type": "Prepend"', '"type": "Metaspace"', '"add_prefix_space": true')
BYTE_LEVEL = '"type": "ByteLevel"'
BYTE = re.compile("<0x[0-9A-F]{2}>")
# How names of tokens write white space: a space, and \t, \n, \v, \f and \r of byte-level vocabularies.
MARKS = {
    ord(META_SPACE): " ",
    **dict(zip(map(ord, "\u0120\u0109\u010a\u010b\u010c\u010d"), " \t\n\v\f\r", strict=True)),
}
WHITE_SPACE = tuple(SPACES.decode())
VISIBLE = "LNPS"  # categories of Unicode: letters, numbers, punctuation, symbols


class _LibraryTokenizer(Tokenizer):
    """A library's tokenizer. Documents must be UTF-8; without a rule for cuts they are read whole.

    Attributes:
        growth: most bytes that the library makes of one byte of text, before it cuts the text into tokens.
        rule: the manifest's `settled`: where a text can be cut.
        added: texts of the added tokens.
        prefixes: whether the library puts a space before each text.
    """

    growth: int
    rule: str | None
    joins = True
    added: tuple[str, ...] = ()
    prefixes: bool

    @abstractmethod
    def _ids(self, text: str) -> list[int]:
        """Return ids, in a third of the time of `_tokens`; other threads run meanwhile."""

    @abstractmethod
    def _tokens(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return ids, and the begin and end of each in `text`, in characters; other threads run meanwhile."""

    @abstractmethod
    def _name(self, token: int) -> str:
        """Return the name of a token of this vocabulary."""

    @abstractmethod
    def _text(self, ids: list[int], special: bool) -> str:
        """Return the text of ids, with the names of special tokens or without."""

    @abstractmethod
    def _ends(self) -> Iterable[int]:
        """Return the ids of tokens that end a text."""

    @abstractmethod
    def _normalized(self, text: str) -> str:
        """Return the text that the library cuts into tokens."""

    def settled(self, text: Text) -> int:
        """Return how many characters of a text keep their tokens, whatever follows.

        Raises:
            TextError: the bundle does not say where this tokenizer's text can be cut.
        """
        text = utf8_text(text, "the text")
        if self.rule is None:
            raise TextError(
                "this tokenizer cannot say which tokens a text keeps when it grows.",
                hint="Give whole documents, or token ids.",
            )
        return self._last_cut(text, self.rule == "words")

    def _last_cut(self, text: str, behind_word: bool) -> int:
        """Return the place of the last space between two letters, but not behind an added token; or else 0.

        Args:
            behind_word: whether a visible character before the space is enough.
        """
        at = text.rfind(" ", 0, None if behind_word else -1)
        while at > 0:
            before, after = text[at - 1], text[at + 1 : at + 2]
            fits = unicodedata.category(before)[0] in VISIBLE if behind_word else (before + after).isalpha()
            if fits and not text.endswith(self.added, 0, at):
                return at
            at = text.rfind(" ", 0, at)
        return 0

    def tokens(self, part: TextPart) -> TokenPiece:
        """Return the tokens of a part of a text, with their places in it, in characters.

        A part that goes on gets no space before it: it is tokenized behind an anchor, whose tokens are taken off.
        """
        text, anchor = utf8_text(part.text, part.name), ANCHOR if part.begun and self.prefixes else ""
        ids, places = self._encode(anchor + text, part.name, self._tokens, part.limits)
        anchor_ids = self._ids(ANCHOR) if anchor else []
        size = len(anchor_ids)
        if ids[:size] != anchor_ids:  # the vocabulary does not know the anchor
            return self.tokens(replace(part, begun=False))
        offsets = np.array(places[size:], np.int64).reshape(-1, 2) - len(anchor)
        return TokenPiece(np.array(ids[size:], np.int64), offsets[:, 0], offsets[:, 1])

    @cached_property
    def merges_newlines(self) -> bool:  # type: ignore[override]  # it takes two calls of the library
        """Whether a newline has the same tokens as a space."""
        try:
            return bool(np.array_equal(self.encode("a\nb"), self.encode("a b")))
        except TextError:  # the vocabulary lacks them, and has no unknown token
            return False

    def word_starts(self) -> list[int]:
        """Return the ids of tokens whose text begins with white space, and of those that end a text.

        Raises:
            OptionError: no token begins with white space.
        """
        known = (number for number in range(self.vocab_size or 0) if number != self.unk_id)
        starts = {number for number in known if self.text_of(number)[:1] in WHITE_SPACE}
        if not starts:
            raise no_boundaries("no token of this tokenizer begins with white space")
        return sorted(starts.union(self._ends()))

    def encode(self, text: str | bytes) -> Ids:
        """Return token ids (n,) of a text, without special tokens."""
        return np.array(self._encode(utf8_text(text, "the text"), "the text", self._ids), np.int64)

    def decode(self, ids: Ids | list[int], special: bool = False) -> str:
        """Return the text of token ids. Those that the tokenizer lacks have none: a model's table may have more rows.

        Args:
            special: whether the text has the names of special tokens.

        Raises:
            TextError: the library fails on them.
        """
        with _errors_of_library(TextError, "the library cannot turn the token ids into text"):
            return self._text([int(token) for token in ids if 0 <= token < (self.vocab_size or 0)], special)

    def parts(
        self, file: BinaryIO, name: str, counts: TextCounts, limits: Limits, held: Text = ""
    ) -> Iterator[tuple[Text, bool]]:
        """Yield the settled parts of a text, or the whole if it cannot be cut."""
        if self.rule is not None:
            yield from super().parts(file, name, counts, limits, held)
            return
        raw = read_at_most(file, limits.budget(name, TextError))
        counts.add(raw)
        yield utf8_text(held, name) + utf8_text(raw, name), True

    def bytes_of_first(self, text: Text, piece: TokenPiece) -> int:
        """Return how many bytes of a text its first token covers, which may be a part of a character."""
        start, end = int(piece.starts[0]), int(piece.ends[0])
        before, own = (len(utf8_bytes(part, "the text")) for part in (text[:start], text[start:end]))
        name = self._name(int(piece.ids[0]))
        if name in (META_SPACE, BYTE_SPACE) and text[start:end] != " ":  # that the library has put before the text
            return before
        return before + min(own, self._bytes_of(name))

    def _bytes_of(self, name: str) -> int:
        """Return the most bytes that a token of this name stands for."""
        return 1 if BYTE.fullmatch(name) else LONGEST_TOKEN

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

    def __init__(self, path: Path, limits: Limits = TOKENIZER_LIMITS, rule: str | None = None) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise _not_installed("tokenizers", path) from error
        fields, text, self.growth = read_tokenizer_json(path, limits)
        with _errors_of_library(VocabularyError, f"{path}: not a tokenizer of the tokenizers library"):
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            numbers = self._tokenizer.get_vocab(with_added_tokens=True).values()
            self.vocab_size = 1 + max(map(int, numbers), default=-1)  # some files leave numbers out
            unknown = fields["model"].get("unk_token")  # a model has either its text or its id
            self.unk_id = fields["model"].get("unk_id") if unknown is None else self.id_of(unknown)
            added = self._tokenizer.get_added_tokens_decoder().values()
        self.rule, self.added = rule, tuple(token.content for token in added)
        self._added = LongestMatch(filter(None, self.added))
        first, last = json.dumps([fields.get("normalizer"), fields.get("pre_tokenizer")]), fields.get("decoder")
        self.prefixes = any(form in first for form in PREFIXING)
        self._byte_level = BYTE_LEVEL in first + json.dumps(last)

    def text_of(self, token: int) -> str:
        """Return the text that a token adds behind others; without a decoder, its name with spaces for their marks."""
        if self._tokenizer.decoder is not None:
            return super().text_of(token)
        name = self._name(token)
        return chr(int(name[3:5], 16)) if BYTE.fullmatch(name) else name.translate(MARKS)

    def _ends(self) -> Iterable[int]:
        added = self._tokenizer.get_added_tokens_decoder().items()
        return (number for number, token in added if token.special and number != self.unk_id)

    def settled(self, text: Text) -> int:
        """Return how many characters of a text keep their tokens, whatever follows.

        Under a published pattern, further text changes the last two pieces at the most, and white space behind them.
        """
        text = utf8_text(text, "the text")
        if self.rule in (None, "words", "letters"):
            return super().settled(text)
        near_end = range(max(len(text) - self._added.longest, 0), len(text))
        end = next((at for at in near_end if self._added.may_grow(text, at)), len(text))
        start = self._last_cut(text[: max(end - ENOUGH, 0)], behind_word=False)
        visible = len(text[start:end].rstrip())
        encoding = self._tokenizer.encode(text[start:end], add_special_tokens=False)
        places: dict[Any, int] = {}
        for number, (place, _) in zip(encoding.word_ids, encoding.offsets, strict=True):
            places.setdefault(number, start + place)
        last = [place for place in places.values() if place < start + visible][:-1]
        # White space at the end of a part can be one piece where it is two before a word.
        return next((place for place in reversed(last) if place and not text[place - 1].isspace()), start)

    def _name(self, token: int) -> str:
        return str(self._tokenizer.id_to_token(token))

    def _bytes_of(self, name: str) -> int:
        return len(name) if self._byte_level and name not in self.added else super()._bytes_of(name)

    def _normalized(self, text: str) -> str:
        normalizer = self._tokenizer.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def _text(self, ids: list[int], special: bool) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=not special))

    def id_of(self, name: str) -> int | None:
        """Return the id of the token of this name; None if there is none."""
        number = self._tokenizer.token_to_id(name)
        return None if number is None else int(number)

    def _ids(self, text: str) -> list[int]:
        # Only calls for lists let other threads run.
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def _tokens(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=False)
        return encoding.ids, encoding.offsets


class SentencePieceTokenizer(_LibraryTokenizer):
    """A model file of the `sentencepiece` library.

    Raises:
        TextError: the `sentencepiece` package is not installed.
        VocabularyError: the file is not such a model.
    """

    prefixes = True

    def __init__(self, path: Path, limits: Limits = TOKENIZER_LIMITS, rule: str | None = None) -> None:
        try:
            import sentencepiece
        except ImportError as error:
            raise _not_installed("sentencepiece", path) from error
        raw, self.growth = read_sentencepiece(path, limits)
        with _errors_of_library(VocabularyError, f"{path}: not a SentencePiece model"):
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=raw or b" ")
            self.vocab_size = int(self._processor.vocab_size())
            self.unk_id = int(self._processor.unk_id())
        self.rule = rule

    def _ends(self) -> Iterable[int]:
        return filter(self._processor.is_control, range(self._processor.vocab_size()))

    def _normalized(self, text: str) -> str:
        return str(self._processor.normalize(text))

    def _name(self, token: int) -> str:
        return str(self._processor.id_to_piece(token))

    def _text(self, ids: list[int], special: bool) -> str:
        model = self._processor
        if not special:
            return str(model.decode(ids))
        runs = [(marks, list(run)) for marks, run in itertools.groupby(ids, model.is_control)]
        return "".join("".join(map(model.id_to_piece, run)) if marks else str(model.decode(run)) for marks, run in runs)

    def id_of(self, name: str) -> int | None:
        """Return the id of the piece of this name; None if there is none."""
        number = int(self._processor.piece_to_id(name))  # of the unknown token, if the model lacks the piece
        return number if self._processor.id_to_piece(number) == name else None

    def _ids(self, text: str) -> list[int]:
        return self._processor.encode(text, out_type=int)

    def _tokens(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = self._processor.encode(text, return_type="offset_mapping", return_bytes=False)
        return encoding["ids"], encoding["offsets"]


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
