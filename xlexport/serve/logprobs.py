"""Write tokens with their scores as JSON, piece by piece: an answer of millions of tokens is never held as one text."""

from __future__ import annotations

import itertools
import json
import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.serve.jobs import Draws, Part
from xlruntime import TextError
from xlruntime.documents import Tokenizer
from xlruntime.tokenizers import ByteTokenizer

__all__ = ["Log", "TokenTexts", "draw_log", "json_pieces", "read_log"]

PIECE = 4096  # tokens that are written at a time
LARGEST_CACHE = 1 << 16
REPLACEMENT = "\ufffd"


class TokenTexts:
    """The texts of single tokens, each different from all others."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Start with an empty cache."""
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def __getitem__(self, token: int) -> str:
        r"""Return the text of a token; bytes that are not a character as `bytes:\xe4`."""
        text = self._known.get(token)
        if text is None:
            if len(self._known) >= LARGEST_CACHE:
                self._known.clear()
            text = self._known[token] = self._text(token)
        return text

    def _text(self, token: int) -> str:
        try:
            text = self._tokenizer.decode([token])
        except TextError:  # the library cannot show a token on its own
            text = ""
        if isinstance(self._tokenizer, ByteTokenizer) and text == REPLACEMENT:
            return f"bytes:\\x{token - self._tokenizer.first_id:02x}"
        return text if text and REPLACEMENT not in text else f"token_id:{token}"

    def keys(self, tokens: Sequence[int]) -> list[str]:
        """Return different texts of different tokens, as keys of an object."""
        texts = [self[token] for token in tokens]
        if len(set(texts)) == len(texts):
            return texts
        return [
            text if texts.count(text) == 1 else f"token_id:{token}" for text, token in zip(texts, tokens, strict=True)
        ]


@dataclass(frozen=True)
class Log:
    """Tokens with their scores, as `logprobs` of an answer shows them. Lists may be long, so they stay arrays.

    Attributes:
        tokens: (n,) ids.
        log_probs: (n,) natural logarithms of probabilities, NaN for a token without a score.
        top_ids, top_log_probs: (n, k) the likeliest tokens; k is 0 if they were not asked for.
    """

    tokens: npt.NDArray[np.int64]
    log_probs: npt.NDArray[np.float64]
    top_ids: npt.NDArray[np.int64]
    top_log_probs: npt.NDArray[np.float64]

    @classmethod
    def joined(cls, logs: Sequence[Log]) -> Log:
        """Return at least one log, one after the other."""
        return cls(*map(np.concatenate, zip(*(log._arrays for log in logs), strict=True)))

    @property
    def _arrays(self) -> tuple[npt.NDArray[Any], ...]:
        return self.tokens, self.log_probs, self.top_ids, self.top_log_probs

    def pieces(self, texts: TokenTexts) -> Iterator[str]:
        """Yield the JSON object piece by piece."""
        sizes = [0]  # of the text before a piece, and of its tokens

        def offsets(part: slice) -> list[int]:
            sizes[1:] = [_size(texts[token]) for token in self.tokens[part].tolist()]
            *begins, sizes[0] = itertools.accumulate(sizes)
            return begins

        def top(part: slice) -> list[Any]:
            return [_top(texts, *row) for row in zip(*(array[part].tolist() for array in self._arrays), strict=True)]

        n = len(self.tokens)
        fields = {
            "tokens": _list_pieces(n, lambda part: [texts[token] for token in self.tokens[part].tolist()]),
            "token_logprobs": self.log_probs,
            "top_logprobs": _list_pieces(n, top),
            "text_offset": _list_pieces(n, offsets),
        }
        return json_pieces(fields)


def read_log(first: int | None, ids: npt.NDArray[np.int64], parts: Sequence[Part], top: int) -> Log:
    """Return the log of tokens that were read.

    Args:
        first: the document's first token, which has no score; None: all have one.
        ids: (n,) the tokens that have scores.
    """
    log_probs = np.concatenate([np.zeros(0), *(part.log_probs.astype(np.float64) for part in parts)])
    top_ids = [part.top_ids for part in parts if part.top_ids is not None]
    top_log_probs = [part.top_log_probs for part in parts if part.top_log_probs is not None]
    log = Log(
        ids,
        log_probs,
        np.concatenate(top_ids) if top_ids else np.zeros((len(ids), top), np.int64),
        np.concatenate(top_log_probs) if top_log_probs else np.zeros((len(ids), top)),
    )
    if first is None:
        return log
    unscored = Log(np.array([first]), np.array([np.nan]), np.zeros((1, top), np.int64), np.zeros((1, top)))
    return Log.joined([unscored, log])


def draw_log(draws: Draws, top: int) -> Log:
    """Return the log of drawn tokens."""
    n = len(draws)
    return Log(
        np.array(draws.tokens, np.int64),
        np.array(draws.log_probs, np.float64),
        np.array(draws.top_ids, np.int64).reshape(n, top),
        np.array(draws.top_log_probs, np.float64).reshape(n, top),
    )


def json_pieces(value: Any) -> Iterator[str]:
    """Yield the JSON text of a value piece by piece: arrays (n,) are not held as lists, and iterators are JSON already.

    A number of an array that is not finite becomes null.
    """
    place, later = secrets.token_hex(), list[Any]()  # no text of the value has this one

    def keep(entry: Any) -> str:
        later.append(entry)
        return place

    text, *texts = json.dumps(value, default=keep).split(f'"{place}"')
    yield text
    for entry, text in zip(later, texts, strict=True):
        yield from entry if isinstance(entry, Iterator) else _list_pieces(len(entry), partial(_numbers, entry))
        yield text


def _list_pieces(n: int, entries: Callable[[slice], list[Any]]) -> Iterator[str]:
    """Yield the JSON of a list of n entries; `entries` returns those of a part."""
    yield "["
    for at in range(0, n, PIECE):
        yield ("," if at else "") + json.dumps(entries(slice(at, at + PIECE)))[1:-1]
    yield "]"


def _size(text: str) -> int:
    """Return the characters for which a token counts in offsets: none if it is only a part of one."""
    return 0 if text.startswith(("bytes:", "token_id:")) and len(text) > 6 else len(text)


def _top(
    texts: TokenTexts, token: int, own: float, ids: Sequence[int], log_probs: Sequence[float]
) -> dict[str, float] | None:
    """Return the likeliest tokens at a place, and the token itself; both lists have the very same number for it."""
    if not math.isfinite(own):
        return None
    if not ids:
        return {}
    by_id = {**dict(zip(ids, log_probs, strict=True)), token: own}
    return dict(zip(texts.keys(list(by_id)), by_id.values(), strict=True))


def _numbers(values: npt.NDArray[Any], part: slice) -> list[float | None]:
    """Return a part of an array, None for numbers that JSON does not have."""
    return [value if math.isfinite(value) else None for value in values[part].tolist()]
