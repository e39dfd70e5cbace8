"""The step twin with rings of keys and values against the eager model with hidden states, over many segments.

`tests/oracles/test_eager_and_twin.py` compares the twins of many more models with Hugging Face, on the smallest rings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.tiny import RingDriver, cut, tiny_model
from xlexport.families.step_module import TOP_K
from xlexport.families.transformer_xl.attention import SlicedAttention
from xlexport.families.transformer_xl.step import TransformerXLStep, project_memory
from xltraining.transformer_xl import TransformerXL

LOG_PROB_TOLERANCE = 2e-5  # nats
MEMORY_TOLERANCE = 1e-5
MIXED_LENGTHS = (16, 1, 7, 50, 1, 1, 16, 7, 50, 50, 7, 1, 16, 50)  # around a ring of 70 slots more than three times


def random_ids(length: int, n_token: int = 20, seed: int = 1) -> Tensor:
    return torch.randint(n_token, (length,), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def walk(model: TransformerXL, driver: RingDriver, segments: list[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Walk one document in both; return the largest differences of log-probabilities and of memories."""
    memory, log_prob_difference, memory_difference = None, 0.0, 0.0
    for tokens, targets in segments:
        hidden, memory = model(tokens, memory)
        made = driver.run(tokens, targets)
        difference = (made["log_prob"] - model.log_probs(hidden, targets)).abs().max()
        log_prob_difference = max(log_prob_difference, float(difference))
        carried = dict(project_memory(model, memory))
        assert carried.keys() == driver.rings.keys()
        for name, rows in carried.items():
            ring = driver.by_age(name)
            assert ring.shape == rows[0].shape
            memory_difference = max(memory_difference, float((ring - rows[0]).abs().max()))
    return log_prob_difference, memory_difference


def check(model: TransformerXL, lengths: Sequence[int] = MIXED_LENGTHS, **options: Any) -> None:
    """Walk a document of segments of these lengths around a ring more than three times, and compare."""
    driver = RingDriver(TransformerXLStep(model), **options)
    begin = driver.offset
    segments = cut(random_ids(1 + sum(lengths), model.config.n_token), lengths)
    log_prob, memory = walk(model, driver, segments)
    assert driver.offset - begin > 3 * driver.capacity
    assert log_prob <= LOG_PROB_TOLERANCE
    assert memory <= MEMORY_TOLERANCE


MODELS: list[dict[str, Any]] = [
    {},
    {"clamp_len": 11},  # rows that are far, and hidden while the memory fills
    {"pre_lnorm": True, "first_memory": "zeros", "untie_r": False, "clamp_len": 11, "same_length": True},
    {"n_head": 3, "d_head": 1},
    {"n_head": 1, "d_head": 12, "n_layer": 1},
    {"n_layer": 5, "mem_len": 1, "same_length": True},
    {"mem_len": 1},
    {"d_model": 2, "tie_weight": False, "layer_norm_epsilon": 1e-3},
    {"n_token": 1, "clamp_len": 1},
]


@pytest.mark.parametrize("changes", MODELS, ids=str)
def test_step_against_eager_over_mixed_segments(changes: dict[str, Any]) -> None:
    check(tiny_model(**changes))


@pytest.mark.parametrize("clamp_len", [-1, 11])
@pytest.mark.parametrize("first_memory", ["empty", "zeros"])
def test_step_of_custom_operators_against_eager(
    first_memory: str, clamp_len: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the operators' PyTorch form, which ONNX graphs are traced with and no other step uses."""
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    monkeypatch.setattr(SlicedAttention, "by_slot", None)  # the plain form, which must not run
    check(tiny_model(first_memory=first_memory, clamp_len=clamp_len))


@pytest.mark.parametrize("offset", [-1, -69, 71, 10**12 + 1, 2**62, -(2**62)])
def test_offset_may_be_any_number(offset: int) -> None:
    check(tiny_model(same_length=True), offset=offset)


@torch.no_grad()
def test_detail_of_a_vocabulary_smaller_than_the_list() -> None:
    model = tiny_model(n_token=TOP_K - 4)
    ids = random_ids(17, TOP_K - 4)[None]
    outputs = RingDriver(TransformerXLStep(model)).run(ids[:, :-1], ids[:, 1:])
    best = model.logits(model(ids[:, :-1])[0]).log_softmax(dim=2).sort(dim=2, descending=True)
    assert torch.equal(outputs["top_ids"], best.indices)
    torch.testing.assert_close(outputs["top_log_probs"], best.values, rtol=0, atol=1e-5)
    assert torch.equal(outputs["rank"], 1 + (best.indices == ids[:, 1:, None]).int().argmax(dim=2))


@pytest.mark.parametrize(("clamp_len", "near"), [(-1, 40), (0, 40), (1, 11), (9, 19), (29, 39), (30, 40), (400, 40)])
def test_only_distances_that_differ_have_positional_keys(clamp_len: int, near: int) -> None:
    """Check the number of keys: clamp_len for a step's last query, and 10 more for the first, one per spare slot."""
    step = TransformerXLStep(tiny_model())
    keys = step.positions(*(torch.tensor([number]) for number in (40, 30, clamp_len)))
    assert {key.shape[2] for key in keys} == {near + 1}
