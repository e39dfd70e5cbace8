"""The lines that the `context` command prints for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from xlexport.analysis.context import ContextReport

__all__ = ["context_lines", "names_of", "share_name", "unit_of"]


def unit_of(report: ContextReport) -> str:
    """Return the unit of bits: byte, or token if bytes are unknown."""
    known = all(score.bits_per_byte is not None for model in report.models for score in model.lengths)
    return "byte" if known else "token"


def names_of(report: ContextReport) -> list[str]:
    """Return a short name for each model: its folder's name, or the whole path if two folders share a name."""
    names = [Path(model.bundle).resolve().name for model in report.models]
    return [name if names.count(name) == 1 else model.bundle for name, model in zip(names, report.models, strict=True)]


def share_name(share: float) -> str:
    """Return a name for the share of tokens on which RECL is based."""
    return f"hardest {100 * share:.4g}%" if share < 1 else "all tokens"


def context_lines(report: ContextReport) -> list[str]:
    """Return a table of the curves and a table of RECL."""
    documents = report.documents[0] if len(report.documents) == 1 else f"{len(report.documents):,} documents"
    which = " that have full context" if report.full_context else ""
    lines = [f"{documents}: {report.scored_tokens:,} of {report.tokens:,} tokens scored{which}", ""]
    lines += _aligned(_one_curve(report) if len(report.models) == 1 else _curves(report), left=False)
    if report.recl is not None:
        table = [["RECL", *map(share_name, report.recl.shares)]]
        for name, model in zip(names_of(report), report.models, strict=True):
            lengths = [f"≥ {recl.at_least:,}" if recl.recl is None else f"{recl.recl:,}" for recl in model.recl]
            table.append([name, *lengths])
        lines += ["", *_aligned(table, left=True)]
    return lines


def _one_curve(report: ContextReport) -> list[list[str]]:
    unit = unit_of(report)
    rows = [["memory", "context", f"bits per {unit}", "change", "tokens/s"]]
    before: float | None = None
    for score in report.models[0].lengths:
        bits = getattr(score, f"bits_per_{unit}")
        change = "" if before is None else f"{bits - before:+.4f}"
        rows.append(
            [f"{score.mem_len:,}", f"{score.context:,.1f}", f"{bits:.4f}", change, f"{score.tokens_per_second:,.0f}"]
        )
        before = bits
    return rows


def _curves(report: ContextReport) -> list[list[str]]:
    unit = unit_of(report)
    rows = [["memory", *(f"{name}, bits per {unit}" for name in names_of(report))]]
    for place, score in enumerate(report.models[0].lengths):
        bits = [getattr(model.lengths[place], f"bits_per_{unit}") for model in report.models]
        rows.append([f"{score.mem_len:,}", *(f"{value:.4f}" for value in bits)])
    return rows


def _aligned(rows: Sequence[Sequence[str]], left: bool) -> list[str]:
    """Align columns to the right; with `left`, align the first to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if left and not number else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
