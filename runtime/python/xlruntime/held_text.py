"""The end of a growing text, which is held back because a later piece may change its tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .documents import Text, Tokenizer, TokenPiece, utf8_bytes, utf8_text, whole_characters

__all__ = ["MOST_HELD", "HeldText"]

MOST_HELD = 4096  # bytes of a run without a boundary


@dataclass(frozen=True)
class HeldText:
    """What a stream holds back of its document's text.

    Attributes:
        raw: the UTF-8 bytes of the text that has no tokens yet.
        begun: whether the text goes on after earlier text or drawn tokens; else its first tokens begin a text.
        unsettled_cuts: how often a run without a boundary was so long that it was cut all the same.
    """

    raw: bytes = b""
    begun: bool = False
    unsettled_cuts: int = 0

    def size(self, tokenizer: Tokenizer) -> int:
        """Return the length of the text in the unit of the tokenizer's places, without a character's first bytes."""
        return len(self.raw if tokenizer.offsets_in_bytes else whole_characters(self.raw).decode("utf-8"))

    def grown(self, piece: str | bytes, tokenizer: Tokenizer, previous: int | None) -> tuple[TokenPiece, HeldText]:
        """Return the tokens that are certain after a further piece of the text, and what is held then.

        Args:
            previous: the last token before the held text; None at the beginning of the document.

        Raises:
            TextError, TokenError: the piece cannot be tokenized.
        """
        raw = self.raw + utf8_bytes(piece, "the text")
        whole = raw if tokenizer.offsets_in_bytes else utf8_text(whole_characters(raw), "the text")
        settled, cuts = tokenizer.settled(whole), self.unsettled_cuts
        rest = raw[len(_bytes(whole[:settled])) :]
        if len(rest) > MOST_HELD:
            settled, cuts = len(whole), cuts + 1
            rest = raw[len(_bytes(whole)) :]
        tokens = tokenizer.tokens(whole[:settled], previous, self.begun)
        return tokens, HeldText(rest, self.begun or settled > 0, cuts)

    def ended(self, tokenizer: Tokenizer, previous: int | None, more: str | bytes = b"") -> tuple[TokenPiece, HeldText]:
        """Return the tokens of the held text and of `more`, as if the text ended there, and what is held then."""
        raw = self.raw + utf8_bytes(more, "the text")
        whole = raw if tokenizer.offsets_in_bytes else utf8_text(raw, "the text")
        tokens = tokenizer.tokens(whole, previous, self.begun)
        return tokens, replace(self, raw=b"", begun=self.begun or bool(raw))


def _bytes(text: Text) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8")
