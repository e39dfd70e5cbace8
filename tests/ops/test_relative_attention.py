"""The operators of relative attention: the definition, PyTorch, and bodies of standard operators."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from tests.helpers.lone_node import lone_node
from xlexport.ops import relative_attention, relative_attention_int8

Array = npt.NDArray[Any]
TOLERANCE = 5e-6  # float32, other order of sums
UNBOUNDED = 1 << 40

NEAR = 0.02  # of the largest value: the body of rings of integers rounds weights to 7 bits

attention_body = lone_node("RelativeAttention", 10, 3)
int8_body = lone_node("RelativeAttentionInt8", 12, 5)


@dataclass(frozen=True)
class Case:
    """Sizes and counters of one step; `length` has one entry for each batch row."""

    S: int = 5
    C: int = 17
    H: int = 2
    d: int = 6
    near: int = 17
    offset: int = 3
    length: tuple[int, ...] = (12,)
    window: int = UNBOUNDED

    def inputs(self, seed: int = 0) -> tuple[Tensor, ...]:
        """Return the inputs of `relative_attention`."""
        random = torch.Generator().manual_seed(seed)
        B, (S, C, H, d) = len(self.length), (self.S, self.C, self.H, self.d)
        shapes = [(B, S, 3 * H * d), (H, 1, d), (H, 1, d), (B, H, C, d), (B, H, C, d), (H, d, self.near + 1)]
        floats = [torch.randn(shape, generator=random) for shape in shapes]
        floats[-1][:, :, : 1 if self.near == C else S] = 0.0  # with fewer keys than slots, the farthest are zero
        sizes = [H, S, C, self.near]
        return (*floats, *map(torch.tensor, ([self.offset], list(self.length), [self.window], sizes)))


CASES = [
    Case(),
    Case(length=(0,)),  # empty memory
    Case(offset=14),  # the new rows wrap
    Case(offset=12),  # the newest row is in the last slot
    Case(window=1),
    Case(window=7, offset=9),
    Case(length=(12, 0, 5), offset=15),  # a batch with a row that restarted
    Case(S=1, near=4, length=(16,)),
    Case(S=1, C=1, near=1, length=(0,), offset=0),
    Case(S=17, length=(0, 0)),  # a segment as long as the ring
    Case(near=1, offset=16),
    Case(near=9, offset=8, length=(12, 3)),
    Case(near=9, offset=15, window=11),
    Case(H=1, d=1),
    Case(H=3, d=41, S=3),
    Case(offset=11 - 17 * 10**9),  # it counts modulo the capacity
    Case(H=8, d=16, S=37, C=150, near=90, offset=140, length=(113, 60)),
]


def defined(inputs: tuple[Tensor, ...]) -> tuple[Array, Array, Array]:
    """Compute the operator as docs/bundle_format.md defines it: one query, one key at a time, in float64."""
    qkv, u, v, key, value, positions, *counters = (tensor.numpy() for tensor in inputs)
    offset, length, window = int(counters[0][0]), counters[1], int(counters[2][0])
    (B, S, _), (_, H, C, d), near = qkv.shape, key.shape, positions.shape[2] - 1
    new = qkv.reshape(B, S, 3, H, d)
    key, value, attended = key.copy(), value.copy(), np.zeros((B, S, H, d))
    for i in range(S):
        key[:, :, (offset + i) % C], value[:, :, (offset + i) % C] = new[:, i, 1], new[:, i, 2]
    for b, h, i in itertools.product(range(B), range(H), range(S)):
        query, rows, scores = new[b, i, 0, h].astype(np.float64), [], []
        for age in range(C):
            slot, distance = (offset + S + age) % C, C - S + i - age
            if 0 <= distance <= min(length[b] + i, window - 1):
                position = positions[h, :, near - distance] if distance < near else 0.0
                scores.append(np.sum((query + u[h, 0]) * key[b, h, slot] + (query + v[h, 0]) * position))
                rows.append(value[b, h, slot].astype(np.float64))
        weights = np.exp(np.array(scores) - max(scores))
        attended[b, i, h] = weights @ np.array(rows) / weights.sum()
    return attended.reshape(B, S, H * d), key, value


def by_body(inputs: tuple[Tensor, ...]) -> list[Array]:
    return attention_body(*(tensor.numpy() for tensor in inputs))


def in_torch(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    made: tuple[Tensor, ...] = relative_attention(*inputs)
    return made


@pytest.mark.parametrize("case", CASES, ids=str)
def test_torch_and_body_against_the_definition(case: Case) -> None:
    inputs = case.inputs()
    before = [tensor.clone() for tensor in inputs]
    wanted = defined(inputs)
    for made in (in_torch(inputs), by_body(inputs)):
        assert np.abs(np.asarray(made[0]) - wanted[0]).max() <= TOLERANCE
        assert np.array_equal(made[1], wanted[1])
        assert np.array_equal(made[2], wanted[2])
    assert all(map(torch.equal, inputs, before))


# Rings of integers.


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
