"""Emit the step graphs of a bundle as exported programs of `torch.export`, with one shared file of weights.

The step is traced once, then cut by purpose. Each program takes its tensors by name and returns a dictionary by name,
as `bundle.json` declares. Program files hold no weights, because each would hold all of them. In place of each weight
they have a single NaN, so that a program without loaded weights cannot return plausible numbers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.utils import _pytree as pytree

from xlexport.atomic_output import writing
from xlexport.export.tracing import USE_ONNX, free_axes, quiet, tracing
from xlexport.families.step import Step, StepGraphs, StepTensor, describe_graph, outputs_of, steps_of
from xlexport.torch_runtime import WEIGHTS_FILE

__all__ = ["cut_program", "export_programs", "trace_program"]


def export_programs(step: Step, folder: Path) -> StepGraphs:
    """Write `<purpose>.pt2` for every purpose of `step`, and the weights they share, into `folder`.

    Returns:
        The description of each graph, and of the steps that they run.

    Raises:
        ExportError: torch cannot export the step, or has fixed an axis that must stay free.
        OSError: a file cannot be written.
    """
    whole = trace_program(step)
    weights = _merge_tied(whole)
    with writing(folder / WEIGHTS_FILE):
        save_file(weights, folder / WEIGHTS_FILE)
    forgotten: dict[str, Tensor] = {}  # placeholders until the weights are loaded
    for name, tensor in whole.state_dict.items():
        nan = torch.full((), math.nan, dtype=tensor.dtype).expand(tensor.shape)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        forgotten[name] = torch.nn.Parameter(nan, requires_grad=False) if is_parameter else nan
    graphs = {}
    for purpose in step.purposes:
        program, inputs = cut_program(whole, purpose, step, forgotten)
        file = f"{purpose}.pt2"
        with writing(folder / file), quiet():
            torch.export.save(program, folder / file)
        graphs[purpose] = describe_graph(step, purpose, file, "exported-program", inputs)
    return StepGraphs(graphs, steps_of(step))


def trace_program(step: Step) -> ExportedProgram:
    """Trace the whole step as one program.

    If the tracer cannot prove that a step works for all sizes, it fixes some of them by default. Here it records
    assertions instead. `_needed` omits these assertions, because they reject sizes for which the step works.
    """
    any_size = torch.fx.experimental._config.patch(  # type: ignore[attr-defined]  # created at import
        backed_size_oblivious=not step.traceable
    )
    with tracing("export the step", USE_ONNX), any_size:
        return torch.export.export(
            step,  # type: ignore[arg-type]  # every Step is a Module
            step.example(),
            dynamic_shapes=None if step.fixed else (free_axes(step),),
            prefer_deferred_runtime_asserts_over_guards=not step.traceable,
        )


def _merge_tied(whole: ExportedProgram) -> dict[str, Tensor]:
    """Return all weights, each once; if a tensor has several names, the graph then uses only the first."""
    weights: dict[str, Tensor] = {}
    first: dict[tuple[int, torch.Size], fx.Node] = {}
    nodes = {node.name: node for node in whole.graph.nodes if node.op == "placeholder"}
    for entry in whole.graph_signature.input_specs:
        if entry.target in whole.state_dict:
            tensor = whole.state_dict[entry.target]
            node = nodes[entry.arg.name]
            same = first.setdefault((tensor.data_ptr(), tensor.shape), node)
            if same is node:
                weights[entry.target] = tensor.detach().contiguous()
            else:
                node.replace_all_uses_with(same)
    return weights


def cut_program(
    whole: ExportedProgram, purpose: str, step: Step, weights: Mapping[str, Tensor]
) -> tuple[ExportedProgram, list[StepTensor]]:
    """Return a program with these weights that computes only the outputs of `purpose`, and its inputs."""
    outputs = step.purposes[purpose]
    nodes = cast(Iterable[fx.Node], whole.graph.output_node().args[0])
    chosen = list(outputs_of(step, purpose, nodes).values())
    needed = _needed(whole.graph, chosen, assertions=step.traceable)

    # Weights come first, then the inputs of the step in its order.
    specs = {entry.arg.name: entry for entry in whole.graph_signature.input_specs}
    names_of_inputs = [name for name, entry in specs.items() if entry.kind == InputKind.USER_INPUT]
    tensors = dict(zip(names_of_inputs, step.inputs, strict=True))
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    inputs: list[StepTensor] = []
    input_specs: list[InputSpec] = []
    for node in whole.graph.nodes:
        if node not in needed:
            continue
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if node.op == "placeholder":
            input_specs.append(dataclasses.replace(specs[node.name]))
            if node.name in tensors:
                inputs.append(tensors[node.name])
                copies[node].name = copies[node].target = inputs[-1].name
                input_specs[-1].arg = TensorArgument(inputs[-1].name)
    graph.output(tuple(copies[node] for node in chosen))
    for node in graph.nodes:  # the tracer's stack traces name source files of this machine
        node.meta = {key: node.meta[key] for key in ("val", "tensor_meta") if key in node.meta}

    symbols = {symbol for node in graph.nodes for symbol in _symbols(node.meta.get("val"))}

    results = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(copies[node].name), None) for node in chosen]
    examples = {
        tensor.name: example for tensor, example in zip(step.inputs, step.example(), strict=True) if tensor in inputs
    }
    signature = ModuleCallSignature(
        inputs=[],
        outputs=[],
        in_spec=pytree.tree_structure(((), examples)),
        out_spec=pytree.tree_structure({tensor.name: 0 for tensor in outputs}),
        forward_arg_names=list(examples),
    )
    names = {str(entry.target) for entry in input_specs}
    with tracing("cut the exported step", USE_ONNX):
        program = ExportedProgram(
            root=torch.nn.Module(),
            graph=graph,
            graph_signature=ExportGraphSignature(input_specs, results),
            state_dict={name: tensor for name, tensor in weights.items() if name in names},
            range_constraints={
                size: limits for size, limits in whole.range_constraints.items() if size.free_symbols <= symbols
            },
            module_call_graph=[ModuleCallEntry("", signature)],
            example_inputs=((), examples),
            constants={name: constant for name, constant in whole.constants.items() if name in names},
        )
    return program, inputs


def _needed(graph: fx.Graph, chosen: Iterable[fx.Node], assertions: bool) -> set[fx.Node]:
    """Return the nodes that `chosen` ones are computed from, with `assertions` also the assertions about only these."""
    needed: set[fx.Node] = set()
    _add_ancestors(needed, chosen)
    sources = {node for node in needed if _is_source(node)}
    for node in graph.nodes:
        if assertions and node.target == torch.ops.aten._assert_scalar.default:
            ancestors: set[fx.Node] = set()
            _add_ancestors(ancestors, [node])
            if {other for other in ancestors if _is_source(other)} <= sources:
                needed |= ancestors
    return needed


def _add_ancestors(ancestors: set[fx.Node], nodes: Iterable[fx.Node]) -> None:
    waiting = list(nodes)
    while waiting:
        if (node := waiting.pop()) not in ancestors:
            ancestors.add(node)
            waiting += node.all_input_nodes


def _symbols(value: object) -> set[Any]:
    """Return the free sizes in a node's metadata."""
    if isinstance(value, tuple | list):
        return {symbol for part in value for symbol in _symbols(part)}
    return set(free_symbols(value)) if isinstance(value, Tensor | torch.SymInt | torch.SymBool) else set()


def _is_source(node: fx.Node) -> bool:
    """Return whether a node produces numbers that are unknown before the run."""
    return node.op == "placeholder" or node.target == torch.ops.aten.item.default
