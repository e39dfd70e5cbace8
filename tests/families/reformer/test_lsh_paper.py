"""Rule `paper` of the step graphs against its definition as loops: PyTorch operators, and the exported graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.helpers.lone_step import LoneStep, export_lone
from tests.training.test_lsh import in_two_chunks, united
from xlexport.families import StepTensor
from xlexport.families.reformer.attention import attend_by_paper
from xlexport.ops import DOMAIN
from xltraining.reformer.lsh import normalised_keys

B, H, R, D_HEAD = 2, 2, 3, 8
# Float32 sums in another order: the largest observed difference is 2e-6, of numbers up to 4.
TOLERANCE = 1e-5
LENGTHS = (1, 2, 4, 5, 6, 9, 10, 11, 37, 60)
CHUNK = 5


def given(T: int, count: int = 6) -> dict[str, Tensor]:
    """Draw a document of T tokens: keys, values, lengths of queries, and bucket ids."""
    draw = torch.Generator().manual_seed(T)
    query, value = 3 * torch.randn(B, H, T, D_HEAD, generator=draw), torch.randn(B, H, T, D_HEAD, generator=draw)
    key = normalised_keys(query)
    length = query.norm(dim=3) / key.norm(dim=3)
    return {
        "key": key,
        "value": value,
        "length": length,
        "buckets": torch.randint(0, count, (B, H, R, T), generator=draw),
    }


def attended(key: Tensor, value: Tensor, length: Tensor, buckets: Tensor) -> tuple[Tensor, Tensor]:
    return attend_by_paper(key, value, length, buckets, CHUNK)


def defined(document: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Compute the rule by its definition, in float64."""
    key, value = document["key"].double(), document["value"].double()
    query = document["length"].double()[..., None] * key
    found, overflow = torch.zeros_like(value), torch.zeros(B, value.shape[2], dtype=torch.int64)
    for b in range(B):
        for h in range(H):
            covered, missed = in_two_chunks(document["buckets"][b, h], CHUNK)
            found[b, h] = united(query[b, h], value[b, h], covered)
            overflow[b] += torch.tensor(missed)
    return found, overflow


@pytest.mark.parametrize("T", LENGTHS)
def test_operators_against_the_definition(T: int) -> None:
    document = given(T)
    expected, expected_overflow = defined(document)
    key, value, length, buckets = document.values()
    found, overflow = attended(key, value, length, buckets)
    assert (found - expected).abs().max() <= TOLERANCE
    assert torch.equal(overflow, expected_overflow)
    assert T < 37 or overflow.any()


@pytest.mark.full
def test_exported_against_the_definition(tmp_path: Path) -> None:
    heads, tokens = ("batch", H, "segment", D_HEAD), ("batch", H, "segment")
    inputs = [
        StepTensor("key", "float32", heads),
        StepTensor("value", "float32", heads),
        StepTensor("length", "float32", tokens),
        StepTensor("buckets", "int64", ("batch", H, R, "segment")),
    ]
    outputs = [StepTensor("attended", "float32", heads), StepTensor("overflow", "int64", ("batch", "segment"))]
    step = LoneStep(attended, inputs, outputs, [*given(23).values()])
    model, run = export_lone(step, tmp_path)
    assert [node.op_type for node in model.graph.node if node.domain == DOMAIN] == ["LSHSort"]  # LSHGather is in loops
    for T in LENGTHS:
        document = given(T)
        expected, expected_overflow = defined(document)
        found, overflow = run(*document.values())
        assert (torch.from_numpy(found) - expected).abs().max() <= TOLERANCE, T
        assert (overflow == expected_overflow.numpy()).all(), T
