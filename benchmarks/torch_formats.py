"""Measure steps of bundles of one checkpoint in ONNX, TorchScript and exported programs, in turns.

    python -m benchmarks.torch_formats CHECKPOINT [--folder kept] [--segments 128,1]

Each row gives the median step with full memory and one thread, and the ratio to ONNX. The sizes of the bundles follow.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import click

from benchmarks.sides import PATH
from xlexport.bench.measuring import Clock, compared, take_turns
from xlexport.bench.sides import GraphSide, Work
from xlexport.bundles import open_bundle
from xlexport.checkpoints import load
from xlexport.convert import ConversionOptions, convert
from xlruntime.bundle import Format

__all__ = ["main"]

FORMATS: tuple[Format, ...] = ("onnx", "torchscript", "exported-program")
WARM = 3  # TorchScript compiles in its first steps


@click.command(help=__doc__.split("\n\n", maxsplit=1)[0] if __doc__ else None)
@click.argument("checkpoint", type=PATH)
@click.option("--folder", type=PATH, help="Folder that keeps bundles for reuse.")
@click.option("--segments", default="128,1", show_default=True, help="Tokens of a step, or several numbers.")
@click.option("--rounds", default=15, show_default=True)
@click.option("--repeats", default=5, show_default=True)
def main(checkpoint: Path, folder: Path | None, segments: str, rounds: int, repeats: int) -> None:
    """Convert to each format, and measure steps of each length."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for name in FORMATS:
            if not (folder / name).exists():
                convert(load(checkpoint), folder / name, ConversionOptions(to=name, threads=1))
        for length in map(int, segments.split(",")):
            measure(folder, length, rounds, repeats)
        for name in FORMATS:
            size = sum(file.stat().st_size for file in (folder / name).iterdir())
            click.echo(f"{name:18} {size:12,} bytes")


def measure(folder: Path, segment_len: int, rounds: int, repeats: int) -> None:
    """Print a row for each format."""
    clocks, turns = {name: Clock() for name in FORMATS}, []
    for name, clock in clocks.items():
        model = open_bundle(folder / name, trust=True, threads=1)
        side = GraphSide(model, Work("score", model.evaluation(segment_len=segment_len), segment_len, 1))
        for _ in range(WARM):
            side.step()
        turns.append(partial(clock.round, side.step, repeats))
    take_turns(turns, rounds)
    onnx = clocks["onnx"]
    for name, clock in clocks.items():
        median = clock.quantile(0.5)
        ratio = compared(f"{median / onnx.quantile(0.5):.2f} times ONNX", onnx, clock)
        times = f"{median * 1e3:8.2f} ms, best {min(clock.runs) * 1e3:8.2f} ms"
        click.echo(f"{segment_len:5} tokens  {name:18} {times}, {ratio}")


if __name__ == "__main__":
    main()
