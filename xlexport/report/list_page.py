"""Write one HTML page about several documents, or two sides of them: a list that opens each text by word."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport import atomic_output
from xlexport.atomic_output import check_file
from xlexport.page.assemble import COLOUR_LEVELS, WORD_CEILING, bundle_note, page_pieces, page_title
from xlexport.report.packing import pack
from xlexport.report.words import MOST_DOCUMENTS, DocumentWords, Held, LeftOut, score_words, why_of
from xlexport.scoring.totals import caveats
from xlruntime import EvaluationSettings, Model, TextError, TokenScores
from xlruntime.messages import counted
from xlruntime.scores import ratio

__all__ = ["ListReport", "ListRow", "Side", "as_rows", "figures", "score_sides", "values", "write_list"]

CEILINGS = (1, 2, 4, 8, 16, 32)  # bits at the ends of the scale for differences
OUTLIERS = 0.02  # share of differences that may be beyond these ends
STEPS = 1000  # steps per bit
# The columns of figures, each with the digits that the page shows.
ONE_SIDE = (("words", 0), ("bits", 2), ("bits per word", 3), ("bits per byte", 3))
TWO_SIDES = (("words", 0), ("A, bits", 2), ("B, bits", 2), ("A − B, bits", 2), ("A − B per word", 3))


@dataclass(frozen=True)
class Side:
    """One of the two sides of a page, or the only one.

    Attributes:
        name: what distinguishes it from the other side; empty if there is only one.
        bos: id of a token that the model reads before each document.
    """

    name: str
    model: Model
    settings: EvaluationSettings
    bos: int | bool | None = None


@dataclass(frozen=True)
class ListRow:
    """A document with the scores of one side or two.

    Attributes:
        sides: scores of A, and of B if there are two sides.
    """

    held: Held
    sides: tuple[DocumentWords, ...]

    @property
    def differences(self) -> npt.NDArray[np.float64]:
        """A − B by word (n,), in bits; NaN unless both sides score the whole word. Without B, only NaN."""
        a, b = self.sides[0].bits, self.sides[-1].bits
        return a - b if len(self.sides) > 1 else np.full_like(a, np.nan)


@dataclass(frozen=True)
class ListReport:
    """The content of a page of several documents.

    Attributes:
        rows: documents in order; left out ones say why.
        further: number of documents after the last row, which were not read.
    """

    sides: tuple[Side, ...]
    rows: list[ListRow | LeftOut]
    further: int

    @property
    def scored(self) -> list[ListRow]:
        """The documents that have scores."""
        return [row for row in self.rows if isinstance(row, ListRow)]

    @property
    def left_out(self) -> list[LeftOut]:
        """The documents that have none."""
        return [row for row in self.rows if isinstance(row, LeftOut)]

    @property
    def remarks(self) -> list[str]:
        """Sentences about the settings that scores depend on, and about text without a score."""
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
        for number, side in enumerate(self.sides):
            missing = sum(_missing(row.sides[number].bits) for row in self.scored)
            if missing:
                name = f"{'AB'[number]}: " if len(self.sides) > 1 else ""
                hint = " --bos gives it one." if side.bos is None else ""
                sentences.append(
                    f"{name}{counted(missing, 'word')} without a score: a first token has no context.{hint}"
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
    held = [document for document in documents if isinstance(document, Held)]
    results = [score_words(side.model, side.settings, held, n, side.bos, watch) for n, side in enumerate(sides)]
    report = ListReport(tuple(sides), as_rows(documents, results), further)
    if not report.scored:
        first = report.left_out[0]
        raise TextError(f"{first.name}: {first.why}", hint="Give documents that can be scored.")
    return report


def as_rows(
    documents: Sequence[Held | LeftOut], sides: Sequence[Sequence[DocumentWords | Exception]]
) -> list[ListRow | LeftOut]:
    """Put the scores of all sides together; a document that fails on one side is left out.

    Args:
        documents: the documents of the page.
        sides: for each side the results of the held documents, in order.

    Raises:
        TextError: the sides have other words in one document.
    """
    rows: list[ListRow | LeftOut] = []
    results = zip(*sides, strict=True)
    for document in documents:
        if isinstance(document, LeftOut):
            rows.append(document)
            continue
        outcomes = next(results)
        words = tuple(result for result in outcomes if isinstance(result, DocumentWords))
        errors = [result for result in outcomes if isinstance(result, Exception)]
        if errors:
            rows.append(LeftOut(document.name, why_of(errors[0], document.name), True, document.columns))
            continue
        a, b = words[0], words[-1]
        if not (np.array_equal(a.starts, b.starts) and np.array_equal(a.ends, b.ends)):
            raise TextError(
                f"{document.name}: {counted(len(a.starts), 'word')} for A and {len(b.starts):,} for B at other places, "
                "so they cannot be compared by word.",
                hint="Make a page of each side.",
            )
        rows.append(ListRow(document, words))
    return rows


def values(row: ListRow) -> list[float | None]:
    """Return a document's figures; None: there is nothing to divide by, or the value is not finite."""
    words = float(len(row.sides[0].starts))
    if len(row.sides) > 1:
        numbers = [words, *(side.summary.bits for side in row.sides), _sum(row.differences), _mean([row.differences])]
    else:
        (side,) = row.sides
        numbers = [words, side.summary.bits, _mean([side.bits]), side.summary.bits_per_byte]
    return [None if value is None or not math.isfinite(value) else value for value in numbers]


def figures(rows: Sequence[ListRow]) -> list[tuple[str, str]]:
    """Return the totals of all documents, the most informative first."""
    words = sum(len(row.sides[0].starts) for row in rows)
    bits = [sum(score.summary.bits for score in side) for side in zip(*(row.sides for row in rows), strict=True)]
    counts = [("documents", f"{len(rows):,}"), ("words", f"{words:,}")]
    if len(bits) > 1:
        differences = [row.differences for row in rows]
        total, mean = sum(_sum(part) or 0.0 for part in differences), _mean(differences)
        return [
            ("A, bits", f"{bits[0]:,.2f}"),
            ("B, bits", f"{bits[1]:,.2f}"),
            ("A − B, bits", _signed(total, 2)),
            *([] if mean is None else [("A − B per word", _signed(mean, 3))]),
            *counts,
        ]
    scored_bytes = sum(row.sides[0].summary.scored_bytes for row in rows)
    means = [
        ("bits per byte", ratio(bits[0], scored_bytes)),
        ("bits per word", _mean([row.sides[0].bits for row in rows])),
    ]
    shown = [(name, f"{value:.3f}") for name, value in means if value is not None]
    return [*shown, ("bits", f"{bits[0]:,.2f}"), *counts]


def _missing(numbers: npt.NDArray[np.float64]) -> int:
    return int(np.count_nonzero(np.isnan(numbers)))


def _sum(numbers: npt.NDArray[np.float64]) -> float | None:
    """Return the sum of the numbers, or None if there is none."""
    return None if _missing(numbers) == len(numbers) else float(np.nansum(numbers))


def _mean(parts: Sequence[npt.NDArray[np.float64]]) -> float | None:
    """Return the mean of the numbers in all parts, or None if there is none."""
    return ratio(sum(_sum(part) or 0.0 for part in parts), sum(len(part) - _missing(part) for part in parts))


def _signed(value: float, digits: int) -> str:
    """Return a number with its sign, unless it is 0 in these digits."""
    text = f"{value:+,.{digits}f}"
    return text if text.strip("+-0.") else f"{0:.{digits}f}"


def write_list(report: ListReport, output: Path, *, title: str, force: bool = False) -> None:
    """Write the page, whole or not at all.

    Raises:
        OutputExistsError, OutputFolderError: as `atomic_output.check_file`.
    """
    fields = list(dict.fromkeys(name for row in report.rows for name in _columns(row)))
    # The bits at the ends of the scale for differences.
    sizes = np.abs(np.concatenate([np.zeros(1), *(row.differences for row in report.scored)]))
    most = np.nanquantile(sizes, 1 - OUTLIERS)
    ceiling = next((ceiling for ceiling in CEILINGS if most <= ceiling), CEILINGS[-1])
    about = {
        "title": page_title(title),
        "levels": COLOUR_LEVELS,
        "steps": STEPS,
        "sides": [
            [page_title(side.name), bundle_note(side.model.bundle, side.model.folder, side.settings)]
            for side in report.sides
        ],
        "ceiling": {"word": WORD_CEILING, "difference": ceiling},
        "fields": fields,
        "columns": TWO_SIDES if len(report.sides) > 1 else ONE_SIDE,
        "figures": figures(report.scored),
        "notes": report.remarks,
    }
    documents = pack(json.dumps([_document(row, fields) for row in report.rows]).encode("ascii"))
    with (
        atomic_output.file(output, lambda: check_file(output, force)) as path,
        path.open("w", encoding="utf-8", newline="\n") as file,
    ):
        file.writelines(page_pieces("list", about, [("packed", documents)]))


def _columns(row: ListRow | LeftOut) -> Mapping[str, Any]:
    return row.columns if isinstance(row, LeftOut) else row.held.columns


def _document(row: ListRow | LeftOut, fields: Sequence[str]) -> dict[str, Any]:
    """Return the data of a document; the page's script describes them."""
    own = ["" if (value := _columns(row).get(name)) is None else str(value) for name in fields]
    if isinstance(row, LeftOut):
        return {"name": row.name, "fields": own, "why": row.why}
    first = row.sides[0]
    edges = np.stack([first.starts, first.ends], axis=1).reshape(-1)
    return {
        "name": row.held.name,
        "fields": own,
        "contexts": row.held.contexts_as_text,
        "text": first.text,
        "spans": np.diff(edges, prepend=0).tolist(),  # deflates better than places
        "bits": [_steps(side.bits) for side in row.sides],
        "difference": _steps(row.differences),
        "values": values(row),
    }


def _steps(bits: npt.NDArray[np.float64]) -> list[int | None]:
    """Return bits in whole steps; None: no finite number."""
    return [round(value * STEPS) if np.isfinite(value) else None for value in bits.tolist()]
