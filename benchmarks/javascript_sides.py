"""The same bundle in Python, in Node and in a browser: sides for `javascript_beside_python.py`, and their processes.

Needs Node, `npm ci && npm run build` in runtime/js, and Chromium.
"""

from __future__ import annotations

import json
import math
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from benchmarks.sides import ROOT, Ready, SideError, text_ids

__all__ = ["Child", "gpt2", "javascript", "python", "write_gpt2"]

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
        given = {"kind": kind, "model": str(model), "threads": threads, "settings": settings, "library": library}
        self._process = subprocess.Popen(
            ["node", "--expose-gc", str(ROOT / "benchmarks/javascript_side.mjs"), json.dumps(given)],
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


class Pieces:
    """Hand out pieces of one text, one after the other."""

    def __init__(self, tokens: int) -> None:
        """Begin at the text's first byte."""
        self._tokens, self._at = tokens, 0

    def next(self) -> npt.NDArray[np.int64]:
        """Return the next ids."""
        self._at += self._tokens
        return text_ids(self._at - self._tokens, self._tokens)


def python(bundle: str, threads: int, settings: dict[str, Any], tokens: int) -> Ready:
    """Return the side of `xlruntime` in Python, without kernels, so that the same graphs run."""
    import xlruntime

    started = time.perf_counter()
    model = xlruntime.load(bundle, threads=threads, ops="none")
    stream = model.stream(**settings)
    facts = {"tokens": tokens, "load_seconds": time.perf_counter() - started, "parameters": parameters(bundle)}
    pieces = Pieces(tokens)
    return Ready(lambda: stream.feed(pieces.next()).log_probs, facts, WARM)


def javascript(kind: str, bundle: str, threads: int, settings: dict[str, Any], tokens: int) -> Ready:
    """Return the side of the package `xlruntime`: in Node, in a page on WebAssembly, or on WebGPU."""
    child = Child(kind, bundle, threads, settings)
    facts = {"tokens": tokens, "load_seconds": child.load_seconds, "parameters": parameters(bundle)}
    pieces = Pieces(tokens)
    return Ready(lambda: child.feed(pieces.next()), facts, WARM, elsewhere=True)


def gpt2(kind: str, model: str, library: str, threads: int, tokens: int) -> Ready:
    """Return the side of transformers.js with a decoder of random weights: `gpt2_node` or `gpt2_wasm`."""
    child = Child(kind, model, threads, {}, library)
    count = json.loads((Path(model) / "config.json").read_text())["parameters"]
    facts = {"tokens": tokens, "load_seconds": child.load_seconds, "parameters": count, "model": "gpt2"}
    pieces = Pieces(tokens)

    def step() -> None:
        child.feed(pieces.next())

    return Ready(step, facts, WARM, elsewhere=True)


def parameters(bundle: str) -> int:
    """Return the number of float32 weights of a bundle."""
    return sum(file.stat().st_size for file in Path(bundle).glob("weights*.data")) // 4


def write_gpt2(folder: str) -> None:
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
    (Path(folder) / "onnx").mkdir(parents=True)
    torch.onnx.export(
        model,
        (torch.zeros(1, 4, dtype=torch.int64), torch.ones(1, 7, dtype=torch.int64), *past),
        str(Path(folder) / "onnx/model.onnx"),
        input_names=["input_ids", "attention_mask", *names],
        output_names=["logits", *(f"present.{kind}" for kind in kinds)],
        dynamic_axes={"input_ids": {1: "tokens"}, "attention_mask": {1: "all"}, **free},
        dynamo=False,
        do_constant_folding=False,  # it would store the transposed embedding a second time
        opset_version=17,
    )
    count = sum(weight.numel() for weight in model.parameters())
    config = {**GPT2, "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "parameters": count}
    (Path(folder) / "config.json").write_text(json.dumps(config), "utf-8")
    (Path(folder) / "generation_config.json").write_text("{}", "utf-8")
