"""The end of a growing text, which is held back because a later piece may change its tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .documents import Ids, TextPart, Tokenizer, TokenPiece, as_ids, utf8_bytes, utf8_text, whole_characters

__all__ = ["MOST_HELD", "HeldText"]

MOST_HELD = 4096  # bytes of a run without a boundary

Piece = str | bytes | npt.NDArray[np.int64] | list[int]


@dataclass(frozen=True)
class HeldText:
    """What is held back of a document's text.

    Attributes:
        raw: the UTF-8 bytes of the text that has no tokens yet.
        begun: whether the text goes on after earlier text or drawn tokens; else its first tokens begin a text.
        unsettled_cuts: how often a run without a boundary was so long that it was cut all the same.
    """

    raw: bytes = b""
    begun: bool = False
    unsettled_cuts: int = 0

    def fed(self, piece: Piece, tokenizer: Tokenizer, previous: int | None) -> tuple[Ids, HeldText]:
        """Return the token ids (n,) that are certain after a further piece, and what is held then.

        Token ids come after the held text, as if it ended there.

        Args:
            previous: the last token before the held text; None at the beginning of the document.

        Raises:
            TextError, TokenError: the piece is not usable.
        """
        if isinstance(piece, str | bytes):
            tokens, held = self.grown(piece, tokenizer, previous)
            return tokens.ids, held
        ids, held = as_ids(piece, "the stream"), self
        if self.raw:
            tokens, held = self.ended(tokenizer, previous)
            ids = np.concatenate([tokens.ids, ids])
        return ids, replace(held, begun=False) if len(piece) else held

    def continued(self, piece: Piece, tokenizer: Tokenizer, previous: int | None) -> tuple[Ids, int]:
        """Return token ids (n,) of the held text and a continuation, and how many are wholly of the held text.

        The continuation ends the text. A token that begins in the held text and ends behind it is the continuation's.

        Raises:
            TextError, TokenError: as `fed`.
        """
        if not isinstance(piece, str | bytes):
            ids, _ = self.fed(piece, tokenizer, previous)
            return ids, len(ids) - len(piece)
        tokens, _ = self.ended(tokenizer, previous, piece)
        whole = self.raw if tokenizer.offsets_in_bytes else whole_characters(self.raw).decode("utf-8")
        before = (tokens.starts < len(whole)) & (tokens.ends <= len(whole))
        return tokens.ids, int(np.count_nonzero(before))

    def grown(self, piece: str | bytes, tokenizer: Tokenizer, previous: int | None) -> tuple[TokenPiece, HeldText]:
        """Return the tokens that are certain after a further piece of text, and what is held then; see `fed`."""
        raw = self.raw + utf8_bytes(piece, "the text")
        whole = raw if tokenizer.offsets_in_bytes else utf8_text(whole_characters(raw), "the text")
        settled, cuts = tokenizer.settled(whole), self.unsettled_cuts
        rest = raw[len(utf8_bytes(whole[:settled], "the text")) :]
        if len(rest) > MOST_HELD:
            settled, cuts = len(whole), cuts + 1
            rest = raw[len(utf8_bytes(whole, "the text")) :]
        tokens = tokenizer.tokens(TextPart(whole[:settled], previous, self.begun))
        return tokens, HeldText(rest, self.begun or settled > 0, cuts)

    def ended(self, tokenizer: Tokenizer, previous: int | None, more: str | bytes = b"") -> tuple[TokenPiece, HeldText]:
        """Return the tokens of the held text and of `more`, as if the text ended there, and what is held then."""
        raw = self.raw + utf8_bytes(more, "the text")
        whole = raw if tokenizer.offsets_in_bytes else utf8_text(raw, "the text")
        tokens = tokenizer.tokens(TextPart(whole, previous, self.begun))
        return tokens, replace(self, raw=b"", begun=self.begun or bool(raw))
