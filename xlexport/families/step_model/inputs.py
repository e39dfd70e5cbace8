"""What a step model takes: the shape, dtype and range of each input."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from xlexport.errors import ExportError
from xlruntime.bundle import EACH, Feed
from xlruntime.messages import shown

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["NAME", "InputSpec", "Specs", "input_specs"]

NAME = re.compile(r"(?!new_)[A-Za-z_][\w.]{0,79}", re.ASCII)  # that a tensor of a graph can have
DTYPES = ("float32", "bool", "uint8", "int8", "int16", "int32", "int64")
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
        """Return random numbers (rows, steps, *shape) in the range."""
        import torch

        size = (rows, steps, *self.shape)
        if self.dtype == "float32":
            return self.low + (self.high - self.low) * torch.rand(size, generator=generator)
        least, most = (0, 1) if self.dtype == "bool" else (int(self.low), int(self.high))
        return torch.randint(least, most + 1, size, generator=generator).to(getattr(torch, self.dtype))


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
    if isinstance(value, InputSpec):
        value = value.to_dict()
    fields = dict(value) if isinstance(value, Mapping) else {"shape": value}
    if fields.get("dtype", "float32") != "float32":
        fields = {"low": 0, "high": 1, **fields}
    try:
        shape = tuple(fields.pop("shape"))
        spec = InputSpec(shape, **fields)
        if not all(type(axis) is int and axis > 0 for axis in shape) or spec.dtype not in DTYPES:
            raise ValueError(f"a shape of numbers above 0, and one of {', '.join(DTYPES)}")
        if not math.isfinite(spec.low) or not spec.low <= spec.high < math.inf:
            raise ValueError("finite numbers, low not above high")
        _check_range(spec)
    except (KeyError, TypeError, ValueError) as error:
        raise ExportError(f"the input {name!r} is {shown(value)}: expected {error}.", hint=EXAMPLE) from error
    return spec


def _check_range(spec: InputSpec) -> None:
    import torch

    if spec.dtype not in ("float32", "bool"):
        limits = torch.iinfo(getattr(torch, spec.dtype))
        if not (limits.min <= spec.low and spec.high <= limits.max):
            raise ValueError(f"numbers from {limits.min} to {limits.max}, as {spec.dtype} holds them")
