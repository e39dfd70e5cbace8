"""The command line: one short function a command; what is heavy is imported inside it.

Data goes to stdout, everything else to stderr. Exit status: 0 done, 1 failed, 2 wrong usage.
"""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

import click

from xlexport import __version__
from xlexport.cli_bench import bench
from xlexport.cli_context import context
from xlexport.cli_options import (
    DOCUMENT,
    PATH,
    checkpoint_options,
    conversion_options,
    document_options,
    evaluation_options,
    hashing_options,
    protocol_options,
    runtime_options,
)
from xlexport.cli_output import parity_rows, print_json, print_table, progress_bar, quantization_rows, tell
from xlexport.cli_plot import plot
from xlexport.cli_quantize import DTYPES, precision_options, quantize
from xlexport.cli_report import report
from xlexport.cli_score import score
from xlexport.train_options import model_config, train_options

__all__ = ["cli", "main", "run"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__)
def cli() -> None:
    """Transformer-XL and Reformer language models as ONNX step graphs that carry their memory."""


@cli.command(short_help="Turn CHECKPOINT into a bundle, verified to be equal.")
@click.argument("checkpoint", type=PATH)
@click.option(
    "-o", "--output", type=PATH, help="Bundle folder to write.  [default: CHECKPOINT without its suffix + .bundle]"
)
@click.option("--force", is_flag=True, help="Replace an existing bundle.")
@click.option("--json", "as_json", is_flag=True, help="Print the parity report as JSON.")
@precision_options(
    click.option(
        "--dtype",
        type=click.Choice(["float32", *DTYPES]),
        default="float32",
        show_default=True,
        help="Of the bundle: it is converted and verified in float32, then quantized, measured on --text.",
    )
)
@conversion_options
@checkpoint_options
@evaluation_options
def convert(
    checkpoint: Path,
    output: Path | None,
    format_name: str | None,
    config: dict[str, Any] | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Turn CHECKPOINT into a bundle, verified against the trained model. Nothing is written unless it is equal."""
    from xlexport.extras import require

    require("convert")
    from xlexport import checkpoints
    from xlexport.bundle_writer import check_output
    from xlexport.convert import ConversionOptions
    from xlexport.convert import convert as write_bundle
    from xlruntime.bundle import read_bundle

    output = output or checkpoint.parent / f"{checkpoint.stem}.bundle"
    if checkpoint.exists():  # else the missing checkpoint is what must be mended first
        check_output(output, force)
    source = checkpoints.load(checkpoint, format_name, config)
    report = write_bundle(source, output, ConversionOptions(**options), force=force, tell=tell)
    quantized = read_bundle(output, check_files=False).provenance.get("quantization")
    if as_json:
        figures = report.to_dict(per_segment=False)
        print_json({"bundle": str(output), **figures, **({"quantization": quantized} if quantized else {})})
    else:
        print_table([*parity_rows(report), *(quantization_rows(quantized) if quantized else [])])
    tell(f"wrote {output}")


@cli.command(short_help="Compare BUNDLE with the trained model in CHECKPOINT.")
@click.argument("bundle", type=PATH)
@click.argument("checkpoint", type=PATH)
@click.option("--text", type=PATH, help="Text to walk.  [default: one that every Python brings]")
@click.option("--segments", type=click.IntRange(1), help="How many.  [default: until the memory has wrapped twice]")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, with the figures of each segment.")
@checkpoint_options
@runtime_options
@evaluation_options
@hashing_options
def verify(
    bundle: Path,
    checkpoint: Path,
    text: Path | None,
    segments: int | None,
    as_json: bool,
    format_name: str | None,
    config: dict[str, Any] | None,
    runtime: dict[str, Any],
    **evaluation: Any,
) -> None:
    """Compare BUNDLE with the trained model in CHECKPOINT over many segments of carried memory."""
    from xlexport.extras import require

    require("convert")
    from xlexport import checkpoints
    from xlexport.opening import open_bundle
    from xlexport.tokenizer_choice import verify_ids
    from xlexport.verify import default_segments
    from xlexport.verify import verify as compare

    model = open_bundle(bundle, **runtime)
    settings = model.evaluation(**evaluation)
    segments = segments or default_segments(settings)
    source = checkpoints.load(checkpoint, format_name, config)
    ids = verify_ids(model.bundle, model.tokenizer, text)
    with progress_bar(segments, "verifying") as advance:
        report = compare(
            model, source.build_model, ids, segments=segments, evaluation=settings, progress=lambda segment: advance(1)
        )
    if as_json:
        print_json(report.to_dict())
    else:
        print_table(parity_rows(report))
    report.require_passed()


@cli.command(short_help="Score CORPUS as published scores were computed.")
@click.argument("bundle", type=PATH)
@click.argument("corpus", type=DOCUMENT)
@protocol_options
@click.option("--ids", is_flag=True, help="The file holds token ids separated by white space, not text.")
@click.option("--json", "as_json", is_flag=True, help="Print one object.")
@runtime_options
@document_options
def evaluate(
    bundle: Path,
    corpus: Path,
    protocol: str,
    batch_size: int | None,
    sentences: bool | None,
    ids: bool,
    as_json: bool,
    runtime: dict[str, Any],
    **evaluation: Any,
) -> None:
    """Score CORPUS as published scores were computed: as parallel streams; '-' is standard input. Needs no PyTorch."""
    from dataclasses import asdict

    from xlexport.cli_output import corpus_rows
    from xlexport.opening import open_bundle
    from xlexport.scoring import documents_of
    from xlruntime.protocols import arrange, read_corpus, walk

    (document,) = documents_of([corpus], ids, sys.stdin.buffer)
    model = open_bundle(bundle, **runtime)
    settings = model.evaluation(**evaluation)
    streams = arrange(read_corpus(model, document), settings, protocol, batch_size, sentences)
    with progress_bar(streams.tokens.size, "evaluating") as advance:
        found = walk(model, streams, advance)
    if as_json:
        print_json(asdict(found))
    else:
        print_table(corpus_rows(found))


@cli.command()
@click.argument("bundle", type=PATH)
@click.argument("prompt", required=False)
@click.option("--file", "prompt_file", type=click.File("rb"), help="Read the prompt from a file or '-'.")
@click.option("-n", "--max-tokens", type=click.IntRange(0), default=200, show_default=True)
@click.option("--temperature", type=float, default=1.0, show_default=True, help="0 takes the likeliest token.")
@click.option("--top-k", type=int, help="Only the k likeliest tokens.")
@click.option("--top-p", type=float, help="Only the likeliest tokens that together reach this probability.")
@click.option("--seed", type=int, help="Of the random draws.")
@click.option("--json", "as_json", is_flag=True, help="Print one object with prompt, text and token ids.")
@runtime_options
@document_options
def generate(
    bundle: Path,
    prompt: str | None,
    prompt_file: BinaryIO | None,
    max_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    as_json: bool,
    runtime: dict[str, Any],
    **evaluation: Any,
) -> None:
    """Continue PROMPT with BUNDLE. Needs no PyTorch."""
    if (prompt is None) == (prompt_file is None):
        raise click.UsageError("Give either PROMPT or --file.")
    import xlruntime
    from xlexport.opening import open_bundle
    from xlexport.scoring import print_generated

    text = prompt_file.read() if prompt_file is not None else str(prompt).encode("utf-8", "surrogateescape")
    sampling = xlruntime.Sampling(temperature, top_k, top_p, seed)
    model = open_bundle(bundle, **runtime)
    tokens = model.generate(text, max_tokens=max_tokens, sampling=sampling, **evaluation)
    print_generated(text, tokens, model.tokenizer, as_json)


@cli.command()
@click.argument("path", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print the whole manifest, or all that is known of a checkpoint.")
@click.option("--device", help="Open a bundle there, too, and show which execution provider computes how many nodes.")
@checkpoint_options
def inspect(
    path: Path, as_json: bool, device: str | None, format_name: str | None, config: dict[str, Any] | None
) -> None:
    """Check the bundle or checkpoint at PATH, and show what is in it."""
    from dataclasses import asdict

    from xlexport import checkpoints
    from xlexport.inspect import bundle_rows, checkpoint_object, checkpoint_rows, placement_of, placement_rows
    from xlruntime.bundle import is_bundle, read_bundle

    if is_bundle(path):
        manifest = read_bundle(path)
        found, rows = {**asdict(manifest), "fingerprint": manifest.fingerprint}, bundle_rows(manifest, path)
        if device is not None:
            found["placement"] = placement = placement_of(path, device)
            rows += placement_rows(placement)
    elif device is not None:
        raise click.UsageError("--device is for bundles: a checkpoint does not run.")
    else:
        source = checkpoints.load(path, format_name, config)
        found, rows = checkpoint_object(source), checkpoint_rows(source)
    if as_json:
        print_json(found)
    else:
        print_table(rows)


@cli.command()
@click.argument("files", nargs=-1, type=PATH)
@click.option(
    "-o", "--out", "--output", "out_dir", required=True, type=PATH, help="Folder for checkpoint.pt and log.jsonl."
)
@click.option("--valid", "valid_files", multiple=True, type=PATH, help="Held-out text; may be given several times.")
@click.option("--resume", is_flag=True, help="Go on with the run in --out, exactly where it stopped.")
@train_options
def train(
    files: tuple[Path, ...],
    out_dir: Path,
    valid_files: tuple[Path, ...],
    resume: bool,
    architecture: str,
    model: dict[str, Any],
    training: dict[str, Any],
) -> None:
    """Train a byte-level Transformer-XL or Reformer on text FILES. Ctrl-C saves, --resume goes on."""
    from xlexport.extras import require

    require("train")
    from xltraining.train import TrainingConfig
    from xltraining.train import train as run_training

    result = run_training(
        model_config(architecture, model, training),
        TrainingConfig(**training),
        train_files=files,
        valid_files=valid_files,
        out_dir=out_dir,
        resume=resume,
        report=tell,
    )
    if result.interrupted:
        tell(f"stopped at step {result.step:,}; go on with --resume")


@cli.command(short_help="Check this installation, and say how to mend it.")
@click.option("--json", "as_json", is_flag=True, help="Print a list of checks.")
def doctor(as_json: bool) -> None:
    """Check this installation: what works, what is missing, and how to mend it."""
    from dataclasses import asdict

    from xlexport.doctor import doctor as run_checks

    checks = run_checks()
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        marks = {True: "ok", False: "FAILED", None: "-"}
        print_table(
            [
                (f"{marks[check.ok]:6} {check.name}", check.detail + (f". {check.repair}" if check.repair else ""))
                for check in checks
            ]
        )
    if any(check.ok is False for check in checks):
        click.get_current_context().exit(1)


@cli.command(short_help="Run the main job on the sample checkpoint.")
@click.option("-o", "--output", type=PATH, help="Keep demo.bundle and demo.txt in this folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one object.")
def demo(output: Path | None, as_json: bool) -> None:
    """Run the main job on the sample checkpoint: convert, verify, and score a long text without PyTorch."""
    from xlexport.extras import require

    require("convert")
    import tempfile

    from xlexport.demo import demo as run_demo
    from xlexport.demo import result_dict, result_rows

    with tempfile.TemporaryDirectory() as scratch:
        folder = output or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        result = run_demo(folder, tell)
    if as_json:
        print_json(result_dict(result))
    else:
        print_table(result_rows(result))


cli.add_command(bench)
cli.add_command(context)
cli.add_command(plot)
cli.add_command(quantize)
cli.add_command(report)
cli.add_command(score)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status; every expected failure is one line on stderr."""
    warnings.showwarning = lambda message, *_, **__: tell(f"Warning: {message}")
    try:
        result = cli.main(list(arguments), prog_name="xlexport", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        tell("Error: interrupted; no unfinished output was left. Run the command again.")
        return 1
    except Exception as error:
        from xlexport.cli_output import failure

        message = failure(error)
        if message is None:
            raise
        tell(message)
        return 1


def main() -> None:
    """Entry point of the `xlexport` command."""
    signal.signal(signal.SIGTERM, _end_as_after_ctrl_c)
    sys.exit(run(sys.argv[1:]))


def _end_as_after_ctrl_c(number: int, frame: FrameType | None) -> None:
    """Clean up, or save, as a training run does, also where a shell's background jobs ignore Ctrl-C."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        raise KeyboardInterrupt
    handler(number, frame)
