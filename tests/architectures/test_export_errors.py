"""What torch refuses in a user's module becomes one line with the user's file, line and remedy."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

from xlexport.architectures.recurrent.export_errors import check_export, explain
from xlexport.errors import ExportError
from xlexport.export.tracing import quiet

FIXED = "the code fixes the size of a batch or of a segment"
Body = Callable[["Model", Tensor, Tensor], Tensor]


class Model(nn.Module):
    """Embeddings, a stage that torch refuses, and a head."""

    def __init__(self, stage: Body) -> None:
        super().__init__()
        self.word, self.cell, self.head, self.stage = nn.Embedding(7, 4), nn.GRUCell(4, 4), nn.Linear(4, 7), stage

    def first_state(self) -> dict[str, Tensor]:
        return {"h": torch.zeros(4)}

    def forward(self, tokens: Tensor, state: dict[str, Tensor]) -> Any:
        x = self.stage(self, self.word(tokens), state["h"])
        return self.head(x), {"h": x[:, -1]}

    segment = forward


def scanned(step: Body) -> Body:
    return lambda model, x, h: scan(lambda h, x: (step(model, x, h),) * 2, h, x.transpose(0, 1))[1].transpose(0, 1)


def loop(model: Model, x: Tensor, h: Tensor) -> Tensor:
    return torch.stack([model.cell(token, h) for token in x.unbind(1)], dim=1)


def mask_of_numbers(model: Model, x: Tensor, h: Tensor) -> Tensor:
    return torch.tensor([[1.0] * n + [0.0] * (x.shape[1] - n) for n in range(x.shape[1])]) @ x


def fixed_batch(model: Model, x: Tensor, h: Tensor) -> Tensor:
    return x.reshape(3, -1, 4)


def long_segments(model: Model, x: Tensor, h: Tensor) -> Tensor:
    return 2 * x if x.shape[1] > 4 else x


def branch(model: Model, x: Tensor, h: Tensor) -> Tensor:
    return x if x.sum() > 0 else 2 * x


def item(model: Model, x: Tensor, h: Tensor) -> Tensor:
    return x * range(int(h.sum().item()))[-1]


def numpy(model: Model, x: Tensor, h: Tensor) -> Tensor:
    return torch.from_numpy(x.detach().numpy())


def no_operator(model: Model, x: Tensor, h: Tensor) -> Tensor:
    return x @ torch.linalg.qr(model.cell.weight_hh[:4])[0]


def own_class(model: Model, x: Tensor, h: Tensor) -> Tensor:
    class Cache:
        """Not at the top of the file."""

    return x + h


def into_self(model: Model, x: Tensor, h: Tensor) -> Tensor:
    model.last = x
    return x + h


@pytest.mark.parametrize(
    ("stage", "wrap", "cause"),
    [
        (loop, None, FIXED),
        (mask_of_numbers, None, FIXED),
        (fixed_batch, None, FIXED),
        (long_segments, None, FIXED),
        (branch, None, "Python decides by the value of a tensor"),
        (item, None, "Python decides by the value of a tensor"),
        (numpy, None, "numpy reads a tensor"),
        (branch, scanned, "Python decides by the value of a tensor"),
        (own_class, scanned, "the method defines a class"),
        (into_self, scanned, "the code writes in place, or into self"),
    ],
)
def test_refusal_names_line_and_cause(
    stage: Body, wrap: Callable[[Body], Body] | None, cause: str, capfd: pytest.CaptureFixture[str]
) -> None:
    model = Model(wrap(stage) if wrap else stage)
    with pytest.raises(ExportError, match=rf"^test_export_errors\.py:\d+: {cause}\. ") as caught:
        check_export(model)
    lines, start = inspect.getsourcelines(stage)
    assert start < int(str(caught.value).split(":")[1]) < start + len(lines)
    assert capfd.readouterr() == ("", "")


def test_operator_that_onnx_lacks_is_named() -> None:
    model = Model(no_operator).eval()
    check_export(model)
    with quiet(), pytest.raises(torch.onnx.OnnxExporterError) as caught:
        torch.onnx.export(model, (torch.ones(2, 3).long(),), kwargs={"state": {"h": torch.ones(2, 4)}}, dynamo=True)
    assert explain(caught.value, model)[0] == "Model: ONNX has no operator for aten.linalg_qr."
