"""The `quantize` command, and the options that it shares with `convert --dtype`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xlexport.cli_options import PATH, Decorator, all_of
from xlexport.cli_output import print_json, print_table, quantization_rows, tell

__all__ = ["DTYPES", "precision_options", "quantize"]

DTYPES = ("int8", "weight-int8", "weight-int4", "float16")  # those of xlexport.quantize, too heavy to import for --help


def precision_options(dtype: Decorator) -> Decorator:
    """`dtype` and what goes with it."""
    return all_of(
        dtype,
        click.option(
            "--max-delta-bits",
            type=float,
            default=0.01,
            show_default=True,
            help="Bits per token that quantization may cost.",
        ),
        click.option(
            "--keep-float",
            metavar="NAME",
            multiple=True,
            help="A product that stays float32, such as layers.0.qkv; * stands for anything. Several may be given.",
        ),
        click.option(
            "--memory-dtype",
            type=click.Choice(["float32", "float16"]),
            default="float32",
            show_default=True,
            help="Of carried memories; float16 goes with --dtype float16.",
        ),
    )


@click.command()
@click.argument("bundle", type=PATH)
@click.option("-o", "--output", type=PATH, required=True, help="Bundle folder to write.")
@precision_options(
    click.option(
        "--dtype",
        type=click.Choice(DTYPES),
        required=True,
        help="int8: dynamic, for speed on a CPU. weight-int8, weight-int4: blocks, for size. float16: for CUDA.",
    )
)
@click.option(
    "--text",
    "texts",
    type=PATH,
    multiple=True,
    help="Real text to measure the cost on; may be given several times.  [default: for bytes, one that every Python "
    "brings; else it must be given]",
)
@click.option("--ids", "as_ids", is_flag=True, help="The texts hold token ids separated by white space.")
@click.option(
    "--tokens",
    type=click.IntRange(2048),
    help="Of the text, to measure on.  [default: 16,384, or as many as fill the memory twice]",
)
@click.option("--force", is_flag=True, help="Replace an existing bundle.")
@click.option("--json", "as_json", is_flag=True, help="Print one object.")
@click.option("--threads", type=click.IntRange(1), help="Threads of one step.  [default: all cores]")
def quantize(
    bundle: Path,
    output: Path,
    texts: tuple[Path, ...],
    as_ids: bool,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write BUNDLE in a lower precision. Nothing is written if that costs too many bits per token of real text."""
    from xlexport.extras import require

    require("convert")
    from xlexport.quantize.bundle import QuantizeOptions
    from xlexport.quantize.bundle import quantize as write_bundle

    report = write_bundle(
        bundle, output, QuantizeOptions(**options), texts=texts, as_ids=as_ids, force=force, tell=tell
    )
    if as_json:
        print_json({"bundle": str(output), **report.to_dict()})
    else:
        print_table(quantization_rows(report.to_dict()))
    tell(f"wrote {output}")
