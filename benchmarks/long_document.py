"""Feed one long document to a stream in JavaScript, and print memory along the way, which should not grow.

    python -m benchmarks.long_document BUNDLE DOCUMENT [--kind wasm] [--bytes 100000] [--without-python]

Scores are compared with Python's. After every tenth it prints the largest difference of a token so far in nats, the
difference of the mean in bits per token, and two figures of memory. The first is what is in use after a collection of
garbage: it must not grow. The other is the largest resident memory of the process that runs the steps in that tenth. It
depends on when JavaScript collects garbage and when the system takes freed memory back. Needs what `javascript.py`
needs. `tests/reliability/soak.py` measures a long stream in Python.
"""

from __future__ import annotations

import math
from pathlib import Path

import click
import numpy as np

import xlruntime
from benchmarks.javascript import Child
from benchmarks.sides import PATH

__all__ = ["main"]

PIECES = 100


@click.command(help=__doc__.split("\n\n", maxsplit=1)[0] if __doc__ else None)
@click.argument("bundle", type=PATH)
@click.argument("document", type=PATH)
@click.option("--kind", default="node", show_default=True, type=click.Choice(["node", "wasm", "webgpu"]))
@click.option("--bytes", "size", default=100_000, show_default=True, help="Bytes to read.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1))
@click.option("--without-python", is_flag=True, help="Do not compare JavaScript's scores.")
def main(bundle: Path, document: Path, kind: str, size: int, threads: int, without_python: bool) -> None:
    """Feed the first bytes of the document."""
    model = xlruntime.load(bundle, ops="none")
    with document.open("rb") as file:
        ids = np.array(model.tokenizer.encode(file.read(size)))
    child, stream = Child(kind, bundle.resolve(), threads, {}), model.stream()
    largest, difference, scored = 0.0, 0.0, 0
    used, resident, highest = list[float](), list[float](), 0.0
    for number, piece in enumerate(np.array_split(ids, PIECES), 1):
        log_probs = child.feed(piece)
        scored += len(log_probs)
        if not without_python:
            expected = stream.feed(piece).log_probs
            largest = max(largest, float(np.abs(expected - log_probs).max()))
            difference += float((expected - log_probs).sum())
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
