"""Score the documents of a Ray dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from xlexport.extras import require
from xlexport.ray.actor import RowActor, Work
from xlexport.ray.job import Cluster, columns_of
from xlexport.scoring.run_options import RunOptions, make_scorer
from xlruntime import ArgumentError

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
        options: how to score, such as the unit of a record; None: a record for each document. Its `reading` says the
            rest about the rows, such as `context_field` and `ids`.
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

    requested = options or RunOptions(batch_size="auto")
    if requested.continuous or requested.strict:
        raise ArgumentError("continuous and strict are for documents in order, but a dataset has none.")
    cut = "marks" if requested.per == "region" else requested.reading.cut
    reading = replace(requested.reading, field=field, id_field=id_field, keep=keep, cut=cut)
    run_options = replace(requested, kind="jsonl", reading=reading, by_chunks=True)
    cluster = Cluster(runtime={**(runtime or {}), "threads": threads})
    model = cluster.open(os.path.abspath(bundle))
    evaluation = model.evaluation(**settings)
    make_scorer(model, evaluation, run_options)
    columns = columns_of(run_options, evaluation.values)
    model.release()
    work = Work(os.path.abspath(bundle), cluster.runtime, settings, run_options, columns)
    return dataset.map_batches(
        RowActor,
        fn_constructor_args=(work,),
        batch_size=ROWS,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=actors),
        num_cpus=threads,
        num_gpus=0 if cluster.device == "cpu" else 1,
    )
