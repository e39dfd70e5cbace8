"""The oracle itself: it attends to the right keys, and every weight and option affects its scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.oracles.comparison import LOG_PROB_TOLERANCE, eager_difference
from tests.oracles.configurations import REPRESENTATIVES, Configuration
from tests.oracles.huggingface import Oracle
from xltraining.checkpoint import Checkpoint, build_model
from xltraining.transformer_xl import TransformerXLConfig

BASE = TransformerXLConfig(
    n_token=40,
    n_layer=2,
    n_head=2,
    d_model=24,
    d_head=5,
    d_inner=16,
    tgt_len=6,
    mem_len=9,
    clamp_len=4,
    same_length=True,
    tie_weight=False,
    d_embed=16,
    cutoffs=(10, 20),
    div_val=2,
)


def random_segments(n_token: int, batch_size: int = 2, S: int = 6, count: int = 7) -> list[tuple[Tensor, Tensor]]:
    ids = torch.randint(n_token, (batch_size, count * S + 1), generator=torch.Generator().manual_seed(5))
    return list(zip(ids[:, :-1].split(S, dim=1), ids[:, 1:].split(S, dim=1), strict=True))


@pytest.mark.parametrize("first_memory", ["empty", "zeros"])
@pytest.mark.parametrize("window_extra", [0, 1])
@pytest.mark.parametrize("same_length", [False, True])
@pytest.mark.parametrize("S", [1, 4, 6, 11])
@torch.no_grad()
@pytest.mark.full
def test_distances_that_the_oracle_attends_to(S: int, same_length: bool, window_extra: int, first_memory: Any) -> None:
    """Compare the mask with its definition, distance by distance, while the memory fills and afterwards."""
    config = replace(BASE, same_length=same_length, window_extra=window_extra, first_memory=first_memory)
    oracle = Oracle(config)
    memory = oracle.first_memory(2)
    history = config.mem_len if first_memory == "zeros" else 0
    for tokens, _ in random_segments(config.n_token, S=S, count=6):
        output = oracle.step(tokens, memory, output_attentions=True)
        memory = output.mems
        seen = output.attentions[1][0, 0] > 0  # (S, M + S)
        assert seen.shape == (S, history + S)
        for query, row in enumerate(seen.tolist()):
            distances = [history + query - key for key, attended in enumerate(row) if attended]
            limit = config.mem_len + window_extra if same_length else history + S
            assert distances[::-1] == list(range(min(history + query + 1, limit)))
        history = min(history + S, config.mem_len)
        assert [rows.shape for rows in memory] == [(history, 2, config.d_model)] * 2


def test_hugging_face_makes_the_zero_rows_itself() -> None:
    oracle = Oracle(replace(BASE, first_memory="zeros"))
    tokens, _ = random_segments(BASE.n_token)[0]
    zeros = [torch.zeros(BASE.mem_len, 2, BASE.d_model)] * BASE.n_layer
    wanted, found = oracle.step(tokens, None), oracle.step(tokens, zeros)
    assert torch.equal(wanted.prediction_scores, found.prediction_scores)
    nothing = [rows[:0] for rows in zeros]
    assert not torch.allclose(oracle.step(tokens, nothing).prediction_scores, wanted.prediction_scores, atol=1e-2)


@pytest.mark.parametrize("configuration", REPRESENTATIVES, ids=str)
def test_every_weight_shows_in_the_scores(configuration: Configuration) -> None:
    """Check by gradients that a change of any weight tensor by 1 % of its size is over tolerance."""
    oracle = Oracle(configuration.model, configuration.number)
    memory, unlikelihood = oracle.first_memory(3), torch.zeros(())
    for tokens, targets in configuration.segments(3):
        output = oracle.step(tokens, memory)
        memory = output.mems
        log_probs = output.prediction_scores.gather(2, targets.unsqueeze(2))
        signs = torch.randn(log_probs.shape, generator=torch.Generator().manual_seed(1)).sign()
        unlikelihood = unlikelihood + (signs * log_probs).sum()
    unlikelihood.backward()
    for name, parameter in oracle.model.named_parameters():
        if name in without_effect(oracle):
            continue
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
        assert (parameter.grad * parameter).abs().max() * 0.01 > LOG_PROB_TOLERANCE, name


def without_effect(oracle: Oracle) -> set[str]:
    """Return identities used instead of projections, and weights that score a cluster's only token, always 0 nats."""
    projections = ("transformer.word_emb.emb_projs", "crit.out_projs")
    names = {f"{kind}.{index}" for kind in projections for index in oracle.unprojected}
    for index, (first, end) in enumerate(oracle.config.cluster_bounds):
        if index and end - first == 1:
            names |= {f"crit.out_projs.{index}", f"crit.out_layers.{index}.weight", f"crit.out_layers.{index}.bias"}
    return names


def test_all_agree_where_nothing_differs() -> None:
    oracle = Oracle(BASE)
    difference = eager_difference(
        oracle, build_model(Checkpoint(BASE, oracle.state_dict())), random_segments(BASE.n_token)
    )
    assert difference.log_prob <= LOG_PROB_TOLERANCE / 5


@pytest.mark.parametrize(
    ("change", "base"),
    [
        ({"pre_lnorm": True}, {}),
        ({"same_length": False}, {}),
        ({"window_extra": 1}, {}),
        ({"window_extra": 1}, {"first_memory": "zeros", "pre_lnorm": True}),
        ({"mem_len": 8}, {"same_length": False}),
        ({"clamp_len": 5}, {}),
        ({"clamp_len": -1}, {}),
        ({"first_memory": "zeros"}, {}),
        ({"first_memory": "zeros"}, {"pre_lnorm": True}),
        ({"layer_norm_epsilon": 1e-3}, {}),
        ({"layer_norm_epsilon": 1e-12}, {"pre_lnorm": True}),
        ({"untie_r": False}, {}),
        ({"tie_weight": True}, {}),
        ({"tie_projs": (True, False, False)}, {}),
        ({"tie_projs": (False, False, True)}, {}),
        ({"tie_projs": (False, True, False)}, {"div_val": 1}),
        ({"cutoffs": (10, 21)}, {"div_val": 1}),
    ],
    ids=str,
)
def test_every_option_shows_in_the_scores(change: dict[str, Any], base: dict[str, Any]) -> None:
    config = replace(BASE, **base)
    oracle = Oracle(config)
    other = replace(config, **change)
    weights = moved(oracle) if "cutoffs" in change else oracle.state_dict()
    difference = eager_difference(oracle, build_model(Checkpoint(other, weights)), random_segments(config.n_token))
    assert difference.log_prob > 10 * LOG_PROB_TOLERANCE


def moved(oracle: Oracle) -> dict[str, Tensor]:
    """Return the oracle's weights with token 20 moved from the last cluster to the one before."""
    weights = oracle.state_dict()
    for name in ("word_emb.clusters.{}.table", "head.clusters.{}.weight", "head.clusters.{}.bias"):
        left, right = weights[name.format(1)], weights[name.format(2)]
        weights[name.format(1)], weights[name.format(2)] = torch.cat([left, right[:1]]), right[1:]
    return weights


def test_order_of_the_clusters_shows_in_the_scores() -> None:
    oracle = Oracle(BASE)
    weights = oracle.state_dict()
    for name in ("head.cluster_weight", "head.cluster_bias"):
        weights[name] = weights[name].flip(0)
    difference = eager_difference(oracle, build_model(Checkpoint(BASE, weights)), random_segments(BASE.n_token))
    assert difference.log_prob > 10 * LOG_PROB_TOLERANCE


def test_without_any_memory() -> None:
    config = replace(BASE, mem_len=0, same_length=False)
    oracle = Oracle(config)
    model = build_model(Checkpoint(config, oracle.state_dict()))
    difference = eager_difference(oracle, model, random_segments(config.n_token))
    assert difference.log_prob <= LOG_PROB_TOLERANCE


def test_torch_is_left_as_it_was() -> None:
    before = Tensor.type_as
    Oracle(BASE).walk(random_segments(BASE.n_token))
    assert Tensor.type_as is before
    with pytest.raises(TypeError):
        torch.zeros(1).type_as(dtype=torch.float32)  # type: ignore[call-arg]
