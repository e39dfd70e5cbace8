"""Explain errors of an export by the cause in the user's module, its file and line, and the remedy."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import re
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from xlexport.architectures.recurrent.eager import batched
from xlruntime.messages import first_line

__all__ = ["explain", "silence"]

ROWS, TOKENS = 3, 5  # of the example
SIZES = "torch.fx.experimental.symbolic_shapes"  # the logger that notes each condition on a free size
ONE_SIZE = re.compile(r"^eval (?!Eq\(s\d+, s\d+\))")  # a condition, other than that two batches are equal
TORCH = str(Path(torch.__file__).parent)
FIXED_SIZE = "the code fixes the size of a batch or of a segment"

# A pattern of torch's messages, the cause, and the remedy.
CAUSES = (
    (
        r"No ONNX function found for <OpOverload\(op='([\w.]+)'",
        "ONNX has no operator for {}",
        "Compute it with other operators, such as exp, cumsum, matmul and where.",
    ),
    (
        r"specialized it to be a constant|generated guard \d+ <= ",
        FIXED_SIZE,
        "Use no int() or range() of a size, and no `if`. Use scan or cumsum for a loop, or define only step.",
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
)


def explain(error: BaseException, model: Any) -> tuple[str, str]:
    """Return message and hint for an error of `torch.export`, of Dynamo or of the exporter to ONNX.

    `torch.export` runs once more on the method alone, because the exporter to ONNX hides reasons and lines.

    Args:
        error: any exception of the export.
        model: the `RecurrentModel` that was exported.
    """
    errors, files = [*_chain(error)], _files(model)
    with _conditions(files) as conditions:
        try:
            _export(model)
        except Exception as again:
            errors += _chain(again)
    place, hint = _place(errors, files), "Use operators of torch on tensors only."
    cause = f"torch {torch.__version__} cannot export it ({first_line(errors[-1])})"
    text = "\n".join(map(str, errors))
    for pattern, why, remedy in CAUSES:
        if match := re.search(pattern, text):
            place = next(iter(conditions), "") if why == FIXED_SIZE else place
            cause, hint = why.format(*match.groups()), remedy
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


def _export(model: Any) -> None:
    """Export `segment`, or `step` if there is no other, with free sizes of batch and segment."""
    form = "segment" if callable(getattr(model, "segment", None)) else "step"
    axes = {"batch": ROWS, "segment": TOKENS} if form == "segment" else {"batch": ROWS}
    free = {axis: torch.export.Dim(name, min=1, max=2**30) for axis, name in enumerate(axes)}
    tokens, state = torch.zeros([*axes.values()], dtype=torch.int64), batched(model.first_state(), ROWS)
    shapes = free, {name: {0: free[0]} for name in state}
    with torch.no_grad(), silence():
        torch.export.export(_Form(model, form), (tokens, state), dynamic_shapes=shapes)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Keep what `torch.export` prints and warns of off the user's terminal; errors say the same."""
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings(action="ignore"):
        yield


@contextlib.contextmanager
def _conditions(files: set[str]) -> Iterator[list[str]]:
    """Collect the user's lines that set a condition on a size: torch logs each condition while that line runs."""
    places: list[str] = []

    def note(record: logging.LogRecord) -> bool:
        if ONE_SIZE.match(record.getMessage()) and (place := _last(_within_torch(traceback.extract_stack()), files)):
            places.append(place)
        return False

    logger = logging.getLogger(SIZES)
    level = logger.level
    logger.addFilter(note)
    logger.setLevel(logging.INFO)
    try:
        yield places
    finally:
        logger.setLevel(level)
        logger.removeFilter(note)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
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
