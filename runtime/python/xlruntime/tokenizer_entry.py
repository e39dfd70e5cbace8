"""The tokenizer's entry in the manifest: its kind and files, where its text can be cut, where texts begin and end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from .json_fields import OPTIONAL, Size
from .messages import named

__all__ = ["TextToken", "TokenId", "TokenizerEntry"]

TokenId = Annotated[int, range(2**31)]


@dataclass(frozen=True)
class TextToken:
    """A token that begins or ends a text: its id and name, and `source`, the file or rule that says so."""

    id: TokenId
    name: str
    source: str


@dataclass(frozen=True)
class TokenizerEntry:
    """The tokenizer of a bundle.

    Its kind is `bytes` (id = byte + first_id), `none` (ids only), or one with a file: `vocabulary` (see `Vocabulary`),
    `tokenizers` or `sentencepiece` (files of these libraries).
    """

    kind: Literal["bytes", "vocabulary", "tokenizers", "sentencepiece", "none"]
    file: str | None = None
    first_id: TokenId = 0  # id of byte 0; smaller ids have no text
    size: Size | None = field(default=None, metadata=OPTIONAL)
    """Number of ids that have a text or a role; the model's table may have more rows, which are never drawn."""
    settled: Literal["gpt2", "llama3", "gpt4o", "words", "letters"] | None = field(default=None, metadata=OPTIONAL)
    """Where a library's text can be cut: after pieces of this published pattern, or before words; None: nowhere."""
    bpe: str | None = field(default=None, metadata=OPTIONAL)
    """File of a byte-level BPE for runtimes without the library."""
    begin: TextToken | None = field(default=None, metadata=OPTIONAL)
    """The token that begins a text."""
    adds_begin: bool = field(default=False, metadata=OPTIONAL)
    """Whether the tokenizer's own rule puts `begin` before each text."""
    ends: tuple[TextToken, ...] = field(default=(), metadata=OPTIONAL)
    """The tokens that end a text; generation stops at each of them."""

    def __post_init__(self) -> None:
        if self.first_id and self.kind != "bytes":
            raise ValueError(f"first_id of tokenizer {self.kind!r} is {self.first_id}, expected 0")
        if (self.file is None) != (self.kind in ("bytes", "none")):
            raise ValueError(f"tokenizer {self.kind!r} with file {named(self.file)}: only bytes and none have no file")
        if self.kind not in ("tokenizers", "sentencepiece") and (self.settled, self.bpe) != (None, None):
            raise ValueError(f"tokenizer {self.kind!r} with settled or bpe, which are for files of libraries")
        if self.adds_begin and self.begin is None:
            raise ValueError("adds_begin without a begin token")

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The ids of the tokens that end a text."""
        return tuple(token.id for token in self.ends)

    @property
    def prefix(self) -> TextToken | None:
        """The token to put before a text that needs one: the one that begins texts, else the first that ends them."""
        return self.begin if self.begin is not None else next(iter(self.ends), None)

    @property
    def files(self) -> set[str]:
        """The names of its files."""
        return {name for name in (self.file, self.bpe) if name is not None}
