"""The graph of a step model: its `segment`, or a scan over its `step`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from xlexport.errors import ExportError
from xlexport.families.recurrent.eager import batched
from xlexport.families.recurrent.export_errors import AXES, explain, exported
from xlexport.families.recurrent.step import state_entry
from xlexport.families.scan import scan
from xlexport.families.step import StepTensor, carried_inputs, carried_outputs, traced_outputs
from xlexport.families.step_model.eager import StepEager
from xlexport.families.step_module import StepModule
from xlexport.ops import replace_rnns
from xlruntime.bundle import EACH, RUN

__all__ = ["RunStep"]


class RunStep(StepModule):
    """The module that the exporter traces: outputs (B, S, …) and new states from inputs (B, S, …) and states."""

    traceable = False

    def __init__(self, eager: StepEager) -> None:
        super().__init__()
        self.specs = eager.inputs
        self.first = dict(eager.module.first_state())
        self.memory = tuple(state_entry(name, value) for name, value in self.first.items())
        feeds = {name: spec.feed for name, spec in eager.inputs.items()}
        inputs = (StepTensor(name, feed.dtype, feed.shape, feed) for name, feed in feeds.items())
        self.inputs = (*inputs, *carried_inputs(self.memory))
        outputs = (StepTensor(name, spec.dtype, (*EACH, *spec.shape)) for name, spec in eager.outputs.items())
        self.purposes = {RUN: (*outputs, *carried_outputs(self.memory))}
        self.outputs = eager.outputs
        with torch.no_grad():
            eager(self._inputs(1, 1), batched(self.first, 1))  # hooks and weight drop set what `replace_rnns` takes
        self.model: Any = replace_rnns(eager.module.requires_grad_(False))
        self.cell = None
        if eager.form == "step":
            try:
                self.cell = exported(self.model, "step", self._inputs)
            except Exception as error:
                raise ExportError(*self.explain(error)) from error

    def _inputs(self, *sizes: int) -> dict[str, Tensor]:
        return {
            name: torch.full((*sizes, *spec.shape), spec.low, dtype=getattr(torch, spec.dtype))
            for name, spec in self.specs.items()
        }

    def example(self) -> tuple[Tensor, ...]:
        """Return example inputs to trace with, each a separate tensor."""
        B, S = (AXES["segment"] if self.fixed is None else self.fixed.axes).values()
        return *self._inputs(B, S).values(), *batched(self.first, B).values()

    def explain(self, error: BaseException) -> tuple[str, str]:
        """Return message and hint for an error of an exporter, by the line of the user's module."""
        return explain(error, self.model, self._inputs)

    def first_rows(self) -> Mapping[str, Tensor]:
        """Return the first state."""
        return self.first

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Compute one segment; see `Step.forward`."""
        tensors = dict(zip(self.specs, inputs, strict=False))
        state = dict(zip(self.first, inputs[len(tensors) :], strict=True))
        outputs, state = self._scan(tensors, state) if self.cell is not None else self.model.segment(tensors, state)
        B, S = inputs[0].shape[:2]
        values = {}
        for name, spec in self.outputs.items():
            if self.fixed is None and type(outputs[name].shape[1]) is int and type(S) is not int:
                raise RuntimeError(f"the output {name!r} has {outputs[name].shape[1]} steps for any segment")
            values[name] = outputs[name].reshape(B, S, *spec.shape)
        values |= {f"new_{name}": state[name] for name in self.first}
        return tuple(values[name] for name in traced_outputs(self))

    def _scan(
        self, tensors: Mapping[str, Tensor], state: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Read inputs (B, S, …) step by step, as one operator of the graph."""

        def body(carry: tuple[Tensor, ...], rows: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
            assert self.cell is not None
            outputs, *after = self.cell(dict(zip(tensors, rows, strict=True)), [*carry])
            copies = (value.clone(memory_format=torch.contiguous_format) for value in after)
            return tuple(copies), tuple(outputs[name].clone() for name in self.outputs)

        rows = tuple(value.transpose(0, 1).contiguous() for value in tensors.values())
        carry, outputs = scan(body, tuple(state.values()), rows)  # (S, B, …)
        stacked = {name: value.transpose(0, 1) for name, value in zip(self.outputs, outputs, strict=True)}
        return stacked, dict(zip(self.first, carry, strict=True))
