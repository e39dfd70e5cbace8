"""Where the text of a library's tokenizer can be cut, so that both sides together have the tokens of the whole.

The manifest's field `settled` names the rule: a published pattern of byte-level BPE, `words` or `letters`.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence

__all__ = ["before_added_token", "before_last_word", "between_words"]

_VISIBLE = "LNPS"  # categories of Unicode: letters, numbers, punctuation, symbols


def before_last_word(text: str, added: Sequence[str]) -> int:
    """Return the place of the last space behind a visible character, but not behind an added token; or else 0."""
    at = text.rfind(" ")
    while at > 0 and (unicodedata.category(text[at - 1])[0] not in _VISIBLE or text.endswith(tuple(added), 0, at)):
        at = text.rfind(" ", 0, at)
    return max(at, 0)


def between_words(text: str, added: Sequence[str]) -> int:
    """Return the place of the last space directly between two letters, but not behind an added token; or else 0."""
    at = text.rfind(" ", 0, -1)
    while at > 0 and (not (text[at - 1] + text[at + 1]).isalpha() or text.endswith(tuple(added), 0, at)):
        at = text.rfind(" ", 0, at)
    return max(at, 0)


def before_added_token(text: str, added: Sequence[str]) -> int:
    """Return where a text ends before a part of an added token, which later text may complete.

    Args:
        added: the texts of added tokens, sorted.
    """
    longest = max(map(len, added), default=0)
    for start in range(max(len(text) - longest + 1, 0), len(text)):
        following = bisect_right(added, text[start:])
        if following < len(added) and added[following].startswith(text[start:]):
            return start
    return len(text)
