"""Words of a text, and the sums of the scores of their tokens.

A word is a text between white space (ASCII). It includes the white space before it; the last word of a document also
includes the white space after it. A token counts for the word that holds its first byte that is not white space. A
token of white space alone counts for the word after it. So each token counts once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .documents import IS_SPACE, SPACES, Tokenizer, utf8_bytes
from .scores import LN2, DocumentScore, TokenScores, data_frame

__all__ = [
    "WordScores",
    "byte_places",
    "token_anchors",
    "word_edges",
    "word_scores",
]

Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class WordScores:
    """The words of one text, with the surprisal of each. Iteration yields pairs of a word and its bits.

    Attributes:
        document: the text's name; text: the whole text.
        words: the n words, without white space.
        starts, ends: (n,) their places, in characters: `text[starts[0]:ends[0]] == words[0]`.
        tokens: (n,) number of tokens of each word; scored_tokens: (n,) number of them with a score.
        bits: (n,) surprisal of each word: the sum over its tokens. NaN if a token has no score, as in a first word, so
            that no sum or mean includes a part of a word.
        total: the score of the whole text.
    """

    document: str
    text: str
    words: tuple[str, ...]
    starts: Array
    ends: Array
    tokens: Array
    scored_tokens: Array
    bits: npt.NDArray[np.float64]
    total: DocumentScore

    @property
    def complete(self) -> npt.NDArray[np.bool_]:
        """Whether each word has tokens, and all of them have a score; the text's first token has none."""
        return (self.scored_tokens == self.tokens) & (self.tokens > 0)

    def __len__(self) -> int:
        return len(self.words)

    def __iter__(self) -> Iterator[tuple[str, float]]:
        return iter(zip(self.words, self.bits.tolist(), strict=True))

    def __repr__(self) -> str:
        return f"WordScores({self.document!r}: {len(self)} words, {self.total.bits:.2f} bits)"

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each word, and the columns of `score --per word`.

        Raises:
            XlruntimeError: pandas is not installed.
        """
        return data_frame(
            {
                "document": [self.document] * len(self),
                "index": np.arange(len(self)),
                "word": list(self.words),
                "start": self.starts,
                "end": self.ends,
                "tokens": self.tokens,
                "scored_tokens": self.scored_tokens,
                "complete": self.complete,
                "bits": self.bits,
            }
        )


def word_scores(text: str, tokenizer: Tokenizer, parts: Sequence[TokenScores]) -> WordScores:
    """Return the words of a text, given all of its scores.

    Args:
        parts: all parts of the document; the last one has its total.
    """
    total = parts[-1].summary
    assert total is not None
    raw = np.frombuffer(utf8_bytes(text, total.document), np.uint8)
    is_space = IS_SPACE[raw]
    firsts = [part.first for part in parts if part.first is not None]
    unscored = sum(map(len, firsts))
    begun, ended = (np.concatenate([getattr(piece, at) for piece in (*firsts, *parts)]) for at in ("starts", "ends"))
    places = token_anchors(*byte_places(begun, ended, raw, tokenizer.offsets_in_bytes), is_space)
    edges = word_edges(is_space, after_space=True)
    if len(edges) and is_space[edges[-1] :].all():  # white space at the end counts for the last word
        edges = edges[:-1]
    n = len(edges) + 1 if len(raw) or len(places) else 0
    owners = np.searchsorted(edges, np.maximum.accumulate(places), "right")
    nats = -np.concatenate([part.log_probs for part in parts]).astype(np.float64)
    scored = np.bincount(owners[unscored:], minlength=n)[:n]
    tokens = np.bincount(owners, minlength=n)[:n]
    bits = np.bincount(owners[unscored:], nats, minlength=n)[:n] / LN2
    bounds = np.concatenate([[0], edges, [len(raw)]]).tolist()
    words = tuple(raw[bounds[k] : bounds[k + 1]].tobytes().strip(SPACES).decode("utf-8") for k in range(n))
    begins = np.append(np.flatnonzero(~is_space), len(raw))
    characters = np.concatenate([[0], np.cumsum((raw & 0xC0) != 0x80)])  # before each place in UTF-8 bytes
    starts = characters[begins[np.searchsorted(begins[:-1], bounds[:n])]].astype(np.int64)
    return WordScores(
        document=total.document,
        text=text,
        words=words,
        starts=starts,
        ends=starts + np.array([len(word) for word in words], np.int64),
        tokens=tokens,
        scored_tokens=scored,
        bits=np.where((scored == tokens) & (tokens > 0), bits, np.nan),
        total=total,
    )


def word_edges(is_space: npt.NDArray[np.bool_], after_space: bool) -> Array:
    """Return the places at which words begin: white space that comes after other text.

    Args:
        is_space: (n,) whether each byte is white space; after_space: whether the byte before them is.
    """
    return np.flatnonzero(is_space & ~np.concatenate([[after_space], is_space[:-1]]))


def byte_places(starts: Array, ends: Array, raw: npt.NDArray[np.uint8], in_bytes: bool) -> tuple[Array, Array]:
    """Return the byte places of tokens in UTF-8 `raw`; with `in_bytes`, places count bytes already."""
    if not in_bytes:
        characters = np.append(np.flatnonzero((raw & 0xC0) != 0x80), len(raw))  # where each begins, and the end
        starts, ends = (characters[np.clip(at, 0, len(characters) - 1)] for at in (starts, ends))
    starts = np.clip(starts, 0, len(raw))
    return starts, np.clip(ends, starts, len(raw))


def token_anchors(starts: Array, ends: Array, is_space: npt.NDArray[np.bool_]) -> Array:
    """Return the place of each token: its first byte that is not white space, or else its beginning."""
    inside = np.append(np.flatnonzero(~is_space), len(is_space))
    anchors = inside[np.searchsorted(inside[:-1], starts)]
    return np.where(anchors < ends, anchors, starts)
