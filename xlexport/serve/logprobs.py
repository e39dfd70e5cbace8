"""Write tokens with their scores as JSON, piece by piece: an answer of millions of tokens is never held as one text."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.serve.jobs import Draws, ScoredPiece
from xlruntime import TextError
from xlruntime.documents import Tokenizer
from xlruntime.tokenizers import ByteTokenizer

__all__ = ["TokenLog", "TokenTexts", "draw_log", "json_pieces", "read_log"]

PIECE = 4096  # tokens that are written at a time
LARGEST_CACHE = 1 << 16
REPLACEMENT = "\ufffd"


class TokenTexts:
    """The texts of single tokens, each different from all others."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._cached = lru_cache(LARGEST_CACHE)(self._text)

    def __getitem__(self, token: int) -> str:
        r"""Return the text of a token; bytes that are not a character as `bytes:\xe4`."""
        return self._cached(token)

    def _text(self, token: int) -> str:
        try:
            text = self._tokenizer.text_of(token) or self._tokenizer.decode([token], special=True)
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
class TokenLog:
    """Tokens with their scores, as `logprobs` of an answer shows them. Lists may be long, so they stay arrays.

    Attributes:
        tokens: (n,) ids.
        log_probs: (n,) natural logarithms of probabilities, NaN for a token without a score.
        top_ids, top_log_probs: (n, k) the likeliest tokens; k is 0 if they were not asked for.
        ends: (n,) where each ends, in characters of the whole request.
        text: their text, which begins at character `start` of the request.
    """

    tokens: npt.NDArray[np.int64]
    log_probs: npt.NDArray[np.float64]
    top_ids: npt.NDArray[np.int64]
    top_log_probs: npt.NDArray[np.float64]
    ends: npt.NDArray[np.int64]
    text: str
    start: int = 0

    @classmethod
    def joined(cls, logs: Sequence[TokenLog]) -> TokenLog:
        """Return at least one log, one after the other."""
        tokens, log_probs, top_ids, top = map(np.concatenate, zip(*(log._arrays for log in logs), strict=True))
        ends, text = np.concatenate([log.ends for log in logs]), "".join(log.text for log in logs)
        return cls(tokens, log_probs, top_ids, top, ends, text, logs[0].start)

    def after(self, n: int) -> TokenLog:
        """Return the log without its first `n` tokens."""
        if not n:
            return self
        start = int(self.ends[n - 1])
        tokens, log_probs, top_ids, top = (array[n:] for array in self._arrays)
        return TokenLog(tokens, log_probs, top_ids, top, self.ends[n:], self.text[start - self.start :], start)

    @property
    def _arrays(self) -> tuple[npt.NDArray[Any], ...]:
        return self.tokens, self.log_probs, self.top_ids, self.top_log_probs

    def pieces(self, texts: TokenTexts) -> Iterator[str]:
        """Yield the JSON object piece by piece."""
        begins = np.concatenate([[self.start], self.ends[:-1]])[: len(self.ends)]

        def own(part: slice) -> list[str]:
            places = zip((begins[part] - self.start).tolist(), (self.ends[part] - self.start).tolist(), strict=True)
            return [self.text[begin:end] for begin, end in places]

        def top(part: slice) -> list[Any]:
            rows = zip(own(part), *(array[part].tolist() for array in self._arrays), strict=True)
            return [_top(texts, *row) for row in rows]

        n = len(self.tokens)
        fields = {
            "tokens": _list_pieces(n, own),
            "token_logprobs": self.log_probs,
            "top_logprobs": _list_pieces(n, top),
            "text_offset": begins,
        }
        return json_pieces(fields)


def read_log(
    first: int | None,
    ids: npt.NDArray[np.int64],
    parts: Sequence[ScoredPiece],
    top: int,
    text: str = "",
    ends: npt.NDArray[np.int64] | None = None,
) -> TokenLog:
    """Return the log of tokens that were read.

    Args:
        first: the document's first token, which has no score; None: all have one.
        ids: (n,) the tokens that have scores.
        text: the text of all of them; ends: where each of them ends in it. Without these, tokens have no text.
    """
    log_probs = np.concatenate([np.zeros(0), *(part.log_probs.astype(np.float64) for part in parts)])
    top_ids = [part.top_ids for part in parts if part.top_ids is not None]
    top_log_probs = [part.top_log_probs for part in parts if part.top_log_probs is not None]
    tops = np.concatenate(top_ids) if top_ids else np.zeros((len(ids), top), np.int64)
    probs = np.concatenate(top_log_probs) if top_log_probs else np.zeros((len(ids), top))
    if first is not None:
        ids, log_probs = np.append(first, ids), np.append(np.nan, log_probs)
        tops, probs = (np.concatenate([np.zeros((1, top), array.dtype), array]) for array in (tops, probs))
    return TokenLog(ids, log_probs, tops, probs, np.zeros(len(ids), np.int64) if ends is None else ends, text)


def draw_log(draws: Draws, top: int, text: str, start: int = 0, before: int = 0) -> TokenLog:
    """Return the log of drawn tokens.

    Args:
        text: their text; start: the character of the continuation at which it begins.
        before: characters of the request before the continuation.
    """
    n = len(draws)
    return TokenLog(
        np.array(draws.tokens, np.int64),
        np.array(draws.log_probs, np.float64),
        np.array(draws.top_ids, np.int64).reshape(n, top),
        np.array(draws.top_log_probs, np.float64).reshape(n, top),
        np.array(draws.ends, np.int64) + before,
        text,
        start + before,
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


def _top(
    texts: TokenTexts, text: str, token: int, own: float, ids: Sequence[int], log_probs: Sequence[float]
) -> dict[str, float] | None:
    """Return the likeliest tokens at a place, and the token itself; both lists have the very same number for it.

    Args:
        text: the text of the token itself, under which clients look for it.
    """
    if not math.isfinite(own):
        return None
    if not ids:
        return {}
    by_id = {**dict(zip(ids, log_probs, strict=True)), token: own}
    keys = texts.keys(list(by_id))
    if text and text not in keys:
        keys[list(by_id).index(token)] = text
    return dict(zip(keys, by_id.values(), strict=True))


def _numbers(values: npt.NDArray[Any], part: slice) -> list[float | None]:
    """Return a part of an array, None for numbers that JSON does not have."""
    return [value if math.isfinite(value) else None for value in values[part].tolist()]
