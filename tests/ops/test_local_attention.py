"""Local attention: its definition, the operator in PyTorch and its body, and the form for few tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from tests.helpers.lone_node import lone_node
from xlexport.families.reformer.attention import LocalReach
from xlexport.ops import local_attention
from xltraining.reformer import ReformerConfig

Array = npt.NDArray[Any]
TOLERANCE = 5e-6  # float32, other order of sums


@dataclass(frozen=True)
class Case:
    """Sizes of one step; `position` has one entry for each batch row."""

    S: int
    c: int
    before: int = 1
    position: tuple[int, ...] = (0,)
    kept: int | None = None
    H: int = 3
    d: int = 6

    @property
    def rows(self) -> int:
        """Rows of keys before the step."""
        return (self.before + 1) * self.c if self.kept is None else self.kept

    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return queries, keys, values, positions and sizes."""
        random = torch.Generator().manual_seed(0)
        B = len(self.position)
        query = torch.randn(B, self.H, self.S, self.d, generator=random)
        key, value = torch.randn(2, B, self.H, self.rows + self.S, self.d, generator=random).unbind()
        return query, key, value, torch.tensor(self.position), torch.tensor([self.S, self.rows])

    def defined(self) -> Tensor:
        """Compute the rule by its definition, in float64."""
        query, key, value, *_ = (part.double() for part in self.inputs())
        out = torch.empty_like(query)
        for b, place in enumerate(self.position):
            for i in range(self.S):
                oldest = max(0, ((place + i) // self.c - self.before) * self.c, place - self.rows)
                seen = slice(oldest - place + self.rows, self.rows + i + 1)
                weights = (key[b, :, seen] @ query[b, :, i].unsqueeze(2)).softmax(dim=1)  # (H, keys, 1)
                out[b, :, i] = (weights * value[b, :, seen]).sum(dim=1)
        return out


CASES = [
    Case(S=1, c=4),
    Case(S=1, c=4, position=(11,)),
    Case(S=5, c=4, position=(3, 0, 8)),
    Case(S=16, c=4, position=(6,)),
    Case(S=13, c=4, before=0, position=(2,)),
    Case(S=13, c=4, before=3, position=(100,)),
    Case(S=3, c=1, position=(5,)),
    Case(S=9, c=20, position=(7,)),
    Case(S=21, c=5, kept=0),  # a whole document
    Case(S=6, c=5, kept=3, position=(40,)),  # fewer rows than a query could see
    Case(S=6, c=5, kept=14, position=(4,), H=1),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_torch_and_body_against_the_definition(case: Case) -> None:
    wanted, inputs = case.defined(), case.inputs()
    body = lone_node("LocalAttention", 5, 1, chunk_length=case.c, chunks_before=case.before)
    (found,) = body(*(tensor.numpy() for tensor in inputs))
    assert (local_attention(*inputs, case.c, case.before) - wanted).abs().max() < TOLERANCE
    assert np.abs(found - wanted.numpy()).max() < TOLERANCE


@pytest.mark.parametrize("case", CASES, ids=str)
def test_form_for_few_tokens_against_the_definition(case: Case) -> None:
    query, key, value, position, _ = case.inputs()
    config = ReformerConfig(local_chunk_length=case.c, local_chunks_before=case.before)
    tokens = torch.zeros(query.shape[0], case.S, dtype=torch.int64)
    attended = LocalReach(config, tokens, position, case.rows, few=True).attend(query, key, value)
    assert (attended - case.defined()).abs().max() < TOLERANCE
