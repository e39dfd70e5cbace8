"""Emit the step graphs of fixed shapes as one program of ExecuTorch, with a method for each graph.

A method takes and returns tensors by place: the inputs of `bundle.json` in its order; its outputs, then the memories.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch.export import ExportedProgram

from xlexport.atomic_output import writing
from xlexport.export.exported_program import cut_program, trace_program
from xlexport.export.tracing import USE_ONNX, tracing
from xlexport.families.step import Step, StepGraphs, describe_graph, graphs_of, steps_of
from xlexport.ops.rnn import gru, lstm, rnn

__all__ = ["EXECUTORCH_FILE", "export_executorch"]

EXECUTORCH_FILE = "graphs.pte"


def export_executorch(step: Step, folder: Path, shorter: Sequence[Step] = ()) -> StepGraphs:
    """Write every graph of steps of fixed shapes into one file in `folder`, which holds equal weights once.

    Args:
        shorter: as in `graphs_of`.

    Returns:
        The description of each graph, and of the steps that they run.

    Raises:
        ExportError: ExecuTorch cannot be imported, or cannot express the step.
        OSError: the file cannot be written.
    """
    steps = [step, *shorter]
    traced = [_without_operators(trace_program(each)) for each in steps]
    programs, graphs = {}, {}
    for each, purpose, name in graphs_of(step, shorter):
        whole = traced[steps.index(each)]
        programs[name], inputs = cut_program(whole, purpose, each, whole.state_dict)
        graphs[name] = describe_graph(each, purpose, EXECUTORCH_FILE, "executorch", inputs)
    with tracing("lower the steps for ExecuTorch", USE_ONNX):
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        program = to_edge_transform_and_lower(programs, partitioner=[XnnpackPartitioner()]).to_executorch()
    with writing(folder / EXECUTORCH_FILE), (folder / EXECUTORCH_FILE).open("wb") as file:
        program.write_to_file(file)
    return StepGraphs(graphs, steps_of(step, shorter))


def _without_operators(whole: ExportedProgram) -> ExportedProgram:
    """Return a program that computes the LSTM, GRU and RNN of `ops/rnn.py` by ordinary operators."""
    rnns = torch.ops.xlexport
    bodies = {
        operator: vars(function)["__original_fn"]
        for operator, function in ((rnns.lstm.default, lstm), (rnns.gru.default, gru), (rnns.rnn.default, rnn))
    }
    if bodies.keys().isdisjoint(node.target for node in whole.graph.nodes):
        return whole
    with tracing("expand the operators of the step", USE_ONNX):
        return whole.run_decompositions(bodies)
