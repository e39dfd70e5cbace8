"""Rule `paper` of the step graphs against its definition as loops; `convert` compares graphs with eager models."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.training.test_lsh import in_two_chunks, united
from xlexport.families.reformer.attention import attend_by_paper
from xltraining.reformer.lsh import normalised_keys

B, H, R, D_HEAD = 2, 2, 3, 8
# Float32 sums in another order: the largest observed difference is 2e-6, of numbers up to 4.
TOLERANCE = 1e-5
LENGTHS = (1, 2, 4, 5, 6, 9, 10, 11, 37, 60)
CHUNK = 5


def given(T: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw a document of T tokens: keys, values, lengths of queries, and bucket ids."""
    draw = torch.Generator().manual_seed(T)
    query, value = 3 * torch.randn(B, H, T, D_HEAD, generator=draw), torch.randn(B, H, T, D_HEAD, generator=draw)
    key = normalised_keys(query)
    return key, value, query.norm(dim=3) / key.norm(dim=3), torch.randint(0, 6, (B, H, R, T), generator=draw)


def defined(key: Tensor, value: Tensor, length: Tensor, buckets: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the rule by its definition, in float64."""
    query, value = length.double()[..., None] * key.double(), value.double()
    found, overflow = torch.zeros_like(value), torch.zeros(B, value.shape[2], dtype=torch.int64)
    for b in range(B):
        for h in range(H):
            covered, missed = in_two_chunks(buckets[b, h], CHUNK)
            found[b, h] = united(query[b, h], value[b, h], covered)
            overflow[b] += torch.tensor(missed)
    return found, overflow


@pytest.mark.parametrize("T", LENGTHS)
def test_operators_against_the_definition(T: int) -> None:
    document = given(T)
    expected, expected_overflow = defined(*document)
    found, overflow = attend_by_paper(*document, CHUNK)
    assert (found - expected).abs().max() <= TOLERANCE
    assert torch.equal(overflow, expected_overflow)
    assert T < 37 or overflow.any()
