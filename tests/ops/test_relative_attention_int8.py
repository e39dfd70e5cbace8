"""Relative attention over rings of integers: PyTorch, the body, and the operator for float32 on the same rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, library

from tests.helpers.lone_node import lone_node
from tests.ops.test_relative_attention import CASES, Case
from xlexport.ops import relative_attention, relative_attention_int8

NEAR = 0.02  # of the largest value: the body rounds weights to 7 bits

int8_body = lone_node("RelativeAttentionInt8", 12, 5)


def rounded(rows: Tensor, largest: int = 127) -> tuple[Tensor, Tensor]:
    """Return integers and scales of rows, computed in NumPy."""
    array = rows.numpy()
    scale = np.abs(array).max(axis=-1) / np.float32(largest)
    scale[scale == 0] = 1
    integers = np.clip(np.rint(array / scale[..., None]), -largest, largest).astype(np.int8)
    return torch.from_numpy(integers), torch.from_numpy(scale)


def int8_inputs(case: Case) -> tuple[Tensor, ...]:
    qkv, u, v, key, value, *rest = case.inputs()
    factor = case.d**-0.5  # as in a model: scores near 1, so that a rounded query changes them little
    qkv[:, :, : case.H * case.d] *= factor
    return qkv, u * factor, v * factor, *rounded(key), *rounded(value), *rest


@pytest.mark.parametrize("case", CASES, ids=str)
def test_torch_and_body_against_float_attention_on_rounded_rows(case: Case) -> None:
    inputs = int8_inputs(case)
    before = [tensor.clone() for tensor in inputs]
    made = relative_attention_int8(*inputs)
    by_body = int8_body(*(tensor.numpy() for tensor in inputs))

    # The new rows are those of the rings after the step, so float attention on them has the rounding of rows alone.
    key, key_scale, value, value_scale = made[1:]
    (B, S, _), (H, _, d) = inputs[0].shape, inputs[1].shape
    slots = torch.remainder(inputs[8] + torch.arange(S), case.C)
    rings = [key * key_scale.unsqueeze(3), value * value_scale.unsqueeze(3)]
    rows = inputs[0].view(B, S, 3, H, d).clone()
    rows[:, :, 1], rows[:, :, 2] = (ring[:, :, slots].transpose(1, 2) for ring in rings)
    query = rows[:, :, 0].transpose(1, 2)
    integers, scale = rounded(query + inputs[1], 63)
    content_bias = integers * scale.unsqueeze(3) - query
    given = (rows.view(B, S, 3 * H * d), content_bias, inputs[2], *rings, *inputs[7:])
    wanted, _, _ = relative_attention(*given)
    largest = float(rings[1].abs().max())
    assert (made[0] - wanted).abs().max() <= 1e-5
    assert np.abs(by_body[0] - wanted.numpy()).max() <= NEAR * largest
    for found, ring in zip(by_body[1:], made[1:], strict=True):
        assert np.array_equal(found, ring.numpy())
    new_key, new_scale = rounded(inputs[0].view(B, S, 3, H, d)[:, :, 1].transpose(1, 2))
    assert torch.equal(key[:, :, slots], new_key)
    assert torch.equal(key_scale[:, :, slots], new_scale)
    assert all(map(torch.equal, inputs, before))


def test_a_row_of_zeros_has_the_scale_one() -> None:
    inputs = int8_inputs(Case())
    inputs[0][0, 0, -Case().d :] = 0.0  # the value of the last head
    made = relative_attention_int8(*inputs)
    assert made[4][0, -1, Case().offset] == 1.0
    assert not made[3][0, -1, Case().offset].any()


def test_operator_is_what_torch_expects() -> None:
    library.opcheck(
        relative_attention_int8,
        int8_inputs(Case(length=(3, 0))),
        test_utils=("test_schema", "test_faketensor"),
    )
