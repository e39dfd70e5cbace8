"""`torch.nn.LSTM`, `torch.nn.GRU` and `torch.nn.RNN` in exported graphs, against torch's own results."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from tests.helpers.lone_step import LoneStep, export_lone
from xlexport.errors import ExportError
from xlexport.export.tracing import quiet
from xlexport.families import StepTensor
from xlexport.ops import replace_rnns


class ReluRNN(nn.RNN):
    def __init__(self, *sizes: int, **settings: Any) -> None:
        super().__init__(*sizes, nonlinearity="relu", **settings)


KINDS = pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN, ReluRNN])
D, H = 11, 24
Kind = type[nn.LSTM] | type[nn.GRU] | type[nn.RNN]
CLOSE = 1e-6  # float32 results in [-1, 1] of the same equations


def states(kind: Kind, layers: int, batch: int) -> Any:
    h, c = torch.randn(2, layers, batch, H, generator=torch.Generator().manual_seed(3))
    return (h, c) if kind is nn.LSTM else h


def flat(results: Any) -> list[Tensor]:
    rows, last = results
    return [rows, *last] if isinstance(last, tuple) else [rows, last]


@KINDS
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(("layers", "bias"), [(1, True), (3, False)])
def test_eager_against_torch(kind: Kind, batch_first: bool, layers: int, bias: bool) -> None:
    original = kind(D, H, layers, batch_first=batch_first, bias=bias).eval()
    replaced = replace_rnns(copy.deepcopy(original))
    x = torch.randn(2, 9, D)
    for state in (None, states(kind, layers, 2 if batch_first else 9)):
        for result, expected in zip(flat(replaced(x, state)), flat(original(x, state)), strict=True):
            torch.testing.assert_close(result, expected, rtol=0, atol=CLOSE)
    with quiet():
        scripted = torch.jit.trace(replaced, (x[:, :1],))
    torch.testing.assert_close(scripted(x)[0], original(x)[0], rtol=0, atol=CLOSE)


def test_all_places_of_a_module_are_replaced_and_share_weights() -> None:
    shared = nn.GRU(D, D)
    model = nn.ModuleDict({"one": shared, "list": nn.ModuleList([shared, nn.LSTM(D, H)]), "linear": nn.Linear(D, D)})
    assert replace_rnns(model) is model
    kinds = {type(module) for module in model.modules()}
    assert not kinds & {nn.GRU, nn.LSTM} and nn.Linear in kinds
    assert model["one"] is model["list"][0]


@KINDS
@pytest.mark.full
def test_onnx_against_torch_at_any_size(kind: Kind, tmp_path: Path) -> None:
    rnn = kind(D, H, 2).eval()
    replaced, count = replace_rnns(copy.deepcopy(rnn)), 2 if kind is nn.LSTM else 1
    rows = [StepTensor(name, "float32", ("segment", "batch", size)) for name, size in (("x", D), ("y", H))]
    free, new = ([StepTensor(name, "float32", (2, "batch", H)) for name in names[:count]] for names in ("hc", "HC"))
    example = [torch.zeros(4, 3, D), *(torch.zeros(2, 3, H) for _ in free)]

    def compute(x: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        return tuple(flat(replaced(x, values[:2] if kind is nn.LSTM else values[0])))

    step = LoneStep(compute, [rows[0], *free], [rows[1], *new], example)
    step.rnn = replaced
    graph, run = export_lone(step, tmp_path)
    assert [node.op_type for node in graph.graph.node].count(kind.__name__.removeprefix("Relu")) == 2
    stored = onnx.load(tmp_path / "score.onnx", load_external_data=False).graph.initializer
    assert sum(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in stored) == 4  # W and R of each layer
    for batch, segment in ((1, 1), (1, 7), (4, 1), (2, 33)):
        x, state = torch.randn(segment, batch, D), states(kind, 2, batch)
        with torch.no_grad():
            expected = flat(rnn(x, state))
        results = run(x, *(state if count == 2 else [state]))
        for result, wanted in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, wanted, rtol=0, atol=5 * CLOSE)  # two layers, sums in another order


@pytest.mark.parametrize(
    "rnn", [nn.GRU(D, H, bidirectional=True), nn.LSTM(D, H, proj_size=3), nn.RNN(D, H, bidirectional=True)]
)
def test_networks_without_such_a_graph_are_refused(rnn: nn.RNNBase) -> None:
    fault = "has proj_size" if rnn.proj_size else "is bidirectional"
    fault = rf" \(torch\.nn\.{type(rnn).__name__}\) {fault}: no step graph can hold"
    model = nn.ModuleDict({"good": nn.LSTM(D, H), "inner": nn.ModuleDict({"rnn": rnn})})
    with pytest.raises(ExportError, match=f"^inner.rnn{fault}"):
        replace_rnns(model)
    assert type(model["good"]) is nn.LSTM
    with pytest.raises(ExportError, match=f"^model{fault}"):
        replace_rnns(rnn)


@KINDS
def test_a_class_with_its_own_forward_calls_the_replacement(kind: Kind) -> None:
    class Doubled(kind):  # type: ignore[misc, valid-type]
        def forward(self, x: Tensor, state: Any = None) -> Any:
            return super().forward(2 * x, state)

    rnn, x = Doubled(D, H), torch.randn(9, 2, D)
    replaced = replace_rnns(copy.deepcopy(rnn))
    with quiet():
        calls = str(torch.export.export(replaced, (x,)).graph)
    assert "xlexport." in calls and isinstance(replaced, Doubled)
    torch.testing.assert_close(replaced(x)[0], rnn(x)[0], rtol=0, atol=CLOSE)


def test_packed_sequences_are_refused() -> None:
    rnn = replace_rnns(nn.LSTM(D, H))
    for x in (nn.utils.rnn.pack_sequence([torch.randn(3, D)]), torch.randn(3, D)):
        with pytest.raises(ExportError, match=r"torch\.nn\.LSTM: cannot export a call with packed sequences"):
            rnn(x)
