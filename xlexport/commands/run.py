"""The `run` command: a step model on a file of arrays."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import click

from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import check_option, device_options, force_option, threads_option
from xlexport.commands.values import BUNDLE, OUTPUT, PATH
from xlexport.terminal import tell

__all__ = ["run"]


@click.command(
    cls=LongCommand,
    examples=(
        ("xlexport run policy.bundle observations.npz -o actions.npz", "All steps of a series."),
        ("xlexport run policy.bundle more.npz -o b.npz --from a.state --save-state b.state", "The steps after those."),
    ),
)
@click.argument("bundle", type=BUNDLE)
@click.argument("inputs", type=PATH)
@headed("Input", click.option("--from", "begin", type=PATH, metavar="FILE", help="Go on with a state of --save-state."))
@headed(
    "Output",
    click.option("-o", "--output", type=OUTPUT, required=True, help="File of arrays to write (.npz)."),
    click.option("--save-state", type=OUTPUT, metavar="FILE", help="Save the state after the last step."),
    force_option,
)
@headed("Device", device_options, threads_option, check_option)
def run(
    bundle: Path,
    inputs: Path,
    output: Path,
    force: bool,
    begin: Path | None,
    save_state: Path | None,
    **options: Any,
) -> None:
    """Run a step model on INPUTS, a file .npz with an array (N, ...) for each input, or (B, N, ...) for B rows.

    OUTPUT has an array for each output, with the same axes in front.
    """
    import numpy as np

    import xlruntime
    from xlexport import atomic_output
    from xlexport.array_files import read_arrays
    from xlexport.errors import ArrayFileError
    from xlruntime.messages import counted

    if save_state is not None and save_state.resolve() == output.resolve():
        raise click.UsageError("-o and --save-state name the same file. Give two.")
    for file in filter(None, (output, save_state)):
        atomic_output.check_file(file, force)
    model, arrays = xlruntime.load_step_model(bundle, **options), read_arrays(inputs)
    one_row = all(name in arrays and arrays[name].ndim == len(feed.shape) - 1 for name, feed in model.inputs.items())
    if one_row:
        arrays = {name: array[None] for name, array in arrays.items()}
    rows = max((array.shape[0] for array in arrays.values() if array.ndim), default=1)
    stream = model.stream(rows) if begin is None else model.restore(begin)
    try:
        outputs = stream.run(arrays)
    except xlruntime.ArgumentError as error:
        raise ArrayFileError(f"{inputs}: {error.message}", hint="Save it again with numpy.savez.") from error
    with atomic_output.file(output) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, array in outputs.items():  # numpy.savez takes some names for its own
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stored:
                np.lib.format.write_array(stored, array[0] if one_row else array)
    if save_state is not None:
        stream.save(save_state)
    tell(f"wrote {output}: {counted(rows, 'row')} of {counted(next(iter(outputs.values())).shape[1], 'step')}")
