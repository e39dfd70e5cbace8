"""The operators of rule `band` on rings: PyTorch against the bodies, and both forms against each other.

`tests/architectures/test_lsh_band.py` compares the PyTorch forms with the definition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, library

from tests.helpers.lone_node import lone_node
from xlexport.ops import lsh_attention, lsh_few_attention, lsh_few_attention_plan

TOLERANCE = 5e-6  # float32, other order of sums


@dataclass(frozen=True)
class Case:
    """Sizes and counters of one step; `position` has one entry for each batch row."""

    S: int = 5
    C: int = 31
    W: int = 3
    n_buckets: int = 4
    offset: int = 11
    window: int | None = None
    rounds: int = 2
    position: tuple[int, ...] = (1000,)
    H: int = 3
    R: int = 2
    d: int = 6

    def inputs(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the inputs of `lsh_attention`, and those of `lsh_few_attention`."""
        random = torch.Generator().manual_seed(0)
        B = len(self.position)
        key, value = torch.randn(2, B, self.H, self.C, self.d, generator=random).unbind()
        ids = torch.randint(self.n_buckets, (B, self.H, self.R, self.C), generator=random, dtype=torch.int32)
        length = torch.rand(B, self.H, self.S, generator=random) + 1
        own = (self.offset + torch.arange(self.S)) % self.C
        window = self.C - self.S + 1 if self.window is None else self.window
        reach = [torch.tensor(part) for part in (list(self.position), [self.offset], [window])]
        rounds = torch.tensor([self.rounds])
        priority = lsh_few_attention_plan(torch.zeros(B, self.S), ids, *reach)
        query = key[:, :, own] * length.unsqueeze(3)
        own_value = value[:, :, own]
        long = (key, value, ids, length, own_value, *reach, rounds)
        return long, (key, value, ids, query, ids[..., own], own_value, *reach, rounds, priority)


CASES = [
    Case(),
    Case(S=1),
    Case(S=1, offset=30, position=(4,)),
    Case(S=31, C=60, position=(0, 0)),  # a segment longer than the memory
    Case(position=(0, 7, 300), offset=10**12 + 28),  # a batch, of which a row has begun; the new rows wrap
    Case(offset=-5, window=9),
    Case(window=1),  # nothing in reach
    Case(rounds=0),
    Case(rounds=1, W=1),
    Case(W=50, n_buckets=1),
    Case(H=1, R=4, rounds=4, d=1, n_buckets=2, position=(20, 3)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bodies_against_torch_and_both_forms(case: Case) -> None:
    long, few = case.inputs()
    wanted = [tensor.numpy() for tensor in lsh_attention(*long, case.W, case.n_buckets)]
    body = lone_node("LSHAttention", 9, 2, chunk_length=case.W, n_buckets=case.n_buckets)
    few_body = lone_node("LSHFewAttention", 11, 2, chunk_length=case.W)
    results = [
        body(*(tensor.numpy() for tensor in long)),
        [tensor.numpy() for tensor in lsh_few_attention(*few, case.W)],
        few_body(*(tensor.numpy() for tensor in few)),
    ]
    for attended, overflow in results:
        assert np.abs(attended - wanted[0]).max() < TOLERANCE
        assert np.array_equal(overflow, wanted[1])
        assert overflow.dtype == np.int64
    alone = case.window == 1 or case.rounds == 0
    assert np.array_equal(wanted[0], long[4].numpy()) == alone  # own values


@pytest.mark.parametrize("case", CASES, ids=str)
def test_plan_body_against_torch(case: Case) -> None:
    _, few = case.inputs()
    tokens = torch.zeros(len(case.position), case.S, dtype=torch.int64)
    body = lone_node("LSHFewAttentionPlan", 5, 1)
    (found,) = body(*(tensor.numpy() for tensor in (tokens, few[2], *few[6:9])))
    assert found.dtype == np.int32
    assert np.array_equal(found, few[-1].numpy())


def test_operators_are_what_torch_expects() -> None:
    """Check that operators have no aliases or mutations, and right shapes for tensors without content."""
    checks = ("test_schema", "test_faketensor")
    case = CASES[4]
    long, few = case.inputs()
    library.opcheck(torch.ops.xlexport.lsh_attention.default, (*long, case.W, case.n_buckets), test_utils=checks)
    library.opcheck(torch.ops.xlexport.lsh_few_attention.default, (*few, case.W), test_utils=checks)
    library.opcheck(
        torch.ops.xlexport.lsh_few_attention_plan.default,
        (torch.zeros(3, case.S), few[2], *few[6:9]),
        test_utils=checks,
    )
