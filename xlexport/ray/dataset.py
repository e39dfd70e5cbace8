"""Score the rows of a `ray.data.Dataset`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xlexport.bundles import open_bundle
from xlexport.extras import require
from xlexport.ray.cluster import device_of, open_here
from xlexport.scoring.chunks import ChunkScorer, chunks, make_scorer
from xlexport.scoring.documents import CarriedColumns, items
from xlexport.scoring.inputs import Input
from xlexport.scoring.output_formats import records_table
from xlexport.scoring.records import kinds_of_columns
from xlexport.scoring.rows import Row
from xlexport.scoring.score_options import UNITS, ScoreOptions
from xlruntime import ArgumentError

__all__ = ["columns_of", "score_dataset"]

BATCH_ROWS = 256  # many batches are formed of them, by length
ERROR = "error"  # the column that says why a document has no score


def columns_of(options: ScoreOptions, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns of all records, each with the kind that it has without values."""
    return {**kinds_of_columns(options, settings), ERROR: "text"}


@dataclass(frozen=True)
class _Work:
    """The work that all actors share.

    Attributes:
        runtime: arguments of `open_bundle`; settings: of `Model.evaluation`.
        columns: the columns of all records in their order, each with its kind if it has no value.
    """

    bundle: str
    runtime: Mapping[str, Any]
    settings: Mapping[str, Any]
    options: ScoreOptions
    columns: Mapping[str, str]


class _RowActor:
    """An actor that turns rows with documents into rows with scores."""

    def __init__(self, work: _Work) -> None:
        self._work = work
        model = open_bundle(work.bundle, **work.runtime)
        self._scorer = ChunkScorer(model, model.evaluation(**work.settings), work.options, with_speed=False)

    def __call__(self, batch: Any) -> Iterator[Any]:
        """Yield a table of records for a table of documents."""
        field = str(self._work.options.reading.field)
        rows = (Row(f"row {number}", row, _size(row.get(field))) for number, row in enumerate(batch.to_pylist()))
        yield records_table(list(self._records(rows)), self._work.columns)

    def _records(self, rows: Iterator[Row]) -> Iterator[dict[str, Any]]:
        """Yield the records of documents, and a row with an error for each that has no score."""
        entry, options = Input("dataset", None), self._work.options
        columns = CarriedColumns(options.reading, (), lambda line: None)
        documents = items(rows, entry.name, options.reading, options.level in UNITS, columns)
        for chunk in chunks((entry, document) for document in documents):
            for message in self._scorer.score(chunk):
                for scored in message if isinstance(message, list) else ():
                    for line in scored.raw.splitlines():
                        yield {**json.loads(line), ERROR: None}
                    if scored.part.error is not None:
                        yield {"document": scored.part.document, ERROR: str(scored.part.error)}


def _size(content: Any) -> int:
    """Return about how many bytes the text or the token ids of a row have."""
    return len(content) if isinstance(content, str | bytes | list) else 0


def score_dataset(
    dataset: Any,
    bundle: str | Path,
    *,
    field: str = "text",
    id_field: str | None = None,
    keep: tuple[str, ...] = (),
    options: ScoreOptions | None = None,
    actors: int = 1,
    threads: int = 1,
    runtime: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """Return a dataset with the records of a dataset's documents, in any order.

    Each row of `dataset` has a document. Records are those of `xlexport score`, with a further column `error`: a
    document that cannot be scored is one row that says why. The bundle is opened here, too, to check the options.

    Args:
        dataset: a `ray.data.Dataset`.
        bundle: the folder of a bundle, which all machines can read.
        field: the column with the text; id_field: the column with the document's name. Without it, documents are named
            by their row, which begins again after some hundred rows.
        keep: columns that records repeat.
        options: how to score, such as the unit of a record, and the rest about the rows, such as `context_field` and
            `ids`; None: a record for each document.
        actors: number of processes with the bundle; threads: of each, which Ray counts as its CPUs.
        runtime: further options of `xlruntime.load`, such as `device`; with a GPU each process gets one.
        settings: evaluation settings, as for `Model.evaluation`.

    Raises:
        MissingDependencyError: Ray or pyarrow is not installed.
        ArgumentError: the documents would depend on each other.
        OptionError: an option or a setting does not fit the bundle.
    """
    require("ray")
    from ray.data import ActorPoolStrategy

    requested = options or ScoreOptions(batch_size="auto")
    if requested.continuous or requested.strict:
        raise ArgumentError("continuous and strict need documents in order, but a dataset has no order.")
    run_options = replace(requested, kind="jsonl", field=field, id_field=id_field, keep=keep)
    folder, runtime = os.path.abspath(bundle), {**(runtime or {}), "threads": threads}
    model = open_here(folder, runtime)
    evaluation = model.evaluation(**settings)
    make_scorer(model, evaluation, run_options)
    columns = columns_of(run_options, evaluation.values)
    model.release()
    return dataset.map_batches(
        _RowActor,
        fn_constructor_args=(_Work(folder, runtime, settings, run_options, columns),),
        batch_size=BATCH_ROWS,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=actors),
        num_cpus=threads,
        num_gpus=0 if device_of(runtime).on_host else 1,
    )
