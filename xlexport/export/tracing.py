"""Code that all emitters share: the free axes of a step, one kind of error, and suppressed notes."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from xlexport.errors import ExportError
from xlexport.families.step import Step
from xlruntime.messages import first_line

__all__ = ["USE_ONNX", "free_axes", "quiet", "tracing"]

LARGEST = 2**30  # of a free axis
SHORT = ("batch", "segment", "sources", "source_tokens", "source")  # axes that may have size one
ONE_MORE = " + 1"  # ending of the name of an axis that is one longer than the size before it
USE_ONNX = "Convert with --to onnx instead, and report this with the model's configuration."


def free_axes(step: Step) -> tuple[dict[int, Any] | None, ...]:
    """Return the free axes of each input of `step`, in the form that `torch.export` takes."""
    names = {size for tensor in step.inputs for size in tensor.shape if isinstance(size, str)}
    free: dict[str, Any] = {}
    for name in names:
        if name.endswith(ONE_MORE):
            free[name] = torch.export.Dim(name.removesuffix(ONE_MORE), min=2, max=LARGEST) + 1
        else:
            free[name] = torch.export.Dim(name, min=1 if name in SHORT else 2, max=LARGEST)
    return tuple(
        {axis: free[size] for axis, size in enumerate(tensor.shape) if isinstance(size, str)} or None
        for tensor in step.inputs
    )


@contextlib.contextmanager
def tracing(what: str, hint: str, explain: Callable[[BaseException], tuple[str, str]] | None = None) -> Iterator[None]:
    """Raise ExportError with this hint for any exception of torch, and keep its notes off the user's terminal.

    Args:
        explain: returns a message and a hint for an exception, if more can be said about it.
    """
    try:
        with quiet():
            yield
    except Exception as error:
        if _is_interrupt(error):
            raise KeyboardInterrupt from error
        if explain is not None:
            raise ExportError(*explain(error)) from error
        if isinstance(error, ExportError):
            raise
        raise ExportError(f"torch {torch.__version__} could not {what} ({first_line(error)}).", hint) from error


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether Ctrl-C caused an error: torch turns an interrupt at some places into an exception of its own."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what torch logs, warns of and prints off the user's terminal; errors say what matters."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(disabled)
