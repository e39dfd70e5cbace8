"""Score one long document, in Python or in JavaScript, and print bits and memory along the way; memory should not grow.

    python -m benchmarks.long_document BUNDLE DOCUMENT [--kind wasm] [--bytes 100000] [--without-python]

Python scores the whole document, and prints bits per token so far and the resident memory after every tenth.

JavaScript feeds its first bytes to a stream, compares the scores with Python's, and prints after every tenth the
largest difference of a token so far in nats, the difference of the mean in bits per token, and two figures of memory.
The first is what is in use after a collection of garbage: it must not grow. The other is the largest resident memory of
the process that runs the steps in that tenth. It depends on when JavaScript collects garbage and when the system takes
freed memory back. Needs what `javascript.py` needs.
"""

from __future__ import annotations

import math
from pathlib import Path

import click
import numpy as np
import psutil

import xlruntime
from benchmarks.javascript import Child
from benchmarks.sides import PATH

__all__ = ["main"]

PIECES = 100


@click.command(help=__doc__.split("\n\n", maxsplit=1)[0] if __doc__ else None)
@click.argument("bundle", type=PATH)
@click.argument("document", type=PATH)
@click.option("--kind", default="python", show_default=True, type=click.Choice(["python", "node", "wasm", "webgpu"]))
@click.option("--bytes", "size", default=100_000, show_default=True, help="Bytes that JavaScript reads.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1))
@click.option("--without-python", is_flag=True, help="Do not compare JavaScript's scores.")
def main(bundle: Path, document: Path, kind: str, size: int, threads: int, without_python: bool) -> None:
    """Score the document and print its memory."""
    if kind == "python":
        in_python(bundle, document, threads)
    else:
        in_javascript(kind, bundle, document, size, threads, without_python)


def in_python(bundle: Path, document: Path, threads: int) -> None:
    """Print bits per token so far and resident memory after every tenth of the document."""
    process, size = psutil.Process(), document.stat().st_size
    scored, nats, resident = 0, 0.0, list[float]()
    for part in xlruntime.load(bundle, threads=threads).score_tokens([document]):
        scored += len(part)
        nats -= float(part.log_probs.sum())
        if scored >= (len(resident) + 1) * size // 10 - 1:
            resident.append(process.memory_info().rss / 1e6)
            bits = nats / math.log(2) / scored
            print(f"{len(resident) * 10:4}% {bits:8.4f} bits per token {resident[-1]:8.1f} MB", flush=True)
    print(f"from 10% to the end: {resident[-1] / resident[0] - 1:+.2%}")


def in_javascript(kind: str, bundle: Path, document: Path, size: int, threads: int, without_python: bool) -> None:
    """Print differences from Python so far, and both figures of memory, after every tenth of the first bytes."""
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
