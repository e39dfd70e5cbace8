"""Traits of texts that change scores without being seen: line ends, spaces, composed characters, encodings."""

from __future__ import annotations

import codecs
import re
import unicodedata
from dataclasses import asdict, dataclass

from xlruntime.documents import Tokenizer
from xlruntime.messages import counted
from xlruntime.tokenizers import VocabularyTokenizer

__all__ = ["NA", "TextTraits", "TraitCounter", "trait_notes"]

NA = "NA"  # as R and pandas write a missing value
NO_BREAK = re.compile(r"\S[\u00a0\u202f](?=\S)")
REMOVED = {"words": ("cr_lf", "cr", "no_break"), "characters": ("cr_lf", "cr")}  # by the kind of a vocabulary
OVERLAP = 2  # characters of a piece that belong to a match in the next one


@dataclass
class TextTraits:
    """Numbers of traits in documents.

    Attributes:
        cr_lf, cr: line ends of CR and LF, and carriage returns without LF.
        no_break: no-break spaces between other characters.
        not_nfc, not_utf8: documents with characters that are not composed, or bytes that are not UTF-8.
        na: contexts and texts that are exactly NA.
    """

    cr_lf: int = 0
    cr: int = 0
    no_break: int = 0
    not_nfc: int = 0
    not_utf8: int = 0
    na: int = 0

    def add_traits(self, other: TextTraits) -> None:
        """Add those of another text."""
        for name in TextTraits.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class TraitCounter:
    """Counts the traits of one document while its bytes pass, at constant memory."""

    def __init__(self) -> None:
        self.found = TextTraits()
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._before, self._ended_in_cr = "", False

    def add(self, raw: bytes, ended: bool) -> None:
        """Count the next bytes; with `ended`, also what may have been cut at the end of a text."""
        found = self.found
        if self._ended_in_cr or b"\r" in raw:
            together = b"\r" * self._ended_in_cr + raw
            self._ended_in_cr = not ended and together.endswith(b"\r")
            pairs = together.count(b"\r\n")
            found.cr_lf += pairs
            found.cr += together.count(b"\r") - pairs - self._ended_in_cr
        if found.not_utf8:
            return
        if raw.isascii() and self._before.isascii() and not self._decoder.getstate()[0]:
            self._before = (self._before + raw[-OVERLAP:].decode("ascii"))[-OVERLAP:] if not ended else ""
            return
        try:
            new = self._decoder.decode(raw, ended)
        except UnicodeDecodeError:
            found.not_utf8, self._before = 1, ""
            return
        text = self._before + new
        if "\u00a0" in text or "\u202f" in text:  # as the expression is slow
            found.no_break += len(NO_BREAK.findall(text))
        found.not_nfc |= not unicodedata.is_normalized("NFC", text)
        self._before = "" if ended else text[-OVERLAP:]


def trait_notes(traits: TextTraits, tokenizer: Tokenizer | None = None) -> list[str]:
    """Return a sentence about each trait that there is, without those that the tokenizer of a vocabulary removes."""
    kind = tokenizer.vocabulary.kind if isinstance(tokenizer, VocabularyTokenizer) else ""
    n = {**asdict(traits), **dict.fromkeys(REMOVED.get(kind, ()), 0)}
    notes = (
        ("cr_lf", "line end", "of CR and LF: models read the CR as text. Without it: tr -d '\\r' < FILE > NEW"),
        ("cr", "carriage return", r"without LF, read as text. As line ends: tr '\r' '\n' < FILE > NEW"),
        ("no_break", "no-break space", "within words: what is on both sides is one word."),
        ("not_nfc", "document", "not in Unicode's form NFC: an accent may be a character, and a token, of its own."),
        ("not_utf8", "document", "not UTF-8, whose bytes were read unchanged. iconv converts other encodings."),
        ("na", "context or text cell", "exactly NA, read as this word. --set na=NA reads it as missing."),
    )
    return [f"{counted(n[name], what)} {rest}" for name, what, rest in notes if n[name]]
