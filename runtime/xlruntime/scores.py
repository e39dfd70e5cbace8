"""What scoring documents gives: scores of tokens as they become known, and totals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .documents import TextCounts, TokenPiece
from .evaluation import EvaluationSettings, SettingValue

__all__ = ["LN2", "DocumentScore", "TokenScores", "flat_fields", "perplexity", "ratio", "total_score"]

LN2 = math.log(2)
LARGEST_MEAN = 700  # nats; e to more overflows a float


@dataclass(frozen=True)
class DocumentScore:
    """What a whole document scored. Ratios are None where there is nothing to divide by.

    The first token has no context and is not scored. Per-byte and per-character figures are of `scored_bytes` and
    `scored_chars`: they leave out what the first token covers, and what no token covers because the vocabulary has no
    symbol for it (`dropped_bytes`, `dropped_chars`: newlines). With `unknown_tokens`, tokens that stand for anything
    the vocabulary lacks, the bits do not encode the text.

    Attributes:
        document: its name.
        tokens: all of its tokens; scored_tokens: those that have a score, so without context none for the first.
        words: between white space; chars: Unicode characters; bytes: of UTF-8. 0 for a document given as token ids.
        nats, bits: negative log-probability of all scored tokens, to base e and 2.
        bits_per_byte, bits_per_char, bits_per_token: its ratios; perplexity: e to the nats of a token.
        segment_len, settings: what the scores were computed with; `settings` has what the bundle declares.
        tokens_per_second: from when the document was opened, beside others in its batch.
    """

    document: str
    tokens: int
    scored_tokens: int
    unknown_tokens: int
    words: int
    chars: int
    bytes: int
    dropped_chars: int
    dropped_bytes: int
    scored_chars: int
    scored_bytes: int
    nats: float
    bits: float
    bits_per_byte: float | None
    bits_per_char: float | None
    bits_per_token: float | None
    perplexity: float | None
    segment_len: int
    settings: Mapping[str, SettingValue]
    tokens_per_second: float

    def to_dict(self) -> dict[str, Any]:
        """Return all fields by name, each setting as a field of its own."""
        return flat_fields(self)


@dataclass(frozen=True)
class TokenScores:
    """Consecutive tokens of one document that got their score.

    Attributes:
        document: its name; number: its place among the documents, from 0.
        index: (n,) places of the tokens in the document, from 0.
        tokens: (n,) ids; starts, ends: (n,) where they stand in the document (see `TokenPiece`).
        log_probs: (n,) natural logarithms of their probabilities.
        context: (n,) how many tokens of the document each one's prediction attended to.
        summary: with the last tokens of a document, its total; else None.
        rank: (n,) place of each token among all by their probability, 1: the likeliest.
        entropy: (n,) of each prediction, in nats.
        top_ids: (n, k) the likeliest tokens, best first; top_log_probs: (n, k) natural logarithms of their
            probabilities. These four are None unless `detail` was asked for.
        first: with the first part of a document, its first token, where it has no context and so no score.
        error: why the document ends here without a total, where scoring goes on with the others; else None.
    """

    document: str
    number: int
    index: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    log_probs: npt.NDArray[np.float32]
    context: npt.NDArray[np.int64]
    summary: DocumentScore | None
    rank: npt.NDArray[np.int64] | None = None
    entropy: npt.NDArray[np.float64] | None = None
    top_ids: npt.NDArray[np.int64] | None = None
    top_log_probs: npt.NDArray[np.float64] | None = None
    first: TokenPiece | None = None
    error: Exception | None = None

    def __len__(self) -> int:
        return len(self.tokens)


def flat_fields(score: Any) -> dict[str, Any]:
    """Return the fields of a score by name, each of its `settings` as a field of its own."""
    fields: dict[str, Any] = {}
    for name, value in vars(score).items():
        fields |= value if name == "settings" else {name: value}
    return fields


def total_score(
    document: str,
    counts: TextCounts,
    tokens: int,
    unscored_tokens: int,
    log_prob_sum: float,
    evaluation: EvaluationSettings,
    tokens_per_second: float,
) -> DocumentScore:
    """The total of a document that has been read to its end.

    Args:
        unscored_tokens: 1 where its first token had no context, 0 where it had that of the document before.
        log_prob_sum: of the others, natural logarithms.
    """
    scored = max(tokens - unscored_tokens, 0)
    nats = 0.0 - log_prob_sum
    bits = nats / LN2
    first_chars, first_bytes = (counts.first_token_chars, counts.first_token_bytes) if unscored_tokens else (0, 0)
    scored_chars = max(counts.chars - first_chars - counts.dropped_chars, 0)
    scored_bytes = max(counts.bytes - first_bytes - counts.dropped_bytes, 0)
    return DocumentScore(
        document=document,
        tokens=tokens,
        scored_tokens=scored,
        unknown_tokens=counts.unknown_tokens,
        words=counts.words,
        chars=counts.chars,
        bytes=counts.bytes,
        dropped_chars=counts.dropped_chars,
        dropped_bytes=counts.dropped_bytes,
        scored_chars=scored_chars,
        scored_bytes=scored_bytes,
        nats=nats,
        bits=bits,
        bits_per_byte=ratio(bits, scored_bytes),
        bits_per_char=ratio(bits, scored_chars),
        bits_per_token=ratio(bits, scored),
        perplexity=perplexity(nats / scored) if scored else None,
        segment_len=evaluation.segment_len,
        settings=evaluation.values,
        tokens_per_second=tokens_per_second,
    )


def ratio(amount: float, count: int) -> float | None:
    """Return the amount for each of `count`, or None if there is nothing to divide by."""
    return amount / count if count > 0 else None


def perplexity(nats_per_token: float) -> float:
    """Return e to the mean nats of a token; infinite if that overflows."""
    return math.inf if nats_per_token > LARGEST_MEAN else math.exp(nats_per_token)
