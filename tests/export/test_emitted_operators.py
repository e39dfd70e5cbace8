"""The list of operators that the runtime takes for ours is what convert and quantize write, no more and no less."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from tests.helpers.bundles import Converted, ConvertedReformer, convert_tiny, convert_tiny_reformer
from tests.helpers.paths import GOLDEN
from tests.helpers.tiny import CHUNK
from xlexport.convert import ConversionOptions
from xlexport.ops.operator import DOMAIN, VERSION
from xlexport.quantize.run import QuantizeOptions, quantize
from xlruntime import bundle
from xlruntime.graph_gate import EMITTED, OPERATORS

QUANTIZED = {  # together they hold all that quantize writes
    "int8": GOLDEN / "post_lnorm_same_length_empty" / "bundle",
    "weight-int4": GOLDEN / "post_lnorm_same_length_empty" / "bundle",
    "float16": GOLDEN / "pre_lnorm_same_length_zeros" / "bundle",
}


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


@pytest.mark.full
def test_list_holds_just_what_is_written(
    bytes_bundle: Converted,
    ids_bundle: Converted,
    band: ConvertedReformer,
    chunk: ConvertedReformer,
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
) -> None:
    options = ConversionOptions.of(tokenizer="none", threads=1, cuda_graphs=True)
    fixed = convert_tiny(tmp_path_factory, "fixed", options, same_length=True)
    clusters = convert_tiny(
        tmp_path_factory,
        "clusters",
        ConversionOptions(tokenizer="none", threads=1),
        n_token=40,
        cutoffs=(10, 25),
        div_val=2,
        tie_projs=(False, True, True),
        d_embed=12,
    )
    gelu = convert_tiny_reformer(tmp_path_factory, "gelu", replace(CHUNK, activation="gelu"))
    made = (bytes_bundle, ids_bundle, band, chunk, fixed, clusters, gelu)
    folders = [*golden(), *(each.folder for each in made)]
    for dtype, source in QUANTIZED.items():
        quantize(source, tmp_path / dtype, QuantizeOptions(dtype, max_delta_bits=9.0, tokens=2048, threads=1))
        folders.append(tmp_path / dtype)
    sizes = {"d_model": 24, "d_head": 12, "d_inner": 32}
    rings = convert_tiny(tmp_path_factory, "int8_rings", ConversionOptions(threads=1), n_token=256, **sizes)
    int8 = QuantizeOptions("int8", max_delta_bits=9.0, memory_dtype="int8", tokens=512, threads=1)
    quantize(rings.folder, tmp_path / "rings", int8)
    found = emitted([*folders, tmp_path / "rings"])
    assert {domain for domain, _ in found} == {"", DOMAIN}
    assert {name for domain, name in found if not domain} == EMITTED


def test_all_are_standard_operators() -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    assert known >= OPERATORS
    assert not OPERATORS & {"If", "Scan", "SequenceMap", "RandomNormal", "RandomUniform", "Multinomial", "Bernoulli"}
