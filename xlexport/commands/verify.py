"""The `verify` command, and the table of a parity report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import MODEL, PATH, checkpoint_options, evaluation_options, runtime_options
from xlexport.progress_bar import progress_bar
from xlexport.terminal import print_json, print_table, quiet_option

if TYPE_CHECKING:
    from xlexport.verification.parity import ParityReport

__all__ = ["parity_rows", "verify"]


@click.command(
    cls=LongCommand,
    examples=(
        ("xlexport verify bundle checkpoint.pt", "On the text that `convert` used."),
        ("xlexport verify bundle checkpoint.pt --text book.txt --segments 200", "On your text, for longer."),
        ("xlexport verify bundle checkpoint.pt --mem-len 1000", "With other settings than the model's own."),
    ),
)
@click.argument("bundle", type=PATH)
@click.argument("checkpoint", type=MODEL, required=False)
@headed(
    "Input",
    click.option("--text", type=PATH, help="Text to compare on.  [default: Python's documentation topics]"),
    click.option("--segments", type=click.IntRange(1), help="Segments.  [default: until the memory has wrapped twice]"),
)
@headed(
    "Output",
    click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, with the figures of each segment."),
    quiet_option,
)
@headed("Checkpoint", checkpoint_options)
@headed("Device", runtime_options)
@headed("Model settings", evaluation_options)
def verify(
    bundle: Path,
    checkpoint: str | None,
    text: Path | None,
    segments: int | None,
    as_json: bool,
    reading: dict[str, Any],
    runtime: dict[str, Any],
    **evaluation: Any,
) -> None:
    """Compare BUNDLE with the trained model in CHECKPOINT over many segments of carried memory.

    CHECKPOINT is what `xlexport convert` took.
    """
    from xlexport.extras import require

    require("convert")
    from xlexport.bundles import open_any_bundle, origin
    from xlexport.model_names import load_source
    from xlexport.verification import default_segments
    from xlexport.verification import verify as compare
    from xlexport.verification.parity import trained_model
    from xlexport.verification.text import verify_ids

    model = open_any_bundle(bundle, **runtime)
    settings = model.evaluation(**evaluation)
    segments = segments or default_segments(settings)
    if checkpoint is None:
        raise click.UsageError(f"Missing argument 'CHECKPOINT': {bundle} was converted from {origin(model.bundle)}.")
    source = load_source(checkpoint, bundle=model.bundle, trust=runtime.get("trust", False), **reading)
    ids = verify_ids(model.bundle, model.tokenizer, text)
    with progress_bar("verifying") as progress:
        report = compare(model, source.build_model, ids, segments=segments, evaluation=settings, progress=progress)
    if as_json:
        print_json(report.to_dict())
    else:
        print_table([("trained model", trained_model(model.bundle.provenance)), *parity_rows(report)])
    report.require_passed()


def parity_rows(report: ParityReport) -> list[tuple[str, str]]:
    """Return the rows of a ParityReport for people."""
    tolerance = report.tolerance
    behind = "" if report.detail_segments == report.segments else f", first {report.detail_segments} segments"
    memory = ("largest memory difference", f"{report.max_abs_memory_diff:.2e} (≤ {tolerance['memory']:g})")
    if not report.full_document:
        rows = f", memory {report.mem_len}" if report.mem_len else ""
        short = report.tokens <= (report.segments - 1) * report.segment_len  # not only the last one
        length = f", of {report.tokens:,} tokens together" if short else f" of {report.segment_len} tokens"
        walked = ("segments", f"{report.segments}{length}{rows}")
    else:
        walked = ("documents", f"{report.segments}, of {report.tokens:,} tokens together")
    return [
        walked,
        (
            "largest log-probability difference",
            f"{report.max_abs_log_prob_diff:.2e} nats (≤ {tolerance['log_prob']:g})",
        ),
        (
            "for tokens not in the text, relative",
            f"{report.max_distribution_diff:.2e} (≤ {tolerance['log_prob']:g}){behind}",
        ),
        *_rounding_rows(report),
        *([] if report.full_document else [memory]),
        (
            "bits per token",
            f"{report.bits_per_token:.4f}, bundle minus trained model {report.delta_bits_per_token:+.1e}",
        ),
        ("same best token", f"{report.top1_agreement:.2%}{behind}"),
        ("growth of the difference along the text", "-" if report.drift is None else f"{report.drift:.2f} (1 = none)"),
        *_lsh_rows(report),
        ("kernels", report.kernels),
        ("equal", "yes" if report.passed else "NO"),
    ]


def _rounding_rows(report: ParityReport) -> list[tuple[str, str]]:
    errors = report.rounding
    if errors is None:
        return []
    figures = (
        ("rms", errors.graph_rms, errors.model_rms, report.rms_ratio),
        ("largest", errors.graph_largest, errors.model_largest, report.largest_ratio),
    )
    rows = []
    for kind, graph, model, ratio in figures:
        limit = report.tolerance.get(f"{kind}_ratio")
        judged = "not judged: few tokens" if limit is None else f"≤ {limit:g}"
        text = f"{graph:.2e} nats, trained model {model:.2e}, ratio {ratio:.2f} ({judged})"
        rows.append((f"{kind} error against float64", text))
    return rows


def _lsh_rows(report: ParityReport) -> list[tuple[str, str]]:
    if report.bucket_flips is None:
        return []
    flips = f"{report.bucket_flips:,}"
    if report.bucket_flips:
        flips += (
            f", margin {report.largest_flip_margin:.1e} (≤ {report.tolerance['flip_margin']:g}), "
            f"{report.flip_effect_bits_per_token:+.1e} bits per token"
        )
    rows = [("buckets the model alone would change", flips)]
    if report.overflow_fraction_per_layer is not None:
        layers = ", ".join(f"{fraction:.2%}" for fraction in report.overflow_fraction_per_layer)
        keys = "keys of two chunks" if report.full_document else "the latest keys"
        rows.append(("overflow, by LSH layer", f"{layers} (not an error: as in training, only {keys} count)"))
    if report.overflow_mismatches:
        rows.append(("overflow counted otherwise", f"in {report.overflow_mismatches:,} places (= 0)"))
    return rows
