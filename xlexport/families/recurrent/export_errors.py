"""Export a method of a user's module, and explain errors by the cause in its file and line, and the remedy."""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import logging
import re
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.fx.proxy import TracerBase
from torch.utils._pytree import tree_map

from xlexport.errors import OperatorError
from xlexport.families.recurrent.eager import batched
from xlruntime.messages import first_line

__all__ = ["AXES", "explain", "exported"]

Example = Callable[..., Any]
AXES = {"segment": {"batch": 3, "segment": 5}, "step": {"batch": 3}}  # of tokens, with the sizes of the example
SIZES = "torch.fx.experimental.symbolic_shapes"  # the logger that notes each condition on a free size
ONE_SIZE = re.compile(r"^eval (?!Eq\(s\d+, s\d+\))")  # a condition, other than that two batches are equal
LINE = re.compile(r'File "([^"]+)", line (\d+)')
TORCH = str(Path(torch.__file__).parent)
OUR_FAULT = "The code is xlexport's, so the fault is ours: report it with the checkpoint's config.json."
FIXED_SIZE = "the code fixes the size of a batch or of a segment"

UNKNOWN = r"No ONNX function found for <OpOverload\(op='([\w.]+)'"

# A pattern of torch's messages, the cause, and the remedy.
CAUSES = (
    (
        UNKNOWN,
        "ONNX has no operator for {}",
        "Compute it with other operators, such as exp, cumsum, matmul and where.",
    ),
    (
        r"specialized it to be a constant|generated guard \d+ <= ",
        FIXED_SIZE,
        "Use no int(), len() or range() of a size, and no `if`. Use scan or cumsum for a loop, or define only step.",
    ),
    ("ata-dependent", "Python decides by the value of a tensor", "Use torch.where, and no `if`, .item() or int()."),
    ("numpy", "numpy reads a tensor", "Use the function of torch, or compute constants in __init__."),
    ("__build_class__", "the method defines a class", "Define it at the top of the file."),
    ("mutation|side effect", "the code writes in place, or into self", "Compute a new tensor, and return it."),
    ("aliasing", "a scan returns a tensor twice, or its own input", "Return .clone() of it."),
)


def _tokens(*sizes: int) -> Tensor:
    return torch.zeros(sizes, dtype=torch.int64)


def explain(error: BaseException, model: Any, example: Example = _tokens) -> tuple[str, str]:
    """Return message and hint for an error of `torch.export`, of Dynamo or of the exporter to ONNX.

    `torch.export` runs once more on the method alone, because the exporter to ONNX hides reasons and lines.
    """
    errors, files = [*_chain(error)], _files(model)
    form = "segment" if callable(getattr(model, "segment", None)) else "step"
    for one in errors:
        if isinstance(one, OperatorError):
            return f"{_line(one.message.split()[0], model, form, files, example)}: {one.message}", str(one.hint)
    with _conditions(files) as conditions:
        try:
            exported(model, form, example)
        except Exception as again:
            errors += _chain(again)
    place, hint = _place(errors, files), "Use operators of torch on tensors only."
    cause = f"torch {torch.__version__} cannot export it ({first_line(errors[-1])})"
    if type(model).__module__.startswith("xlexport."):
        return f"{type(model).__name__}: {cause}.", OUR_FAULT
    text = "\n".join(map(str, errors))
    for pattern, why, remedy in CAUSES:
        if match := re.search(pattern, text):
            if pattern == UNKNOWN:
                place = _line(match[1], model, form, files, example)
            place = next(iter(conditions), "") if why == FIXED_SIZE else place
            cause, hint = why.format(*match.groups()), remedy
            break
    return f"{place or type(model).__name__}: {cause}.", hint


def exported(model: Any, form: str, example: Example = _tokens) -> nn.Module:
    """Return `segment` or `step`, with the state as a list, as operators on tensors, without the user's Python.

    Dynamo, which traces the body of a scan, refuses much Python that `torch.export` accepts.

    Args:
        example: makes what the method reads, of the sizes of batch and segment; by default ids of tokens.
    """
    return _program(model, form, example).module(check_guards=False)


def _program(model: Any, form: str, example: Example) -> torch.export.ExportedProgram:
    first, sizes = model.first_state(), AXES[form]
    free = {axis: torch.export.Dim(name, min=1, max=2**30) for axis, name in enumerate(sizes)}
    inputs = example(*sizes.values())
    shapes = tree_map(lambda _: free, inputs), [{0: free[0]}] * len(first)
    with torch.no_grad(), contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings(action="ignore"):
        arguments = inputs, [*batched(first, sizes["batch"]).values()]
        return torch.export.export(_Form(model, form, [*first]), arguments, dynamic_shapes=shapes)


def _line(operator: str, model: Any, form: str, files: set[str], example: Example) -> str:
    """Return the user's line that computes this operator of PyTorch, or the name of the class."""

    def kept(_: Any, frames: traceback.StackSummary) -> traceback.StackSummary:
        return traceback.StackSummary.from_list([frame for frame in frames if frame.filename in files])

    recorded = mock.patch.object(TracerBase, "_filter_traceback_frames", kept)
    with recorded, warnings.catch_warnings(action="ignore"):
        program = _program(model, form, example)
        for one in (program, program.run_decompositions()):
            for node in one.graph.nodes:
                lines = LINE.findall(node.meta.get("stack_trace") or "")
                if lines and str(node.target).startswith(operator):
                    file, number = lines[-1]
                    return f"{Path(file).name}:{number}"
    return type(model).__name__


class _Form(nn.Module):
    """One method of a module, with its state as a list of tensors."""

    def __init__(self, model: Any, form: str, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.form, self.names = model, form, names

    def forward(self, inputs: Any, values: Sequence[Tensor]) -> tuple[Any, ...]:
        outputs, new = getattr(self.model, self.form)(inputs, dict(zip(self.names, values, strict=True)))
        return outputs, *(new[name] for name in self.names)


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


def _within_torch(frames: Iterable[traceback.FrameSummary]) -> Iterable[traceback.FrameSummary]:
    """Leave out the frames that call torch: a script may define a model and export it."""
    return itertools.dropwhile(lambda frame: not frame.filename.startswith(TORCH), frames)


def _place(errors: Iterable[BaseException], files: set[str]) -> str:
    """Return the user's line at which the first of these errors that has one was raised."""
    for error in errors:
        called = _within_torch(traceback.extract_tb(error.__traceback__))
        if place := _last(getattr(error, "real_stack", None) or [], files) or _last(called, files):
            return place
    return ""


def _last(frames: Iterable[traceback.FrameSummary], files: set[str]) -> str:
    """Return `model.py:12` for the innermost frame in the user's files, or nothing."""
    return ([""] + [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames if frame.filename in files])[-1]
