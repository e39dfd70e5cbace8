"""The list of operators that the runtime takes for ours is what convert and quantize write, no more and no less."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
import onnx.inliner

from tests.helpers.bundles import Converted, ConvertedReformer
from tests.helpers.paths import GOLDEN
from xlexport.export.operators import INEXACT
from xlexport.ops.operator import DOMAIN, VERSION
from xlruntime import operator_domain
from xlruntime.graph_gate import EMITTED, OPERATORS


def operators(nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[str, str]]:
    """Return (domain, operator) of nodes, and of those in their graphs."""
    for node in nodes:
        yield node.domain.removeprefix("ai.onnx"), node.op_type
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from operators(inner.node)


def emitted(folders: Iterable[Path]) -> set[tuple[str, str]]:
    """Return the operators in the graphs of bundles, read by ONNX itself."""
    found: set[tuple[str, str]] = set()
    for path in (path for folder in folders for path in sorted(folder.glob("*.onnx"))):
        model = onnx.load(path, load_external_data=False)
        found |= set(operators(model.graph.node))
        for function in model.functions:
            found |= set(operators(function.node))
    return found


def golden() -> list[Path]:
    return sorted(GOLDEN.glob("*/bundle"))


def test_golden_and_fresh_bundles_hold_nothing_else(
    bytes_bundle: Converted, ids_bundle: Converted, band: ConvertedReformer, chunk: ConvertedReformer
) -> None:
    found = emitted([*golden(), *(made.folder for made in (bytes_bundle, ids_bundle, band, chunk))])
    assert {name for domain, name in found if not domain} <= EMITTED
    assert {domain for domain, _ in found} == {"", DOMAIN}
    assert operator_domain.DOMAIN == DOMAIN
    assert operator_domain.DOMAINS[DOMAIN] == VERSION


def typed(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    """Yield each operator with the type of each of its inputs, if ONNX infers it, in the graph and those within it."""
    values = [*graph.value_info, *graph.input, *graph.output]
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    for node in graph.node:
        yield from ((node.op_type, types[name]) for name in node.input if name in types)
        for attribute in node.attribute:
            yield from typed(attribute.g)


def test_no_fresh_graph_has_operators_that_int64_makes_inexact(
    bytes_bundle: Converted, ids_bundle: Converted, band: ConvertedReformer, chunk: ConvertedReformer
) -> None:
    pairs: set[tuple[str, int]] = set()
    for path in (path for made in (bytes_bundle, ids_bundle, band, chunk) for path in made.folder.glob("*.onnx")):
        model = onnx.inliner.inline_local_functions(onnx.load(path, load_external_data=False))
        pairs |= set(typed(onnx.shape_inference.infer_shapes(model).graph))
    assert {("Where", onnx.TensorProto.INT64), ("Min", onnx.TensorProto.FLOAT)} <= pairs
    assert not {(name, onnx.TensorProto.INT64) for name in INEXACT} & pairs


def test_all_are_standard_operators() -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    assert known >= OPERATORS
    assert not OPERATORS & {"If", "SequenceMap", "RandomNormal", "RandomUniform", "Multinomial", "Bernoulli"}
