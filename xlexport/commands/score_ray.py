"""What `score` does with --ray: check the options, and start the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from xlexport.commands.input_options import ItemSelection
from xlexport.commands.score_options import ENDINGS, HERE, OutputOptions, RecordOptions, SharingOptions
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
    if "-" in map(str, files):
        raise click.UsageError("--ray reads files that all machines see, not standard input.")
    saved = click.get_current_context().get_parameter_source("save_every")
    for option, given in (
        ("--strict", strict),
        ("--continuous", selection.continuous),
        ("--set save_every", saved is not ParameterSource.DEFAULT),
    ):
        if given:
            raise click.UsageError(f"{option} does not go together with --ray. Leave it out.")
    if str(runtime["device"]).startswith("cuda:"):
        raise click.UsageError(
            f"--device {runtime['device']}: Ray chooses the GPU of each process. Give --device cuda."
        )
    kind = record.kind or ("jsonl" if record.as_json else ENDINGS.get(Path(output).suffix, "parquet"))
    if kind not in ("jsonl", "parquet"):
        raise click.UsageError(f"--ray writes parquet or jsonl, not {kind}. Choose with --format.")
    require("ray")
    from xlexport.ray.job import Cluster, score_files
    from xlexport.scoring.run_options import RunOptions

    reading = replace(selection.reading, regions=record.level == "region", region_field=record.region_field)
    options = RunOptions(
        per=record.level,
        reading=reading,
        batch_size=sharing.batch(alone=record.boundary == "corrected"),
        detail=record.top,
        bos=record.bos,
        corrected=record.boundary == "corrected",
    )
    address = None if sharing.ray == HERE else sharing.ray
    try:
        totals = score_files(
            bundle,
            [str(file) for file in files],
            str(output),
            options,
            evaluation,
            Cluster(address, sharing.processes, runtime),
            include=selection.include,
            kind=kind,
            resume=writing.resume,
            force=writing.force,
            tell=tell,
        )
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {output} has the parts that were done. Go on with --resume.") from None
    tell(f"{output}: {totals.together()}, {totals.failed:,} without a score")
    if totals.failed:
        tell("the column `error` says why")
        click.get_current_context().exit(1)
