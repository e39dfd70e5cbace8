"""Compare the speed of a bundle in Python, in Node and in a browser, in turns.

    python -m benchmarks.javascript BUNDLE [--mem-len 448] [--transformers-js FOLDER] [--json FILE]

All sides feed the same text to a stream, piece by piece; each has processes of its own. The sides are Python and Node
with one and two threads, and headless Chromium on WebAssembly with one and two. All run the same graphs with the bodies
of their operators. Differences are those to Python's scores, in nats. A step is a piece.

`--transformers-js` is a folder with `npm install --ignore-scripts @huggingface/transformers`. Then transformers.js runs
a decoder of GPT-2's shape with random weights, which is made here, in Node and in Chromium. It computes logits of all
tokens of segments of 128, up to 1,024 tokens, and starts again. So a token sees 448 tokens of past segments on average.
Models of different sizes are compared by tokens per second times their parameters.

Needs Node, Chromium, `npm ci && npm run build` in runtime/js, and the extras cpu, convert and dev.
"""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
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
    run_once,
)

__all__ = ["Child", "main"]

WARM = 10  # pieces before the first turn: the first ones of JavaScript take up to a third longer, until it is compiled
GPT2 = {"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024, "vocab_size": 50257}


class Child:
    """A process of Node that feeds a stream; `kind` is one of `javascript_side.mjs`."""

    def __init__(
        self, kind: str, model: str | Path, threads: int, settings: dict[str, Any], library: str | None = None
    ) -> None:
        """Start the process, and wait until the model is open.

        Raises:
            SideError: the process ended; stderr has the reason.
        """
        options = {"kind": kind, "model": str(model), "threads": threads, "settings": settings, "library": library}
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
    facts = {"tokens": tokens, "load_seconds": time.perf_counter() - started, "parameters": parameters(bundle)}
    pieces = Pieces(tokens)
    return Ready(lambda: stream.feed(pieces.next()[0][0]).log_probs, facts, WARM)


def javascript(kind: str, bundle: Path, threads: int, settings: dict[str, Any], tokens: int) -> Ready:
    """Return the side of the package `xlruntime`: in Node, in a page on WebAssembly, or on WebGPU."""
    child, pieces = Child(kind, bundle, threads, settings), Pieces(tokens)
    facts = {"tokens": tokens, "load_seconds": child.load_seconds, "parameters": parameters(bundle)}
    return Ready(lambda: child.feed(pieces.next()[0][0]), facts, WARM, elsewhere=True)


def gpt2(kind: str, model: Path, library: str, threads: int, tokens: int) -> Ready:
    """Return the side of transformers.js with a decoder of random weights: `gpt2_node` or `gpt2_wasm`."""
    child, pieces = Child(kind, model, threads, {}, library), Pieces(tokens)
    count = json.loads((model / "config.json").read_text())["parameters"]
    facts = {"tokens": tokens, "load_seconds": child.load_seconds, "parameters": count, "model": "gpt2"}

    def step() -> None:
        child.feed(pieces.next()[0][0])

    return Ready(step, facts, WARM, elsewhere=True)


def parameters(bundle: Path) -> int:
    """Return the number of float32 weights of a bundle."""
    return sum(file.stat().st_size for file in bundle.glob("weights*.data")) // 4


def write_gpt2(folder: Path) -> None:
    """Write a graph of GPT-2's shape with random weights, under the names that transformers.js expects."""
    import torch
    from torch import Tensor, nn
    from torch.nn import functional

    layers, heads, width = GPT2["n_layer"], GPT2["n_head"], GPT2["n_embd"]

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Tensor, hidden: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            B, S, _ = x.shape
            q, k, v = (
                part.reshape(B, S, heads, -1).transpose(1, 2) for part in self.qkv(self.ln_1(x)).split(width, dim=2)
            )  # (B, heads, S, width / heads)
            k, v = torch.cat([key, k], dim=2), torch.cat([value, v], dim=2)
            scores = (q @ k.transpose(2, 3) / math.sqrt(width / heads)).masked_fill(hidden, -1e9)
            x = x + self.out((scores.softmax(3) @ v).transpose(1, 2).reshape(B, S, width))
            return x + self.down(functional.gelu(self.up(self.ln_2(x)), approximate="tanh")), k, v

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(GPT2["vocab_size"], width)
            self.positions = nn.Embedding(GPT2["n_positions"], width)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(width)

        def forward(self, input_ids: Tensor, attention_mask: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
            positions = attention_mask.cumsum(1) - 1
            queries = positions[:, past[0].shape[2] :]
            hidden = (positions[:, None, :] > queries[:, :, None])[:, None]
            x = self.tokens(input_ids) + self.positions(queries)
            present: list[Tensor] = []
            for number, block in enumerate(self.blocks):
                x, *carried = block(x, hidden, past[2 * number], past[2 * number + 1])
                present += carried
            return self.norm(x) @ self.tokens.weight.T, *present

    torch.manual_seed(0)
    model = Decoder().eval()
    kinds = [f"{number}.{kind}" for number in range(layers) for kind in ("key", "value")]
    names = [f"past_key_values.{kind}" for kind in kinds]
    past = [torch.zeros(1, heads, 3, width // heads) for _ in names]
    free: dict[str, dict[int, str]] = {name: {2: "past"} for name in names}
    (folder / "onnx").mkdir(parents=True)
    torch.onnx.export(
        model,
        (torch.zeros(1, 4, dtype=torch.int64), torch.ones(1, 7, dtype=torch.int64), *past),
        str(folder / "onnx/model.onnx"),
        input_names=["input_ids", "attention_mask", *names],
        output_names=["logits", *(f"present.{kind}" for kind in kinds)],
        dynamic_axes={"input_ids": {1: "tokens"}, "attention_mask": {1: "all"}, **free},
        dynamo=False,
        do_constant_folding=False,  # it would store the transposed embedding a second time
        opset_version=17,
    )
    count = sum(weight.numel() for weight in model.parameters())
    config = {**GPT2, "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "parameters": count}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    (folder / "generation_config.json").write_text("{}", "utf-8")


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
    sides: Sides = {}
    for threads, word in ((1, "thread"), (2, "threads")):
        options = (place, threads, settings, tokens)
        sides[f"Python, {threads} {word}"] = partial(Side, python, *options)
        sides[f"Node, {threads} {word}"] = partial(Side, javascript, "node", *options)
        sides[f"WebAssembly, {threads} {word}"] = partial(Side, javascript, "wasm", *options)
    with tempfile.TemporaryDirectory() as scratch:
        if library is not None:
            decoder = (decoder or Path(scratch) / "gpt2").resolve()
            if not decoder.exists():
                run_once(write_gpt2, decoder)
            for kind, name in (("gpt2_node", "Node"), ("gpt2_wasm", "WebAssembly")):
                side = partial(Side, gpt2, kind, decoder, library.resolve(), 2, tokens)
                sides[f"transformers.js, {name}, 2 threads"] = side
        figures = measure(sides, rounds, repeats, 2)
    print_table(f"{bundle.name}, pieces of {tokens} tokens, {settings or 'its own settings'}", figures)
    add_to_json(file, f"{bundle.name} {mem_len or ''}".strip(), figures)


if __name__ == "__main__":
    main()
