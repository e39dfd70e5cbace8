"""The results of scoring documents: scores of tokens as they become known, and totals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from .documents import TextCounts, Tokenizer, TokenPiece
from .errors import XlruntimeError
from .evaluation import EvaluationSettings, SettingValue
from .stops import token_texts

__all__ = [
    "LN2",
    "DocumentScore",
    "Sum",
    "TokenScores",
    "data_frame",
    "flat_fields",
    "perplexity",
    "ratio",
    "total_score",
]

LN2 = math.log(2)
LARGEST_MEAN = 700  # nats; e to a larger power overflows a float


@dataclass
class Sum:
    """A sum in float64 that keeps what rounding loses.

    Attributes:
        value: the sum, rounded; lost: the rest.
    """

    value: float = 0.0
    lost: float = 0.0

    def add(self, numbers: npt.NDArray[np.floating[Any]]) -> None:
        """Add numbers of any shape, which may be infinite or NaN."""
        if not (np.isfinite(numbers).all() and math.isfinite(self.value)):
            self.value = sum(numbers.ravel().tolist(), self.value)
            return
        terms = [self.value, self.lost, *numbers.ravel().tolist()]
        self.value = math.fsum(terms)
        self.lost = math.fsum([*terms, -self.value])


@dataclass(frozen=True)
class DocumentScore:
    """The score of a whole document. Ratios are None if the divisor is 0.

    The first token has no context and is not scored. Per-byte and per-character figures divide by `scored_bytes` and
    `scored_chars`. These leave out the text of the first token, and text without any token because the vocabulary has
    no symbol for it (`dropped_bytes`, `dropped_chars`: newlines). If there are `unknown_tokens`, one token is used for
    all text that the vocabulary lacks, so the bits do not encode the text.

    Attributes:
        document: the document's name.
        tokens: number of all tokens; scored_tokens: number of tokens with a score, without a first token that has no
            context.
        words: number of words between white space; chars: of Unicode characters; bytes: of UTF-8 bytes. All are 0 for a
            document given as token ids.
        nats, bits: negative log-probability of all scored tokens, to base e and 2.
        bits_per_byte, bits_per_char, bits_per_token: ratios; perplexity: exp(nats / scored_tokens).
        segment_len, settings: the evaluation settings of the scores; `settings` has the ones that the bundle declares.
        tokens_per_second: speed since the document was opened, with other documents in its batch.
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
    """Scores of consecutive tokens of one document. Iteration yields pairs of a token's text and its bits.

    Attributes:
        document: the document's name; number: its place among the documents, from 0.
        index: (n,) places of the tokens in the document, from 0.
        tokens: (n,) token ids; starts, ends: (n,) their places in the document (see `TokenPiece`).
        log_probs: (n,) natural logarithms of the tokens' probabilities.
        context: (n,) number of tokens of the document that each prediction attended to.
        summary: the document's total, in its last part; else None.
        rank: (n,) rank of each token by probability among all tokens; 1 is the likeliest.
        entropy: (n,) entropy of each prediction, in nats.
        top_ids: (n, k) the likeliest tokens, best first; top_log_probs: (n, k) natural logarithms of their
            probabilities. These four are None unless `top` was given.
        first: the document's first token, in its first part, if it has no context and so no score; else None.
        error: the error that ended this document without a total, while the others are still scored; else None.
        word_ends: (n,) natural logarithm of the probability that the next token begins with white space, at each place
            with such a token; NaN elsewhere. None unless the scorer was asked for it.
        last_word_end: the same after the document's last token, in its last part; None if the model has no position
            left.
        tokenizer: gives the texts of tokens; None: iteration yields their ids as text.
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
    word_ends: npt.NDArray[np.float64] | None = None
    last_word_end: float | None = None
    tokenizer: Tokenizer | None = field(default=None, repr=False, compare=False)

    @property
    def bits(self) -> npt.NDArray[np.float64]:
        """The surprisal of each token (n,), in bits."""
        return -self.log_probs.astype(np.float64) / LN2

    def __len__(self) -> int:
        return len(self.tokens)

    def __iter__(self) -> Iterator[tuple[str, float]]:
        tokens = self.tokens.tolist()
        texts = [str(token) for token in tokens] if self.tokenizer is None else token_texts(self.tokenizer, tokens)
        return iter(zip(texts, self.bits.tolist(), strict=True))

    def __repr__(self) -> str:
        end = "" if self.error is None else f", {type(self.error).__name__}"
        end = end if self.summary is None else ", the last of the document"
        return f"TokenScores({self.document!r}: {len(self)} tokens{end})"


def flat_fields(score: Any) -> dict[str, Any]:
    """Return the fields of a score by name, each of its `settings` as a field of its own."""
    fields: dict[str, Any] = {}
    for name, value in vars(score).items():
        fields |= value if name == "settings" else {name: value}
    return fields


def data_frame(columns: Mapping[str, Any]) -> Any:
    """Return a `pandas.DataFrame` of these columns.

    Raises:
        XlruntimeError: pandas is not installed.
    """
    try:
        pandas = import_module("pandas")
    except ModuleNotFoundError as error:
        raise XlruntimeError(
            f"to_pandas: Python has no module {error.name}.", hint="Install it: pip install pandas"
        ) from error
    return pandas.DataFrame(dict(columns))


def total_score(
    document: str,
    counts: TextCounts,
    tokens: int,
    unscored_tokens: int,
    log_prob_sum: float,
    evaluation: EvaluationSettings,
    tokens_per_second: float,
) -> DocumentScore:
    """Return the total of a document that has been read to its end.

    Args:
        unscored_tokens: 1 if the first token had no context, 0 if it had the context of the previous document.
        log_prob_sum: sum of the natural logarithms of the other tokens' probabilities.
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
    """Return amount / count, or None if `count` is 0."""
    return amount / count if count > 0 else None


def perplexity(nats_per_token: float) -> float:
    """Return exp(nats_per_token), or infinity if it overflows."""
    return math.inf if nats_per_token > LARGEST_MEAN else math.exp(nats_per_token)
