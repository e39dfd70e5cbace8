"""The placement of nodes is known, and a strict device refuses nodes on other devices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from xlruntime import Model, ProviderError, load, providers
from xlruntime.placement import SIZE_OPERATORS, PlacedNode, require_placement
from xlruntime.providers import import_onnxruntime

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
MIXED = [
    PlacedNode("size", "Shape", CPU),
    PlacedNode("product", "MatMul", CUDA),
    PlacedNode("first", "TopK", CPU),
    PlacedNode("second", "TopK", CPU),
    PlacedNode("", "Softmax", CPU),
    PlacedNode("sum", "Add", CUDA),
]


class PretendedCuda:
    """A fake onnxruntime with CUDA but without CUDA kernels: it runs real sessions on the CPU."""

    def __init__(self) -> None:
        real = import_onnxruntime()
        self.__version__, self.capi, self.SessionOptions = real.__version__, real.capi, real.SessionOptions
        self._open = real.InferenceSession

    def get_available_providers(self) -> list[str]:
        return [CUDA, CPU]

    def preload_dlls(self) -> None:
        pass

    def InferenceSession(self, path: str, sess_options: Any, providers: Any, enable_fallback: int) -> Any:
        session = self._open(path, sess_options, providers=[CPU])
        return SimpleNamespace(
            get_providers=lambda: [CUDA, CPU],
            disable_fallback=session.disable_fallback,
            get_provider_graph_assignment_info=session.get_provider_graph_assignment_info,
            get_inputs=session.get_inputs,
            get_outputs=session.get_outputs,
        )


@pytest.fixture
def pretended_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = PretendedCuda()
    monkeypatch.setattr(providers, "import_onnxruntime", lambda: runtime)


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


@pytest.mark.usefixtures("pretended_cuda")
def test_strict_device_reaches_every_session_of_a_model(model: Model) -> None:
    assert load(model.folder, device="cuda").placement("score")[CPU]["Softmax"] == model.bundle.config["n_layer"]
    with pytest.raises(ProviderError, match=r"device cuda:0: .*score.onnx.* 2 Softmax, "):
        load(model.folder, device="cuda", strict_device=True)
