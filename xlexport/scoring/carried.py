"""Columns of the input in records: after the name of the document, before what records have themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from xlexport.scoring.output_formats import Columns

__all__ = ["kinds_of_columns", "own_columns", "with_columns"]

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
CORRECTED = ("corrected_nats", "corrected_bits")
DETAIL = ("entropy_first", "entropy_sum", "rank", "entropy")
KINDS = {  # of all columns that are not int
    **dict.fromkeys(("text", "word", "region", "token"), "text"),
    **dict.fromkeys(("nats", "bits", "log_prob", "surprisal_bits", "perplexity"), "float"),
    **dict.fromkeys(("bits_per_byte", "bits_per_char", "bits_per_token"), "float"),
    **dict.fromkeys(("corrected_nats", "corrected_bits", "entropy_first", "entropy_sum", "entropy"), "float"),
    "complete": "bool",
}
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


def kinds_of_columns(
    level: str, settings: Mapping[str, Any], carried: Iterable[str], detail: bool, corrected: bool
) -> dict[str, str]:
    """Return the columns of records in their order, each with its kind: int, float, bool or text.

    Args:
        settings: the evaluation settings by name.
        carried: columns of the input.
        detail, corrected: whether records have the columns of these options.
    """
    absent = {
        "tokens_per_second",
        *(() if corrected else CORRECTED),
        *(() if detail else DETAIL),
        *(() if level in ("document", "line") else ("bits_per_byte",)),
        *(("words",) if level == "word" else ()),
    }
    own = {name: KINDS.get(name, "int") for name in OWN[level] if name not in absent and not name.startswith("top")}
    if level == "document":
        own |= {name: _kind_of(value) for name, value in settings.items()}
    return {"document": "text", **dict.fromkeys(carried, "text"), **own}


def _kind_of(value: Any) -> str:
    return "bool" if isinstance(value, bool) else "float" if isinstance(value, float) else "int"


def with_columns(record: Columns, columns: Mapping[str, Any]) -> Columns:
    """Return records of one document with its columns in them."""
    return {"document": record["document"], **columns, **record} if columns else record
