"""Rings of 8-bit integers with a scale a row, for the attention of Transformer-XLs; see `docs/bundle_format.md`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from xlexport.bundles import scale_of
from xlexport.ops import DOMAIN, add_functions
from xlruntime.bundle import Bundle, Feed, MemoryEntry

__all__ = ["RINGS", "ring_problem", "rings_of", "rounded_inputs", "rounded_memory", "use_int8_rings"]

RINGS = "memories"  # the name that keep_float and reports have for them
FLOAT_NODE, INT8_NODE = "RelativeAttention", "RelativeAttentionInt8"


def ring_problem(folder: Path, bundle: Bundle) -> str | None:
    """Return why the rings of a bundle must stay float32; None if they can be integers."""
    if any(entry.first_value is not None for entry in bundle.memory):
        return "their first rows are not zero (pre-LayerNorm with first_memory zeros)"
    steps = [graph for graph in bundle.graphs.values() if "log_prob" in graph.outputs]
    for graph in steps or bundle.graphs.values():
        if not rings_of(ir.load(folder / graph.file)):
            return f"{graph.file} has no operator {FLOAT_NODE}"
    return None


def rings_of(model: ir.Model) -> list[str]:
    """Return the names of the rings that `RelativeAttention` reads, in order."""
    nodes = [node for node in model.graph if (node.domain, node.op_type) == (DOMAIN, FLOAT_NODE)]
    return [str(value.name) for node in nodes for value in node.inputs[3:5] if value is not None]


def rounded_memory(memory: Sequence[MemoryEntry], rings: Collection[str]) -> Iterator[MemoryEntry]:
    """Yield carried tensors, with integers and their scales for `rings`."""
    for entry in memory:
        if entry.input not in rings:
            yield entry
            continue
        yield replace(entry, dtype="int8")
        yield replace(entry, input=scale_of(entry.input), output=scale_of(entry.output), shape=entry.shape[:-1])


def rounded_inputs(inputs: Mapping[str, Feed], rings: Collection[str]) -> dict[str, Feed]:
    """Return the inputs of a graph, with scales behind `rings`."""
    pairs = ((name, scale_of(name)) if name in rings else (name,) for name in inputs)
    return {name: inputs[pair[0]] for pair in pairs for name in pair}


def use_int8_rings(model: ir.Model) -> None:
    """Replace `RelativeAttention` in a graph by the operator for integers, and its rings by integers with scales."""
    graph = model.graph
    for node in list(graph):
        if (node.domain, node.op_type) != (DOMAIN, FLOAT_NODE):
            continue
        before = list(node.inputs)
        rings = [_ring_inputs(graph, value) for value in before[3:5]]
        new = ir.node(
            INT8_NODE, [*before[:3], *rings[0], *rings[1], *before[5:]], domain=DOMAIN, num_outputs=5, name=node.name
        )
        attended, key, key_scale, value, value_scale = new.outputs
        for old, integers, scale in ((node.outputs[1], key, key_scale), (node.outputs[2], value, value_scale)):
            _take_name(graph, old, integers, scale)
        attended.name, attended.type, attended.shape = node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape
        graph.insert_before(node, new)
        node.outputs[0].replace_all_uses_with(attended)
        graph.remove(node, safe=True)
    model.functions.clear()
    add_functions(model)


def _ring_inputs(graph: ir.Graph, ring: ir.Value | None) -> tuple[ir.Value, ir.Value]:
    """Make a ring integers; return it and the input of its scales, which comes after it."""
    assert ring is not None and ring.shape is not None
    scale = ir.Value(
        name=scale_of(str(ring.name)), type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(ring.shape[:-1])
    )
    ring.dtype = ir.DataType.INT8
    graph.inputs.insert(graph.inputs.index(ring) + 1, scale)
    return ring, scale


def _take_name(graph: ir.Graph, old: ir.Value, new: ir.Value, scale: ir.Value) -> None:
    """Let `new` and `scale` be outputs of the graph in place of `old`."""
    assert old.shape is not None
    new.name, new.type, new.shape = old.name, ir.TensorType(ir.DataType.INT8), old.shape
    scale.name, scale.type = scale_of(str(old.name)), ir.TensorType(ir.DataType.FLOAT)
    scale.shape = ir.Shape(old.shape[:-1])
    old.name = None
    place = graph.outputs.index(old)
    graph.outputs[place : place + 1] = [new, scale]
