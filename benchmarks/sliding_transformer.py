"""Measure how much slower a vanilla Transformer is that moves one token at a time: Table 9 of the Transformer-XL paper.

    python -m benchmarks.sliding_transformer [--length 3800] [--folder KEPT] [--json FILE]

Both have the enwik8 shape (12 layers of width 512, 8 heads of 64, d_inner 2048, 256 bytes), random weights, and see the
same number of tokens. The vanilla model is that of Al-Rfou et al. (2018), evaluated as in Dai et al. (2019), Section
3.1: to score one token it reads the L tokens before it from scratch, and predicts only at the last position. It runs in
PyTorch eager, with fused causal attention, and in ONNX Runtime. Its time is measured on a few windows. The bundle has a
memory of L and scores in segments. Segments of 80 tokens with distances clamped at 820 are the paper's enwik8
evaluation. Longer segments have no clamping: with `same_length` scores do not depend on the segments' length. The
paper's ratios were measured on its authors' GPUs, with their code on both sides.

Every side runs warm in its own process, in turns. SGEMM is measured before and after each round. The floor is the
arithmetic at the best SGEMM; for the vanilla model only half of the attention counts. `--tiny` is a small shape, to try
the command out. Needs the extras cpu, convert and dev.
"""

from __future__ import annotations

import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from benchmarks.sides import (
    Figures,
    Ready,
    Run,
    Side,
    Sides,
    add_to_json,
    benchmark,
    measure,
    print_table,
    run_once,
    text_ids,
)
from benchmarks.transformer_xl import SHAPE, TINY, Case, bundle_side, prepare

__all__ = ["eager", "export", "main", "onnx_runtime", "vanilla_transformer", "window_flops"]

PAPER = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}  # Dai et al. (2019), Table 9: times slower than theirs
PUBLISHED = "bundle, segments of 80, clamped"
SEGMENTS = (80, 320, 640)
VANILLA = ("vanilla, PyTorch eager", "vanilla, ONNX Runtime")


def vanilla_transformer(shape: dict[str, int], length: int, fused: bool) -> Any:
    """Return a model that gives log-probabilities (B,V), in nats, of the token after a window (B,L).

    Args:
        fused: whether PyTorch's fused kernel masks later tokens, or else a mask that can be exported.
    """
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    D, H, d_head = shape["d_model"], shape["n_head"], shape["d_head"]

    class Layer(nn.Module):
        """Causal self-attention and feed-forward, each with residual connection and layer normalisation after it."""

        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.output = nn.Linear(D, 3 * H * d_head, bias=False), nn.Linear(H * d_head, D, bias=False)
            self.inner, self.outer = nn.Linear(D, shape["d_inner"]), nn.Linear(shape["d_inner"], D)
            self.attention_norm, self.feed_forward_norm = nn.LayerNorm(D), nn.LayerNorm(D)

        def forward(self, hidden: Tensor) -> Tensor:
            B, L, _ = hidden.shape
            query, key, value = self.qkv(hidden).view(B, L, 3, H, d_head).permute(2, 0, 3, 1, 4)
            if fused:
                mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            else:
                scores = (query * d_head**-0.5) @ key.transpose(2, 3) + torch.full((L, L), -math.inf).triu(1)
                mixed = scores.softmax(dim=-1) @ value  # (B,H,L,d_head)
            hidden = self.attention_norm(hidden + self.output(mixed.transpose(1, 2).flatten(2)))  # (B,L,D)
            return self.feed_forward_norm(hidden + self.outer(self.inner(hidden).relu()))

    class VanillaTransformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.word_emb = nn.Embedding(shape["n_token"], D)
            self.positions = nn.Parameter(torch.randn(length, D))
            self.layers = nn.Sequential(*(Layer() for _ in range(shape["n_layer"])))
            self.head = nn.Linear(D, shape["n_token"])

        def forward(self, tokens: Tensor) -> Tensor:
            hidden = self.word_emb(tokens) * math.sqrt(D) + self.positions[: tokens.shape[1]]
            return self.head(self.layers(hidden)[:, -1]).log_softmax(dim=-1)

    torch.manual_seed(0)
    return VanillaTransformer().eval()


def window_flops(shape: dict[str, int], L: int) -> int:
    """Return the multiplications and additions in one window's matrix products, without scores of later tokens."""
    D, heads = shape["d_model"], shape["n_head"] * shape["d_head"]
    layer = L * (4 * D * heads + 2 * D * shape["d_inner"]) + 2 * heads * L * (L + 1) // 2
    return 2 * (shape["n_layer"] * layer + D * shape["n_token"])


def eager(shape: dict[str, int], length: int, threads: int) -> Ready:
    """Return the side in PyTorch, with its fused attention."""
    import torch

    torch.set_num_threads(threads)
    model = vanilla_transformer(shape, length, fused=True)

    @torch.inference_mode()
    def log_probs(window: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        return np.asarray(model(torch.from_numpy(window)))

    return _window_side(log_probs, shape, length)


def export(file: Path, shape: dict[str, int], length: int) -> None:
    """Write the model as ONNX for windows of `length` tokens."""
    import torch

    tokens = torch.zeros(1, length, dtype=torch.int64)
    torch.onnx.export(vanilla_transformer(shape, length, fused=False), (tokens,), file, dynamo=True, verbose=False)


def onnx_runtime(folder: Path, shape: dict[str, int], length: int, threads: int) -> Ready:
    """Return the side in ONNX Runtime, with the settings of `xlruntime`'s own sessions."""
    from xlruntime.devices import parse_device
    from xlruntime.providers import open_session

    file = folder / f"vanilla-{length}.onnx"
    if not file.exists():
        run_once(export, file, shape, length)
    started = time.perf_counter()
    session = open_session(file, parse_device("cpu"), threads, data_files=[f"{file.name}.data"])
    load_seconds = time.perf_counter() - started
    side = _window_side(lambda window: np.asarray(session.run(None, {"tokens": window})[0]), shape, length)
    side.facts["load_seconds"] = load_seconds
    return side


def _window_side(log_probs: Any, shape: dict[str, int], length: int) -> Ready:
    """Return a side that scores one token after the other, each after a whole window."""
    start = 0

    def step() -> npt.NDArray[Any]:
        nonlocal start
        ids = text_ids(start, length + 1)
        start += 1
        scores: npt.NDArray[Any] = log_probs(ids[None, :-1].copy())[:, ids[-1]]
        return scores

    return Ready(step, {"model": "vanilla", "tokens": 1, "flops": window_flops(shape, length)}, warm=1)


@benchmark
@click.option("--length", "lengths", multiple=True, type=click.IntRange(1), help="Default: those of the paper's table.")
@click.option("--windows", default=2, show_default=True, type=click.IntRange(1), help="Vanilla windows in a round.")
@click.option("--repeats", default=5, show_default=True, type=click.IntRange(1), help="Segments in a round.")
def main(run: Run, lengths: tuple[int, ...], windows: int, repeats: int) -> None:
    """Measure and print each length in turn."""
    shape, threads = TINY if run.tiny else SHAPE, run.threads
    checkpoint, bundle = prepare(run.folder, shape)
    for length in lengths or PAPER:
        published = Case(80, length, same_length=True, clamp_len=820)
        sides: Sides = {PUBLISHED: partial(Side, bundle_side, bundle, threads, published, "auto")}
        for segment in SEGMENTS:
            case = Case(segment, length, same_length=True)
            sides[f"bundle, segments of {segment}"] = partial(Side, bundle_side, bundle, threads, case, "auto")
        sides[VANILLA[0]] = partial(Side, eager, shape, length, threads)
        sides[VANILLA[1]] = partial(Side, onnx_runtime, checkpoint.parent, shape, length, threads)
        counts = {name: windows if name in VANILLA else repeats for name in sides}
        figures = measure(sides, run.rounds, counts, threads)
        figures |= {"length": length, "shape": shape, "paper": PAPER.get(length)}
        print_table(f"attention length {length:,}", figures)
        if not any(side["disturbance"] for side in figures["sides"].values()):
            figures |= times_slower(figures["sides"])
        if length in PAPER:
            print(f"  the paper's Table 9, on other machines: {PAPER[length]:,}")
        add_to_json(run.file, str(length), figures)


def times_slower(sides: Figures) -> Figures:
    """Print and return how much slower the vanilla models are than published segments, and than the best ones."""
    figures: Figures = {}
    for key in ("best", "median"):
        times = {name: side[key] / side["tokens"] for name, side in sides.items()}
        fastest = min(seconds for name, seconds in times.items() if name not in VANILLA)
        figures[f"times_slower_{key}"] = {
            name: {"published_segments": times[name] / times[PUBLISHED], "best_segments": times[name] / fastest}
            for name in VANILLA
        }
    for name in VANILLA:
        best, median = figures["times_slower_best"][name], figures["times_slower_median"][name]
        print(
            f"  {name}, times slower than published segments: {best['published_segments']:,.0f} "
            f"(median {median['published_segments']:,.0f}); than the best segments: {best['best_segments']:,.0f} "
            f"(median {median['best_segments']:,.0f})"
        )
    return figures


if __name__ == "__main__":
    main()
