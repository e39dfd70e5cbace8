"""A vocabulary: the symbol of each token id, and the rules by which text becomes symbols.

A bundle has it as `vocabulary.json`. `symbols[i]` is token i:

    words       text between white space
    characters  one character each
    bytes       decimal numbers of bytes, "32" for a space
    symbols     texts of one or more characters; the longest at each place is the next token, but none with a role
    trie        the same for bytes, written in hexadecimal digits; "" is an id without text
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from ..errors import VocabularyError
from ..limits import Limits, parse_json
from ..messages import listed, one_line, shown

__all__ = ["VOCABULARY_FORMAT", "Vocabulary", "VocabularyKind", "is_byte"]

VOCABULARY_FORMAT = "xlexport vocabulary"

VocabularyKind = Literal["words", "characters", "bytes", "symbols", "trie"]
LONGEST_SYMBOL = 1000  # bytes or characters
HEX = re.compile("(?:[0-9a-f]{2})*", re.ASCII)
ROLES = ("unk", "line_start", "line_end", "space")


@dataclass(frozen=True)
class Vocabulary:
    """Symbols in the order of their token ids, and the rules by which text becomes symbols.

    Raises:
        VocabularyError: symbols are empty, duplicate or not of the kind, or the symbol of a role is missing; lists all
            problems.
    """

    kind: VocabularyKind
    symbols: tuple[str, ...] = field(repr=False)
    unk: str | None = None
    """Symbol for text that the vocabulary lacks; None: such text is refused."""
    line_start: str | None = None
    """Symbol before the tokens of every line."""
    line_end: str | None = None
    """Symbol after the tokens of every line, also a blank line and a last line without newline."""
    lower_case: bool = False
    """Whether text is lower-cased first."""
    space: str | None = None
    """For characters: symbol for a space."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(VocabularyKind):
            raise VocabularyError(
                f"a vocabulary of {shown(self.kind)}; expected one of {', '.join(get_args(VocabularyKind))}."
            )
        problems = list(self._problems())
        if problems:
            raise VocabularyError("; ".join(problems) + ".")

    def __len__(self) -> int:
        return len(self.symbols)

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Token id of each symbol."""
        return {symbol: number for number, symbol in enumerate(self.symbols) if symbol}

    def id_of(self, symbol: str | None) -> int | None:
        """Return the token id of a symbol; None if it has none."""
        return None if symbol is None else self.index.get(symbol)

    def to_json(self) -> str:
        """Return `vocabulary.json` as text, one symbol per line."""
        rules = {"kind": self.kind, "lower_case": self.lower_case, **{role: getattr(self, role) for role in ROLES}}
        head = json.dumps({"format": VOCABULARY_FORMAT, **rules}, ensure_ascii=False)
        symbols = json.dumps(self.symbols, ensure_ascii=False, separators=(",\n", ": "))
        return f'{head[:-1]}, "symbols": {symbols}}}\n'

    @classmethod
    def from_json(cls, text: str, where: str) -> Vocabulary:
        """Read `vocabulary.json`.

        Args:
            text: content of the file.
            where: its path, for messages.

        Raises:
            VocabularyError: `to_json` cannot have written it.
        """
        budget = Limits().budget(where, VocabularyError, "Convert the checkpoint again.")
        return cls.from_fields(parse_json(text.encode("utf-8", "surrogatepass"), budget, strict=True), where)

    @classmethod
    def from_fields(cls, fields: Any, where: str) -> Vocabulary:
        """Make a vocabulary from the parsed `vocabulary.json`.

        Raises:
            VocabularyError: `to_json` cannot have written it.
        """
        if not isinstance(fields, dict) or fields.pop("format", None) != VOCABULARY_FORMAT:
            raise VocabularyError(
                f"{where}: not a vocabulary that xlexport wrote.", hint="Convert the checkpoint again."
            )
        try:
            if not isinstance(fields.get("symbols"), list):  # a tuple of a text would have its characters
                raise VocabularyError("its symbols are not a list")
            return cls(**{**fields, "symbols": tuple(fields["symbols"])})
        except (TypeError, VocabularyError) as error:
            raise VocabularyError(
                f"{where}: a broken vocabulary ({one_line(str(error))}).", hint="Convert the checkpoint again."
            ) from error

    def _problems(self) -> Iterable[str]:
        symbols: tuple[object, ...] = self.symbols  # from a file, so they may have any type
        # Check each text once: a long text with a million copies would take hours.
        texts = {symbol for symbol in symbols if isinstance(symbol, str)}
        good: set[object] = {symbol for symbol in texts if _is_text(symbol)}
        without_text = "" if self.kind == "trie" else None
        wrong = [
            f"{number} is {shown(symbol)}"
            for number, symbol in enumerate(symbols)
            if symbol != without_text and (not isinstance(symbol, str) or symbol not in good)
        ]
        if wrong:  # the checks below need strings
            yield f"symbols must be text that is not empty, but symbol {listed(wrong)}"
            return
        if not self.symbols:
            yield "a vocabulary without symbols"
        if len(self.index) < len([symbol for symbol in self.symbols if symbol]):
            twice = [shown(symbol) for symbol, times in Counter(self.symbols).items() if times > 1 and symbol]
            yield f"symbols occur more than once: {listed(twice)}"
        invalid = [shown(symbol) for symbol in self.symbols if not self._is_of_kind(symbol)]
        if invalid:
            yield f"symbols that are not {self.kind}: {listed(invalid)}"
        for role in ROLES:
            symbol = getattr(self, role)
            if symbol is not None and symbol not in self.index:
                yield f"{role} is {shown(symbol)}, which is not a symbol of the vocabulary"
        for role, kind in (("space", "characters"), ("line_start", "words")):
            if getattr(self, role) is not None and self.kind != kind:
                yield f"{role} is {shown(getattr(self, role))}, expected None for {self.kind}"
        if not isinstance(self.lower_case, bool):
            yield f"lower_case is {shown(self.lower_case)}, expected true or false"
        elif self.lower_case and self.kind in ("symbols", "trie"):
            yield f"lower_case is true, expected false for {self.kind}"

    def _is_of_kind(self, symbol: str) -> bool:
        if self.kind == "trie":
            return len(symbol) <= 2 * LONGEST_SYMBOL and HEX.fullmatch(symbol) is not None
        if self.kind == "words" or _is_bracketed(symbol):
            return True
        if self.kind in ("characters", "symbols"):
            return len(symbol) <= (1 if self.kind == "characters" else LONGEST_SYMBOL)
        return is_byte(symbol)


def is_byte(symbol: str) -> bool:
    """Return whether a symbol is the decimal number of a byte, as in enwik8's vocabulary."""
    return (
        len(symbol) <= 3 and symbol.isascii() and symbol.isdigit() and str(int(symbol)) == symbol and int(symbol) < 256
    )


def _is_bracketed(symbol: str) -> bool:
    """Return whether a symbol is a special token such as `<eos>`, not made from bytes or characters."""
    return len(symbol) > 2 and symbol.startswith(("<", "[")) and symbol.endswith((">", "]"))


def _is_text(symbol: str) -> bool:
    """Return whether a symbol is not empty, and UTF-8 can encode it."""
    try:
        return bool(symbol.encode("utf-8"))
    except UnicodeEncodeError:
        return False
