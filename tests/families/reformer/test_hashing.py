"""Bucket ids of the step graphs against their definition."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.helpers.lone_step import LoneStep, export_lone
from tests.helpers.tiers import thinned
from xlexport.families import StepTensor
from xlexport.families.reformer.attention import hash_buckets

FACTORS = [(64,), (2,), (8, 16), (4, 2, 6)]
H, R, D_HEAD = 3, 4, 16


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Return small integers, whose products are exact in any order and often equal."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


def by_definition(query_key: Tensor, rotations: Tensor, n_buckets: tuple[int, ...]) -> Tensor:
    """Compute for each factor argmax([x, -x]), the first factor least significant: (B, H, R, S)."""
    projected = torch.einsum("bhsd,hrdk->bhrsk", query_key, rotations)
    buckets, scale = torch.zeros(projected.shape[:-1], dtype=torch.int64), 1
    for factor, x in zip(n_buckets, projected.split([factor // 2 for factor in n_buckets], dim=-1), strict=True):
        both = torch.cat([x, -x], dim=-1)
        first = (both == both.amax(dim=-1, keepdim=True)).int().argmax(dim=-1)  # the first 1 in a row of zeros and ones
        buckets, scale = buckets + scale * first, scale * factor
    return buckets


@pytest.mark.parametrize("n_buckets", FACTORS)
def test_buckets_against_definition(n_buckets: tuple[int, ...]) -> None:
    query_key, rotations = draw(2, H, 500, D_HEAD), draw(H, R, D_HEAD, sum(n_buckets) // 2, seed=1)
    query_key[0, 0, 0] = 0  # all entries equal
    found = hash_buckets(query_key, rotations, n_buckets)
    assert torch.equal(found, by_definition(query_key, rotations, n_buckets))
    assert len(found.unique()) > np.prod(n_buckets) / 2


def test_ties_occur_and_the_first_entry_wins() -> None:
    rotation = torch.eye(4).view(1, 1, 4, 4)
    rows = torch.tensor([[1, 0, 1, 0], [0, -2, 0, 2], [-1, -1, 0, 0], [0, 0, 0, 0.0]]).view(1, 1, 4, 4)
    assert hash_buckets(rows, rotation, (8,)).flatten().tolist() == [0, 3, 4, 0]


@pytest.mark.parametrize("n_buckets", thinned(FACTORS[1:3], FACTORS[1:2]))
@pytest.mark.full
def test_exported_buckets_against_definition(n_buckets: tuple[int, ...], tmp_path: Path) -> None:
    rotations = draw(H, R, D_HEAD, sum(n_buckets) // 2, seed=1)
    step = LoneStep(
        lambda query_key, rotations: hash_buckets(query_key, rotations, n_buckets),
        [StepTensor("query_key", "float32", ("batch", H, "segment", D_HEAD))],
        [StepTensor("buckets", "int64", ("batch", H, R, "segment"))],
        [torch.zeros(2, H, 5, D_HEAD)],
        rotations,
    )
    model, run = export_lone(step, tmp_path)
    operators = [node.op_type for node in model.graph.node]
    assert operators.count("ArgMax") == R * len(n_buckets)  # one for each round and factor, over half the width
    for B, S in itertools.product((1, 3), (1, 2, 200)):
        query_key = draw(B, H, S, D_HEAD, seed=S)
        assert np.array_equal(run(query_key)[0], by_definition(query_key, rotations, n_buckets).numpy())
