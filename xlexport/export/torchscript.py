"""Emit the step graphs of a bundle as TorchScript: one file with one copy of the weights, a method for each purpose.

Each method takes its tensors by name and returns a dictionary by name, as `bundle.json` declares. PyTorch has
deprecated TorchScript; `docs/torch_formats.md` describes its remaining uses.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning

from xlexport.atomic_output import writing
from xlexport.export.tracing import USE_ONNX, quiet, tracing
from xlexport.families.step import Step, StepGraphs, StepTensor, describe_graph, outputs_of, steps_of

__all__ = ["TORCHSCRIPT_FILE", "export_torchscript"]

TORCHSCRIPT_FILE = "graphs.pt"
Inputs = Mapping[str, tuple[StepTensor, ...]]  # by purpose


def export_torchscript(step: Step, folder: Path) -> StepGraphs:
    """Write every purpose of `step` into one file in `folder`.

    Returns:
        The description of each graph, and of the steps that they run.

    Raises:
        ExportError: the step cannot be traced, or tracing would fix a size that must stay free.
        OSError: the file cannot be written.
    """
    every = dict.fromkeys(step.purposes, step.inputs)
    inputs = {
        purpose: tuple(tensor for tensor in step.inputs if tensor.name in names)
        for purpose, names in _used(_trace(step, every)).items()
    }
    module = _trace(step, inputs)
    with writing(folder / TORCHSCRIPT_FILE), quiet():
        torch.jit.save(module, str(folder / TORCHSCRIPT_FILE))
    graphs = {
        purpose: describe_graph(step, purpose, TORCHSCRIPT_FILE, "torchscript", taken)
        for purpose, taken in inputs.items()
    }
    return StepGraphs(graphs, steps_of(step))


def _trace(step: Step, inputs: Inputs) -> torch.jit.ScriptModule:
    """Trace all purposes as methods that take the given inputs; remove computations without effect."""
    examples = dict(zip((tensor.name for tensor in step.inputs), step.example(), strict=True))
    module = _Methods(step, examples, inputs)
    with tracing("trace the step graphs", USE_ONNX), torch.no_grad():
        warnings.simplefilter("error", TracerWarning)  # raised for a number that tracing would fix
        traced = torch.jit.trace_module(
            module,
            {purpose: tuple(examples[tensor.name] for tensor in taken) for purpose, taken in inputs.items()},
            check_trace=False,  # the check would use the same example; `verify` checks more
            strict=False,  # the results are dictionaries
        )
    for purpose in inputs:
        graph = traced._c._get_method(purpose).graph
        torch._C._jit_pass_inline(graph)
        torch._C._jit_pass_dce(graph)
        torch._C._jit_pass_lint(graph)
    return traced


def _used(module: torch.jit.ScriptModule) -> dict[str, set[str]]:
    """Return the inputs that each method reads, by purpose."""
    purposes = [name for name in module._c._method_names() if name != "forward"]
    used = {}
    for purpose in purposes:
        method = module._c._get_method(purpose)
        names = [argument.name for argument in method.schema.arguments]
        values = zip(names, method.graph.inputs(), strict=True)
        used[purpose] = {name for name, value in values if name != "self" and value.uses()}
    return used


class _Methods(nn.Module):
    """The step with a method for each purpose, which takes its own inputs by name and returns outputs by name."""

    def __init__(self, step: Step, examples: Mapping[str, Tensor], inputs: Inputs) -> None:
        super().__init__()
        assert isinstance(step, nn.Module)
        self.step = step
        for purpose, taken in inputs.items():
            self.__dict__[purpose] = _method(step, purpose, examples, [tensor.name for tensor in taken])


def _method(
    step: Step, purpose: str, examples: Mapping[str, Tensor], names: list[str]
) -> Callable[..., dict[str, Tensor]]:
    def run(*tensors: Tensor) -> dict[str, Tensor]:
        inputs = {**examples, **dict(zip(names, tensors, strict=True))}  # examples only for inputs without effect
        return outputs_of(step, purpose, step.forward(*inputs.values()))

    parameters: Any = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # the tracer reads the names here
    return run
