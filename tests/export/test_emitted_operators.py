"""The list of operators that the runtime takes for ours is what convert and quantize write, no more and no less."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx

from tests.helpers.bundles import Converted, ConvertedReformer
from tests.helpers.paths import GOLDEN
from xlexport.ops.operator import DOMAIN, VERSION
from xlruntime import bundle
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
    assert bundle.DOMAIN == DOMAIN
    assert bundle.DOMAINS[DOMAIN] == VERSION


def test_all_are_standard_operators() -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    assert known >= OPERATORS
    assert not OPERATORS & {"If", "SequenceMap", "RandomNormal", "RandomUniform", "Multinomial", "Bernoulli"}
