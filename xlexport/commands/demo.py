"""Convert a sample checkpoint, show that the bundle is equal, score a long text without PyTorch, and make a page."""

import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlexport import atomic_output
from xlexport.commands.options import json_option
from xlexport.commands.values import PATH
from xlexport.errors import XlexportError
from xlexport.progress_bar import progress_bar
from xlexport.sample import SAMPLES, sample_checkpoint, sample_text
from xlexport.terminal import print_json, print_table, tell
from xlruntime.messages import quoted

if TYPE_CHECKING:
    from xlexport.bench import BenchReport
    from xlexport.verification.parity import ParityReport

__all__ = ["DemoResult", "demo", "result_dict", "result_rows", "run_demo"]

BUNDLE, TEXT, PAGE = "demo.bundle", "demo.txt", "demo.html"  # what the demo leaves in its folder
PAGE_BYTES = 8_000  # of the text that the page shows
SCORING_SECONDS = 60  # score only a part of the text if all of it would take longer
TRIAL_BYTES = 10_000
ROUNDS, REPEATS = 18, 6  # of steps of the bundle and of the eager model, in turns
PRECISION = 0.1  # of their ratio
PATIENCE = 60.0  # seconds; other programs can slow PyTorch's threads a hundredfold
LIBRARIES = {"bpe": ("tokenizers",)}  # sample -> the modules that its vocabulary needs
# This runs in its own process, which checks at the end that it never imported PyTorch.
SCORE_WITHOUT_TORCH = """
import json, sys, xlruntime
folder, text, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
with open(text, "rb") as file:
    document = xlruntime.Document("sample text", file.read(length).decode("utf-8", "ignore"))
score, = xlruntime.load(folder).score([document])
if {"torch", "onnx"} & set(sys.modules):
    sys.exit("the runtime imported torch or onnx")
print(json.dumps(score.to_dict()))
"""


@dataclass(frozen=True)
class DemoResult:
    """The figures that the demo's table shows."""

    checkpoint: Path
    bundle: Path
    convert_seconds: float
    parity: "ParityReport"
    text_bytes: int
    score: dict[str, Any]
    speed: "BenchReport"


def run_demo(folder: Path, tell: Callable[[str], None], sample: str = "bytes") -> DemoResult:
    """Run the demo, with the bundle, the text and the page in the empty `folder`.

    Args:
        sample: what the tokens of the sample checkpoint are.
        tell: called with a line for each stage.

    Raises:
        CheckpointNotFoundError: the installation has no sample checkpoint.
        XlexportError: a stage failed; the message names it.
    """
    from xlexport.api import convert
    from xlexport.bench import bench

    checkpoint = sample_checkpoint(sample)
    tell(f"converting {checkpoint}")
    started = time.perf_counter()
    bundle, text = folder / BUNDLE, folder / TEXT
    parity = convert(checkpoint, bundle, tell=tell).report
    convert_seconds = time.perf_counter() - started

    text.write_text(sample_text(), "utf-8")
    size = text.stat().st_size
    trial = _score(bundle, text, TRIAL_BYTES)
    bytes_per_second = trial["tokens_per_second"] * trial["bytes"] / trial["tokens"]
    length = min(size, int(bytes_per_second * SCORING_SECONDS))
    tell(f"scoring {length:,} of {size:,} bytes in a process without PyTorch")
    score = _score(bundle, text, length)
    tell("colouring a text by surprisal")
    beginning = text.read_bytes()[:PAGE_BYTES].decode("utf-8", "ignore").rpartition("\n")[0]
    arguments = ["-m", "xlexport", "report", str(bundle), "-", "-o", str(folder / PAGE), "--quiet"]
    _run("writing the page", [*arguments, "--title", "Python's documentation"], beginning)
    tell("timing the bundle and the eager model in turns")
    speed = bench(bundle, against=checkpoint, rounds=ROUNDS, repeats=REPEATS, precision=PRECISION, patience=PATIENCE)
    return DemoResult(checkpoint, bundle, convert_seconds, parity, size, score, speed)


def _score(bundle: Path, text: Path, length: int) -> dict[str, Any]:
    arguments = ["-c", SCORE_WITHOUT_TORCH, str(bundle), str(text), str(length)]
    score: dict[str, Any] = json.loads(_run("scoring without PyTorch", arguments))
    return score


def _run(stage: str, arguments: list[str], text: str | None = None) -> str:
    """Run Python in a process of its own, with `text` as standard input, and return what it prints."""
    command = [sys.executable, "-P", *arguments]
    process = subprocess.run(command, input=text, capture_output=True, encoding="utf-8", check=False)
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or ["no message"])[-1]
        raise XlexportError(f"{stage} failed: {reason}")
    return process.stdout


def result_rows(result: DemoResult) -> list[tuple[str, str]]:
    """Return the rows of the demo's table."""
    parity, score, speed = result.parity, result.score, result.speed
    ratio = f"not compared: {speed.disturbance}" if speed.speedup is None else f"{speed.speedup:.1f}x"
    vocabulary = [("tokens", f"{score['tokens']:,}, each of {score['bytes'] / score['tokens']:.2f} bytes on average")]
    return [
        ("converted", f"{result.checkpoint.name} in {result.convert_seconds:.0f} s"),
        ("verified", f"{parity.segments} segments of {parity.segment_len} tokens, memory {parity.mem_len}"),
        ("largest difference", f"{parity.max_abs_log_prob_diff:.1e} nats, {parity.max_abs_memory_diff:.1e} in memory"),
        ("scored", f"{score['bytes']:,} of {result.text_bytes:,} bytes of Python's documentation"),
        *(vocabulary if score["tokens"] < score["bytes"] else []),
        ("bits per byte", f"{score['bits_per_byte']:.3f}"),
        ("tokens/s", f"{speed.tokens_per_second:,.0f}"),
        ("eager tokens/s", f"{speed.eager_tokens_per_second:,.0f} ({ratio})"),
    ]


def result_dict(result: DemoResult) -> dict[str, Any]:
    """Return the demo's figures for JSON."""
    return {
        "convert_seconds": result.convert_seconds,
        "verify": result.parity.to_dict(per_segment=False),
        "score": result.score,
        "text_bytes": result.text_bytes,
        "tokens_per_second": result.speed.tokens_per_second,
        "eager_tokens_per_second": result.speed.eager_tokens_per_second,
        "speedup": result.speed.speedup,
        "disturbance": result.speed.disturbance,
    }


@click.command()
@click.option(
    "--sample",
    type=click.Choice(list(SAMPLES)),
    default="bytes",
    show_default=True,
    help="What the tokens of the sample are; bpe needs the package `tokenizers`.",
)
@click.option(
    "-o",
    "--output",
    type=PATH,
    default="xlexport-demo",
    show_default=True,
    help="Folder to write; that of an earlier demo is replaced.",
)
@json_option()
def demo(sample: str, output: Path, as_json: bool) -> None:
    """Convert and verify a sample checkpoint, then score a long text without PyTorch.

    It takes about a minute, and leaves a bundle and a page that shows a text coloured by surprisal.
    """
    from xlexport.extras import require

    require("convert", *LIBRARIES.get(sample, ()))

    def is_demo(folder: Path) -> bool:
        return folder.is_dir() and {path.name for path in folder.iterdir()} <= {BUNDLE, TEXT, PAGE}

    check = functools.partial(atomic_output.check_own_folder, output, True, is_demo, "a folder of the demo")
    with atomic_output.folder(output, check) as folder, progress_bar("converting the sample") as progress:
        result = run_demo(folder, progress.tell, sample)
    if as_json:
        print_json({**result_dict(result), "bundle": str(output / BUNDLE), "page": str(output / PAGE)})
    else:
        print_table(result_rows(result))
    tell(f"wrote {output / BUNDLE}, the converted model")
    tell(f"wrote {output / PAGE}, a text coloured by surprisal: open it in a browser")
    tell(f"next: xlexport report {quoted(str(output / BUNDLE))} YOUR_TEXT.txt")
