"""Write tokens with their scores as JSON, piece by piece: an answer of millions of tokens is never held as one text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.serve.jobs import Draws, Part
from xlruntime import TextError
from xlruntime.documents import Tokenizer
from xlruntime.tokenizers import ByteTokenizer

__all__ = ["Log", "TokenTexts", "answer_pieces", "draw_log", "json_pieces", "read_log"]

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
        n = len(self.tokens)
        yield '{"tokens":['
        for at in range(0, n, PIECE):
            yield _entries([texts[token] for token in self.tokens[at : at + PIECE].tolist()], at)
        yield '],"token_logprobs":['
        for at in range(0, n, PIECE):
            yield _entries(list(map(_number, self.log_probs[at : at + PIECE].tolist())), at)
        yield '],"top_logprobs":['
        for at in range(0, n, PIECE):
            rows = zip(*(array[at : at + PIECE].tolist() for array in self._arrays), strict=True)
            yield _entries([_top(texts, *row) for row in rows], at)
        yield '],"text_offset":['
        offset = 0
        for at in range(0, n, PIECE):
            lengths = [_size(texts[token]) for token in self.tokens[at : at + PIECE].tolist()]
            ends = offset + np.cumsum(lengths)
            yield _entries([offset, *ends[:-1].tolist()], at)
            offset = int(ends[-1])
        yield "]}"

    def to_dict(self, texts: TokenTexts) -> dict[str, Any]:
        """Return the JSON object of a log that is not long."""
        return dict(json.loads("".join(self.pieces(texts))))


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


def answer_pieces(
    head: Mapping[str, Any],
    choices: Sequence[tuple[Mapping[str, Any], Log | None]],
    texts: TokenTexts,
    usage: Mapping[str, Any],
) -> Iterator[str]:
    """Yield the JSON text of an answer: `head`, choices with their logs, and `usage`."""
    yield json.dumps(head)[:-1] + ',"choices":['
    for number, (choice, log) in enumerate(choices):
        yield ("," if number else "") + json.dumps(choice)[:-1] + ',"logprobs":'
        if log is None:
            yield "null"
        else:
            yield from log.pieces(texts)
        yield "}"
    yield f'],"usage":{json.dumps(usage)}}}'


def json_pieces(value: Any) -> Iterator[str]:
    """Yield the JSON text of a value piece by piece: arrays (n,) are not held as lists, and iterators are JSON already.

    A number that is not finite becomes null.
    """
    if isinstance(value, dict | list):
        begin, end = "{}" if isinstance(value, dict) else "[]"
        yield begin
        for number, entry in enumerate(value):
            yield "," if number else ""
            if isinstance(value, dict):
                yield f"{json.dumps(entry)}:"
            yield from json_pieces(value[entry] if isinstance(value, dict) else entry)
        yield end
    elif isinstance(value, np.ndarray):
        yield "["
        for at in range(0, len(value), PIECE):
            yield _entries(list(map(_number, value[at : at + PIECE].tolist())), at)
        yield "]"
    elif isinstance(value, Iterator):
        yield from value
    else:
        yield json.dumps(value)


def _size(text: str) -> int:
    """Return the characters for which a token counts in offsets: none if it is only a part of one."""
    return 0 if text.startswith(("bytes:", "token_id:")) and len(text) > 6 else len(text)


def _top(
    texts: TokenTexts, token: int, own: float, ids: Sequence[int], log_probs: Sequence[float]
) -> dict[str, float] | None:
    """Return the likeliest tokens at a place, and the token itself; both lists have the very same number for it."""
    if _number(own) is None:
        return None
    if not ids:
        return {}
    by_id = {**dict(zip(ids, log_probs, strict=True)), token: own}
    return dict(zip(texts.keys(list(by_id)), by_id.values(), strict=True))


def _number(value: float) -> float | None:
    """Return a number that JSON has, else None."""
    return value if math.isfinite(value) else None


def _entries(values: list[Any], at: int) -> str:
    """Return the JSON of some entries of a list that is written piece by piece."""
    return ("," if at and values else "") + json.dumps(values)[1:-1]
