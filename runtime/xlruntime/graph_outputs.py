"""Compare the outputs of graphs with the bundle's description: untrusted graphs may return anything."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import BundleError
from .messages import named
from .spec import Tensor

__all__ = ["OutputCheck", "require_kind"]

LARGEST_LOG_PROB = 1e-3  # rounding may raise a logarithm of 1 above zero
ENTROPY_ERROR = 0.01  # in nats, relative to 1 + the largest entropy; float16 rounds as coarsely
FEW_VALUES = 32  # up to so many, as in a step of one token, lists are faster than NumPy's reductions

Array = npt.NDArray[Any]
_Expected = tuple[str, np.dtype[Any], tuple[int, ...], float, float | None]  # the last two: smallest, largest value


class OutputCheck:
    """A check of a step graph's outputs, except memory. Safe to share between threads."""

    def __init__(self, file: Path, outputs: Iterable[Tensor], vocab_size: int) -> None:
        """Prepare the comparison for the graph in `file`."""
        self._file, self._outputs = file, tuple(outputs)
        self._ranges = _ranges(vocab_size)
        self._prepared: tuple[int, int, list[_Expected]] = (0, 0, [])  # batch, segment; most steps have the same sizes

    def require(self, found: Mapping[str, Array], batch: int, segment: int) -> None:
        """Raise unless a step returned all outputs with the right types, shapes and ranges.

        Non-finite scores pass: the caller of the step handles them.

        Raises:
            BundleError: an output differs; the message has the file, the output, and the expected and found values.
        """
        prepared = self._prepared
        if prepared[:2] != (batch, segment):
            prepared = self._prepared = batch, segment, self._prepare(batch, segment)
        for name, dtype, shape, least, most in prepared[2]:  # all in one loop: a step of one token may be short
            array = found.get(name)
            if array is None or array.dtype != dtype or array.shape != shape:
                self._require_kind(found, name, {"batch": batch, "segment": segment})
            elif most is not None:
                for value in array.ravel().tolist() if array.size <= FEW_VALUES else _extremes(array):
                    if value < least or value > most:  # false if it is NaN
                        self._require_range(array, name)

    def _prepare(self, batch: int, segment: int) -> list[_Expected]:
        sizes = {"batch": batch, "segment": segment}
        return [
            (
                tensor.name,
                np.dtype(tensor.dtype),
                tuple(sizes.get(axis, -1) if isinstance(axis, str) else axis for axis in tensor.shape),
                *self._ranges.get(tensor.name, (-math.inf, None)),
            )
            for tensor in self._outputs
        ]

    def _require_kind(self, found: Mapping[str, Array], name: str, sizes: Mapping[str, int]) -> None:
        if name not in found:
            raise _not_as_described(self._file, f"output {named(name)} is missing")
        (tensor,) = (tensor for tensor in self._outputs if tensor.name == name)
        require_kind(self._file, tensor, found[name], sizes)

    def _require_range(self, array: Array, name: str) -> None:
        least, most = self._ranges[name]
        values = array[np.isfinite(array)] if least == -math.inf else array[~np.isnan(array)]
        if values.size and (values.min() < least or values.max() > most):
            expected = "logarithms of probabilities, at most 0" if least == -math.inf else f"{least:.6g} to {most:.6g}"
            found = f"values from {values.min():g} to {values.max():g}"
            raise _not_as_described(self._file, f"output {name} has {found}, expected {expected}")


def require_kind(file: Path, tensor: Tensor, found: Any, sizes: Mapping[str, int] | None = None) -> None:
    """Raise unless one output of the graph in `file` has the right type and shape.

    Args:
        sizes: sizes of named axes; named axes without an entry may have any size.

    Raises:
        BundleError: an output differs; the message has the file, the output, and the expected and found values.
    """
    expected = [axis if isinstance(axis, int) else (sizes or {}).get(axis) for axis in tensor.shape]
    if (
        isinstance(found, np.ndarray)
        and found.dtype == np.dtype(tensor.dtype)
        and found.ndim == len(expected)
        and all(axis in (None, size) for axis, size in zip(expected, found.shape, strict=True))
    ):
        return
    shape = " x ".join(str(size or axis) for size, axis in zip(expected, tensor.shape, strict=True))
    seen = f"{found.dtype} {_shape(found.shape)}" if isinstance(found, np.ndarray) else "not a tensor"
    raise _not_as_described(file, f"output {named(tensor.name)} is {seen}, expected {tensor.dtype} {shape or 'scalar'}")


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "scalar"


def _not_as_described(file: Path, problem: str) -> BundleError:
    return BundleError(f"{file}: {problem}.", repair="Convert the checkpoint again.")


def _ranges(vocab_size: int) -> dict[str, tuple[float, float]]:
    """Return the smallest and the largest value of known outputs."""
    slack = ENTROPY_ERROR * (1 + math.log(vocab_size))
    return {
        "log_prob": (-math.inf, LARGEST_LOG_PROB),
        "top_log_probs": (-math.inf, LARGEST_LOG_PROB),
        "rank": (1, vocab_size),
        "top_ids": (0, vocab_size - 1),
        "entropy": (-slack, math.log(vocab_size) + slack),
    }


def _extremes(array: Array) -> tuple[float, float]:
    """Return the smallest and the largest value, without NaN."""
    return np.fmin.reduce(array, axis=None), np.fmax.reduce(array, axis=None)
