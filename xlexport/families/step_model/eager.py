"""A step model in PyTorch, as the conversion runs it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from xlexport.errors import ExportError
from xlexport.families.recurrent.eager import batched
from xlexport.families.recurrent.source import refuse_other_precisions
from xlexport.families.recurrent.trial import Trial
from xlexport.families.step_model.inputs import MOST_NUMBERS, NAME, InputSpec, Specs
from xlruntime.messages import first_line, shown

__all__ = ["OutputSpec", "StepEager", "Tensors", "output_specs"]

OUTPUT_DTYPES = ("float32", "bool", "uint8", "int8", "int16", "int32", "int64")

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class OutputSpec:
    """One output of a step model: its dtype, and its shape for one row and step."""

    dtype: str
    shape: tuple[int, ...]


class StepEager(nn.Module):
    """A user's module, with what it takes and returns.

    Attributes:
        form: the method that the graphs compute, `segment` or `step`.
    """

    ARCHITECTURE: ClassVar[str] = "step_model"

    def __init__(self, module: nn.Module, form: str, inputs: Specs, outputs: Mapping[str, OutputSpec]) -> None:
        super().__init__()
        self.module: Any = module
        self.form, self.inputs, self.outputs = form, inputs, outputs

    def first_memory(self, rows: int) -> dict[str, Tensor]:
        """Return the first state of all rows, in the precision of the weights."""
        state = batched(self.module.first_state(), rows)
        if next((weight.dtype for weight in self.parameters()), None) != torch.float64:
            return state
        return {name: value.double() if value.is_floating_point() else value for name, value in state.items()}

    def forward(self, inputs: Tensors, state: Tensors) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Read inputs (B, S, …) after a state; return outputs (B, S, …) and the next state.

        Raises:
            ExportError: the module raises an exception, or returns other outputs than before.
        """
        try:
            return self._read(inputs, state)
        except Exception as error:
            raise ExportError(
                f"{type(self.module).__name__}.{self.form}: {type(error).__name__} ({first_line(error)}).",
                hint="Let the module read any inputs in their ranges, and streams without an end.",
            ) from error

    def _read(self, inputs: Tensors, state: Tensors) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        if self.form == "segment":
            outputs, new = self.module.segment(dict(inputs), dict(state))
            return {name: outputs[name] for name in self.outputs}, dict(new)
        parts: dict[str, list[Tensor]] = {name: [] for name in self.outputs}
        for place in range(next(iter(inputs.values())).shape[1]):
            outputs, state = self.module.step({name: value[:, place] for name, value in inputs.items()}, dict(state))
            for name, part in parts.items():
                part.append(outputs[name])
        return {name: torch.stack(part, dim=1) for name, part in parts.items()}, dict(state)


def output_specs(module: Any, form: str, inputs: Mapping[str, InputSpec]) -> dict[str, OutputSpec]:
    """Return what a module returns, by one call of 2 rows and 3 steps.

    Raises:
        ExportError: the call fails, or its result is not (outputs, new_state) as `StatefulModule` says.
    """
    name, random = type(module).__qualname__, torch.Generator().manual_seed(0)
    rows, steps = 2, 3
    tensors = {key: spec.random(rows, steps, random) for key, spec in inputs.items()}
    if form == "step":
        tensors = {key: value[:, 0] for key, value in tensors.items()}
    try:
        with torch.no_grad():
            Trial(module, 1)  # which checks the first state
            if not module.first_state():
                problem = f"{name}.first_state: there is no state, so that steps do not depend on each other."
                raise ExportError(problem, hint="Return one, or export the module by torch.onnx.export.")
            outputs, state = getattr(module, form)(tensors, batched(module.first_state(), rows))
        if not isinstance(state, Mapping):
            raise TypeError(f"the new state is {shown(state)}, not a mapping")
    except Exception as error:
        refuse_other_precisions(name, module, error)
        if isinstance(error, ExportError):
            raise
        raise ExportError(
            f"{name}.{form}: one call after first_state raises {type(error).__name__} ({first_line(error)}).",
            hint=f"{form} takes ({{name: inputs}}, {{name: state}}), and returns (outputs, new_state), both mappings.",
        ) from error
    if not isinstance(outputs, Mapping) or not outputs:
        raise ExportError(f"{name}.{form}: the outputs are {shown(outputs)}.", hint='Return {"action": tensor}, state.')
    axes = (rows, steps) if form == "segment" else (rows,)
    specs, taken = {}, {*inputs, *state, *(f"new_{key}" for key in state)}
    for key in [*outputs, *({*inputs} & {*state})]:
        if not isinstance(key, str) or not NAME.fullmatch(key) or key in taken:
            problem = f"{shown(key)} is the name of another tensor too, or none that graphs can have"
            raise ExportError(f"{name}.{form}: {problem}.", hint="Give each input, output and state a name of its own.")
    for key, value in outputs.items():
        dtype = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
        shape = tuple(getattr(value, "shape", ()))
        if dtype not in OUTPUT_DTYPES or shape[: len(axes)] != axes or 0 in shape:
            problem = f"the output {key!r} is {dtype} {shape}, expected {axes} in front, for {rows} rows"
            problem += f" of {steps} steps" if form == "segment" else ""
            hint = "Return all rows and steps that are read, as float32, bool, uint8 or signed integers."
            raise ExportError(f"{name}.{form}: {problem}.", hint=hint)
        specs[key] = OutputSpec(dtype, shape[len(axes) :])
    if (count := sum(math.prod(spec.shape) for spec in specs.values())) > MOST_NUMBERS:
        problem = f"{name}.{form}: the outputs have {count:,} numbers a step, expected at most {MOST_NUMBERS:,}."
        raise ExportError(problem, hint="Return fewer.")
    return specs
