"""Columns of the input in records: after the name of the document, before what records have themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from xlexport.scoring.output_formats import Columns

__all__ = ["own_columns", "with_columns"]

PARTS = [
    "start",
    "end",
    "tokens",
    "scored_tokens",
    "complete",
    "words",
    "chars",
    "bytes",
    "scored_chars",
    "scored_bytes",
    "nats",
    "bits",
    "bits_per_byte",
    "corrected_nats",
    "corrected_bits",
    "entropy_first",
    "entropy_sum",
    "context",
]
OWN = {
    "document": [
        "tokens",
        "scored_tokens",
        "unknown_tokens",
        "words",
        "chars",
        "bytes",
        "dropped_chars",
        "dropped_bytes",
        "scored_chars",
        "scored_bytes",
        "nats",
        "bits",
        "bits_per_byte",
        "bits_per_char",
        "bits_per_token",
        "perplexity",
        "segment_len",
        "tokens_per_second",
    ],
    "line": ["line", "text", *PARTS],
    "word": ["index", "word", *PARTS],
    "region": ["index", "region", *PARTS],
    "token": (
        "index token id start end log_prob surprisal_bits context rank entropy top "
        + " ".join(f"top_{k}_{what}" for k in range(1, 11) for what in ("token", "id", "log_prob"))
    ).split(),
}


def own_columns(level: str, settings: Iterable[str]) -> frozenset[str]:
    """Return the names of columns that records of a level may have themselves, with any options.

    Args:
        settings: names of the evaluation settings that the bundle declares.
    """
    return frozenset(["document", *OWN[level], *(settings if level == "document" else ())])


def with_columns(record: Columns, columns: Mapping[str, Any]) -> Columns:
    """Return records of one document with its columns in them."""
    return {"document": record["document"], **columns, **record} if columns else record
