"""Errors of kernels and of the fallback against float64, at each instruction set of this processor."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.helpers.kernel_and_body import Given, run_node
from tests.native.test_lsh_kernels import band_inputs, chunk_inputs
from tests.native.test_reformer_kernels import local_inputs, ring_inputs
from tests.ops.test_relative_attention import Case
from xlexport import ops

pytestmark = pytest.mark.full  # compiles C++

MOST = 1.25  # times the fallback's error
SEEDS = range(5)
SEEN = -1e29  # normaliser of a query of rule `band` that sees a key; the results of others are undefined
Array = npt.NDArray[Any]


def relative_inputs(S: int, seed: int) -> Given:
    """Return inputs like those of the sample's fifth layer: positional scores up to 80, content scores below 5."""
    case = Case(S=S, C=384 + S, H=2, d=48, near=192 + S, length=(384,))
    inputs = list(case.inputs(seed))
    inputs[0] *= case.d**-0.25
    inputs[3] *= case.d**-0.25
    query = inputs[0].view(1, S, 3, case.H, case.d)[:, :, 0].transpose(1, 2)  # (1, H, S, d)
    inputs[5] *= 80 / float(((query + inputs[2]) @ inputs[5]).max())
    return [tensor.numpy() for tensor in inputs]


class Operator(NamedTuple):
    """A custom operator: its definition in PyTorch, its inputs for a seed, its outputs and its attributes."""

    name: str
    definition: Callable[..., Any]
    inputs: Callable[[int], Given]
    n_outputs: int
    attributes: dict[str, Any]


OPERATORS = {
    "relative": Operator("RelativeAttention", ops.relative_attention, lambda seed: relative_inputs(128, seed), 3, {}),
    "relative, few": Operator(
        "RelativeAttention", ops.relative_attention, lambda seed: relative_inputs(4, seed), 3, {}
    ),
    "local": Operator(
        "LocalAttention",
        ops.local_attention,
        lambda seed: local_inputs(300, 64, 1, 128, [1000], 64, seed),
        1,
        {"chunk_length": 64, "chunks_before": 1},
    ),
    "band": Operator(
        "LSHBandAttention",
        ops.lsh_band_attention,
        lambda seed: band_inputs((1, 2, 4, 900, 900, 64, 32), 12, 900, 4, seed),
        2,
        {"chunk_length": 32},
    ),
    "band on rings": Operator(
        "LSHAttention",
        ops.lsh_attention,
        lambda seed: ring_inputs(64, 700, 16, None, 4, [5000], seed),
        2,
        {"chunk_length": 32, "n_buckets": 16},
    ),
    "band on rings, few": Operator(
        "LSHAttention",
        ops.lsh_attention,
        lambda seed: ring_inputs(5, 700, 16, None, 4, [5000], seed),
        2,
        {"chunk_length": 32, "n_buckets": 16},
    ),
    "chunk": Operator(
        "LSHChunkAttention",
        ops.lsh_chunk_attention,
        lambda seed: chunk_inputs(1, 2, 4, 600, 64, 8, False, seed),
        1,
        {"chunk_length": 32, "chunks_before": 1, "multiple": 64, "self_mask": -20.0},  # rounds less than -1e5
    ),
}


def errors(operator: Operator, library: Path | None, given: Given, expected: Array) -> Array:
    """Return the absolute errors of an operator's first output."""
    attended, *others = run_node(operator.name, given, operator.n_outputs, library, **operator.attributes)
    seen = others[0] > SEEN if operator.name == "LSHBandAttention" else ...
    return np.abs(attended - expected)[seen]


def definition(operator: Operator, given: Given) -> Array:
    """Return the operator's first output in float64."""
    tensors = [torch.from_numpy(np.ascontiguousarray(x)) for x in given]
    wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]
    outputs = operator.definition(*wide, *operator.attributes.values())
    attended: Array = (outputs if operator.n_outputs == 1 else outputs[0]).numpy()
    return attended


def figures(found: list[Array]) -> tuple[float, float]:
    """Return the root mean square over all seeds, and the mean of the largest errors: one alone varies by chance."""
    squares = [np.square(each).mean() for each in found]
    return float(np.sqrt(np.mean(squares))), float(np.mean([each.max() for each in found]))


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_error_is_at_most_that_of_the_fallback(
    operator: Operator, kernel_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [(given, definition(operator, given)) for given in map(operator.inputs, SEEDS)]
    fallback = figures([errors(operator, None, *case) for case in cases])
    for level in ("avx512", "avx2", "base"):  # the kernels choose once, and take one that the processor has
        monkeypatch.setenv("XLEXPORT_OPS_INSTRUCTION_SET", level)
        library = Path(shutil.copyfile(kernel_library, tmp_path / f"{level}.so"))
        kernel = figures([errors(operator, library, *case) for case in cases])
        assert kernel[0] <= MOST * fallback[0] and kernel[1] <= MOST * fallback[1], (level, kernel, fallback)
