"""Scores of Reformers depend on LSHSort and LSHGather: with others, all runtimes give other scores."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import xlruntime
from tests.helpers.bundles import ConvertedReformer, paper
from tests.helpers.c_library import c_runtime, find_onnxruntime
from tests.helpers.c_runtime import CRuntime
from tests.helpers.ids import random_ids
from tests.helpers.manifests import without_fused_graphs
from tests.helpers.other_order import OPERATORS, library_with_another, with_another_body
from tests.web_site.javascript import needs_node, prepared

pytestmark = pytest.mark.native

__all__ = ["c_runtime", "paper"]

Scores = npt.NDArray[np.float32]
IDS = random_ids(100, seed=3, vocab_size=30)
ALL = len(IDS)  # tokens of a step: more than graphs for few tokens take
PROGRAM = f"""
    import {{ load }} from "xlruntime";
    const model = await load(process.argv[2], {{ threads: 1 }});
    const options = {{ segment_len: {ALL} }};
    const scores = [];
    for await (const part of model.scoreTokens([{IDS.tolist()}], options)) scores.push(...part.logProbs);
    console.log(JSON.stringify(scores));
"""


def in_python(folder: Path, ops: str | Path = "none") -> Scores:
    parts = xlruntime.load(folder, threads=1, ops=ops).score_tokens([IDS], segment_len=ALL)
    return np.concatenate([part.log_probs for part in parts])


def in_c(folder: Path, runtime: CRuntime, kernels: bool = False) -> Scores:
    parts = runtime.load(folder, kernels=kernels).score(IDS, segment_len=ALL)[1]
    return np.concatenate([part.log_probs for part in parts])


def in_node(folder: Path, work: Path) -> Scores:
    (work / "score.mjs").write_text(PROGRAM, "utf-8")
    printed = subprocess.run(["node", "score.mjs", folder], cwd=work, capture_output=True, text=True, check=True).stdout
    return np.array(json.loads(printed), np.float32)


def require_others(found: Scores, usual: Scores) -> None:
    assert found.shape == usual.shape == (ALL - 1,) and np.isfinite(found).all()
    assert np.abs(found - usual).max() > 0.01


@pytest.mark.parametrize("rule", ["band", "chunk", "paper"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_other_bodies_give_other_scores(
    operator: str, rule: str, request: pytest.FixtureRequest, c_runtime: CRuntime, tmp_path: Path
) -> None:
    folder = request.getfixturevalue(rule).folder
    other, usual = with_another_body(folder, tmp_path / "other", operator), in_python(folder)
    np.testing.assert_array_equal(in_c(folder, c_runtime), usual)
    require_others(in_python(other), usual)
    require_others(in_c(other, c_runtime), usual)


@needs_node
@pytest.mark.parametrize("operator", OPERATORS)
def test_other_bodies_give_other_scores_in_node(operator: str, band: ConvertedReformer, tmp_path: Path) -> None:
    other, work = with_another_body(band.folder, tmp_path / "other", operator), prepared(tmp_path)
    usual = in_node(band.folder, work)
    np.testing.assert_allclose(usual, in_python(band.folder), rtol=0, atol=1e-5)
    require_others(in_node(other, work), usual)


@pytest.mark.parametrize("operator", OPERATORS)
def test_other_kernels_give_other_scores(
    operator: str, band: ConvertedReformer, c_runtime: CRuntime, tmp_path: Path
) -> None:
    """Test graphs that show sort and gathers as nodes; runtimes with kernels prefer others, which fuse both."""
    folder = without_fused_graphs(band.folder, tmp_path / "bundle")
    other, usual = library_with_another(operator, tmp_path / "libother.so"), in_c(folder, c_runtime, kernels=True)
    np.testing.assert_allclose(usual, in_python(band.folder), rtol=0, atol=1e-5)
    found = in_python(folder, ops=other)
    require_others(found, usual)
    np.testing.assert_array_equal(in_c(folder, CRuntime(other, find_onnxruntime()), kernels=True), found)
