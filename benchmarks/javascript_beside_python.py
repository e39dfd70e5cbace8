"""Compare the speed of a bundle in Python, in Node and in a browser, in turns.

    python -m benchmarks.javascript_beside_python BUNDLE [--mem-len 448] [--transformers-js FOLDER] [--json FILE]

All sides feed the same text to a stream, piece by piece; each has processes of its own. The sides are Python and Node
with one and two threads, and headless Chromium on WebAssembly with one and two. All run the same graphs with the bodies
of their operators. `difference` is the largest difference of a score to Python's, in nats.

`--transformers-js` is a folder with `npm install --ignore-scripts @huggingface/transformers`. Then transformers.js runs
a decoder of GPT-2's shape with random weights, which is made here, in Node and in Chromium. It computes logits of all
tokens of segments of 128, up to 1,024 tokens, and starts again. So a token sees 448 tokens of past segments on average.
Models of different sizes are compared by tokens per second times their parameters.

Needs Node, Chromium, `npm ci && npm run build` in runtime/js, and the extras cpu, convert and dev.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from benchmarks.javascript_sides import gpt2, javascript, python, write_gpt2
from benchmarks.measuring import PATH, Figures, add_to_json, headline, measure, print_disturbances, ratio
from benchmarks.sides import Side, run_once

__all__ = ["main"]

BASE = "Python, 1 thread"


@click.command(help=__doc__.split("\n\n", maxsplit=1)[0] if __doc__ else None)
@click.argument("bundle", type=PATH)
@click.option("--mem-len", type=click.IntRange(1), help="Rows of memory. [default: the bundle's]")
@click.option("--tokens", default=512, show_default=True, type=click.IntRange(1), help="Tokens of a piece.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--repeats", default=2, show_default=True, type=click.IntRange(1), help="Pieces of a side in a round.")
@click.option("--transformers-js", "library", type=PATH, help="Folder in which transformers.js is installed.")
@click.option("--gpt2", "decoder", type=PATH, help="Folder that keeps the decoder for reuse.")
@click.option("--json", "file", type=PATH, help="File for figures; figures of other tables are kept.")
def main(
    bundle: Path,
    mem_len: int | None,
    tokens: int,
    rounds: int,
    repeats: int,
    library: Path | None,
    decoder: Path | None,
    file: Path | None,
) -> None:
    """Measure all sides, and print them."""
    place, settings = bundle.resolve(), {} if mem_len is None else {"mem_len": mem_len}
    with tempfile.TemporaryDirectory() as scratch:
        makers: dict[str, Callable[[], Side]] = {}

        def add(name: str, function: Callable[..., Any], *arguments: object) -> None:
            makers[name] = lambda: Side(function, *arguments)

        for threads, word in ((1, "thread"), (2, "threads")):
            add(f"Python, {threads} {word}", python, place, threads, settings, tokens)
            add(f"Node, {threads} {word}", javascript, "node", place, threads, settings, tokens)
            add(f"WebAssembly, {threads} {word}", javascript, "wasm", place, threads, settings, tokens)
        if library is not None:
            decoder = (decoder or Path(scratch) / "gpt2").resolve()
            if not decoder.exists():
                run_once(write_gpt2, decoder)
            for kind, name in (("gpt2_node", "Node"), ("gpt2_wasm", "WebAssembly")):
                add(f"transformers.js, {name}, 2 threads", gpt2, kind, decoder, library.resolve(), 2, tokens)
        figures = measure(makers, rounds, dict.fromkeys(makers, repeats), 2)
    print_table(f"{bundle.name}, pieces of {tokens} tokens, {settings or 'its own settings'}", figures)
    if file is not None:
        add_to_json(file, f"{bundle.name} {mem_len or ''}".strip(), figures)


def print_table(name: str, figures: Figures) -> None:
    """Print one line for each side."""
    sides = figures["sides"]
    base = sides[BASE]["median"]
    print(headline(name, figures))
    print(
        f"  {'side':34}{'tokens/s':>10}{'best':>8}{'of Python':>11}{'x 1e9 weights':>15}{'load s':>8}{'difference':>12}"
    )
    for side_name, side in sides.items():
        speed, best = side["tokens"] / side["median"], side["tokens"] / side["best"]
        own = side.get("model") is None
        part = ratio(side, base / side["median"] if own else None, 11)
        difference = side.get("max_abs_log_prob_diff")
        print(
            f"  {side_name:34}{speed:10,.0f}{best:8,.0f}{part}{speed * side['parameters'] / 1e9:15.1f}"
            f"{side['load_seconds']:8.2f}" + (f"{difference:12.1e}" if own and difference is not None else "")
        )
    print_disturbances(figures)


if __name__ == "__main__":
    main()
