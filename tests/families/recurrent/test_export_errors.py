"""What torch refuses in a user's module is explained in one line by the user's line, the cause and the remedy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

from xlexport.export.tracing import quiet
from xlexport.families.recurrent.export_errors import explain

Stage = Callable[["Model", Tensor, Tensor], Tensor]
FIXED, DECIDES = "the code fixes the size of a batch or of a segment", "Python decides by the value of a tensor"


class Model(nn.Module):
    """Embeddings, a stage that torch may refuse, and a head."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.word, self.cell, self.head, self.stage = nn.Embedding(7, 4), nn.GRUCell(4, 4), nn.Linear(4, 7), stage

    def first_state(self) -> dict[str, Tensor]:
        return {"h": torch.zeros(4)}

    def segment(self, tokens: Tensor, state: dict[str, Tensor]) -> Any:
        x = self.stage(self, self.word(tokens), state["h"])
        return self.head(x), {"h": x[:, -1]}

    forward = segment


def scanned(step: Stage) -> Stage:
    return lambda model, x, h: scan(lambda h, x: (step(model, x, h),) * 2, h, x.transpose(0, 1))[1].transpose(0, 1)


def own_class(model: Model, x: Tensor, h: Tensor) -> Tensor:
    class Cache: ...

    return x + h


def into_self(model: Model, x: Tensor, h: Tensor) -> Tensor:
    model.last = x
    return x + h


STAGES: list[tuple[Stage, str]] = [
    (lambda model, x, h: torch.stack([model.cell(token, h) for token in x.unbind(1)], dim=1), FIXED),
    (lambda model, x, h: torch.tensor([[n / 2] for n in range(x.shape[1])]) * x, FIXED),
    (lambda model, x, h: x.reshape(3, -1, 4), FIXED),
    (lambda model, x, h: 2 * x if x.shape[1] > 4 else x, FIXED),
    (lambda model, x, h: x if x.sum() > 0 else 2 * x, DECIDES),
    (lambda model, x, h: x[:, : range(int(h.sum().item()))[-1]], DECIDES),
    (lambda model, x, h: torch.from_numpy(x.detach().numpy()), "numpy reads a tensor"),
    (lambda model, x, h: model.cell(x if x.sum() > 0 else h, h), DECIDES),
    (own_class, "the method defines a class"),
    (lambda model, x, h: model.cell(x, h.add_(x)), "the code writes in place, or into self"),
    (into_self, "the code writes in place, or into self"),
]
SCANNED = STAGES[7:]


@pytest.mark.parametrize(("stage", "cause"), STAGES)
def test_refusal_names_line_and_cause(stage: Stage, cause: str, capfd: pytest.CaptureFixture[str]) -> None:
    model = Model(scanned(stage) if (stage, cause) in SCANNED else stage)
    message, hint = explain(RuntimeError("the exporter's own"), model)
    file, line, text = message.split(":")
    assert (file, text, hint[-1]) == ("test_export_errors.py", f" {cause}.", ".")
    if stage is not STAGES[9][0]:  # torch notices a write into a carried tensor only after the body has run
        assert int(line) == stage.__code__.co_firstlineno + (stage in (own_class, into_self))
    assert capfd.readouterr() == ("", "")


@pytest.mark.full
def test_operator_that_onnx_lacks_is_named() -> None:
    model = Model(lambda model, x, h: x @ torch.linalg.qr(model.cell.weight_hh[:4])[0]).eval()
    with quiet(), pytest.raises(torch.onnx.OnnxExporterError) as caught:
        torch.onnx.export(model, (torch.ones(2, 3).long(),), kwargs={"state": {"h": torch.ones(2, 4)}}, dynamo=True)
    assert re.fullmatch(
        r"test_\w+\.py:\d+: ONNX has no operator for aten\.linalg_qr\.", explain(caught.value, model)[0]
    )


def test_other_errors_keep_their_first_line() -> None:
    message, hint = explain(RuntimeError("axis 7\nmore"), Model(lambda model, x, h: x.cumsum(dim=1)))
    assert (message, hint) == (f"Model: torch {torch.__version__} cannot export it (axis 7).", hint)
