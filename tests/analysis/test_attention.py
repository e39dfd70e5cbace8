"""Attention by distance, and the terms of its scores, against section 3.3 of the paper, pair by pair."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.helpers.tiers import thinned
from tests.helpers.tiny import tiny_model
from xlexport.analysis.attention import (
    AttentionReport,
    attention_by_distance,
    attention_of_segment,
    attention_terms,
    require_attention,
)
from xlexport.errors import XlexportError
from xltraining.layers.sinusoids import sinusoids
from xltraining.transformer_xl import TransformerXL, TransformerXLLayer
from xltraining.transformer_xl.encodings import RelativeAttention

IDS = np.random.default_rng(3).integers(0, 20, 45)
VARIANTS: list[dict[str, Any]] = [
    {},
    {"same_length": True},
    {"same_length": True, "window_extra": 1, "pre_lnorm": True, "clamp_len": 9},
    {"first_memory": "zeros", "untie_r": False, "mem_len": 13},
]


def direct_attention(model: TransformerXL, hidden: Tensor, memory: Tensor, layer: int) -> list[list[Any]]:
    """Return for each query and head of a segment the attention by distance: {distance: weight} in float64.

    Args:
        hidden, memory: (1,S,D) and (1,M,D), the inputs of the layer.
    """
    config = model.config
    attention = cast("RelativeAttention", model.layers[layer].attention)
    H, h, D = config.n_head, config.d_head, config.d_model
    rows = torch.cat([memory, hidden], dim=1)[0]
    normed = attention.norm(rows) if config.pre_lnorm else rows
    query, key, _ = (attention.qkv.weight @ normed.T).T.double().view(-1, 3, H, h).unbind(1)
    u, v = attention.content_bias.double(), attention.position_bias.double()
    S, M = hidden.shape[1], memory.shape[1]
    window = config.window or math.inf
    found = []
    for i in range(S):
        heads = []
        for n in range(H):
            powers = {}
            for j in range(M + i + 1):
                distance = i + M - j
                if distance >= window:
                    continue
                clamped = min(distance, config.clamp_len) if config.clamp_len > 0 else distance
                position = attention.position.weight.double() @ sinusoids(torch.tensor([clamped]), D)[0].double()
                q = query[M + i, n]
                score = (q + u[n]) @ key[j, n] + (q + v[n]) @ position.view(H, h)[n]
                powers[distance] = math.exp(float(score) / math.sqrt(h))
            total = sum(powers.values())
            heads.append({distance: power / total for distance, power in powers.items()})
        found.append(heads)
    return found


@pytest.mark.parametrize("changes", thinned(VARIANTS, VARIANTS[1::2]), ids=str)
def test_against_direct_softmax(changes: dict[str, Any]) -> None:
    model = tiny_model(**changes)
    config = model.config
    S = 8
    warmup = math.ceil(config.mem_len / S) * S
    report = attention_by_distance(model, IDS, segment_len=S)
    assert report.tokens == len(IDS) - warmup

    chosen = [(1, 0), (0, 1)]
    segment = attention_of_segment(model, IDS, chosen, segment_len=S)
    last, M = len(IDS) // S * S, config.mem_len
    assert segment.first == last - M

    expected = np.zeros((config.n_layer, config.n_head, M + S))
    of_segment = np.zeros((config.n_layer, config.n_head, len(IDS) - last, M + len(IDS) - last))
    inputs: list[tuple[Tensor, Tensor]] = []
    hooks = [
        layer.attention.register_forward_pre_hook(lambda module, given: inputs.append((given[0], given[1])))
        for layer in model.layers
    ]
    memory = None
    with torch.no_grad():
        for start in range(0, len(IDS), S):
            _, memory = model(torch.from_numpy(IDS[None, start : start + S]), memory)
            for layer in range(config.n_layer):
                hidden, rows = inputs[layer]
                if start >= warmup:
                    for i, heads in enumerate(direct_attention(model, hidden, rows, layer)):
                        for n, weights in enumerate(heads):
                            for distance, weight in weights.items():
                                expected[layer, n, distance] += weight
                                if start == last:
                                    of_segment[layer, n, i, M + i - distance] = weight
            inputs.clear()
    for hook in hooks:
        hook.remove()
    expected /= report.tokens
    seen = report.mean.shape[2]
    assert seen == (config.window or config.mem_len + S)
    assert not expected[:, :, seen:].any()
    # Weights of float32 scores of about 10, which have errors of about 1e-6.
    np.testing.assert_allclose(report.mean, expected[:, :, :seen], rtol=0, atol=5e-6)
    np.testing.assert_allclose(report.mean.sum(axis=2), 1.0, rtol=0, atol=1e-6)
    assert report.mean.min() >= 0
    for (layer, head), attention in zip(chosen, segment.weights, strict=True):
        np.testing.assert_allclose(attention, of_segment[layer, head], rtol=0, atol=5e-6)


def test_too_few_tokens() -> None:
    with pytest.raises(XlexportError, match=r"has 24 tokens, but the memory is full only after 24\. Give a longer"):
        attention_by_distance(tiny_model(), IDS[:24], segment_len=8)


def test_summary_of_a_known_distribution() -> None:
    mean = np.array([[[0.5, 0.25, 0.25, 0.0], [0.0, 0.0, 0.0, 1.0]]])
    report = AttentionReport(10, 4, 3, mean)
    assert report.mean_distance.tolist() == [[0.75, 3.0]]
    assert report.within(0.5).tolist() == [[0, 3]]
    assert report.within(0.9).tolist() == [[2, 3]]
    assert report.to_dict()["heads"][0] == {
        "layer": 0,
        "head": 0,
        "mean_distance": 0.75,
        "half_within": 0,
        "most_within": 2,
        "attention": [0.5, 0.25, 0.25, 0.0],
    }


def test_reformers_are_refused() -> None:
    require_attention("transformer_xl", "x")
    with pytest.raises(XlexportError, match=r"^x: attention by .* not possible for a Reformer: its LSH .* Use a"):
        require_attention("reformer", "x")


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, {"pre_lnorm": True, "clamp_len": 9}], ids=str)
def test_terms_against_the_formula(changes: dict[str, Any]) -> None:
    model = tiny_model(**changes)
    config, S = model.config, 8
    H, h, D, M = config.n_head, config.d_head, config.d_model, config.mem_len
    report = attention_terms(model, IDS, segment_len=S)
    warmup = math.ceil(M / S) * S
    assert (report.tokens, report.mean["a"].shape) == (len(IDS) - warmup, (config.n_layer, H, M + S))

    seen: list[tuple[int, Tensor, Tensor]] = []
    for number, module in enumerate(model.layers):
        attention = cast(TransformerXLLayer, module).attention
        attention.register_forward_pre_hook(
            lambda module, inputs, number=number: seen.append((number, inputs[0][0], inputs[1][0]))
        )
    memory = None
    for start in range(0, len(IDS), S):
        if start == warmup:
            seen.clear()
        _, memory = model(torch.from_numpy(IDS[None, start : start + S]), memory)
    expected = {term: np.zeros((config.n_layer, H, M + S)) for term in "abd"}
    for number, hidden, before in seen:
        attention = cast(RelativeAttention, cast(TransformerXLLayer, model.layers[number]).attention)
        rows = torch.cat([before, hidden])
        rows = attention.norm(rows) if config.pre_lnorm else rows
        query, key, _ = (attention.qkv.weight @ rows.T).T.view(-1, 3, H, h).unbind(1)
        for i in range(len(hidden)):
            terms: dict[str, Any] = {term: np.zeros((H, M + i + 1)) for term in "abd"}
            for distance in range(M + i + 1):
                clamped = min(distance, config.clamp_len) if config.clamp_len > 0 else distance
                R = (attention.position.weight @ sinusoids(torch.tensor([clamped]), D)[0]).view(H, h)
                for n in range(H):
                    terms["a"][n, distance] = float(query[M + i, n] @ key[M + i - distance, n]) / math.sqrt(h)
                    terms["b"][n, distance] = float(query[M + i, n] @ R[n]) / math.sqrt(h)
                    terms["d"][n, distance] = float(attention.position_bias[n] @ R[n]) / math.sqrt(h)
            for term, values in terms.items():
                weights = np.exp(values) / np.exp(values).sum(axis=1, keepdims=True)
                expected[term][number, :, : M + i + 1] += weights
    for term, sums in expected.items():
        np.testing.assert_allclose(report.mean[term], sums / report.tokens, atol=1e-5)
    heads = report.to_dict()["heads"]
    assert [(head["layer"], head["head"]) for head in heads] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert math.isclose(sum(heads[0]["b"]), 1, abs_tol=1e-6)


def test_terms_of_another_encoding_are_refused() -> None:
    with pytest.raises(XlexportError, match="those of encoding relative, but the model has shaw"):
        attention_terms(tiny_model(encoding="shaw"), IDS, segment_len=8)
    with pytest.raises(XlexportError, match="the memory is full only after 24"):
        attention_terms(tiny_model(), IDS[:20], segment_len=8)


def test_attention_of_absolute_places_ends_with_the_part() -> None:
    report = attention_by_distance(tiny_model(encoding="learned", mem_len=0), IDS, segment_len=4)
    assert report.mean.shape == (2, 2, 8)
    np.testing.assert_allclose(report.mean.sum(axis=2), 1.0, atol=1e-6)
