"""Make honest and hostile files of the `tokenizers` and `sentencepiece` libraries."""

from __future__ import annotations

import base64
import struct
from typing import Any

WORDS = ("<unk>", "a", "b", "c")
LEAF = 1 << 8
NO_MAP = struct.pack("<I", 1024) + bytes(1024) + b"x\0"  # a trie of one block without a key


def tokenizer_fields(**changed: Any) -> dict[str, Any]:
    """Return a tokenizer of words between white space, with some changed sections."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {word: at for at, word in enumerate(WORDS)}, "unk_token": "<unk>"},
        **changed,
    }


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    """Return a sequence of normalizers."""
    return {"type": "Sequence", "normalizers": list(parts)}


def regex(text: str) -> dict[str, Any]:
    """Return a pre-tokenizer that splits by an expression."""
    return {"type": "Split", "pattern": {"Regex": text}, "behavior": "Isolated", "invert": False}


def replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    """Return a normalizer or decoder."""
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def precompiled(raw: bytes) -> dict[str, Any]:
    """Return a normalizer with a character map."""
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(raw).decode()}


def charsmap(key: int, replacement: bytes, place: int = 0) -> bytes:
    """Return a character map that replaces the byte `key` by the replacement at `place`."""
    units = [0] * 256
    value_at = 5
    units[key] = key | LEAF | (key ^ value_at) << 10
    units[value_at] = 1 << 31 | place
    return struct.pack("<257I", 1024, *units) + replacement


def _varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def field(number: int, content: bytes) -> bytes:
    """Encode a protobuf field of bytes."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def sentencepiece_file(raw_map: bytes = b"", more: bytes = b"", trainer: bytes = b"\x18\x01") -> bytes:
    """Make a Unigram model of four pieces, with a character map."""
    pieces = (("<unk>", 0.0, 2), ("a", -1.0, 1), ("b", -2.0, 1), ("\u2581", -3.0, 1))
    made = [
        field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + _varint(kind))
        for text, score, kind in pieces
    ]
    normalizer = field(1, b"by hand") + (field(2, raw_map) if raw_map else b"")
    return b"".join(made) + more + field(2, trainer) + field(3, normalizer)
