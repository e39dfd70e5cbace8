"""The known answers of a step model: a few steps of random inputs, and what the module computes of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.verification.answers import ROOM, rounded_up
from xlexport.verification.step_models import StepParityReport, exact_module, read_steps
from xlruntime.engine import Engine
from xlruntime.known_answers import LARGEST_FILE, KnownSteps, walk

__all__ = ["answers_of_steps"]

STEPS = 64
SEGMENTS = 4  # that carry the state; the last one is shorter
BYTES = 18  # of a number in the file, at most
EXACT = 0.5  # bound of integers and booleans
LARGEST = 2.0**53  # integers above it are not the same to all readers of JSON


def answers_of_steps(engine: Engine, build_model: Callable[[], Any], report: StepParityReport) -> KnownSteps | None:
    """Return the module's outputs of random inputs, in float64 where it can; None if no step suits.

    A step suits if its numbers are finite and fit into the file, and the graph gives the same integers and booleans.

    Args:
        build_model: returns a new `StepEager`.
        report: of the verification of the engine, which runs without kernels.
    """
    import torch

    from xlexport.families.recurrent.trial import many_calls

    model, own = build_model(), engine.bundle.settings
    size = sum(math.prod(spec.shape) for spec in (*model.inputs.values(), *model.outputs.values()))
    n = min(STEPS, own.longest_part or STEPS, LARGEST_FILE // (BYTES * size))
    if n == 0:
        return None
    random = torch.Generator().manual_seed(0)
    series = {name: spec.random(1, n, random).numpy() for name, spec in model.inputs.items()}
    with many_calls(model):
        results, _ = read_steps(exact_module(build_model, series) or model, series, None)
    inputs = {name: array[0] for name, array in series.items()}
    expected = {name: value.numpy()[0] for name, value in results.items()}
    segment_len = own.segment_len if engine.bundle.fixed else min(own.segment_len, n // SEGMENTS + 1)
    settings = {"segment_len": segment_len, **own.values}
    found, memory = walk(engine, inputs, settings)
    for name, array in (inputs | expected).items():
        most, same = (np.inf, True) if array.dtype.kind == "f" else (LARGEST, array == found.get(name, array))
        suits = (np.abs(array.astype(np.float64)) < most) & same
        n = min(n, int(np.argmin([*suits.reshape(len(suits), -1).all(axis=1), False])))
    if n == 0:
        return None
    # Where rounding has decided an integer of the verification, it may do so here.
    every = (*report.outputs.values(), *report.states.values())
    bounds, certain = {}, not any(one.difference for one in every if not one.is_float)
    for name, one in report.outputs.items():
        apart = float(np.abs(found[name][:n].astype(np.float64) - expected[name][:n]).max())
        unit = float(np.spacing(np.float32(np.abs(expected[name][:n]).max() or 1)))
        bounds[name] = rounded_up(ROOM * max(one.difference, apart, unit)) if one.is_float else EXACT
        certain &= apart <= one.limit
    given, wanted = ({name: _plain(array[:n]) for name, array in part.items()} for part in (inputs, expected))
    return KnownSteps(settings, n, given, wanted, bounds, memory, certain)


def _plain(array: npt.NDArray[Any]) -> tuple[Any, ...]:
    """Return numbers as JSON has them: integers, and of floats the digits that float32 needs."""
    if array.dtype.kind != "f":
        return tuple(map(int, array.ravel()))
    return tuple(float(str(number)) for number in array.astype(np.float32).ravel())
