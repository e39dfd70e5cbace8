"""The trained model in float64: the reference for the rounding errors of the graphs and of the float32 model.

Two float32 computations of one model err alike, only at other places. So the float32 model's own errors say how exact a
graph can be, for any model and text.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xlexport.architectures.findings import RoundingErrors, SegmentDifference, largest
from xlexport.errors import ParityError
from xlexport.verification.tolerances import tolerance_of

if TYPE_CHECKING:
    from xlexport.architectures.base import Architecture
    from xlexport.verification.expected import Expected
    from xlruntime.engine import Engine

__all__ = ["ExactModel", "all_errors", "ratios", "rounding_errors"]


class ExactModel:
    """The eager model in float64, with a memory of its own.

    `model` is None if the architecture has no such model, or if the bundle's precision is not judged by it.
    """

    def __init__(self, architecture: Architecture, model: Engine, eager: Any, memory: Any = None) -> None:
        judged = math.isfinite(tolerance_of(model.bundle).rms_ratio)
        self.model = architecture.in_float64(eager) if judged else None
        self.memory = memory

    def beside(self, expected: Expected, **options: Any) -> Expected:
        """Return the float32 model's results together with this model's log-probabilities of the same tokens.

        Raises:
            ParityError: the model computes with fewer bits somewhere.
        """
        if self.model is None:
            return expected
        import torch

        with torch.inference_mode():
            hidden, self.memory = self.model(torch.from_numpy(expected.tokens), self.memory, **options)
            log_prob = self.model.log_probs(hidden, torch.from_numpy(expected.targets))[0]
        if log_prob.dtype != torch.float64:
            raise ParityError(
                f"the trained model in float64 returns {log_prob.dtype}.",
                hint="Let its Architecture return None from in_float64, or convert no numbers in the model.",
            )
        return dataclasses.replace(expected, exact=log_prob.numpy())


def rounding_errors(
    graph: npt.NDArray[np.float32], model: npt.NDArray[np.float32], exact: npt.NDArray[np.float64]
) -> RoundingErrors:
    """Return the errors of log-probabilities (S,) that a graph and the trained model computed in float32."""
    by_graph, by_model = graph - exact, model - exact
    return RoundingErrors(_rms(by_graph), largest(by_graph), _rms(by_model), largest(by_model))


def all_errors(segments: Sequence[SegmentDifference]) -> RoundingErrors | None:
    """Return the errors over all tokens of all segments; None if they were not compared with float64."""
    parts = [(one.tokens, one.rounding) for one in segments if one.rounding is not None]
    if not parts:
        return None
    tokens, errors = np.array([n for n, _ in parts]), np.array([dataclasses.astuple(one) for _, one in parts])
    graph_rms, graph_largest, model_rms, model_largest = errors.T
    return RoundingErrors(
        graph_rms=math.sqrt(np.average(graph_rms**2, weights=tokens)),
        graph_largest=largest(graph_largest),
        model_rms=math.sqrt(np.average(model_rms**2, weights=tokens)),
        model_largest=largest(model_largest),
    )


def ratios(errors: RoundingErrors, nats: float) -> tuple[float, float]:
    """Return the graph's errors divided by those of the float32 model: root mean square, and largest.

    A log-probability is the difference of a logit and a logarithm of a sum. The logarithm and the difference each round
    by up to half a unit in the last place of numbers of about this size, however exact all before them is. So an error
    of the float32 model below one unit counts as one unit. Otherwise chance would decide in very small models.

    Args:
        nats: mean negative log-probability of a token, whose last place in float32 is the unit; at least that of 1.
    """
    unit = float(np.spacing(np.float32(max(1.0, nats))))
    return errors.graph_rms / max(errors.model_rms, unit), errors.graph_largest / max(errors.model_largest, unit)


def _rms(errors: npt.NDArray[np.float64]) -> float:
    return math.sqrt(np.square(errors).mean())
