"""Map tensors from a code base's names to ours, and list all that are missing, unexpected or of another shape."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xlexport.errors import CheckpointError
from xlruntime.messages import named

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

__all__ = ["Origin", "TensorMapping", "model_config", "problems_listed", "same"]

MOST_LISTED = 40  # problems, or numbers of layers; no honest file has more different problems


@dataclass(frozen=True)
class Origin:
    """The place of a parameter's tensor in a file: under any of `names`, all of it or a part.

    Attributes:
        shape: of the whole tensor in the file.
        rows: the first of its rows and the one after the last; None: all.
        index: the number of the part in a stack of tensors; None: not a stack.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    rows: tuple[int, int] | None = None
    index: int | None = None


def model_config(
    kind: Any, path: Path, values: Mapping[str, Any], hint: str = "Give the configuration that it was trained with."
) -> Any:
    """Return the `kind` of configuration with these values.

    Raises:
        CheckpointError: a field lacks a value, or cannot have the one it gets.
    """
    from xltraining.errors import ConfigError

    try:
        return kind.from_dict(values)
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{path}: {str(error).removesuffix('.')}.", hint=hint) from error


def same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors share their memory or hold equal numbers."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    is_one = one.data_ptr() == other.data_ptr() and one.stride() == other.stride()
    return is_one or bool((one == other).all())


def problems_listed(problems: Iterable[str]) -> str:
    """Join problems on one line; problems that differ only in the layer's number become one."""
    layers: dict[str, list[int]] = {}
    for problem in problems:
        match = re.match(r"((?:\w+\.)*?(?:layers|blocks)\.)(\d{1,6})\.", problem)
        key = problem if match is None else f"{match[1]}*.{problem[match.end() :]}"
        layers.setdefault(key, []).extend([] if match is None else [int(match[2])])
    lines = [key.replace("*", _numbers(numbers), 1) if numbers else key for key, numbers in layers.items()]
    more = [f"and {len(lines) - MOST_LISTED} more"] if len(lines) > MOST_LISTED else []
    return "; ".join([*lines[:MOST_LISTED], *more])


def _numbers(numbers: list[int]) -> str:
    """Write consecutive numbers as a range, others as a short list."""
    first, last = min(numbers, default=0), max(numbers, default=0)
    if len(numbers) > 1 and sorted(numbers) == list(range(first, last + 1)):
        return f"{first}-{last}"
    return ",".join([*map(str, numbers[:MOST_LISTED]), *(["…"] if len(numbers) > MOST_LISTED else [])])


@dataclass
class TensorMapping:
    """Tensors by their names in the file, the problems found in them, and the names that are accounted for."""

    tensors: Mapping[str, Any]
    problems: list[str] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    _ready: dict[str, Tensor | None] = field(default_factory=dict)

    def name_of(self, origin: Origin) -> str:
        """Return the first of an origin's names that the file has."""
        return next((name for name in origin.names if name in self.tensors), origin.names[0])

    def take(self, origin: Origin, optional: bool = False) -> Tensor | None:
        """Return the tensor in float32, or None if it is absent or wrong; record each problem once."""
        present = [name for name in origin.names if name in self.tensors]
        self.known.update(origin.names)
        if not present:
            missing = f"{origin.names[0]} is missing"
            if not optional and missing not in self.problems:
                self.problems.append(missing)
            return None
        tensors = [self._checked(name, origin.shape) for name in present]
        first = tensors[0]
        for name, tensor in zip(present[1:], tensors[1:], strict=True):
            if first is not None and tensor is not None and not same(tensor, first):
                self.problems.append(f"{name} differs from {present[0]}")
        if first is None or origin.rows is None:
            return first if first is None or origin.index is None else first[origin.index]
        return first[slice(*origin.rows)]

    def _checked(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        import torch

        if name in self._ready:
            return self._ready[name]
        tensor, ready = self.tensors[name], None
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            self.problems.append(f"{name} is not a tensor of floats")
        elif tuple(tensor.shape) != shape:
            self.problems.append(f"{name} is {tuple(tensor.shape)} in the file, {shape} by the configuration")
        else:
            ready = tensor.float()
        self._ready[name] = ready
        return ready

    def check_frequencies(self, name: str, width: int) -> None:
        """Record a problem if the sinusoids' frequencies are not the paper's: that would be another model."""
        import torch

        self.known.add(name)
        if name not in self.tensors:
            return
        frequencies = self._checked(name, (width // 2,))
        if frequencies is None:  # then the width is unchecked, and may be larger than memory
            return
        expected = 10000 ** -(torch.arange(0, width, 2) / width)
        # bfloat16 rounds by up to a part in 256.
        if not torch.allclose(frequencies, expected, rtol=1 / 256, atol=0):
            self.problems.append(f"{name} is not 10000**(-2i/{width}), as in the paper")

    def require_fit(self, path: Path) -> None:
        """Raise if there are problems, or tensors that were not taken.

        Raises:
            CheckpointError: the message lists all of them.
        """
        self.problems += [f"{named(name)} is unexpected" for name in self.tensors if name not in self.known]
        if self.problems:
            raise CheckpointError(
                f"{path}: the tensors do not fit the configuration: {problems_listed(self.problems)}.",
                hint="Give a whole checkpoint, with the configuration that it was trained with.",
            )
