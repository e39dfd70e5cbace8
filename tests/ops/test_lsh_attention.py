"""The operator of rule `band` on rings: PyTorch against the bodies, and both forms against each other.

`tests/families/reformer/test_lsh_band.py` compares the PyTorch forms with the definition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

from tests.helpers.lone_node import lone_model, lone_node
from xlexport.ops import lsh_attention, lsh_few_attention

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

    def inputs(self) -> tuple[Tensor, ...]:
        """Return the inputs of `lsh_attention`."""
        random = torch.Generator().manual_seed(0)
        B = len(self.position)
        key, value = torch.randn(2, B, self.H, self.C, self.d, generator=random).unbind()
        ids = torch.randint(self.n_buckets, (B, self.H, self.R, self.C), generator=random, dtype=torch.int32)
        length = torch.rand(B, self.H, self.S, generator=random) + 1
        own = (self.offset + torch.arange(self.S)) % self.C
        window = self.C - self.S + 1 if self.window is None else self.window
        reach = [torch.tensor(part) for part in (list(self.position), [self.offset], [window])]
        rest = (torch.tensor([self.rounds]), torch.tensor([self.S, self.C]))
        return key, value, ids, length, value[:, :, own], *reach, *rest


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
    inputs = case.inputs()
    arrays = [tensor.numpy() for tensor in inputs]
    wanted = [tensor.numpy() for tensor in lsh_attention(*inputs, case.W, case.n_buckets)]
    body, few_body = (
        lone_node(name, 10, 2, chunk_length=case.W, n_buckets=case.n_buckets)
        for name in ("LSHAttention", "LSHFewAttention")
    )
    few = [tensor.numpy() for tensor in lsh_few_attention(*inputs, case.W, case.n_buckets)]
    for attended, overflow in (body(*arrays), few, few_body(*arrays)):
        assert np.abs(attended - wanted[0]).max() < TOLERANCE
        assert np.array_equal(overflow, wanted[1])
        assert overflow.dtype == np.int64
    alone = case.window == 1 or case.rounds == 0
    assert np.array_equal(wanted[0], arrays[4]) == alone  # own values


def test_each_body_has_a_name_of_its_own() -> None:
    arrays, attributes = [tensor.numpy() for tensor in CASES[0].inputs()], {"chunk_length": 3, "n_buckets": 4}
    bodies = {"LSHAttention": {"LSHSort", "LSHBandAttention", "LSHGather"}, "LSHFewAttention": {"LSHGather"}}
    for name, inside in bodies.items():
        model = onnx.load_from_string(lone_model(name, arrays, 2, **attributes))
        assert [node.op_type for node in model.graph.node] == [name]
        assert {function.name for function in model.functions} == {name, *inside}
