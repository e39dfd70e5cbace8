"""Compare the outputs of a graph with the bundle's description: untrusted graphs may return anything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .bundle import Graph, Tensor
from .errors import BundleGraphError
from .messages import named

__all__ = ["check_outputs"]

SMALLEST_ID = {"rank": 1, "top_ids": 0}  # of outputs that count tokens; a tokenizer has none for larger ids


def check_outputs(
    file: Path, graph: Graph, outputs: Mapping[str, Any], sizes: Mapping[str, int], vocab_size: int
) -> None:
    """Raise unless a graph returned what the bundle describes. Scores that are not finite pass.

    Args:
        file: the graph's file, for messages.
        sizes: sizes of named axes; named axes without an entry may have any size.

    Raises:
        BundleGraphError: an output differs; the message has the file, the output, and the expected and found values.
    """
    for name, tensor in graph.outputs.items():
        array = outputs[name]
        if not _is_kind(array, tensor, sizes):
            shape = " x ".join(str(sizes.get(str(axis), axis)) for axis in tensor.shape)
            raise _not_as_described(file, f"output {named(name)} is {_kind(array)}, expected {tensor.dtype} {shape}")
        if name in SMALLEST_ID and array.size:
            least, most = SMALLEST_ID[name], SMALLEST_ID[name] + vocab_size - 1
            if array.min() < least or array.max() > most:
                problem = f"values from {array.min()} to {array.max()}, expected {least} to {most}"
                raise _not_as_described(file, f"output {name} has {problem}")


def _is_kind(array: Any, tensor: Tensor, sizes: Mapping[str, int]) -> bool:
    if not isinstance(array, np.ndarray) or array.dtype != tensor.dtype or array.ndim != len(tensor.shape):
        return False
    expected = [axis if isinstance(axis, int) else sizes.get(axis) for axis in tensor.shape]
    return all(axis in (None, size) for axis, size in zip(expected, array.shape, strict=True))


def _kind(array: npt.NDArray[Any] | object) -> str:
    if not isinstance(array, np.ndarray):
        return "not a tensor"
    return f"{array.dtype} {' x '.join(map(str, array.shape)) or 'scalar'}"


def _not_as_described(file: Path, problem: str) -> BundleGraphError:
    return BundleGraphError(f"{file}: {problem}.", hint="Convert the checkpoint again.")
