"""Check a precompiled character map before a library walks it: both libraries trust its contents.

The layout is SentencePiece's. It begins with the size of a trie in bytes (uint32, little-endian). The trie follows, a
double array of uint32 units in blocks of 256. Then come the replacements: UTF-8 texts, each ended by a zero byte. A
value of the trie is the place of a replacement. The bits of a unit are as in the darts-clone library.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..errors import VocabularyError
from ..limits import Budget

__all__ = ["longest_replacement"]

BLOCK = 256  # units
LEAF, EXTENDED = 1 << 8, 1 << 9  # bits of a unit: a value follows; the offset is in steps of a block
LABEL, VALUE = (1 << 31) | 0xFF, (1 << 31) - 1
AT_ONCE = 1024  # units checked together
UNIT_COST = 64  # bytes needed to check a unit, and to keep it in a library

Units = npt.NDArray[np.int64]


def longest_replacement(raw: bytes, budget: Budget) -> int:
    """Check the map `raw`, and return the bytes of its longest replacement, at least 1.

    Raises:
        VocabularyError: a walk through the trie could leave the trie or the replacements.
    """
    size = int.from_bytes(raw[:4], "little")
    if not size or size % (4 * BLOCK) or size >= len(raw) - 4:
        raise _broken(budget, f"a trie of {size:,} bytes in {len(raw):,}")
    budget.charge(UNIT_COST * (size // 4), size // 4)
    units = np.frombuffer(raw, "<u4", size // 4, 4).astype(np.int64)
    texts = raw[4 + size :]
    try:
        texts.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _broken(budget, f"replacements that are not UTF-8 at byte {error.start:,}") from error
    if texts[-1:] != b"\0":
        raise _broken(budget, "a last replacement without an end")
    return _longest(_values(units, budget), np.frombuffer(texts, np.uint8), budget)


def _values(units: Units, budget: Budget) -> Units:
    """Return all reachable values of the trie; each unit is visited once."""
    seen = np.zeros(len(units), np.bool_)
    seen[0] = True
    waiting, values = [np.zeros(1, np.int64)], [np.zeros(0, np.int64)]
    keys = np.arange(BLOCK)
    while waiting:
        at = waiting.pop()
        here = units[at]
        bases = at ^ ((here >> 10) << np.where(here & EXTENDED, 8, 0))
        if int(bases.max()) >= len(units):  # blocks are whole, so no key leads out of one
            raise _broken(budget, f"a trie that leads to unit {int(bases.max()):,} of {len(units):,}")
        values.append(units[bases[(here & LEAF != 0) & (at != 0)]] & VALUE)
        following = bases[:, None] ^ keys
        children = np.unique(following[(units[following] & LABEL) == keys])
        children = children[~seen[children]]
        seen[children] = True
        waiting += [children[first : first + AT_ONCE] for first in range(0, len(children), AT_ONCE)]
    return np.concatenate(values)


def _longest(values: Units, texts: npt.NDArray[np.uint8], budget: Budget) -> int:
    if not len(values):
        return 1
    if int(values.max()) >= len(texts):
        raise _broken(budget, f"replacement {int(values.max()):,} of {len(texts):,} bytes")
    if (texts[values] & 0xC0 == 0x80).any():
        raise _broken(budget, "a replacement that begins within a character")
    ends = np.flatnonzero(texts == 0)
    return max(1, int((ends[np.searchsorted(ends, values)] - values).max()))


def _broken(budget: Budget, problem: str) -> VocabularyError:
    return VocabularyError(
        f"{budget.name}: a broken precompiled character map ({problem}).",
        hint="Make it again with the tokenizer's own library.",
    )
