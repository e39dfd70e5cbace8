"""The `quantize` command, and the options that it shares with `convert --dtype`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from xlexport.choices import DTYPES
from xlexport.commands.long_help import LongCommand, headed, options_from
from xlexport.commands.options import force_option, json_option, quiet_option, refuse, threads_option
from xlexport.commands.values import BUNDLE, PATH
from xlexport.progress_bar import progress_bar
from xlexport.quantization.options import QuantizeOptions
from xlexport.terminal import print_json, print_table, tell

__all__ = ["YOURS", "ids_option", "quantization_rows", "quantize"]

ids_option = click.option(
    "--ids", "as_ids", is_flag=True, help="The file of --text holds token ids separated by white space."
)
YOURS = "; give --text for yours"  # behind the name of the default text


MEMORY_DTYPE = {"type": click.Choice(["float32", "float16", "int8"])}


@click.command(
    cls=LongCommand,
    examples=(
        ("xlexport quantize bundle -o small", "In int8, with the cost in bits and the speed of both."),
        (
            "xlexport quantize bundle -o smallest --dtype weight-int4 --text valid.txt",
            "The smallest, measured on your text.",
        ),
        ("xlexport quantize bundle -o small --set keep_float='head.*'", "Keep some weight matrices in float32."),
    ),
)
@click.argument("bundle", type=BUNDLE)
@options_from(QuantizeOptions, dtype={"type": click.Choice(DTYPES)}, memory_dtype=MEMORY_DTYPE)
@headed(
    "Input",
    click.option(
        "--text",
        "texts",
        type=PATH,
        multiple=True,
        help="A text like the model's training text, to measure on.  [default: Python's documentation topics]",
    ),
    ids_option,
)
@headed(
    "Output",
    click.option("-o", "--output", type=PATH, required=True, help="Bundle folder to write."),
    force_option,
    json_option(),
    quiet_option,
)
@headed("Device", threads_option)
def quantize(
    bundle: Path,
    output: Path,
    texts: tuple[Path, ...],
    as_ids: bool,
    force: bool,
    as_json: bool,
    options: QuantizeOptions,
) -> None:
    """Write BUNDLE in a lower precision. If that costs too many bits per token of real text, nothing is written.

    The report compares the speed of both bundles on this machine, in turns, except of encoder-decoders.
    """
    if not texts:
        refuse({"--ids": as_ids}, "for the files of --text. Add --text, or leave {} out.")
    from xlexport.extras import require

    require("convert")
    from xlexport import api
    from xlexport.bench import compare_speed
    from xlruntime.bundle_files import read_bundle

    with progress_bar(f"reading {bundle}") as progress:
        report = api.quantize(
            bundle, output, text=texts, as_ids=as_ids, force=force, tell=progress.tell, **vars(options)
        )
        speed = None
        if read_bundle(bundle, check_files=False).encoder is None:  # `bench` has no encoder-decoders
            progress.tell("timing both bundles in turns")
            speed = compare_speed(bundle, output, options.threads)
    if as_json:
        print_json({"bundle": str(output), **report.to_dict(), "speed": speed and asdict(speed)})
    else:
        figures = "not measured for an encoder-decoder"
        if speed is not None:
            ratio = f"{speed.after / speed.before:.2f} times as fast"
            compared = ratio if speed.disturbance is None else f"not compared: {speed.disturbance}"
            figures = f"{speed.after:,.0f} tokens/s, float32 {speed.before:,.0f} ({compared})"
        print_table([*quantization_rows(report.to_dict(), "" if texts else YOURS), ("speed", figures)])
    tell(f"wrote {output}")


def quantization_rows(report: Mapping[str, Any], advice: str = "") -> list[tuple[str, str]]:
    """Return the rows of a QuantizationReport's fields for people; `advice` stands behind the name of the text."""
    reasons, texts = report["kept"], ", ".join(str(file["name"]) for file in report["text"])
    share = report.get("changed_bytes", math.inf) / max(report["float32_weights_bytes"], 1)
    only = f", only {share:.0%} of the bytes of weights" if share < 0.5 else ""
    return [
        (
            "quantized",
            f"{report['products'] - len(reasons)} of {report['products']} weight matrices to {report['dtype']}" + only,
        ),
        *((f"float32: {name}", why) for name, why in reasons.items()),
        ("memories", report["memory_dtype"] + (f": {report['memory_kept']}" if report["memory_kept"] else "")),
        ("measured on", f"{report['tokens']:,} tokens of {texts}{advice}"),
        (
            "bits per token",
            f"{report['bits_per_token']:.4f}, quantized {report['delta_bits_per_token']:+.4f} "
            f"± {report['standard_error']:.4f} (≤ {report['max_delta_bits']:g})",
        ),
        (
            "log-probability differences",
            f"mean {report['mean_abs_log_prob_diff']:.2g}, largest {report['max_abs_log_prob_diff']:.2g} nats",
        ),
        ("weights", f"{report['weights_bytes']:,} bytes of {report['float32_weights_bytes']:,}"),
    ]
