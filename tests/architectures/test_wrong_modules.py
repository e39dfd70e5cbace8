"""Every wrong module is refused by an error that names its fault, and right modules pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.architectures.wrong_modules import N_TOKEN, WRONG, D, Right
from xlexport.architectures.recurrent.checks import check_module
from xlexport.errors import ExportError


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_module_is_refused_by_the_name_of_its_fault(fault: str) -> None:
    pattern, make = WRONG[fault]
    with pytest.raises(ExportError, match=pattern) as caught:
        check_module(make().eval(), N_TOKEN)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_training_mode_is_refused() -> None:
    with pytest.raises(ExportError, match=r"Right.training: the module is in training mode"):
        check_module(Right(), N_TOKEN)


@pytest.mark.parametrize("state", [[], {"h": 0.0}, {"h": torch.zeros(2, dtype=torch.float64)}])
def test_first_state_of_other_types_is_refused(state: Any) -> None:
    model = Right().eval()
    model.first_state = lambda: state  # type: ignore[method-assign]
    with pytest.raises(ExportError, match=r"^Right.first_state: the result is not a mapping of names to tensors of"):
        check_module(model, N_TOKEN)


class WithStep(Right):
    """Both methods, and a first state that is a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.randn(D))

    def first_state(self) -> Mapping[str, Tensor]:
        return {**super().first_state(), "h_1": self.first}

    def step(self, token: Tensor, state: Mapping[str, Tensor]) -> Any:
        logits, new = self.segment(token[:, None], state)
        return logits[:, 0], new


class OnlyStep(torch.nn.Module):
    """A step with states of bool, int64 and float16; the latter is right, because every cut rounds alike."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = WithStep()

    def first_state(self) -> Mapping[str, Tensor]:
        state = self.inner.first_state()
        return {**state, "h_1": state["h_1"].half(), "begun": torch.tensor(False)}

    def step(self, token: Tensor, state: Mapping[str, Tensor]) -> Any:
        logits, new = self.inner.step(token, {**state, "h_1": state["h_1"].float()})
        begun = state["begun"] | (token == 3)
        return logits + begun[:, None], {**new, "h_1": new["h_1"].half(), "begun": begun}


class Memoryless(Right):
    def first_state(self) -> Mapping[str, Tensor]:
        return {}

    def segment(self, tokens: Tensor, state: Mapping[str, Tensor]) -> Any:
        return self.head(self.word(tokens)), {}


@pytest.mark.parametrize("make", [Right, WithStep, OnlyStep, Memoryless])
def test_right_module_passes(make: Callable[[], torch.nn.Module]) -> None:
    torch.manual_seed(0)
    model, expected = make().eval(), torch.rand(1)
    torch.manual_seed(0)
    make()
    check_module(model, N_TOKEN)
    assert torch.equal(torch.rand(1), expected)  # the generator of random numbers is where it was
    check_module(model, N_TOKEN, ids=[3, 1, 4, 1, 5], lengths=(1, 2))  # a text shorter than the checks read
