"""The `convert` command."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlexport.choices import DTYPES
from xlexport.commands.long_help import LongCommand, headed, options_from
from xlexport.commands.options import (
    checkpoint_options,
    conversion_settings,
    download_option,
    force_option,
    json_option,
    quiet_option,
    threads_option,
    trust_option,
)
from xlexport.commands.quantize import MEMORY_DTYPE, YOURS, quantization_rows
from xlexport.commands.values import MODEL, PATH
from xlexport.conversion_options import ConversionOptions
from xlexport.fixed_shapes import FixedShapes
from xlexport.progress_bar import progress_bar
from xlexport.terminal import print_json, print_table, tell

if TYPE_CHECKING:
    from xlruntime.bundle import Bundle

__all__ = ["convert", "length_rows"]


@click.command(
    cls=LongCommand,
    examples=(
        ("xlexport convert checkpoint.pt -o bundle", "Convert, and verify on Python's documentation."),
        (
            "xlexport convert model_folder -o bundle --text valid.txt",
            "A folder of Hugging Face, verified on your text.",
        ),
        ("xlexport convert checkpoint.pt -o small --dtype weight-int8 --text valid.txt", "Also quantize it."),
        ("xlexport convert lstm.py:model --weights lstm.safetensors --trust", "A model of your own in PyTorch."),
    ),
)
@click.argument("checkpoint", type=MODEL)
@headed(
    "Output",
    click.option("-o", "--output", type=PATH, help="Bundle to write.  [default: CHECKPOINT as .bundle]"),
    force_option,
    json_option("the parity report"),
    quiet_option,
)
@options_from(
    ConversionOptions,
    text={"type": PATH},
    dtype={"type": click.Choice(["float32", *DTYPES])},
    memory_dtype=MEMORY_DTYPE,
    fixed={"callback": lambda context, parameter, text: None if text is None else FixedShapes.parse(text)},
)
@headed("Verification", threads_option)
@headed("Checkpoint", checkpoint_options, trust_option, download_option)
@headed("Model settings", conversion_settings)
def convert(
    checkpoint: str,
    output: Path | None,
    reading: dict[str, Any],
    trust: bool,
    force: bool,
    as_json: bool,
    options: ConversionOptions,
    **settings: Any,
) -> None:
    """Convert CHECKPOINT to a bundle and verify it against the trained model. If they differ, nothing is written.

    CHECKPOINT is a file, a folder, or ORG/MODEL of the Hugging Face hub. A model of your own is FILE.py:NAME or the
    name of an installed one; its code runs only with --trust.
    """
    gc.set_threshold(100_000, 50, 100)  # traces and modules live until the end; looking for cycles takes a tenth
    from xlexport.extras import require
    from xlexport.tokenizer_choice import tokenizer_library

    require("convert", *tokenizer_library(Path(checkpoint), options.tokenizer))
    from xlexport import api
    from xlexport.bundles import check_output
    from xlexport.model_names import bundle_path
    from xlexport.peak_memory import PEAKS, phase
    from xlexport.verification.parity import trained_model

    output = output or bundle_path(checkpoint)
    check_output(output, force)
    peaks: dict[str, int | None] = {}
    PEAKS.set(peaks)
    with progress_bar(f"reading {checkpoint}") as progress:
        with phase("reading"):
            source = api.read(checkpoint, trust=trust, **reading)
        choices = {**vars(options), "settings": settings}
        conversion = api.convert(source, output, force=force, tell=progress.tell, progress=progress, **choices)
    bundle, report = conversion.bundle, conversion.report
    quantized, verified_on = bundle.provenance.get("quantization"), bundle.provenance["verified_on"]
    if as_json:
        figures = report.to_dict(per_segment=False)
        print_json(
            {
                "bundle": str(output),
                "verified_on": verified_on,
                **figures,
                "peak_memory": peaks,
                **({"quantization": quantized} if quantized else {}),
            }
        )
    else:
        advice = "" if options.text is not None else YOURS
        print_table(
            [
                ("verified on", f"{verified_on}{advice}"),
                ("trained model", trained_model(bundle.provenance)),
                *report.rows(),
                *length_rows(bundle),
                *(quantization_rows(quantized, advice) if quantized else []),
            ]
        )
    tell(f"wrote {output}")


def length_rows(bundle: Bundle) -> list[tuple[str, str]]:
    """Return the row about the longest document of a Reformer or of a user's module that has one."""
    longest = bundle.settings.longest_document
    reformer = "position" in bundle.config
    if not (reformer or bundle.architecture == "recurrent") or longest is None or bundle.settings.restart:
        return []
    further = (
        ""
        if bundle.evaluation.max_positions is None or not reformer
        else ". Models with rotary positions have no limit"
    )
    return [("longest document", f"{longest:,} tokens; --restart begins longer ones again there{further}")]
