"""The placement of nodes is known, and a strict device refuses nodes on other devices."""

from __future__ import annotations

import pytest

from tests.helpers.pretended_cuda import CPU, CUDA, pretend
from xlruntime import Model, ProviderError, load
from xlruntime.placement import SIZE_OPERATORS, PlacedNode, require_placement

MIXED = [
    PlacedNode("size", "Shape", CPU),
    PlacedNode("product", "MatMul", CUDA),
    PlacedNode("first", "TopK", CPU),
    PlacedNode("second", "TopK", CPU),
    PlacedNode("", "Softmax", CPU),
    PlacedNode("sum", "Add", CUDA),
]


def test_placement_counts_the_nodes_of_a_graph_by_provider_and_operator(model: Model) -> None:
    found = model.placement("score")
    assert list(found) == [CPU]
    assert found[CPU]["Softmax"] == model.bundle.config["n_layer"]
    assert found[CPU]["ScatterND"] == 2 * model.bundle.config["n_layer"]  # one write for each ring
    assert list(found[CPU].values()) == sorted(found[CPU].values(), reverse=True)


def test_strays_are_named_in_one_line() -> None:
    with pytest.raises(ProviderError) as caught:
        require_placement(MIXED, CUDA, "device cuda:0: score.onnx")
    message = str(caught.value)
    assert f"device cuda:0: score.onnx: 3 of 6 nodes run on {CPU}, not on {CUDA}: " in message
    assert "2 TopK, 1 Softmax (first, second, (no name))" in message
    assert "Shape" not in message and "\n" not in message


def test_sizes_may_be_computed_on_the_cpu_unless_nothing_may() -> None:
    nodes = [node for node in MIXED if node.provider == CUDA or node.operator in SIZE_OPERATORS]
    require_placement(nodes, CUDA, "here")
    with pytest.raises(ProviderError, match=r"1 of 3 nodes .* 1 Shape \(size\)"):
        require_placement(nodes, CUDA, "here", allowed=frozenset())


def test_strict_device_reaches_every_session_of_a_model(
    model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pretend(monkeypatch, on_cpu={"Softmax"})
    assert load(model.folder, device="cuda").placement("score")[CPU] == {"Softmax": model.bundle.config["n_layer"]}
    assert f"nodes run on {CPU}, not on {CUDA}: 2 Softmax." in caplog.text
    with pytest.raises(ProviderError, match=r"device cuda:0: .*score.onnx.* 2 Softmax \("):
        load(model.folder, device="cuda", strict_device=True)


def test_provider_that_computes_nothing_is_refused(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, on_cpu=None)
    with pytest.raises(ProviderError, match=rf"score.onnx: no node of \d+ runs on {CUDA}. Use device cpu"):
        load(model.folder, device="cuda")
