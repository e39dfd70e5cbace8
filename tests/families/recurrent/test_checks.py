"""What the checks infer: a fault from float64, a state's use from data flow, and neither from rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from xlexport.errors import ExportError
from xlexport.families.recurrent.checks import check_module

State = Mapping[str, Tensor]


class Sum(nn.Module):
    """h_t = h_{t-1} / 2 + v_t, as one product of matrices, with a hook for what a test changes."""

    n_token = 11

    def __init__(self, change: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.word, self.head, self.change = nn.Embedding(self.n_token, 4), nn.Linear(4, self.n_token), change

    def first_state(self) -> State:
        return {"h": torch.zeros(4)}

    def segment(self, tokens: Tensor, state: State) -> Any:
        places = torch.arange(tokens.shape[1])  # (S,)
        weights = 0.5 ** (places[:, None] - places).clamp(min=0) * (places[:, None] >= places)  # (S, S)
        h = weights @ self.word(tokens) + 0.5 ** (places[:, None] + 1) * state["h"][:, None]
        return self.head(self.change(h)), {"h": h[:, -1]}


def rounds(x: Tensor) -> Tensor:
    """Lose digits of float32 by the number of rows, as products of matrices do by 1e-7."""
    return x + 4000 * len(x) - 4000 * len(x)


def underflows(x: Tensor) -> Tensor:
    """Divide by a decay that float32 cannot hold after 149 tokens."""
    decay = 0.5 ** torch.arange(x.shape[1])[:, None]
    return x * decay / (decay + (decay == 0))


def test_rounding_is_no_fault() -> None:
    check_module(Sum(rounds).eval(), Sum.n_token)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (underflows, r"segments of 64 and 513 tokens differ: .*; in float64 they agree, so float32 overflows"),
        (lambda x: x + 4e-4 * x.mean(dim=0), r"row 0 of a batch of 3 depends on the other rows: log-prob[^:]*$"),
    ],
)
def test_fault_is_told_from_rounding(change: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        check_module(Sum(change).eval(), Sum.n_token)
