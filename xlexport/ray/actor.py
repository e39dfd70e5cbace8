"""The actors of a cluster: each opens the bundle once, and scores documents. This module does not import Ray."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from xlexport.bundles import open_bundle
from xlexport.ray.places import Part, Place, chunks_of, documents_of_rows
from xlexport.scoring.chunks import Chunk, ChunkScorer
from xlexport.scoring.inputs import Input
from xlexport.scoring.output_formats import records_table, write_parquet
from xlexport.scoring.rows import Row
from xlexport.scoring.run_options import UNITS, RunOptions
from xlexport.scoring.totals import Totals
from xlexport.scoring.traits import TextTraits

__all__ = ["ERROR", "PartActor", "RowActor", "Work"]

ERROR = "error"  # the column that says why a document has no score


@dataclass(frozen=True)
class Work:
    """The work that all actors share.

    Attributes:
        runtime: arguments of `open_bundle`; settings: of `Model.evaluation`.
        columns: the columns of all records in their order, each with its kind if it has no value.
        output: the folder of the parts' outputs, and kind: their format. Only for `PartActor`.
    """

    bundle: str
    runtime: Mapping[str, Any]
    settings: Mapping[str, Any]
    options: RunOptions
    columns: Mapping[str, str]
    output: str = ""
    kind: Literal["parquet", "jsonl"] = "parquet"


class _Actor:
    """An open bundle that scores chunks of documents."""

    def __init__(self, work: Work) -> None:
        self._work = work
        model = open_bundle(work.bundle, **work.runtime)
        self._scorer = ChunkScorer(model, model.evaluation(**work.settings), work.options, with_speed=False)
        self._keep = work.options.per in UNITS

    def _rows(self, chunks: Iterable[Chunk], totals: Totals) -> Iterator[dict[str, Any]]:
        """Yield the records of documents, and a row with an error for each that has no score."""
        for chunk in chunks:
            for message in self._scorer.score(chunk):
                for scored in message if isinstance(message, list) else ():
                    for line in scored.raw.splitlines():
                        yield {**json.loads(line), ERROR: None}
                    if scored.part.summary is not None:
                        totals.add(scored.part.summary)
                        totals.add_traits(scored.traits or TextTraits())
                    if scored.part.error is not None:
                        totals.failed += 1
                        yield {"document": scored.part.document, ERROR: str(scored.part.error)}


class PartActor(_Actor):
    """An actor that writes the records of each part to a file, which appears whole."""

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Score the parts in a batch; return their counts."""
        sums: list[Totals] = []
        for part in batch["part"]:
            totals = Totals()
            self._write(part, totals)
            sums.append(totals)
        names = ("documents", "failed", "tokens", "scored_tokens", "scored_bytes", "bits")
        columns = (*names, *TextTraits.__dataclass_fields__)
        return {name: np.array([getattr(totals, name) for totals in sums]) for name in columns}

    def _write(self, part: Part, totals: Totals) -> None:
        work = self._work
        with tempfile.TemporaryDirectory() as folder:
            lines = Path(folder, "lines")
            with lines.open("w", encoding="utf-8") as file:
                for row in self._rows(chunks_of(part, work.options.reading, self._keep), totals):
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
            if work.kind == "parquet":
                table = Path(folder, "table")
                write_parquet(lines, table, work.columns)
                lines = table
            Place(work.output).at(f"{part.name}.{work.kind}").write(lines)


class RowActor(_Actor):
    """An actor that turns rows with documents into rows with scores."""

    def __call__(self, batch: Any) -> Iterator[Any]:
        """Yield a table of records for a table of documents."""
        reading = self._work.options.reading
        rows = tuple(
            Row(f"row {number}", row, _size(row.get(str(reading.field))))
            for number, row in enumerate(batch.to_pylist())
        )
        chunks = documents_of_rows(rows, Input("dataset", None), reading, self._keep)
        yield records_table(list(self._rows(chunks, Totals())), self._work.columns)


def _size(content: Any) -> int:
    """Return about how many bytes the text or the token ids of a row have."""
    return len(content) if isinstance(content, str | bytes | list) else 0
