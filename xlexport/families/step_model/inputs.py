"""What a step model takes: the shape, dtype and range of each input."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

from xlexport.errors import ExportError
from xlruntime.bundle import EACH, Feed
from xlruntime.messages import shown

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["MOST_NUMBERS", "NAME", "InputSpec", "Specs", "input_specs"]

NAME = re.compile(r"(?!new_)[A-Za-z_][\w.]{0,79}", re.ASCII)  # that a tensor of a graph can have
RANGES: Mapping[str, tuple[float, float]] = {
    "float32": (-1e38, 1e38),
    "bool": (0, 1),
    "uint8": (0, 255),
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
}
DTYPES = tuple(RANGES)
NUMBER: Any = Real  # NumPy's too
MOST_NUMBERS = 1 << 18  # of one step, in or out: the checks hold thousands of steps
EXAMPLE = 'Write inputs={"observation": (8,)}, or {"button": {"shape": (), "dtype": "int64", "low": 0, "high": 3}}.'

Specs = Mapping[str, "InputSpec"]


@dataclass(frozen=True)
class InputSpec:
    """One input of a step model.

    Attributes:
        shape: of one row and step, without the axes of batch and segment.
        dtype: `float32`, `bool`, or an integer type.
        low, high: the range of random inputs that the conversion tries, both included.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    low: float = -1.0
    high: float = 1.0

    @property
    def feed(self) -> Feed:
        """What the manifest says of the input."""
        return Feed("input", dtype=self.dtype, shape=(*EACH, *self.shape))

    def to_dict(self) -> dict[str, Any]:
        """Return all values, plain."""
        return {**asdict(self), "shape": list(self.shape)}

    def random(self, rows: int, steps: int, generator: torch.Generator) -> Tensor:
        """Return random numbers `(rows, steps, *shape)` in the range."""
        import torch

        size = (rows, steps, *self.shape)
        if self.dtype == "float32":
            return self.low + (self.high - self.low) * torch.rand(size, generator=generator)
        least, end = int(self.low), min(int(self.high) + 1, torch.iinfo(torch.int64).max)
        least = min(least, end - 1)
        return torch.randint(least, end, size, generator=generator).to(getattr(torch, self.dtype))


def input_specs(inputs: object) -> dict[str, InputSpec]:
    """Read what a user says of the inputs: `{name: shape}`, or `{name: {"shape": ..., "dtype": ...}}`.

    Integers range from 0 to 1 unless the user says otherwise.

    Raises:
        ExportError: it is no such mapping.
    """
    if not isinstance(inputs, Mapping) or not inputs:
        raise ExportError(f"inputs is {shown(inputs)}, expected a mapping of names to shapes.", hint=EXAMPLE)
    return {name: _spec(name, value) for name, value in inputs.items()}


def _spec(name: object, value: Any) -> InputSpec:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        hint = "Name it by letters, digits, dots and underscores, without `new_` in front."
        raise ExportError(f"the input {shown(name)} has no name that graphs can have.", hint=hint)
    fields = value.to_dict() if isinstance(value, InputSpec) else value
    fields = dict(fields) if isinstance(fields, Mapping) and "shape" in fields else {"shape": fields}
    if fields.get("dtype", "float32") != "float32":
        fields = {"low": 0, "high": 1, **fields}
    if problem := _problem(**{"shape": None, "dtype": "float32", "low": -1.0, "high": 1.0, **fields}):
        raise ExportError(f"the input {name!r} is {shown(value)}: expected {problem}.", hint=EXAMPLE)
    kind = float if fields.get("dtype", "float32") == "float32" else int
    limits = {key: kind(fields[key]) for key in ("low", "high") if key in fields}
    return InputSpec(**{**fields, "shape": tuple(fields["shape"]), **limits})


def _problem(shape: Any, dtype: Any, low: Any, high: Any, **others: Any) -> str | None:
    """Return what is expected of a spec that is wrong."""
    if others:
        return "shape, dtype, low and high"
    sizes = isinstance(shape, list | tuple) and all(type(axis) is int and axis > 0 for axis in shape)
    if not sizes or math.prod(shape) > MOST_NUMBERS:
        return f"as shape a list of numbers above 0, with a product of at most {MOST_NUMBERS:,}"
    if dtype not in DTYPES:
        return f"a dtype of {', '.join(DTYPES)}"
    least, most = RANGES[dtype]
    whole = dtype != "float32"
    if not all(isinstance(end, NUMBER) and least <= end <= most and not (whole and end % 1) for end in (low, high)):
        return f"low and high, {'whole ' * whole}numbers from {least:g} to {most:g}"
    return None if low <= high else "low not above high"
