"""A user's own eager code instead of the trained model: its state may have any form, so memories are not compared."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xlexport.callbacks import Progress
from xlexport.errors import ReferenceCodeError
from xlexport.verification.differences import SegmentDifference, compare_score
from xlexport.verification.spans import Span
from xlruntime.engine import Engine
from xlruntime.errors import OptionError
from xlruntime.evaluation import EvaluationSettings
from xlruntime.messages import first_line
from xlruntime.translator import Translator

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Reference", "compare_with_reference"]

ROUNDING = 1e-4  # nats by which a rounded log-probability of a certain token may exceed 0
RULE = (
    "A reference takes (tokens (B, S) int64, targets (B, S) int64, state or None), and returns "
    "(log_probs (B, S) in nats, state)."
)


class Reference:
    """Eager code whose every result is checked; `xlexport.verify` describes its form.

    Raises:
        ReferenceCodeError: it cannot be called, or is a module in training mode.
    """

    def __init__(self, code: Any) -> None:
        from torch import nn

        method = getattr(code, "segment", None)
        self.call: Callable[[Tensor, Tensor, Any], Any] = code if method is None else method
        self.name = getattr(code, "__qualname__", type(code).__qualname__) + ("" if method is None else ".segment")
        if not callable(self.call) or (method is None and isinstance(code, nn.Module)):
            raise self._error("is not a function, and has no method segment")
        if isinstance(code, nn.Module) and code.training:
            raise self._error("is of a module in training mode, so dropout may run: call its eval()")

    def read(self, span: Span, state: Any) -> tuple[npt.NDArray[np.floating], Any]:
        """Return the log-probabilities (S,) of a span's targets, and the state after it.

        Raises:
            ReferenceCodeError: the code fails, or returns something else. The message names the token.
        """
        import torch

        tokens, targets = (torch.from_numpy(ids.copy()) for ids in (span.tokens, span.targets))
        try:
            with torch.no_grad():
                result = self.call(tokens, targets, state if span.position else None)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)[1:2]
            place = "".join(f", {Path(frame.filename).name} line {frame.lineno}" for frame in frames)
            what = f"raises {type(error).__name__} from token {span.start}{place} ({first_line(error)})"
            raise self._error(what) from error
        log_probs, after = result if isinstance(result, tuple) and len(result) == 2 else (None, None)
        if not isinstance(log_probs, torch.Tensor):
            raise self._error(f"returns a {type(result).__name__} without a tensor and a state")
        if log_probs.shape != targets.shape or log_probs.dtype not in (torch.float32, torch.float64):
            what = (
                f"returns {log_probs.dtype} of shape {tuple(log_probs.shape)}, expected torch.float32 or torch.float64"
            )
            raise self._error(f"{what} of {tuple(targets.shape)}")
        found: npt.NDArray[np.floating] = log_probs[0].detach().cpu().numpy().copy()
        if len(wrong := np.flatnonzero(~(np.isfinite(found) & (found <= ROUNDING)))):
            what = f"returns {found[wrong[0]]:g} for token {span.start + wrong[0]}"
            raise self._error(f"{what}, which is not the logarithm of a probability")
        return found, after

    def _error(self, problem: str) -> ReferenceCodeError:
        return ReferenceCodeError(f"{self.name} {problem}.", hint=RULE)


def compare_with_reference(
    model: Engine, reference: Reference, spans: list[Span], evaluation: EvaluationSettings, progress: Progress
) -> list[SegmentDifference]:
    """Read a text with the score graph and with a reference, and return the differences of each segment.

    Raises:
        OptionError: the bundle is an encoder-decoder, whose targets need a source; ReferenceCodeError as in `read`.
    """
    if isinstance(model, Translator):
        raise OptionError(f"{model.folder}: --against cannot replace an encoder-decoder.", hint="Give the checkpoint.")
    memory, state, differences = model.new_memory(evaluation, model.bundle.fixed.get("batch", 1)), None, []
    for number, span in enumerate(spans):
        expected, state = reference.read(span, state)
        for row in range(memory.batch_size if span.position == 0 and number else 0):
            memory.restart(row)
        tokens, targets = (ids.repeat(memory.batch_size, axis=0) for ids in (span.tokens, span.targets))
        log_prob = model.step("score", memory, tokens, targets)["log_prob"][0]
        differences.append(compare_score(number, expected, log_prob))
        progress(number + 1, len(spans))
    return differences
