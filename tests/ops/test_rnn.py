"""`torch.nn.LSTM` and `torch.nn.GRU` in exported graphs, against torch's own results."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

from tests.helpers.lone_step import LoneStep, export_lone
from xlexport.architectures import StepTensor
from xlexport.errors import ExportError
from xlexport.ops import replace_rnns

KINDS = pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
D, H = 5, 24
Kind = type[nn.LSTM] | type[nn.GRU]
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


def test_all_places_of_a_module_are_replaced_and_share_weights() -> None:
    shared = nn.GRU(D, D)
    model = nn.ModuleDict({"one": shared, "list": nn.ModuleList([shared, nn.LSTM(D, H)]), "linear": nn.Linear(D, D)})
    assert replace_rnns(model) is model
    assert [type(module) for module in model.modules() if isinstance(module, (nn.RNNBase, nn.Linear))] == [nn.Linear]
    assert model["one"] is model["list"][0]


class LanguageModel(nn.Module):
    """A head on a recurrent network."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.rnn, self.head = kind(D, H, 2, batch_first=True), nn.Linear(H, D)

    def forward(self, x: Tensor, state: list[Tensor]) -> list[Tensor]:
        given = tuple(one.transpose(0, 1) for one in state)
        rows, *last = flat(self.rnn(x, given if len(given) == 2 else given[0]))
        return [self.head(rows), *(one.transpose(0, 1) for one in last)]


class ModelStep(LoneStep):
    """The model itself, or a scan over its exported step."""

    def __init__(self, model: nn.Module, states: int, scanned: bool) -> None:
        free = [StepTensor(name, "float32", ("batch", 2, H)) for name in "hc"[:states]]
        rows = [StepTensor(name, "float32", ("batch", "segment", D)) for name in "xy"]
        new = [StepTensor(f"new_{one.name}", one.dtype, one.shape) for one in free]
        zeros = [torch.zeros(3, 2, H) for _ in free]
        super().__init__(model, [rows[0], *free], [rows[1], *new], [torch.zeros(3, 4, D), *zeros])
        self.scanned = scanned
        if scanned:
            batch = {0: torch.export.Dim("batch", min=1, max=1 << 20)}
            axes = (batch, [batch for _ in zeros])
            program = torch.export.export(model, (torch.zeros(3, 1, D), zeros), dynamic_shapes=axes)
            self.compute = program.module(check_guards=False)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        x, *state = inputs
        if not self.scanned:
            return tuple(self.compute(x, state))

        def body(carry: list[Tensor], row: Tensor) -> tuple[list[Tensor], Tensor]:
            y, *new = self.compute(row.unsqueeze(1), carry)
            return [one.clone(memory_format=torch.contiguous_format) for one in new], y.squeeze(1)

        carried, rows = scan(body, [one.clone() for one in state], x.transpose(0, 1).contiguous())
        return rows.transpose(0, 1), *carried


@pytest.mark.parametrize(("kind", "scanned"), [(nn.LSTM, False), (nn.GRU, False), (nn.LSTM, True)])
def test_onnx_against_torch_at_any_size(kind: Kind, scanned: bool, tmp_path: Path) -> None:
    count, model = 2 if kind is nn.LSTM else 1, LanguageModel(kind).eval().requires_grad_(False)
    graph, run = export_lone(ModelStep(replace_rnns(copy.deepcopy(model)), count, scanned), tmp_path)
    nodes = [*graph.graph.node, *(node for scan in graph.graph.node for part in scan.attribute for node in part.g.node)]
    assert [node.op_type for node in nodes].count(kind.__name__) == 2
    assert any(node.op_type == "Scan" for node in nodes) == scanned
    content = (tmp_path / "score.onnx").read_bytes()
    assert not re.search(rb"\.py\b|site-packages", content)  # the exporter's notes, which name files of this machine
    assert not any(node.op_type == "Constant" for node in nodes)  # in a body, each graph would have its own copy
    assert not any(part.g.initializer for scan in graph.graph.node for part in scan.attribute)
    stored = onnx.load(tmp_path / "score.onnx", load_external_data=False).graph.initializer
    assert sum(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in stored) >= 4  # W and R of each layer
    for batch, segment in ((1, 1), (1, 7), (4, 1), (2, 33)):
        x = torch.randn(batch, segment, D)
        state = [torch.randn(batch, 2, H).tanh() for _ in range(count)]
        with torch.no_grad():
            expected = model(x, state)
        for result, wanted in zip(run(x, *state), expected, strict=True):
            np.testing.assert_allclose(result, wanted, rtol=0, atol=5 * CLOSE)  # two layers, sums in another order


@pytest.mark.parametrize(
    "rnn", [nn.LSTM(D, H, bidirectional=True), nn.GRU(D, H, bidirectional=True), nn.LSTM(D, H, proj_size=3)]
)
def test_networks_without_such_a_graph_are_refused(rnn: nn.RNNBase) -> None:
    fault = "has proj_size" if rnn.proj_size else "is bidirectional"
    fault = rf" \(torch\.nn\.{type(rnn).__name__}\) {fault}: a step graph cannot hold"
    model = nn.ModuleDict({"good": nn.LSTM(D, H), "inner": nn.ModuleDict({"rnn": rnn})})
    with pytest.raises(ExportError, match=f"^inner.rnn{fault}"):
        replace_rnns(model)
    assert type(model["good"]) is nn.LSTM
    with pytest.raises(ExportError, match=f"^model{fault}"):
        replace_rnns(rnn)


def test_packed_sequences_are_refused() -> None:
    rnn = replace_rnns(nn.LSTM(D, H))
    for x in (nn.utils.rnn.pack_sequence([torch.randn(3, D)]), torch.randn(3, D)):
        with pytest.raises(ExportError, match=r"torch\.nn\.LSTM: cannot export a call with packed sequences"):
            rnn(x)
