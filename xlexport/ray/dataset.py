"""Score the documents of a Ray dataset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from xlexport.extras import require
from xlexport.ray.actor import RowActor, Work
from xlexport.scoring.inputs import Reading
from xlexport.scoring.run_options import RunOptions

__all__ = ["score_dataset"]

ROWS = 256  # of a batch: many batches are formed of them, by length


def score_dataset(
    dataset: Any,
    bundle: str | Path,
    *,
    field: str = "text",
    id_field: str | None = None,
    keep: tuple[str, ...] = (),
    options: RunOptions | None = None,
    actors: int = 1,
    threads: int = 1,
    **settings: Any,
) -> Any:
    """Return a dataset with the records of a dataset's documents, in any order.

    Each row of `dataset` has a document. Records are those of `xlexport score`, with a further column `error`: a
    document that cannot be scored is one row that says why.

    Args:
        dataset: a `ray.data.Dataset`.
        bundle: the folder of a bundle, which all machines can read.
        field: the column with the text; id_field: the column with the document's name; keep: columns that records
            repeat.
        options: how to score, such as the unit of a record; None: a record for each document.
        actors: number of processes with the bundle; threads: of each, which Ray counts as its CPUs.
        settings: evaluation settings, as for `Model.evaluation`.

    Raises:
        MissingDependencyError: Ray or pyarrow is not installed.
    """
    require("ray")
    from ray.data import ActorPoolStrategy

    reading = Reading(field=field, id_field=id_field, keep=keep)
    chosen = replace(options or RunOptions(batch_size="auto"), kind="jsonl", reading=reading, by_chunks=True)
    work = Work(str(bundle), {"threads": threads}, settings, chosen)
    return dataset.map_batches(
        RowActor,
        fn_constructor_args=(work,),
        batch_size=ROWS,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=actors),
        num_cpus=threads,
    )
