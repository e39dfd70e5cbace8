"""Explain errors of `torch.export` for a user's module in one line: the user's file and line, the cause, the remedy."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import re
import traceback
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from xlexport.architectures.recurrent.eager import batched
from xlexport.errors import ExportError
from xlruntime.messages import first_line

__all__ = ["check_export", "explain"]

ROWS, TOKENS = 3, 5  # of the example
TORCH = str(Path(torch.__file__).parent)
SIZES = "torch.fx.experimental.symbolic_shapes"  # the logger that notes each condition on a free size
ONE_SIZE = re.compile(r"^eval (?!Eq\(s\d+, s\d+\))")  # a condition, other than that two batches are equal
FIXED_SIZE = "the code fixes the size of a batch or of a segment"

# A pattern of torch's message, the cause, and the remedy.
CAUSES = (
    (
        r"Constraints violated|invalid for input of size",
        FIXED_SIZE,
        "Use no int() or range() of a size, and take sizes from tokens.shape. In place of a loop over the tokens, "
        "use scan or cumsum, or define only step.",
    ),
    (
        "ata-dependent",
        "Python decides by the value of a tensor",
        "Use torch.where in place of `if`, and no .item(), int() or bool() of a tensor.",
    ),
    ("numpy", "numpy reads a tensor", "Use the function of torch, or compute constants in __init__."),
    ("__build_class__", "the method defines a class", "Define it at the top of the file."),
    ("mutation|side effect", "the code writes in place, or into self", "Compute a new tensor, and return it."),
    ("aliasing", "a scan returns a tensor twice, or its own input", "Return .clone() of it."),
    (
        r"No ONNX function found for <OpOverload\(op='([\w.]+)'",
        "ONNX has no operator for {}",
        "Compute it with other operators, such as exp, cumsum, matmul and where.",
    ),
)


def check_export(model: Any) -> None:
    """Export the module's method by `torch.export` alone, with free sizes of batch and segment.

    The exporter to ONNX does not replace this: if `torch.export` refuses free sizes, it fixes them silently.

    Raises:
        ExportError: torch refuses the method; the message names the user's line, and the hint the remedy.
    """
    try:
        _export(model)
    except Exception as error:
        raise ExportError(*explain(error, model)) from error


def explain(error: BaseException, model: Any) -> tuple[str, str]:
    """Return message and hint for an error of `torch.export`, of Dynamo or of the exporter to ONNX.

    The method is exported once more, because not every error keeps the user's line.
    """
    files = _files(model)
    errors, conditions = [*_chain(error)], _Conditions(files)
    logger = logging.getLogger(SIZES)
    level = logger.level
    logger.addFilter(conditions)
    logger.setLevel(logging.INFO)
    try:
        _export(model)
    except Exception as again:
        errors = [*_chain(again)]
    finally:
        logger.setLevel(level)
        logger.removeFilter(conditions)
    place, hint = _place(errors, files), "Use operators of torch on tensors only."
    cause = f"torch {torch.__version__} cannot export it ({first_line(errors[-1])})"
    text = "\n".join(map(str, errors))
    for pattern, why, remedy in CAUSES:
        if match := re.search(pattern, text):
            cause, hint = why.format(*match.groups()), remedy
            place = conditions.place if why == FIXED_SIZE else place
            break
    return f"{place or type(model).__name__}: {cause}.", hint


class _Form(nn.Module):
    """One method of a module."""

    def __init__(self, model: Any, form: str) -> None:
        super().__init__()
        self.model, self.form = model, form

    def forward(self, tokens: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        logits, new = getattr(self.model, self.form)(tokens, state)
        return logits, dict(new)


def _export(model: Any) -> torch.export.ExportedProgram:
    """Export `segment`, or `step` if there is no other, with free sizes of batch and segment."""
    form = "segment" if callable(getattr(model, "segment", None)) else "step"
    axes = {"batch": ROWS, "segment": TOKENS} if form == "segment" else {"batch": ROWS}
    free = {axis: torch.export.Dim(name, min=1, max=2**30) for axis, name in enumerate(axes)}
    tokens, state = torch.zeros([*axes.values()], dtype=torch.int64), batched(model.first_state(), ROWS)
    shapes = free, {name: {0: free[0]} for name in state}
    with torch.no_grad(), contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings(action="ignore"):
        return torch.export.export(_Form(model, form), (tokens, state), dynamic_shapes=shapes)


class _Conditions(logging.Filter):
    """Note the first line of the user's code that fixes a size: torch logs each condition while that line runs."""

    def __init__(self, files: set[str]) -> None:
        super().__init__()
        self.files, self.place = files, ""

    def filter(self, record: logging.LogRecord) -> bool:
        if not self.place and ONE_SIZE.match(record.getMessage()):
            self.place = _last(_within_torch(traceback.extract_stack()), self.files)
        return False


def _chain(error: BaseException | None) -> Iterable[BaseException]:
    """Yield an error and its causes, the outermost first."""
    while error is not None:
        yield error
        error = error.__cause__


def _files(model: nn.Module) -> set[str]:
    """Return the files of the classes of a module and of its parts, without torch's own."""
    functions = [value for part in model.modules() for value in vars(type(part)).values() if inspect.isfunction(value)]
    return {name for name in (each.__code__.co_filename for each in functions) if not name.startswith(TORCH)}


def _within_torch(frames: Sequence[traceback.FrameSummary]) -> Sequence[traceback.FrameSummary]:
    """Leave out the frames that call torch: a script may define a model and export it."""
    return frames[
        next((index for index, frame in enumerate(frames) if frame.filename.startswith(TORCH)), len(frames)) :
    ]


def _place(errors: Iterable[BaseException], files: set[str]) -> str:
    """Return the user's line at which the first of these errors that has one was raised."""
    for error in errors:
        for stack in (
            getattr(error, "real_stack", None) or [],
            _within_torch(traceback.extract_tb(error.__traceback__)),
        ):
            if place := _last(stack, files):
                return place
    return ""


def _last(frames: Iterable[traceback.FrameSummary], files: set[str]) -> str:
    """Return `model.py:12` for the innermost frame in the user's files, or nothing."""
    return ([""] + [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames if frame.filename in files])[-1]
