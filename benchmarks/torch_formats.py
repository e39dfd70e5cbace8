"""Measure steps of bundles of one checkpoint in ONNX, TorchScript and exported programs, in turns.

    python -m benchmarks.torch_formats CHECKPOINT [--folder kept] [--segments 128,1]

Each row gives the median step with full memory and one thread, and the ratio to ONNX. The sizes of the bundles follow.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from xlexport.bench.measuring import Clock, compared
from xlexport.bench.sides import GraphSide, Work
from xlexport.bundles import open_bundle
from xlexport.checkpoints import load
from xlexport.convert import ConversionOptions, convert
from xlruntime.bundle import Format

FORMATS: tuple[Format, ...] = ("onnx", "torchscript", "exported-program")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--folder", type=Path, help="Folder that keeps bundles for reuse.")
    parser.add_argument("--segments", default="128,1", help="Tokens of a step, or several numbers.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for to in FORMATS:
            if not (folder / to).exists():
                convert(load(options.checkpoint), folder / to, ConversionOptions(to=to, threads=1))
        for length in map(int, options.segments.split(",")):
            measure(folder, length, options.rounds, options.repeats)
        for to in FORMATS:
            size = sum(file.stat().st_size for file in (folder / to).iterdir())
            print(f"{to:18} {size:12,} bytes")


def measure(folder: Path, segment_len: int, rounds: int, repeats: int) -> None:
    """Print a row for each format."""
    sides = {}
    for to in FORMATS:
        model = open_bundle(folder / to, trust=True, threads=1)
        evaluation = model.evaluation(segment_len=segment_len)
        sides[to] = GraphSide(model, Work("score", evaluation, segment_len, 1))
        for _ in range(3):  # TorchScript compiles in its first steps
            sides[to].step()
    clocks = {to: Clock() for to in FORMATS}
    for _ in range(rounds):
        for to, side in sides.items():
            clocks[to].round(side.step, repeats)
    onnx = clocks["onnx"]
    for to, clock in clocks.items():
        median = clock.quantile(0.5)
        ratio = compared(f"{median / onnx.quantile(0.5):.2f} times ONNX", onnx, clock)
        print(f"{segment_len:5} tokens  {to:18} {median * 1e3:8.2f} ms, best {min(clock.runs) * 1e3:8.2f} ms, {ratio}")


if __name__ == "__main__":
    main()
