"""The rows of a page of several documents or of two sides: words, bits of each side, and A − B."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xlexport.report.words import Held, LeftOut, WordScores, why_of
from xlruntime import TextError
from xlruntime.messages import counted
from xlruntime.scores import ratio

__all__ = ["Row", "as_rows", "columns", "figures", "values"]

Column = tuple[str, int]  # its title, and the digits that the page shows


@dataclass(frozen=True)
class Row:
    """A document with the scores of one side or two.

    Attributes:
        sides: scores of A, and of B if there are two sides.
        difference: (n,) A − B by word, in bits. NaN unless both sides score the same text of the word: a side without
            context has no score of its first token, which may be a whole word for one tokenizer and a byte for another.
        contexts: texts before the document, one for each side if they differ; empty if there is none.
    """

    name: str
    sides: tuple[WordScores, ...]
    difference: npt.NDArray[np.float64] | None
    contexts: tuple[str, ...] = ()

    @property
    def compared(self) -> int:
        """Number of words with a difference."""
        return 0 if self.difference is None else int(np.count_nonzero(~np.isnan(self.difference)))

    @property
    def total_difference(self) -> float:
        """Sum of the differences by word."""
        return 0.0 if self.difference is None else float(np.nansum(self.difference))


def as_rows(
    documents: Sequence[Held | LeftOut], sides: Sequence[Sequence[WordScores | Exception]]
) -> list[Row | LeftOut]:
    """Put the scores of all sides together; a document that fails on one side is left out.

    Args:
        documents: the documents of the page.
        sides: for each side the results of the held documents, in order.

    Raises:
        TextError: the sides have other words in one document.
    """
    rows: list[Row | LeftOut] = []
    results = zip(*sides, strict=True)
    for document in documents:
        if isinstance(document, LeftOut):
            rows.append(document)
            continue
        outcomes = next(results)
        errors = [result for result in outcomes if isinstance(result, Exception)]
        if errors:
            rows.append(LeftOut(document.name, why_of(errors[0], document.name), failed=True))
            continue
        words = tuple(result for result in outcomes if isinstance(result, WordScores))
        difference = _difference(document.name, *words) if len(words) > 1 else None
        rows.append(Row(document.name, words, difference, document.texts_before()))
    return rows


def _difference(name: str, a: WordScores, b: WordScores) -> npt.NDArray[np.float64]:
    if not (np.array_equal(a.starts, b.starts) and np.array_equal(a.ends, b.ends)):
        raise TextError(
            f"{name}: {counted(len(a.starts), 'word')} for A and {len(b.starts):,} for B at other places, so they "
            "cannot be compared by word.",
            hint="Make a page of each side.",
        )
    is_same = (a.covered == b.covered) | (a.whole & b.whole)
    return np.where(is_same, a.bits - b.bits, np.nan)


def columns(is_pair: bool) -> list[Column]:
    """Return the columns of the list of documents."""
    if is_pair:
        return [("words", 0), ("A, bits", 2), ("B, bits", 2), ("A − B, bits", 2), ("A − B per word", 3)]
    return [("words", 0), ("bits", 2), ("bits per word", 3), ("bits per byte", 3)]


def values(row: Row) -> list[float | None]:
    """Return a document's values of these columns; None: there is nothing to divide by, or the value is not finite."""
    a = row.sides[0].summary
    words = float(len(row.sides[0].starts))
    if row.difference is not None:
        compared = row.total_difference if row.compared else None
        mean = ratio(row.total_difference, row.compared)
        numbers = [words, a.bits, row.sides[1].summary.bits, compared, mean]
    else:
        numbers = [words, a.bits, ratio(a.bits, row.sides[0].scored_words), a.bits_per_byte]
    return [None if value is None or not math.isfinite(value) else value for value in numbers]


def figures(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return the totals of all documents, the most informative first."""
    words = sum(len(row.sides[0].starts) for row in rows)
    bits = [sum(row.sides[side].summary.bits for row in rows) for side in range(len(rows[0].sides))]
    counts = [("documents", f"{len(rows):,}"), ("words", f"{words:,}")]
    if rows[0].difference is not None:
        compared = sum(row.compared for row in rows)
        difference = sum(row.total_difference for row in rows)
        mean = [("A − B per word", _signed(difference / compared, 3))] if compared else []
        return [
            ("A, bits", f"{bits[0]:,.2f}"),
            ("B, bits", f"{bits[1]:,.2f}"),
            ("A − B, bits", _signed(difference, 2)),
            *mean,
            *counts,
        ]
    scored_words = sum(row.sides[0].scored_words for row in rows)
    scored_bytes = sum(row.sides[0].summary.scored_bytes for row in rows)
    ratios = [("bits per byte", ratio(bits[0], scored_bytes)), ("bits per word", ratio(bits[0], scored_words))]
    return [
        *((name, f"{value:.3f}") for name, value in ratios if value is not None),
        ("bits", f"{bits[0]:,.2f}"),
        *counts,
    ]


def _signed(value: float, digits: int) -> str:
    """Return a number with its sign, unless it is 0 in these digits."""
    text = f"{value:+,.{digits}f}"
    return text if text.strip("+-0.") else f"{0:.{digits}f}"
