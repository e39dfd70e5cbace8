"""The tokenizer of a checkpoint: the content of its file, as plain text that JSON and pickles hold."""

import base64
import binascii
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

from xltraining.errors import RunFileError
from xltraining.messages import shown

__all__ = ["TokenizerFile", "TokenizerKind", "tokenizer_from_plain", "tokenizer_to_plain"]

TokenizerKind = Literal["vocabulary", "tokenizers", "sentencepiece"]


@dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer that has a file: a vocabulary of xlexport, a tokenizer.json, or a SentencePiece model."""

    kind: TokenizerKind
    content: bytes = field(repr=False)


def tokenizer_to_plain(tokenizer: str | TokenizerFile | None) -> str | dict[str, str] | None:
    """Return a tokenizer as a checkpoint stores it: JSON files as their text, SentencePiece models in base64."""
    if not isinstance(tokenizer, TokenizerFile):
        return tokenizer
    is_text = tokenizer.kind != "sentencepiece"
    content = tokenizer.content.decode("utf-8") if is_text else base64.b64encode(tokenizer.content).decode("ascii")
    return {"kind": tokenizer.kind, "file": content}


def tokenizer_from_plain(value: Any, path: Path) -> str | TokenizerFile | None:
    """Return the tokenizer that `tokenizer_to_plain` made plain.

    Raises:
        RunFileError: it cannot have written the value.
    """
    if value is None:
        return None
    if isinstance(value, str) and value == "bytes":
        return value
    if isinstance(value, dict) and value.keys() == {"kind", "file"}:
        kind, content = value["kind"], value["file"]
        if isinstance(kind, str) and kind in get_args(TokenizerKind) and isinstance(content, str):
            try:
                raw = base64.b64decode(content, validate=True) if kind == "sentencepiece" else content.encode("utf-8")
                return TokenizerFile(cast(TokenizerKind, kind), raw)
            except (binascii.Error, UnicodeEncodeError, ValueError):
                pass
    raise RunFileError(
        f"{path}: its tokenizer is {shown(value)}, expected 'bytes', none, or a kind with its file.",
        hint="Write it again.",
    )
