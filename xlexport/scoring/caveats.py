"""What must be said about scores: what they depend on, and what of a document they do not cover."""

from __future__ import annotations

from xlruntime import DocumentScore, TextError
from xlruntime.documents import Tokenizer
from xlruntime.evaluation import EvaluationSettings

__all__ = ["NEWLINES_MERGED", "caveats", "losses", "nothing_to_score"]

NEWLINES_MERGED = "The tokenizer takes newlines for spaces, so the bits do not encode where lines end."


def nothing_to_score(score: DocumentScore) -> TextError | None:
    """What is wrong with a document that has no token with a score; its first token has no context."""
    if score.scored_tokens:
        return None
    return TextError(
        f"{score.document}: {score.tokens} of at least 2 tokens, so nothing to score.", repair="Give a longer text."
    )


def caveats(evaluation: EvaluationSettings, tokenizer: Tokenizer) -> list[str]:
    """Return what scores depend on, or do not cover, in every document."""
    found = []
    if evaluation.segmentation_matters:
        found.append(f"Without same_length the scores depend on the segment length, which is {evaluation.segment_len}.")
    if tokenizer.merges_newlines:
        found.append(NEWLINES_MERGED)
    return found


def losses(score: DocumentScore) -> list[str]:
    """What of a document the tokens do not hold, on which its bits per byte depend."""
    found = []
    if score.dropped_bytes:
        found.append(
            f"{score.dropped_bytes:,} bytes have no symbol in the vocabulary (newlines), so they were left out; "
            "ratios are of what is covered, as in published figures."
        )
    if score.unknown_tokens:
        found.append(
            f"{score.unknown_tokens:,} of {score.tokens:,} tokens replace text that the vocabulary lacks, so "
            "the bits do not encode the text."
        )
    return found
