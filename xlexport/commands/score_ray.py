"""What `score` does with --ray: check the options, and start the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from xlexport.commands.input_options import ItemSelection
from xlexport.commands.score_options import HERE, OutputOptions, RecordOptions, SharingOptions
from xlexport.extras import require
from xlexport.terminal import Interrupted, tell

__all__ = ["score_on_ray"]


def score_on_ray(
    bundle: Path,
    files: Sequence[Path | str],
    record: RecordOptions,
    writing: OutputOptions,
    selection: ItemSelection,
    strict: bool,
    sharing: SharingOptions,
    runtime: Mapping[str, Any],
    evaluation: Mapping[str, Any],
) -> None:
    """Score files on a Ray cluster, and print the totals.

    Raises:
        click.UsageError: an option does not go together with --ray.
    """
    output = writing.output
    if output is None or str(output) == "-":
        raise click.UsageError("--ray writes a folder. Give it with -o.")
    for option, given in (
        ("--strict", strict),
        ("--include", selection.include),
        ("--continuous", selection.continuous),
    ):
        if given:
            raise click.UsageError(f"{option} does not go together with --ray. Leave it out.")
    if record.kind not in (None, "jsonl", "parquet"):
        raise click.UsageError(f"--ray writes parquet or jsonl, but --format is {record.kind}.")
    require("ray")
    from xlexport.ray.job import Cluster, score_files
    from xlexport.scoring.run_options import RunOptions

    options = RunOptions(
        per=record.level,
        reading=selection.reading,
        batch_size=sharing.batch(alone=record.boundary == "corrected"),
        detail=record.alternatives,
        bos=record.bos,
        corrected=record.boundary == "corrected",
    )
    address = None if sharing.ray == HERE else sharing.ray
    kind = "jsonl" if record.as_json else record.kind or "parquet"
    try:
        totals = score_files(
            bundle,
            [str(file) for file in files],
            str(output),
            options,
            evaluation,
            Cluster(address, sharing.processes, runtime["threads"] or 1),
            kind=kind,
            resume=writing.resume,
            force=writing.force,
            tell=tell,
        )
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {output} has the parts that were done. Go on with --resume.") from None
    tell(f"{output}: {totals.together()}, {totals.failed:,} without a score")
    if totals.failed:
        click.get_current_context().exit(1)
