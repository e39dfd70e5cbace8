"""Walk one document in Python and in JavaScript: differences of scores, and memory, along the way.

    python -m benchmarks.javascript_over_a_document BUNDLE DOCUMENT [--kind wasm] [--bytes 100000] [--without-python]

After every tenth it prints the largest difference of a token so far in nats, the difference of the mean in bits per
token, and the resident memory of the process that runs the steps. Memory should not grow. Needs what
`javascript_beside_python.py` needs.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import click
import numpy as np

import xlruntime
from benchmarks.javascript_sides import Child
from benchmarks.measuring import PATH

__all__ = ["main"]

PIECES = 20


@click.command(help=__doc__.split("\n\n", maxsplit=1)[0] if __doc__ else None)
@click.argument("bundle", type=PATH)
@click.argument("document", type=PATH)
@click.option("--kind", default="wasm", show_default=True, type=click.Choice(["node", "wasm", "webgpu"]))
@click.option("--bytes", "size", default=100_000, show_default=True, type=click.IntRange(PIECES))
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1))
@click.option("--without-python", is_flag=True, help="Watch memory only.")
def main(bundle: Path, document: Path, kind: str, size: int, threads: int, without_python: bool) -> None:
    """Walk the beginning of the document, and print both figures after every tenth."""
    model = xlruntime.load(bundle, ops="none")
    with document.open("rb") as file:
        ids = np.array(model.tokenizer.encode(file.read(size)))
    child = Child(kind, bundle.resolve(), threads, {})
    stream = model.stream()
    largest, difference, scored, memory = 0.0, 0.0, 0, []
    started = time.perf_counter()
    for number, piece in enumerate(np.array_split(ids, PIECES), 1):
        found = child.feed(piece)
        scored += len(found)
        if not without_python:
            expected = stream.feed(piece).log_probs
            largest = max(largest, float(np.abs(expected - found).max()))
            difference += float((expected - found).sum())
        if number % (PIECES // 10) == 0:
            memory.append(child.memory_mb())
            bits = abs(difference) / math.log(2) / scored
            compared = "" if without_python else f"{largest:9.1e} nats {bits:9.1e} bits per token"
            print(f"{100 * number // PIECES:4}% {scored:9,} tokens {compared} {memory[-1]:8.1f} MB", flush=True)
    seconds = time.perf_counter() - started
    child.close()
    print(f"memory from 10% to the end: {memory[-1] / memory[0] - 1:+.2%}; {scored / seconds:,.0f} tokens/s together")


if __name__ == "__main__":
    main()
