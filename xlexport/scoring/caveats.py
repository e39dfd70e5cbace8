"""Caveats about scores: what they depend on, and which parts of a document they do not cover."""

from __future__ import annotations

from xlruntime import DocumentScore, EvaluationSettings, TextError
from xlruntime.documents import Tokenizer

__all__ = ["NEWLINES_MERGED", "caveats", "losses", "nothing_to_score"]

NEWLINES_MERGED = "The tokenizer reads newlines as spaces, so bits per byte exclude the cost of line breaks."


def nothing_to_score(score: DocumentScore) -> TextError | None:
    """Return the error for a document without a scored token, or None. The first token is never scored."""
    if score.scored_tokens:
        return None
    return TextError(
        f"{score.document}: {score.tokens} of at least 2 tokens, so nothing to score.", hint="Give a longer text."
    )


def caveats(evaluation: EvaluationSettings, tokenizer: Tokenizer) -> list[str]:
    """Return sentences about what the scores of every document depend on or do not cover."""
    found = []
    if evaluation.segmentation_matters:
        found.append(f"Without same_length the scores depend on the segment length, which is {evaluation.segment_len}.")
    if tokenizer.merges_newlines:
        found.append(NEWLINES_MERGED)
    return found


def losses(score: DocumentScore) -> list[str]:
    """Return sentences about text of a document that its tokens lose, which changes its bits per byte."""
    found = []
    if score.dropped_bytes:
        found.append(
            f"{score.dropped_bytes:,} bytes have no symbol in the vocabulary (newlines), so they were left out; "
            "ratios cover only the rest, as in published figures."
        )
    if score.unknown_tokens:
        found.append(
            f"{score.unknown_tokens:,} of {score.tokens:,} tokens replace text that the vocabulary lacks, so "
            "the bits do not encode the text."
        )
    return found
