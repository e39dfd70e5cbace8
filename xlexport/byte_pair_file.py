"""Write a byte-level BPE of a tokenizer.json for runtimes without the `tokenizers` library.

Tables of characters come from the library, whose Unicode versions are its own. docs/bundle_format.md says how a text
is cut.

Numbers are little-endian: u1, u2 and u4 have one, two and four bytes. A text or token is its u2 length, at most 1,000
bytes, and the bytes. Each table begins with the u4 number of its rows. The file has these parts and nothing behind
them, and at most 64 MiB; `:` gives the most rows.

    head            the bytes `xlbpe`, 0, 0, 1; u4 flags: 1 a piece that is a token is not merged, 2 texts are brought
                    into NFC; u4 id of the unknown token, or 2^32 - 1
    tokens: 2^22    the bytes of each id, from 0 on, all different; empty if only an added token has the id. At most
                    `vocab_size`
    merges: 2^22    u4 left, u4 right: ids, by rank. Their bytes together are those of a token; no pair occurs twice
    added: 2^16     u4 id; u1 flags: 1 left out of decoded text, 2 found after normalization; text
    letters, numbers, white space: 2^16 each
                    u4 first, u4 last: ranges of characters, which do not overlap
    With flag 2 of the head, all sorted by characters:
    decompositions: 2^16      u4 character, u1 number of parts (1 to 4), u4 each part. Hangul is computed
    compositions: 2^16        u4 first, u4 second, u4 both together
    combining classes: 2^16   u4 first, u4 last, u1 class, not 0
"""

from __future__ import annotations

import functools
import itertools
import json
import struct
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["BYTE_PAIR_FILE", "byte_pair_file"]

BYTE_PAIR_FILE = "byte_pairs.bin"
MAGIC = b"xlbpe\0\0\1"
IGNORES_MERGES, COMPOSED = 1, 2  # flags of the file
SPECIAL, NORMALIZED = 1, 2  # flags of an added token
NONE = 0xFFFFFFFF
NEVER_UTF8 = (0xC0, 0xC1, *range(0xF5, 0x100))  # bytes that no text has
LONGEST_TOKEN = 1000  # bytes
MOST_TOKENS = 1 << 22
CLASSES = (r"\p{L}", r"\p{N}", r"\s")
# Characters of all other planes are not assigned, or for private use.
CHARACTERS = [*range(1, 0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xE1000)]
HANGUL = range(0xAC00, 0xD7A4)  # syllables, which are computed
LOWEST_MARK = "\u0345"  # of the highest combining class: each other mark moves before it


class _NotThisKindError(Exception):
    """The tokenizer is no byte-level BPE with GPT-2's pattern, or has a part that the file cannot hold."""


def byte_pair_file(content: bytes) -> bytes | None:
    """Return the file for a tokenizer.json; None if it is no byte-level BPE with GPT-2's pattern.

    Args:
        content: a tokenizer.json that the library reads.
    """
    try:
        return b"".join(_parts(json.loads(content)))
    except (_NotThisKindError, KeyError, TypeError, AttributeError, struct.error):  # files may have any fields
        return None


def _parts(fields: dict[str, Any]) -> Iterator[bytes]:
    model = fields["model"]
    composed = _is_composed(fields.get("normalizer"))
    pattern = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    found = {"use_regex": True, **_only(fields.get("pre_tokenizer"), "pretokenizers")}
    _need({name: found.get(name) for name in pattern} == pattern)
    _need(_only(fields.get("decoder"), "decoders").get("type") == "ByteLevel")
    _need(model.get("type", "BPE") == "BPE" and "merges" in model)
    parts = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    _need(not any(model.get(name) for name in parts))
    vocabulary: dict[str, int] = model["vocab"]
    added = fields.get("added_tokens") or []
    flags = (IGNORES_MERGES if model.get("ignore_merges") else 0) | (COMPOSED if composed else 0)
    yield MAGIC + struct.pack("<II", flags, vocabulary.get(model.get("unk_token"), NONE))
    yield _tokens(vocabulary, added)
    yield _merges(vocabulary, model["merges"])
    yield _added(added, composed)
    yield _classes()
    if composed:
        yield _composition()


def _need(condition: object) -> None:
    if not condition:
        raise _NotThisKindError


def _only(part: Any, members: str) -> dict[str, Any]:
    """Return a section that has one part."""
    while isinstance(part, dict) and part.get("type") == "Sequence" and len(part[members]) == 1:
        (part,) = part[members]
    _need(isinstance(part, dict))
    return dict(part)


def _is_composed(normalizer: Any) -> bool:
    """Return whether texts are brought into the form NFC; the only other thing that the file can say is: not at all."""
    if normalizer is None or (normalizer.get("type") == "Sequence" and not normalizer["normalizers"]):
        return False
    _need(_only(normalizer, "normalizers") == {"type": "NFC"})
    return True


def _alphabet() -> dict[str, int]:
    """Return the byte that each character of a byte-level name stands for."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + place): byte for place, byte in enumerate(others)}


def _tokens(vocabulary: dict[str, int], added: list[dict[str, Any]]) -> bytes:
    """Return the bytes of the tokens in the order of their ids; empty for ids of added tokens alone."""
    alphabet, others = _alphabet(), {token["content"] for token in added}
    tokens: dict[int, bytes] = {token["id"]: b"" for token in added}
    for name, number in vocabulary.items():
        known = all(character in alphabet for character in name)
        _need(known or name in others)
        tokens[number] = bytes(alphabet[character] for character in name) if known else b""
    _need({bytes([byte]) for byte in range(256) if byte not in NEVER_UTF8} <= set(tokens.values()))
    _need(min(tokens) >= 0 and max(tokens) < MOST_TOKENS)
    listed = [tokens.get(number, b"") for number in range(max(tokens) + 1)]
    return struct.pack("<I", len(listed)) + b"".join(map(_text, listed))


def _text(raw: bytes) -> bytes:
    _need(len(raw) <= LONGEST_TOKEN)
    return struct.pack("<H", len(raw)) + raw


def _merges(vocabulary: dict[str, int], merges: list[Any]) -> bytes:
    pairs = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in merges]
    _need(len(set(pairs)) == len(pairs))
    numbers = [(vocabulary[left], vocabulary[right]) for left, right in pairs]
    return struct.pack(f"<{1 + 2 * len(numbers)}I", len(numbers), *itertools.chain.from_iterable(numbers))


def _added(added: list[dict[str, Any]], composed: bool) -> bytes:
    records = [struct.pack("<I", len(added))]
    alphabet = _alphabet()
    for token in added:
        text, normalized = token["content"], token["normalized"]
        _need(text and not any(token[flag] for flag in ("lstrip", "rstrip", "single_word")))
        _need(text.isascii() or not (composed and normalized))  # its beginning may be hidden in another form
        _need(text.isascii() or not all(character in alphabet for character in text))  # read as a byte-level name
        flags = (SPECIAL if token["special"] else 0) | (NORMALIZED if normalized else 0)
        records.append(struct.pack("<IB", token["id"], flags) + _text(text.encode("utf-8")))
    return b"".join(records)


@functools.cache
def _classes() -> bytes:
    """Return the letters, the numbers and the white space of the library's expressions, as ranges."""
    from tokenizers import Regex, normalizers

    text = "".join(map(chr, CHARACTERS))
    left = [set(normalizers.Replace(Regex(expression), "").normalize_str(text)) for expression in CLASSES]
    return b"".join(_table("<II", _ranges(code for code in CHARACTERS if chr(code) not in kept)) for kept in left)


def _ranges(codes: Iterable[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1] = (ranges[-1][0], code)
        else:
            ranges.append((code, code))
    return ranges


def _table(form: str, rows: list[Any]) -> bytes:
    return struct.pack("<I", len(rows)) + b"".join(struct.pack(form, *row) for row in rows)


@functools.cache
def _composition() -> bytes:
    """Return the library's decompositions, pairs that compose, and combining classes."""
    from tokenizers import normalizers

    codes = [code for code in CHARACTERS if code not in HANGUL]

    def each(form: Any, texts: Iterable[str]) -> list[str]:
        return str(form.normalize_str("\0".join(texts))).split("\0")

    apart = dict(zip(codes, each(normalizers.NFD(), map(chr, codes)), strict=True))
    together = dict(zip(codes, each(normalizers.NFC(), map(chr, codes)), strict=True))
    changed = {code: parts for code, parts in apart.items() if parts != chr(code)}
    decompositions = struct.pack("<I", len(changed)) + b"".join(
        struct.pack(f"<IB{len(parts)}I", code, len(parts), *map(ord, parts)) for code, parts in changed.items()
    )
    pairs = [(parts, code) for code, parts in changed.items() if together[code] == chr(code) and len(parts) > 1]
    firsts = each(normalizers.NFC(), (parts[:-1] for parts, _ in pairs))
    rows = [(ord(first), ord(parts[-1]), code) for first, (parts, code) in zip(firsts, pairs, strict=True)]
    moved = each(normalizers.NFD(), (LOWEST_MARK + chr(code) for code in codes))
    classes = {
        code: unicodedata.combining(chr(code))
        for code, text in zip(codes, moved, strict=True)
        if text[0] != LOWEST_MARK or code == ord(LOWEST_MARK)
    }
    groups = [
        (first, last, kind)
        for kind in set(classes.values()) - {0}
        for first, last in _ranges(code for code, own in classes.items() if own == kind)
    ]
    return decompositions + _table("<III", sorted(rows)) + _table("<IIB", sorted(groups))
