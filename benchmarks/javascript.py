"""Compare the speed of a bundle in Python, in Node and in a browser, in turns.

    python -m benchmarks.javascript BUNDLE [--mem-len 448] [--json FILE]

All sides feed the same text to a stream, piece by piece; each has processes of its own. The sides are Python and Node
with one and two threads, and headless Chromium on WebAssembly with one and two. All run the same graphs with the bodies
of their operators. Differences are those to Python's scores, in nats. A step is a piece.

Needs Node, Chromium, `npm ci && npm run build` in runtime/js, and the extras cpu, convert and dev.
"""

from __future__ import annotations

import json
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import psutil

from benchmarks.sides import (
    PATH,
    ROOT,
    Pieces,
    Ready,
    Side,
    SideError,
    Sides,
    add_to_json,
    measure,
    print_table,
)

__all__ = ["Child", "main"]

WARM = 10  # pieces before the first turn: the first ones of JavaScript take up to a third longer, until it is compiled


class Child:
    """A process of Node that feeds a stream; `kind` is one of `javascript_side.mjs`."""

    def __init__(self, kind: str, model: Path, threads: int, settings: dict[str, Any]) -> None:
        """Start the process, and wait until the model is open.

        Raises:
            SideError: the process ended; stderr has the reason.
        """
        options = {"kind": kind, "model": str(model), "threads": threads, "settings": settings}
        self._process = subprocess.Popen(
            ["node", "--expose-gc", str(ROOT / "benchmarks/javascript_side.mjs"), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.load_seconds: float = self._answer()["load_seconds"]

    def feed(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Feed a piece, and return its scores in nats."""
        return np.array(self._ask(ids.tolist()), np.float64)

    def used_mb(self) -> float:
        """Return the memory that is in use after a collection of garbage: objects, arrays and WebAssembly's memory."""
        return float(self._ask("memory"))

    def resident_mb(self) -> float:
        """Return the resident memory of the process that runs the steps: Node itself, or the page's."""
        here = psutil.Process(self._process.pid)
        pages = [child for child in here.children(recursive=True) if "--type=renderer" in child.cmdline()]
        return max(process.memory_info().rss for process in pages or [here]) / 1e6

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, question: object) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SideError(f"Node ended with status {self._process.wait()}; its output is above.")
        return json.loads(line)


def python(bundle: Path, threads: int, settings: dict[str, Any], tokens: int) -> Ready:
    """Return the side of `xlruntime` in Python, without kernels, so that the same graphs run."""
    import xlruntime

    started = time.perf_counter()
    stream = xlruntime.load(bundle, threads=threads, ops="none").stream(**settings)
    facts = {"tokens": tokens, "load_seconds": time.perf_counter() - started}
    pieces = Pieces(tokens)
    return Ready(lambda: stream.feed(pieces.next()[0][0]).log_probs, facts, WARM)


def javascript(kind: str, bundle: Path, threads: int, settings: dict[str, Any], tokens: int) -> Ready:
    """Return the side of the package `xlruntime`: in Node, in a page on WebAssembly, or on WebGPU."""
    child, pieces = Child(kind, bundle, threads, settings), Pieces(tokens)
    facts = {"tokens": tokens, "load_seconds": child.load_seconds}
    return Ready(lambda: child.feed(pieces.next()[0][0]), facts, WARM, elsewhere=True)


@click.command(help=__doc__.split("\n\n", maxsplit=1)[0] if __doc__ else None)
@click.argument("bundle", type=PATH)
@click.option("--mem-len", type=click.IntRange(1), help="Rows of memory. [default: the bundle's]")
@click.option("--tokens", default=512, show_default=True, type=click.IntRange(1), help="Tokens of a piece.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--repeats", default=2, show_default=True, type=click.IntRange(1), help="Pieces of a side in a round.")
@click.option("--json", "file", type=PATH, help="File for figures; figures of other tables are kept.")
def main(bundle: Path, mem_len: int | None, tokens: int, rounds: int, repeats: int, file: Path | None) -> None:
    """Measure all sides, and print them."""
    settings = {} if mem_len is None else {"mem_len": mem_len}
    sides: Sides = {}
    for threads, word in ((1, "thread"), (2, "threads")):
        options = (bundle.resolve(), threads, settings, tokens)
        sides[f"Python, {threads} {word}"] = partial(Side, python, *options)
        sides[f"Node, {threads} {word}"] = partial(Side, javascript, "node", *options)
        sides[f"WebAssembly, {threads} {word}"] = partial(Side, javascript, "wasm", *options)
    figures = measure(sides, rounds, repeats, 2)
    print_table(f"{bundle.name}, pieces of {tokens} tokens, {settings or 'its own settings'}", figures)
    add_to_json(file, f"{bundle.name} {mem_len or ''}".strip(), figures)


if __name__ == "__main__":
    main()
