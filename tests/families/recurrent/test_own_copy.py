"""Copies of users' modules compute what the modules compute in evaluation mode, or are refused in one line."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao.quantization import quantize_dynamic
from torch.nn import functional

from xlexport.errors import ExportError
from xlexport.families.recurrent.export_errors import exported
from xlexport.families.recurrent.source import module_source
from xlexport.families.recurrent.step import RecurrentStep

D = 8
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated")  # old weight norm, quantization and TorchScript


class WeightDrop(nn.Module):
    """The weight drop of AWD-LSTM: each call sets a plain tensor that it computes from a parameter."""

    def __init__(self, rnn: nn.LSTM) -> None:
        super().__init__()
        weight = rnn._parameters.pop("weight_hh_l0")
        assert weight is not None
        self.rnn, self.raw = rnn, nn.Parameter(weight.data)
        self.drop()

    def drop(self) -> None:
        self.rnn.weight_hh_l0 = functional.dropout(self.raw, 0.5, self.training)

    def forward(self, *inputs: Any) -> Any:
        self.drop()
        return self.rnn(*inputs)


class Model(nn.Module):
    n_token = 11

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.word, self.head = nn.Embedding(self.n_token, D), nn.Linear(D, self.n_token)
        self.rnn: Any = nn.LSTM(D, D, batch_first=True)
        self.dropout = nn.Dropout(0.5)

    def first_state(self) -> dict[str, Tensor]:
        return {name: torch.zeros(1, D) for name in "hc"}

    def segment(self, tokens: Tensor, state: Mapping[str, Tensor]) -> Any:
        h, c = (state[name].transpose(0, 1).contiguous() for name in "hc")
        rows, (h, c) = self.rnn(self.dropout(self.word(tokens)), (h, c))
        return self.head(rows), {"h": h.transpose(0, 1), "c": c.transpose(0, 1)}


def weight_norm() -> Model:
    model = Model()
    torch.nn.utils.weight_norm(model.rnn, "weight_hh_l0")
    model.rnn.weight_hh_l0_g.data.mul_(3)  # as `load_state_dict` does, which does not call the hook
    return model


def weight_drop() -> Model:
    model = Model()
    model.rnn = WeightDrop(model.rnn)
    model.rnn.raw.data.mul_(3)
    return model


def cached() -> Model:
    model = Model()
    model.cache = {"table": [model.head.weight * 2]}  # type: ignore[assignment]
    return model


def with_attribute(make: Callable[[Model], tuple[str, Any]]) -> Callable[[], Model]:
    def model() -> Model:
        model = Model()
        setattr(model, *make(model))
        return model

    return model


class Doubled(Model):
    """A subclass of torch.nn.LSTM that changes its input."""

    def __init__(self) -> None:
        super().__init__()

        class Inner(nn.LSTM):
            def forward(self, x: Tensor, state: Any = None) -> Any:  # type: ignore[override]
                return super().forward(2 * x, state)

        self.rnn = Inner(D, D, batch_first=True)


def hooked() -> Model:
    model = Model()
    torch.nn.utils.spectral_norm(model.head)
    model.head.register_forward_pre_hook(lambda *_: setattr(model.head, "bias", model.head.bias))
    return model


RIGHT: dict[str, Callable[[], Any]] = {
    "old weight norm": weight_norm,
    "weight drop": weight_drop,
    "cache with gradients": cached,
    "hook with a closure, old spectral norm": hooked,
    "compiled": lambda: torch.compile(Model(), backend="eager"),
    "compiled method": with_attribute(lambda model: ("segment", torch.compile(model.segment, backend="eager"))),
    "compiled part": with_attribute(lambda model: ("rnn", torch.compile(model.rnn, backend="eager"))),
    "closure": with_attribute(lambda model: ("segment", lambda tokens, state: Model.segment(model, tokens, state))),
    "subclass of torch.nn.LSTM": Doubled,
    "data parallel": lambda: nn.DataParallel(Model()),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_copy_computes_the_module_in_evaluation_mode(kind: str) -> None:
    model = RIGHT[kind]()  # in training mode
    before = {name: value.clone() for name, value in model.state_dict().items()}
    source = module_source(model)
    assert source.config["model"] in ("Model", "Doubled") and model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    tokens, plain = torch.arange(6).reshape(2, 3), getattr(model, "module", model).eval()
    copy = source.build_model()
    with torch.no_grad():
        expected, _ = plain.segment(tokens, copy.first_memory(2))
        logits, _ = copy(tokens)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6)
        graph = exported(RecurrentStep(copy).model, "segment")  # with operators in place of torch.nn.LSTM
        logits, *_ = graph(tokens, [*copy.first_memory(2).values()])
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6)


REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {
    "float16": (r"Model: its weights are float16, and xlexport needs float32\. Call", lambda: Model().half()),
    "float64": (r"Model: its weights are float64, and xlexport needs float32\. Call", lambda: Model().double()),
    "meta": (r"Model: word.weight has a shape, but no numbers", lambda: Model().to("meta")),
    "lazy": (
        r"Model: head.weight has no shape before the first call",
        with_attribute(lambda model: ("head", nn.LazyLinear(model.n_token))),
    ),
    "quantized": (
        r"Model: head is quantized \(Linear\)",
        lambda: quantize_dynamic(Model(), {nn.Linear}),
    ),
    "scripted": (r"Linear: it is scripted or traced by torch\.jit", lambda: torch.jit.script(nn.Linear(2, 2))),
    "lock": (r"Model: lock cannot be copied: TypeError \(", with_attribute(lambda model: ("lock", threading.Lock()))),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_module_without_a_copy_is_refused_by_its_cause(kind: str) -> None:
    message, make = REFUSED[kind]
    with pytest.raises(ExportError, match=message) as caught:
        module_source(make())
    assert "\n" not in str(caught.value) and caught.value.hint
