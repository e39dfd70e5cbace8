"""PyTorch modules whose state is an argument and a result, and their graphs by both exporters of PyTorch."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

__all__ = ["GRU", "LSTM", "Cache", "Drawn", "NoPositions", "export"]

Axes = dict[str, tuple[int | str, ...]]
SIZES = {"batch": 2, "time": 5, "past": 3}  # of free axes while a module is exported


class Drawn(nn.Module):
    """A module whose instances have the same weights; names of its inputs, with axes, and of its outputs."""

    inputs: ClassVar[Axes]
    outputs: ClassVar[tuple[str, ...]]

    def draw(self) -> None:
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            nn.init.normal_(parameter, 0, 0.7, generator)
        self.requires_grad_(False)


class GRU(Drawn):
    inputs: ClassVar[Axes] = {"x": ("time", "batch", 3), "h": (1, "batch", 4)}
    outputs: ClassVar[tuple[str, ...]] = ("y", "hn")
    cells: ClassVar[type[nn.GRU | nn.LSTM]] = nn.GRU

    def __init__(self) -> None:
        super().__init__()
        self.rnn = self.cells(3, 4)
        self.draw()

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        y, h = self.rnn(x, h)
        return y, h


class LSTM(GRU):
    inputs: ClassVar[Axes] = {**GRU.inputs, "c": (1, "batch", 4)}
    outputs: ClassVar[tuple[str, ...]] = (*GRU.outputs, "cn")
    cells = nn.LSTM

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        y, (h, c) = self.rnn(x, (h, c))
        return y, h, c


class Cache(Drawn):
    """Causal attention over a growing cache, with a table of 64 learned positions."""

    axes: ClassVar[tuple[int | str, ...]] = ("batch", 2, "past", 4)
    inputs: ClassVar[Axes] = {
        "input_ids": ("batch", "time"),
        "past_key_values.0.key": axes,
        "past_key_values.0.value": axes,
    }
    outputs: ClassVar[tuple[str, ...]] = ("logits", "present.0.key", "present.0.value")
    positions: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.table = nn.Embedding(16, 8), nn.Embedding(64, 8)
        self.project, self.head = nn.Linear(8, 24), nn.Linear(8, 16)
        self.draw()

    def forward(self, input_ids: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
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

    positions: ClassVar[bool] = False


def export(model: Drawn, path: Path, *, dynamo: bool, step: bool = False) -> Path:
    """Write the graph of a module, of a free length or of one step, by the newer exporter or the older."""
    sizes = {**SIZES, "time": 1} if step else SIZES
    example = tuple(
        torch.zeros([axis if isinstance(axis, int) else sizes[axis] for axis in axes]) for axes in model.inputs.values()
    )
    if isinstance(model, Cache):
        example = (example[0].long(), *example[1:])
    fixed = {"time"} if step else set()
    free = [
        {at: axis for at, axis in enumerate(axes) if isinstance(axis, str) and axis not in fixed}
        for axes in model.inputs.values()
    ]
    options: dict[str, Any] = {"input_names": list(model.inputs), "output_names": list(model.outputs), "dynamo": dynamo}
    if dynamo:
        options["dynamic_shapes"] = tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in free)
    else:
        longer = [{at: axis.replace("past", "total") for at, axis in axes.items()} for axes in free]
        options["dynamic_axes"] = dict(zip((*model.inputs, *model.outputs), (*free, *longer), strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, about its exporters
        torch.onnx.export(model, example, path, verbose=False, **options)
    return path
