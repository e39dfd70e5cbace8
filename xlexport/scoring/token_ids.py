"""Token ids in files, as decimal numbers between white space."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xlruntime import TokenError
from xlruntime.documents import Ids

__all__ = ["ids_of_words", "no_ids"]

SHOWN = 40  # characters of a wrong value that a message shows


def ids_of_words(words: Sequence[bytes], name: str) -> Ids:
    """Return token ids from their decimal numbers.

    Raises:
        TokenError: a word is not a number, or has more than 64 bits.
    """
    ids = np.empty(len(words), np.int64)
    for place, word in enumerate(words):
        try:
            ids[place] = int(word)
        except (ValueError, OverflowError) as error:
            shown = word[:SHOWN].decode("utf-8", "backslashreplace")
            raise no_ids(name, repr(shown) + ("…" if len(word) > SHOWN else "")) from error
    return ids


def no_ids(name: str, found: str) -> TokenError:
    """Return the error for a document that does not hold token ids."""
    return TokenError(
        f"{name}: not token ids separated by white space (found {found}).", hint="Leave out --ids for text."
    )
