"""The encodings of positions against their formulas, in float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.definitions import Ours, log_probs_by_definition
from tests.helpers.tiny import tiny_model
from xltraining.checkpoint import load_checkpoint, save_checkpoint
from xltraining.errors import DataError
from xltraining.transformer_xl import TransformerXL, TransformerXLConfig

ROUNDING = 1e-12  # float64: sums of other order
RECURRENT: dict[str, dict[str, Any]] = {
    "relative": {"encoding": "relative"},
    "relative-pre": {"encoding": "relative", "pre_lnorm": True},
    "relative-clamped": {"encoding": "relative", "clamp_len": 4},
    "relative-pre-clamped": {"encoding": "relative", "clamp_len": 4, "pre_lnorm": True},
    "relative-same-length": {"encoding": "relative", "same_length": True},
    "relative-same-length-short-pre": {"encoding": "relative", "same_length": True, "mem_len": 3, "pre_lnorm": True},
    "relative-shared-biases": {"encoding": "relative", "untie_r": False, "d_head": 4},
    "relative-alone": {"encoding": "relative", "mem_len": 0},
    "shaw": {"encoding": "shaw"},
    "shaw-pre": {"encoding": "shaw", "pre_lnorm": True},
    "shaw-clamped": {"encoding": "shaw", "clamp_len": 4},
    "shaw-few-distances": {"encoding": "shaw", "max_klen": 5, "clamp_len": 9},
    "shaw-same-length": {"encoding": "shaw", "same_length": True, "mem_len": 6},
    "shaw-two-terms": {"encoding": "shaw", "shaw_biases": False},
    "shaw-two-terms-pre-clamped": {"encoding": "shaw", "shaw_biases": False, "pre_lnorm": True, "clamp_len": 4},
    "shaw-alone": {"encoding": "shaw", "mem_len": 0},
}
ABSOLUTE: dict[str, dict[str, Any]] = {
    "sinusoidal": {"encoding": "sinusoidal", "mem_len": 0},
    "sinusoidal-pre-clamped": {"encoding": "sinusoidal", "mem_len": 0, "pre_lnorm": True, "clamp_len": 3},
    "learned": {"encoding": "learned", "mem_len": 0},
    "learned-pre-more-places": {"encoding": "learned", "mem_len": 0, "pre_lnorm": True, "max_klen": 11},
}


def walked(model: TransformerXL, ids: torch.Tensor, lengths: list[int]) -> np.ndarray:
    """Return the model's log-probabilities of ids[1:], read in segments with carried memory."""
    memory, parts, start = None, [], 0
    for length in lengths:
        memory = model.memory_before(memory, length)
        hidden, memory = model(ids[None, start : start + length], memory)
        parts.append(model.log_probs(hidden, ids[None, start + 1 : start + length + 1])[0])
        start += length
    return torch.cat(parts).numpy()


def definition_differs_by(changes: dict[str, Any], lengths: list[int]) -> float:
    model = tiny_model(**changes).double()
    ids = torch.randint(20, (1 + sum(lengths),), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        found = walked(model, ids, lengths)
    expected = log_probs_by_definition(Ours(model.config, model.state_dict()), ids, lengths)
    return float(np.abs(found - expected).max())


@pytest.mark.parametrize("lengths", [[8, 8, 3, 8, 1], [1] * 28], ids=["segments", "tokens"])
@pytest.mark.parametrize("name", RECURRENT)
def test_encodings_of_distances_against_their_formulas(name: str, lengths: list[int]) -> None:
    assert definition_differs_by(RECURRENT[name], lengths) < ROUNDING


@pytest.mark.parametrize("lengths", [[8, 8, 8], [3, 4, 1, 8, 1, 1, 6, 5]], ids=["whole parts", "steps"])
@pytest.mark.parametrize("name", ABSOLUTE)
def test_encodings_of_places_against_their_formulas(name: str, lengths: list[int]) -> None:
    assert definition_differs_by(ABSOLUTE[name], lengths) < ROUNDING


@torch.no_grad()
@pytest.mark.parametrize("mem_len", [3, 40])
def test_another_memory_length_keeps_the_rows_of_distances(mem_len: int) -> None:
    model = tiny_model(encoding="shaw").double()
    evaluated = replace(model.config, mem_len=mem_len, max_klen=model.config.n_embedded)
    ids = torch.randint(20, (51,), generator=torch.Generator().manual_seed(6))
    found = walked(model.with_evaluation(mem_len=mem_len), ids, [8] * 6 + [2])
    expected = log_probs_by_definition(Ours(evaluated, model.state_dict()), ids, [8] * 6 + [2])
    assert np.abs(found - expected).max() < ROUNDING


def test_tokens_beyond_the_last_place_are_refused() -> None:
    model = tiny_model(encoding="learned", mem_len=0)
    ids = torch.zeros(1, 9, dtype=torch.int64)
    with pytest.raises(DataError, match="9 tokens exceed the 8 places of encoding learned"):
        model(ids)
    _, memory = model(ids[:, :6])
    assert model.memory_before(memory, 2) is memory
    assert model.memory_before(memory, 3) is None


def test_every_weight_of_every_encoding_gets_a_gradient() -> None:
    for changes in (*RECURRENT.values(), *ABSOLUTE.values()):
        model = tiny_model(**{**changes, "max_klen": None}).train()
        ids = torch.randint(20, (2, 9), generator=torch.Generator().manual_seed(1))
        hidden, _ = model(ids[:, :8])
        model.loss(hidden, ids[:, 1:]).backward()
        unused = {name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()}
        assert unused == set()


def test_checkpoints_name_an_encoding_only_if_it_is_not_the_first(tmp_path: Path) -> None:
    config = TransformerXLConfig(encoding="learned", mem_len=0, tgt_len=8, max_klen=9, d_model=8, n_token=5)
    save_checkpoint(tmp_path / "checkpoint.pt", config, TransformerXL(config).state_dict())
    assert load_checkpoint(tmp_path / "checkpoint.pt").config == config
    assert not {"encoding", "max_klen", "variational", "dropinp", "dropemb"} & TransformerXLConfig().to_dict().keys()
