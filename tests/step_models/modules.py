"""Step models as people write them, of many kinds; each converts, and runs as PyTorch does however it is cut."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

Tensors = Mapping[str, Tensor]
Result = tuple[Mapping[str, Tensor], Mapping[str, Tensor]]


def scalar(dtype: str, low: float, high: float, *shape: int) -> dict[str, Any]:
    """Return what `inputs` says of integers or booleans."""
    return {"shape": shape, "dtype": dtype, "low": low, "high": high}


class Leaky(nn.Module):
    """A leaky sum of four numbers, from which the others derive."""

    inputs: ClassVar[Any] = {"x": (4,)}

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.build()

    def build(self) -> None:
        """Add layers."""

    def first_state(self) -> Tensors:
        return {"h": torch.zeros(4)}

    def step(self, inputs: Tensors, state: Tensors) -> Result:
        h = 0.5 * state["h"] + inputs["x"]
        return {"y": h}, {"h": h}


class Policy(Leaky):
    """`segment` and `step` of an LSTM."""

    def build(self) -> None:
        self.rnn, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 2)

    def first_state(self) -> Tensors:
        return {"h": torch.zeros(1, 8), "c": torch.zeros(1, 8)}

    def segment(self, inputs: Tensors, state: Tensors) -> Result:
        y, after = self.rnn(inputs["x"], tuple(state[key].transpose(0, 1).contiguous() for key in "hc"))
        return {"action": self.head(y)}, {key: value.transpose(0, 1) for key, value in zip("hc", after, strict=True)}

    def step(self, inputs: Tensors, state: Tensors) -> Result:
        outputs, after = self.segment({"x": inputs["x"][:, None]}, state)
        return {"action": outputs["action"][:, 0]}, after


class Controller(nn.Module):
    """A PID with a clock: scalars, a mask, three kinds of states, and no parameter at all."""

    inputs: ClassVar[Any] = OrderedDict({"arm.error": (), "on": scalar("bool", 0, 1)})

    def first_state(self) -> Tensors:
        states = {"sum": torch.zeros(()), "clock": torch.zeros((), dtype=torch.int64)}
        return OrderedDict(states, seen=torch.zeros((), dtype=torch.bool))

    def step(self, inputs: Tensors, state: Tensors) -> Result:
        error = torch.where(inputs["on"], inputs["arm.error"], 0.0)
        total, clock = (0.9 * state["sum"] + error).clamp(-2, 2), state["clock"] + 1
        seen = state["seen"] | inputs["on"]
        outputs = {"arm.u": 2 * error + total, "tick": clock % 10 == 0, "seen_before": state["seen"] & seen}
        return OrderedDict(outputs), OrderedDict(sum=total, clock=clock, seen=seen)


class Delay(Leaky):
    """A filter with a delay line, in segments alone; of the scale 1e-9."""

    inputs: ClassVar[Any] = {"x": {"shape": (), "low": -1e-9, "high": 1e-9}}

    def first_state(self) -> Tensors:
        return {"line": torch.zeros(8)}

    def segment(self, inputs: Tensors, state: Tensors) -> Result:
        x = torch.cat([state["line"], inputs["x"]], dim=1)
        y = functional.conv1d(x[:, None], torch.hann_window(9)[None, None])[:, 0]
        return {"y": y, "x_now": inputs["x"]}, {"line": x[:, -8:]}

    step = None  # type: ignore[assignment]


class Buttons(Leaky):
    """Embeddings of a button, and several outputs of integers and booleans."""

    inputs: ClassVar[Any] = {"tokens": scalar("int64", 0, 9), "stick": scalar("int8", -99, 99, 2)}

    def build(self) -> None:
        self.cells = nn.ModuleDict({"a": nn.GRUCell(8, 8)})
        self.embedding = nn.Embedding(10, 6)

    def first_state(self) -> Tensors:
        return {"logits": torch.full((8,), 0.1)}

    def step(self, inputs: Tensors, state: Tensors) -> Result:
        x = torch.cat([self.embedding(inputs["tokens"]), inputs["stick"] / 99], dim=-1)
        h = self.cells["a"](x, state["logits"])
        chosen = {"fire": h[:, 2] > 0, "slot": h.argmax(-1), "pwm": (h * 99).round().to(torch.int16)}
        return {"token": h.softmax(-1), **chosen}, {"logits": h}


class Camera(Leaky):
    """Images, whose outputs have axes of their own."""

    inputs: ClassVar[Any] = {"image": (3, 8, 8)}

    def build(self) -> None:
        self.conv = nn.Conv2d(3, 4, 3, stride=2)

    def step(self, inputs: Tensors, state: Tensors) -> Result:
        maps = functional.relu(self.conv(inputs["image"]))
        h = 0.5 * state["h"] + maps.amax(dim=(2, 3))
        return {"map": maps + h[:, :, None, None]}, {"h": h}


class Ring(Leaky):
    """Attention over the last observations, with a counter; of the scale 1e6."""

    inputs: ClassVar[Any] = {"x": {"shape": (4,), "low": -1e6, "high": 1e6}}

    def build(self) -> None:
        self.key = nn.Linear(4, 4)

    def first_state(self) -> Tensors:
        return {"ring": torch.zeros(6, 4), "n": torch.zeros((), dtype=torch.int64)}

    def step(self, inputs: Tensors, state: Tensors) -> Result:
        x, n = inputs["x"], state["n"][:, None]
        ring = torch.where((torch.arange(6) == n % 6)[:, :, None], x[:, None], state["ring"])
        scores = (self.key(ring / 1e6) @ x[:, :, None] / 1e6)[:, :, 0].masked_fill(torch.arange(6) > n, -1e30)
        return {"y": (scores.softmax(-1)[:, None] @ ring)[:, 0]}, {"ring": ring, "n": state["n"] + 1}


class Limited(Leaky):
    """A table of 40 places."""

    max_positions, segment_len = 40, 8

    def build(self) -> None:
        self.table = nn.Embedding(40, 4)

    def first_state(self) -> Tensors:
        return {"h": torch.zeros(4), "n": torch.zeros((), dtype=torch.int64)}

    def step(self, inputs: Tensors, state: Tensors) -> Result:
        h = 0.5 * state["h"] + inputs["x"] + self.table(state["n"])
        return {"y": h}, {"h": h, "n": state["n"] + 1}


RIGHT = (Policy, Controller, Delay, Buttons, Camera, Ring, Limited)
