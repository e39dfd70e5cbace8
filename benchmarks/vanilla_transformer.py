"""A plain Transformer decoder with absolute positions, and its sides for `sliding_transformer.py`.

The model is that of Al-Rfou et al. (2018), evaluated as described by Dai et al. (2019), Section 3.1. To score one token
it reads the L tokens before it from scratch and predicts only at the last position. Then it moves on by one token.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.sides import Ready, run_once, text_ids

__all__ = ["VanillaTransformer", "eager", "export", "onnx_runtime", "window_flops"]


class Layer(nn.Module):
    """Causal self-attention and feed-forward, each with residual connection and layer normalisation after it."""

    def __init__(self, shape: dict[str, int]) -> None:
        super().__init__()
        D, self.n_head, self.d_head = shape["d_model"], shape["n_head"], shape["d_head"]
        self.qkv = nn.Linear(D, 3 * self.n_head * self.d_head, bias=False)
        self.output = nn.Linear(self.n_head * self.d_head, D, bias=False)
        self.inner, self.outer = nn.Linear(D, shape["d_inner"]), nn.Linear(shape["d_inner"], D)
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(self, hidden: Tensor, future: Tensor | None) -> Tensor:
        """Compute (B,L,D) from (B,L,D); `future` (L,L) is -inf for later tokens, None: the fused kernel masks them."""
        B, L, _ = hidden.shape
        query, key, value = self.qkv(hidden).view(B, L, 3, self.n_head, self.d_head).permute(2, 0, 3, 1, 4)
        if future is None:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            scores = (query * self.d_head**-0.5) @ key.transpose(2, 3) + future
            mixed = scores.softmax(dim=-1) @ value  # (B,H,L,d_head)
        hidden = self.attention_norm(hidden + self.output(mixed.transpose(1, 2).flatten(2)))  # (B,L,D)
        return self.feed_forward_norm(hidden + self.outer(self.inner(hidden).relu()))


class VanillaTransformer(nn.Module):
    """Log-probabilities (B,V), in nats, of the token after a window (B,L)."""

    def __init__(self, shape: dict[str, int], length: int, fused: bool) -> None:
        super().__init__()
        self.fused, self.width = fused, shape["d_model"]
        self.word_emb = nn.Embedding(shape["n_token"], shape["d_model"])
        self.positions = nn.Parameter(torch.randn(length, shape["d_model"]))
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape["n_layer"]))
        self.head = nn.Linear(shape["d_model"], shape["n_token"])

    def forward(self, tokens: Tensor) -> Tensor:
        L = tokens.shape[1]
        hidden = self.word_emb(tokens) * math.sqrt(self.width) + self.positions[:L]
        future = None if self.fused else torch.full((L, L), -math.inf).triu(1)
        for layer in self.layers:
            hidden = layer(hidden, future)
        return self.head(hidden[:, -1]).log_softmax(dim=-1)


def window_flops(shape: dict[str, int], L: int) -> int:
    """Return the multiplications and additions in one window's matrix products, without scores of later tokens."""
    D, heads = shape["d_model"], shape["n_head"] * shape["d_head"]
    layer = L * (4 * D * heads + 2 * D * shape["d_inner"]) + 2 * heads * L * (L + 1) // 2
    return 2 * (shape["n_layer"] * layer + D * shape["n_token"])


def _model(shape: dict[str, int], length: int, fused: bool) -> VanillaTransformer:
    torch.manual_seed(0)
    return VanillaTransformer(shape, length, fused).eval()


def eager(shape: dict[str, int], length: int, threads: int) -> Ready:
    """Return the side in PyTorch, with its fused attention."""
    torch.set_num_threads(threads)
    model = _model(shape, length, fused=True)
    place = 0

    @torch.inference_mode()
    def step() -> npt.NDArray[Any]:
        nonlocal place
        ids = text_ids(place, length + 1)
        place += 1
        log_probs: npt.NDArray[Any] = model(torch.from_numpy(ids[None, :-1].copy())).numpy()
        return log_probs[:, ids[-1]]

    return Ready(step, {"model": "vanilla", "tokens": 1, "flops": window_flops(shape, length)}, warm=1)


def export(file: str, shape: dict[str, int], length: int) -> None:
    """Write the model as ONNX for windows of `length` tokens."""
    tokens = torch.zeros(1, length, dtype=torch.int64)
    torch.onnx.export(_model(shape, length, fused=False), (tokens,), file, dynamo=True, verbose=False)


def onnx_runtime(folder: str, shape: dict[str, int], length: int, threads: int) -> Ready:
    """Return the side in ONNX Runtime, with the settings of `xlruntime`'s own sessions."""
    from xlruntime.devices import parse_device
    from xlruntime.providers import open_session

    file = Path(folder) / f"vanilla-{length}.onnx"
    if not file.exists():
        run_once(export, file, shape, length)
    started = time.perf_counter()
    session = open_session(file, parse_device("cpu"), threads, data_files=[f"{file.name}.data"])
    load_seconds = time.perf_counter() - started
    facts = {"model": "vanilla", "tokens": 1, "flops": window_flops(shape, length), "load_seconds": load_seconds}
    place = 0

    def step() -> npt.NDArray[Any]:
        nonlocal place
        ids = text_ids(place, length + 1)
        place += 1
        log_probs = session.run(None, {"tokens": ids[None, :-1].copy()})[0]
        return np.asarray(log_probs)[:, ids[-1]]

    return Ready(step, facts, warm=1)
