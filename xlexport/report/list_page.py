"""One HTML page about several documents, or about two sides of them: a list, in which each opens its text by word."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport import atomic_output
from xlexport.atomic_output import check_file
from xlexport.report.html_page import LEVELS, page_pieces, page_title
from xlexport.report.packing import pack
from xlexport.report.page import model_note
from xlexport.report.rows import Row, as_rows, columns, figures, values
from xlexport.report.words import MOST_DOCUMENTS, Held, LeftOut, score_words
from xlexport.scoring.totals import caveats
from xlruntime import EvaluationSettings, Model, TextError, TokenScores
from xlruntime.messages import counted

__all__ = ["ListReport", "Side", "score_sides", "write_list"]

STYLES = ("colours.css", "report.css", "list.css")
SCRIPTS = ("common.js", "list.js")
WORD_CEILING = 32  # bits at the end of the scale for words
CEILINGS = (1, 2, 4, 8, 16, 32)  # bits at the ends of the scale for differences
OUTLIERS = 0.02  # share of differences that may be beyond these ends
STEPS = 1000  # steps per bit


@dataclass(frozen=True)
class Side:
    """One of the two sides of a page, or the only one.

    Attributes:
        name: what distinguishes it from the other side; empty if there is only one.
    """

    name: str
    model: Model
    settings: EvaluationSettings


@dataclass(frozen=True)
class ListReport:
    """Everything that a page of several documents shows.

    Attributes:
        rows: documents in order; left out ones say why.
        further: number of documents after the last row, which were not read.
    """

    sides: tuple[Side, ...]
    rows: list[Row | LeftOut]
    further: int

    @property
    def scored(self) -> list[Row]:
        """The documents that have scores."""
        return [row for row in self.rows if isinstance(row, Row)]

    @property
    def left_out(self) -> list[LeftOut]:
        """The documents that have none."""
        return [row for row in self.rows if isinstance(row, LeftOut)]

    @property
    def remarks(self) -> list[str]:
        """Sentences about what the scores depend on, and what has none."""
        sentences: list[str] = []
        for side in self.sides:
            sentences += [caveat for caveat in caveats(side.settings, side.model.tokenizer) if caveat not in sentences]
        if self.further:
            further = counted(self.further, "further document")
            sentences.append(f"{further} left out: a page has at most {MOST_DOCUMENTS:,}.")
        failed = sum(row.failed for row in self.left_out)
        if failed:
            sentences.append(f"{counted(failed, 'document')} could not be scored.")
        if too_long := len(self.left_out) - failed:
            sentences.append(f"{counted(too_long, 'document')} left out, as the page has no room for more.")
        return sentences + self._words_without()

    def _words_without(self) -> list[str]:
        why = "because the first token of a document has no context"
        sentences = []
        for number, letter in enumerate("AB"[: len(self.sides)]):
            words = [row.sides[number] for row in self.scored]
            nothing = sum(len(side.starts) - side.scored_words for side in words)
            partly = sum(len(side.partly) for side in words)
            side_of = f"{letter}: " if len(self.sides) > 1 else ""
            if nothing:
                sentences.append(f"{side_of}{counted(nothing, 'word')} without a score, {why}.")
            if partly:
                sentences.append(f"{side_of}{counted(partly, 'word')} (italic) with a score of only a part, {why}.")
        missing = sum(len(row.sides[0].starts) - row.compared for row in self.scored)
        if len(self.sides) > 1 and missing:
            sentences.append(
                f"{counted(missing, 'word')} without A − B, because the sides do not score the same text of it."
            )
        return sentences


def score_sides(
    documents: Sequence[Held | LeftOut],
    further: int,
    sides: Sequence[Side],
    watch: Callable[[TokenScores], None] = lambda part: None,
) -> ListReport:
    """Score the documents with each side.

    Args:
        documents, further: what `hold` returns.
        watch: called with each part of the scores.

    Raises:
        TextError: a bundle has no tokenizer, the sides have other words, or no document can be scored.
    """
    readable = [document for document in documents if isinstance(document, Held)]
    results = [score_words(side.model, side.settings, readable, number, watch) for number, side in enumerate(sides)]
    report = ListReport(tuple(sides), as_rows(documents, results), further)
    if not report.scored:
        first = report.left_out[0]
        raise TextError(f"{first.name}: {first.why}", hint="Give documents that can be scored.")
    return report


def write_list(report: ListReport, output: Path, *, title: str, force: bool = False) -> None:
    """Write the page, whole or not at all.

    Raises:
        OutputExistsError, OutputFolderError: as `atomic_output.check_file`.
    """
    about = _about(report, page_title(title))
    documents = pack(json.dumps([_document(row) for row in report.rows]).encode("ascii"))
    with (
        atomic_output.file(output, lambda: check_file(output, force)) as path,
        path.open("w", encoding="utf-8", newline="\n") as file,
    ):
        file.writelines(page_pieces("list.html", STYLES, SCRIPTS, about, [("packed", documents)]))


def _about(report: ListReport, title: str) -> dict[str, Any]:
    is_pair = len(report.sides) > 1
    return {
        "title": title,
        "levels": LEVELS,
        "steps": STEPS,
        "sides": [[page_title(side.name), model_note(side.model, side.settings)] for side in report.sides],
        "ceiling": {"word": WORD_CEILING, "difference": _ceiling(report.scored)},
        "columns": columns(is_pair),
        "figures": figures(report.scored),
        "notes": report.remarks,
    }


def _ceiling(rows: Sequence[Row]) -> int:
    """Return the bits at the ends of the scale for differences."""
    parts = [np.abs(row.difference[~np.isnan(row.difference)]) for row in rows if row.difference is not None]
    sizes = np.concatenate([np.zeros(1), *parts])
    most = np.quantile(sizes, 1 - OUTLIERS)
    return next((ceiling for ceiling in CEILINGS if most <= ceiling), CEILINGS[-1])


def _document(row: Row | LeftOut) -> dict[str, Any]:
    """Return the data of a document; the page's script describes them."""
    if isinstance(row, LeftOut):
        return {"name": row.name, "why": row.why}
    first = row.sides[0]
    edges = np.stack([first.starts, first.ends], axis=1).reshape(-1)
    return {
        "name": row.name,
        "contexts": row.contexts,
        "text": first.text,
        "spans": np.diff(edges, prepend=0).tolist(),  # deflates better than places
        "bits": [_steps(side.bits) for side in row.sides],
        "partly": [side.partly for side in row.sides],
        "difference": None if row.difference is None else _steps(row.difference),
        "values": values(row),
    }


def _steps(bits: npt.NDArray[np.float64]) -> list[int | None]:
    """Return bits in whole steps; None: no finite number."""
    return [round(value * STEPS) if np.isfinite(value) else None for value in bits.tolist()]
