"""The sums of a scoring run, its summary, and caveats about scores."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xlexport.scoring.traits import TextTraits
from xlruntime import DocumentScore, EvaluationSettings, TextError
from xlruntime.documents import Tokenizer
from xlruntime.messages import counted

__all__ = ["NEWLINES_MERGED", "Totals", "added", "caveats", "lacks_white_space", "losses", "nothing_to_score"]

LONG_WORD = 10  # characters; words of more are rare in scripts of other than ASCII characters that have white space
NEWLINES_MERGED = "The tokenizer reads newlines as spaces, so bits per byte exclude the cost of line breaks."


@dataclass
class Totals(TextTraits):
    """Sums over the scored documents, mean and spread of their figures, and traits of their texts.

    Figures are bits per byte if all documents have bytes, else bits per token.
    """

    documents: int = 0
    failed: int = 0
    tokens: int = 0
    scored_tokens: int = 0
    bytes: int = 0
    scored_bytes: int = 0
    bits: float = 0.0
    without_bytes: int = 0
    byte_mean: float = 0.0  # mean and sum of squared deviations, one document after another (Welford, 1962)
    byte_squares: float = 0.0
    token_mean: float = 0.0
    token_squares: float = 0.0
    without_first: int = 0  # documents whose first token has no score
    dropped_bytes: int = 0
    unknown_tokens: int = 0

    def add(self, score: DocumentScore) -> None:
        """Add a document that was scored to its end."""
        self.documents += 1
        self.tokens += score.tokens
        self.scored_tokens += score.scored_tokens
        self.bytes += score.bytes
        self.scored_bytes += score.scored_bytes
        self.bits += score.bits
        self.without_first += score.scored_tokens < score.tokens
        self.dropped_bytes += score.dropped_bytes
        self.unknown_tokens += score.unknown_tokens
        if score.bits_per_token is not None:
            self.token_mean, self.token_squares = added(
                self.token_mean, self.token_squares, score.bits_per_token, self.documents
            )
        if score.bits_per_byte is None:
            self.without_bytes += 1
        else:
            self.byte_mean, self.byte_squares = added(
                self.byte_mean, self.byte_squares, score.bits_per_byte, self.documents - self.without_bytes
            )

    def together(self) -> str:
        """Return the number of documents and the figure of all together."""
        unit, amount = ("byte", self.scored_bytes) if self._per_byte else ("token", self.scored_tokens)
        line = f"{counted(self.documents, 'document')}, {counted(self.tokens, 'token')}"
        return f"{line}: {self.bits / max(amount, 1):.4f} bits per {unit}"

    @property
    def _per_byte(self) -> bool:
        return not self.without_bytes and self.scored_bytes > 0

    def summary(self) -> str:
        """Return one line: the number of documents, the figure of all together, mean and standard error."""
        per_byte = self._per_byte
        mean, squares = (self.byte_mean, self.byte_squares) if per_byte else (self.token_mean, self.token_squares)
        line = self.together()
        if self.documents > 1:
            error = math.sqrt(squares / (self.documents - 1) / self.documents)
            line += f" together, {mean:.4f} ± {error:.4f} a document (mean and standard error)"
        return line


def added(mean: float, squares: float, value: float, n: int) -> tuple[float, float]:
    """Return the mean and the sum of squared deviations after adding the n-th value."""
    before, mean = mean, mean + (value - mean) / n
    return mean, squares + (value - before) * (value - mean)


def nothing_to_score(score: DocumentScore) -> TextError | None:
    """Return the error for a document without a scored token, or None. The first token is never scored."""
    if score.scored_tokens:
        return None
    return TextError(
        f"{score.document}: {score.tokens} of at least 2 tokens, so nothing to score.", hint="Give a longer text."
    )


def caveats(evaluation: EvaluationSettings, tokenizer: Tokenizer) -> list[str]:
    """Return sentences about what the scores of every document depend on or do not cover."""
    sentences = []
    if evaluation.segmentation_matters:
        sentences.append(
            f"Without same_length the scores depend on the segment length, which is {evaluation.segment_len}."
        )
    if tokenizer.merges_newlines:
        sentences.append(NEWLINES_MERGED)
    return sentences


def lacks_white_space(score: DocumentScore) -> bool:
    """Return whether a text is in a script, such as Chinese or Thai, that does not separate words by white space."""
    return score.bytes > 2 * score.chars and score.chars > LONG_WORD * score.words


def losses(score: DocumentScore | Totals) -> list[str]:
    """Return sentences about text of documents that their tokens lose, which changes their bits per byte."""
    sentences = []
    if score.dropped_bytes:
        sentences.append(
            f"{score.dropped_bytes:,} bytes have no symbol in the vocabulary (newlines), so they were left out; "
            "ratios cover only the rest, as in published figures."
        )
    if score.unknown_tokens:
        sentences.append(
            f"{score.unknown_tokens:,} of {score.tokens:,} tokens replace text that the vocabulary lacks, so "
            "the bits do not encode the text."
        )
    return sentences
