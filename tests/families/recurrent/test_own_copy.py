"""Copies of users' modules compute what the modules compute in evaluation mode, or are refused in one line."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import weight_norm

from tests.families.recurrent.own_modules import DroppedWeights
from xlexport.errors import ExportError
from xlexport.families.recurrent.export_errors import exported
from xlexport.families.recurrent.source import module_source
from xlexport.families.recurrent.step import RecurrentStep

D = 8
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated")  # old weight norm, quantization and TorchScript


class Doubled(nn.LSTM):
    def forward(self, x: Tensor, state: Any = None) -> Any:  # type: ignore[override]
        return super().forward(2 * x, state)


class Model(nn.Module):
    n_token = 11

    def __init__(self, change: Callable[[Any], Any] = lambda model: None) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.word, self.head = nn.Embedding(self.n_token, D), nn.Linear(D, self.n_token)
        self.rnn, self.dropout = Doubled(D, D, batch_first=True), nn.Dropout(0.5)
        change(self)
        for parameter in self.rnn.parameters():
            parameter.data.mul_(2)  # as weights from a file, for which no call has computed others yet

    def first_state(self) -> dict[str, Tensor]:
        return {name: torch.zeros(1, D) for name in "hc"}

    def segment(self, tokens: Tensor, state: Mapping[str, Tensor]) -> Any:
        h, c = (state[name].transpose(0, 1).contiguous() for name in "hc")
        rows, (h, c) = self.rnn(self.dropout(self.word(tokens)), (h, c))
        return self.head(rows), {"h": h.transpose(0, 1), "c": c.transpose(0, 1)}


def attribute(name: str, make: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: Model(lambda model: setattr(model, name, make(model)))


RIGHT: dict[str, Callable[[], Any]] = {
    "old weight norm": attribute("rnn", lambda model: weight_norm(model.rnn, "weight_hh_l0")),
    "weight drop": attribute("rnn", lambda model: DroppedWeights(model.rnn)),
    "cache with gradients": attribute("cache", lambda model: {"table": [model.head.weight * 2]}),
    "compiled method": attribute("segment", lambda model: torch.compile(model.segment, backend="eager")),
    "compiled part": attribute("rnn", lambda model: torch.compile(model.rnn, backend="eager")),
    "data parallel": lambda: nn.DataParallel(Model()),
}


@pytest.mark.parametrize("kind", RIGHT)
@pytest.mark.full
def test_copy_computes_the_module_in_evaluation_mode(kind: str) -> None:
    model = RIGHT[kind]()  # in training mode
    before = {name: value.clone() for name, value in model.state_dict().items()}
    source = module_source(model)
    assert source.config["model"] == "Model" and model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    tokens, plain, copy = torch.arange(6).reshape(2, 3), getattr(model, "module", model).eval(), source.build_model()
    with torch.no_grad():
        state = copy.first_memory(2)
        expected, _ = plain.segment(tokens, state)
        torch.testing.assert_close(copy(tokens)[0], expected, rtol=0, atol=1e-6)
        graph = exported(RecurrentStep(copy).model, "segment")  # with operators in place of torch.nn.LSTM
        torch.testing.assert_close(graph(tokens, [*state.values()])[0], expected, rtol=0, atol=1e-6)


REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {
    "float16": ("Model: its weights are float16, and xlexport needs float32. Call", lambda: Model().half()),
    "meta": ("Model: word.weight holds no numbers yet", lambda: Model().to("meta")),
    "lazy": ("Model: head.weight holds no numbers yet", attribute("head", lambda _: nn.LazyLinear(Model.n_token))),
    "quantized": ("Model: head is quantized", lambda: torch.ao.quantization.quantize_dynamic(Model(), {nn.Linear})),
    "scripted": ("Linear: it is scripted or traced by torch.jit", lambda: torch.jit.script(nn.Linear(2, 2))),
    "lock": (r"Model: it cannot be copied: TypeError \(.*lock", attribute("lock", lambda model: threading.Lock())),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_module_without_a_copy_is_refused_by_its_cause(kind: str) -> None:
    message, make = REFUSED[kind]
    with pytest.raises(ExportError, match=message) as caught:
        module_source(make())
    assert "\n" not in str(caught.value)
