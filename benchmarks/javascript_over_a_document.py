"""Walk one document in Python and in JavaScript: differences of scores, and memory, along the way.

    python -m benchmarks.javascript_over_a_document BUNDLE DOCUMENT [--kind wasm] [--bytes 100000] [--without-python]

After every tenth it prints the largest difference of a token so far in nats, the difference of the mean in bits per
token, and two figures of memory. The first is what is in use after a collection of garbage: it must not grow. The other
is the largest resident memory of the process that runs the steps in that tenth. It depends on when JavaScript collects
garbage and when the system takes freed memory back. Needs what `javascript_beside_python.py` needs.
"""

from __future__ import annotations

import math
from pathlib import Path

import click
import numpy as np

import xlruntime
from benchmarks.javascript_sides import Child
from benchmarks.measuring import PATH

__all__ = ["main"]

PIECES = 100


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
    largest, difference, scored = 0.0, 0.0, 0
    used, resident, highest = list[float](), list[float](), 0.0
    for number, piece in enumerate(np.array_split(ids, PIECES), 1):
        found = child.feed(piece)
        scored += len(found)
        if not without_python:
            expected = stream.feed(piece).log_probs
            largest = max(largest, float(np.abs(expected - found).max()))
            difference += float((expected - found).sum())
        highest = max(highest, child.resident_mb())
        if number % (PIECES // 10) == 0:
            used.append(child.used_mb())
            resident.append(highest)
            highest = 0.0
            bits = abs(difference) / math.log(2) / scored
            compared = "" if without_python else f"{largest:9.1e} nats {bits:9.1e} bits per token"
            memory = f"{used[-1]:8.1f} MB in use {resident[-1]:8.1f} MB resident at most"
            print(f"{100 * number // PIECES:4}% {scored:9,} tokens {compared} {memory}", flush=True)
    child.close()
    print(
        f"from the first tenth to the last: {used[-1] / used[0] - 1:+.2%} in use, "
        f"{resident[-1] / resident[0] - 1:+.2%} resident at most"
    )


if __name__ == "__main__":
    main()
