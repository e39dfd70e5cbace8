"""The vocabulary of RWKV World's authors: a line for each token, with its id, a literal of Python, and its bytes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from xlexport.errors import CheckpointError
from xlruntime.messages import listed, shown
from xlruntime.tokenizers.vocabulary import LONGEST_SYMBOL, Vocabulary

__all__ = ["is_rwkv_vocabulary", "read_rwkv_vocabulary"]

LINE = re.compile(r"(\d{1,9}) (b?(?:'.*'|\".*\")) (\d{1,4})", re.ASCII)
LONGEST_LINE = 8 * LONGEST_SYMBOL  # characters


def is_rwkv_vocabulary(text: str) -> bool:
    """Return whether a text begins like such a file."""
    return LINE.fullmatch(text[:LONGEST_LINE].split("\n", 1)[0].rstrip("\r")) is not None


def read_rwkv_vocabulary(text: str, path: Path) -> Vocabulary:
    """Return the vocabulary, of kind `trie`; ids that no line has are without text.

    Raises:
        CheckpointError: lines are not of this form, or an id or a token has two.
    """
    symbols: dict[int, str] = {}
    problems = []
    lines = text.removeprefix("\ufeff").splitlines() if "\r" in text else text.split("\n")
    for number, line in enumerate(filter(None, lines), 1):
        entry = _entry(line)
        if entry is None:
            problems.append(f"line {number} is {shown(line)}")
        elif entry[0] in symbols:
            problems.append(f"line {number} has the id {entry[0]} again")
        else:
            symbols[entry[0]] = entry[1]
    if not problems and max(symbols) >= 2 * len(symbols) + 2:
        problems.append(f"{len(symbols):,} ids up to {max(symbols):,}")
    if problems:
        raise CheckpointError(
            f"{path}: {listed(problems)}; expected lines of an id, a literal of Python and its length in bytes.",
            hint="Give the file as RWKV's authors publish it.",
        )
    return Vocabulary("trie", tuple(symbols.get(number, "") for number in range(max(symbols) + 1)))


def _entry(line: str) -> tuple[int, str] | None:
    """Return the id and the bytes, in hexadecimal digits, of a line; None if it is malformed."""
    match = LINE.fullmatch(line) if len(line) <= LONGEST_LINE else None
    if match is None:
        return None
    try:
        value = ast.literal_eval(match[2])
        raw = value if isinstance(value, bytes) else value.encode("utf-8")
    except (ValueError, SyntaxError, AttributeError):
        return None
    return (int(match[1]), raw.hex()) if len(raw) == int(match[3]) else None
