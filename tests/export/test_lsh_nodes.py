"""Sort and gather as nodes of a Reformer's graphs: who opens a file sees them, and every result depends on them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from tests.export.test_emitted_operators import operators
from tests.helpers.bundles import ConvertedReformer
from tests.helpers.export_cache import cached_exports
from tests.helpers.other_order import OPERATORS, with_another_body
from tests.helpers.paths import ROOT
from tests.helpers.tiers import thinned
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.formats import load as load_source
from xlexport.ops import DOMAIN, FUSED
from xlruntime import load
from xlruntime.bundle import Choice

SAMPLES = ("transformer_xl_bytes", "reformer_bytes")
Array = npt.NDArray[Any]


@pytest.fixture(scope="module", params=["band", "paper", "chunk"])
def folder(request: pytest.FixtureRequest) -> Path:
    """Return a bundle of a tiny Reformer of each rule."""
    bundle: ConvertedReformer = request.getfixturevalue(request.param)
    return bundle.folder


def custom(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """Return our operators among nodes, and in their graphs."""
    return {name for domain, name in operators(nodes) if domain == DOMAIN}


@pytest.mark.parametrize("purpose", ["score", "detail"])
def test_sort_and_gather_are_nodes_outside_of_functions(purpose: str, folder: Path) -> None:
    model = onnx.load(folder / f"{purpose}.onnx", load_external_data=False)
    assert custom(model.graph.node) == {*OPERATORS, "LocalAttention"}
    assert not any(custom(function.node) for function in model.functions)
    fused = onnx.load(folder / f"{purpose}_fused.onnx", load_external_data=False)
    assert custom(fused.graph.node) & set(FUSED)
    batched = onnx.load(folder / f"{purpose}_batched.onnx", load_external_data=False)
    assert set(OPERATORS) <= custom(batched.graph.node)
    *_, for_kernels, for_accelerators, default = load(folder, ops="none").bundle.steps[purpose]
    assert set(for_kernels.kernels) == custom(fused.graph.node) & set(FUSED)
    assert (for_accelerators.device, default) == ("accelerator", Choice(purpose))


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.full
def test_scores_depend_on_sort_and_gather(operator: str, folder: Path, tmp_path: Path) -> None:
    """Replace the body of a function in a copy of the bundle: nothing behind it may sort or gather again."""
    other = with_another_body(folder, tmp_path / "copy", operator)
    ids = np.random.default_rng(0).integers(0, 30, 120).tolist()
    models = [load(path, ops="none") for path in (folder, other)]
    chosen = {} if models[0].bundle.evaluation.full_document else {"segment_len": 40}  # not the graph for a few tokens
    for detail in (None, 1):
        before, after = (next(model.score_tokens([ids], top=detail, **chosen)).log_probs for model in models)
        assert np.abs(after - before).max() > 0.01


class LSHSort(OpRun):
    """The sort as docs/bundle_format.md defines it."""

    op_domain = DOMAIN

    def _run(self, buckets: Array) -> tuple[Array, Array]:
        order = np.argsort(buckets, axis=-1, kind="stable")
        return order, np.argsort(order, axis=-1)


class LSHGather(OpRun):
    """The gather as docs/bundle_format.md defines it."""

    op_domain = DOMAIN

    def _run(self, rows: Array, index: Array) -> tuple[Array]:
        return (np.take_along_axis(rows, index[..., None], axis=-2),)


class GatherElements(OpRun):
    """ONNX's operator, of which the evaluator's own takes at most 64 rows."""

    op_domain = ""

    def _run(self, data: Array, indices: Array, axis: int) -> tuple[Array]:
        return (np.take_along_axis(data, indices, axis=axis),)


@pytest.mark.release
@pytest.mark.parametrize("purpose", thinned(["score", "detail"], ["score"], pytest.mark.release))
@pytest.mark.parametrize("sample", thinned(SAMPLES, SAMPLES[:1], pytest.mark.release))
def test_reference_evaluator_of_onnx_computes_the_same(sample: str, purpose: str, tmp_path: Path) -> None:
    """Run the default graphs of both samples without ONNX Runtime, over 5 segments of carried memory."""
    with cached_exports():
        source = load_source(ROOT / f"samples/{sample}/checkpoint.pt")
        convert(source, tmp_path / "bundle", ConversionOptions(threads=1, segments=2))
    model, S = load(tmp_path / "bundle", ops="none", threads=1), 96
    memory = model.new_memory(model.evaluation(segment_len=S, mem_len=192), 1)
    session = model.session(purpose)
    file = onnx.load(tmp_path / f"bundle/{purpose}.onnx")
    others = [function for function in file.functions if function.name not in OPERATORS]
    del file.functions[:]
    file.functions.extend(others)
    reference = ReferenceEvaluator(file, new_ops=[LSHSort, LSHGather, GatherElements])
    ids = np.random.default_rng(0).integers(0, 256, (1, 5 * S + 1))
    for start in range(0, 5 * S, S):
        tokens, targets = ids[:, start : start + S], ids[:, start + 1 : start + S + 1]
        feeds = dict(memory.feeds(session.graph, {"tokens": tokens, "targets": targets}))
        feeds |= {entry.input: memory.array(entry).copy() for entry in memory.entries}
        feeds |= {name: value.numpy() for name, value in memory.constants.items()}
        outputs = dict(zip(reference.output_names, reference.run(None, feeds), strict=True))
        expected = session.step(memory.feeds(session.graph, {"tokens": tokens, "targets": targets}), memory)
        memory.advance(S)
        np.testing.assert_allclose(outputs["log_prob"], expected["log_prob"], atol=1e-4)
