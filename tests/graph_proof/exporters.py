"""PyTorch modules whose state is an argument and a result, and their graphs by both exporters of PyTorch."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

__all__ = ["GRU", "LSTM", "Cache", "NoPositions", "export"]


class Drawn(nn.Module):
    """A module in which every instance draws the same weights, so that a graph can be compared with a new one."""

    def draw(self) -> None:
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            nn.init.normal_(parameter, 0, 0.7, generator)
        self.requires_grad_(False)


class LSTM(Drawn):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(3, 4)
        self.draw()

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (S, B, 4) for inputs (S, B, 3), and both states (1, B, 4)."""
        y, (h, c) = self.rnn(x, (h, c))
        return y, h, c


class GRU(Drawn):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(3, 4)
        self.draw()

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return (S, B, 4) for inputs (S, B, 3), and the state (1, B, 4)."""
        y, h = self.rnn(x, h)
        return y, h


class Cache(Drawn):
    """Causal attention over a growing cache, with a table of 64 learned positions."""

    positions = True

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.table = nn.Embedding(16, 8), nn.Embedding(64, 8)
        self.project, self.head = nn.Linear(8, 24), nn.Linear(8, 16)
        self.draw()

    def forward(self, input_ids: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits (B, S, 16) for ids (B, S), and the longer cache (B, 2, past + S, 4)."""
        (B, S), past = input_ids.shape, key.shape[2]
        place = torch.arange(past, past + S)
        x = self.tokens(input_ids) + (self.table(place) if self.positions else 0)
        q, k, v = (part.view(B, S, 2, 4).transpose(1, 2) for part in self.project(x).split(8, -1))
        key, value = torch.cat([key, k], 2), torch.cat([value, v], 2)
        seen = torch.arange(past + S) <= place[:, None]
        y = nn.functional.scaled_dot_product_attention(q, key, value, attn_mask=seen)
        return self.head(y.transpose(1, 2).reshape(B, S, 8)), key, value


class NoPositions(Cache):
    """The same without positions: it reads texts of any length."""

    positions = False


RNN_AXES = {"x": {0: "time", 1: "batch"}, "y": {0: "time", 1: "batch"}}
CACHE_AXES = {"input_ids": {0: "batch", 1: "time"}, "logits": {0: "batch", 1: "time"}}


def export(model: nn.Module, path: Path, *, dynamo: bool, steps: int | None = None) -> Path:
    """Write the graph of a module of this file, with the names of states that Hugging Face's exporters give to caches.

    Args:
        dynamo: the newer exporter of the two that PyTorch has.
        steps: a fixed length of the inputs instead of a free one.
    """
    example: tuple[Tensor, ...]
    if isinstance(model, Cache):
        example = (torch.zeros(2, steps or 5, dtype=torch.long), torch.zeros(2, 2, 3, 4), torch.zeros(2, 2, 3, 4))
        states = {f"past_key_values.0.{kind}": f"present.0.{kind}" for kind in ("key", "value")}
        axes = {**CACHE_AXES, **{name: {0: "batch", 2: "past"} for name in states}}
        axes |= {name: {0: "batch", 2: "total"} for name in states.values()}
    else:
        states = {"h": "hn", "c": "cn"} if isinstance(model, LSTM) else {"h": "hn"}
        example = (torch.zeros(steps or 5, 2, 3), *(torch.zeros(1, 2, 4) for _ in states))
        axes = {**RNN_AXES, **{name: {1: "batch"} for names in states.items() for name in names}}
    inputs = [next(iter(axes)), *states]
    outputs = [list(axes)[1], *states.values()]
    if steps:
        axes = {name: {axis: free for axis, free in its.items() if free != "time"} for name, its in axes.items()}
    options = (
        {"dynamic_shapes": tuple(dict.fromkeys(axes[name], torch.export.Dim.DYNAMIC) for name in inputs)}
        if dynamo
        else {"dynamic_axes": axes}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, about its exporters
        torch.onnx.export(
            model, example, path, dynamo=dynamo, input_names=inputs, output_names=outputs, verbose=False, **options
        )
    return path
