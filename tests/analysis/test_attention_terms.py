"""The terms of attention scores by distance against section 3.3, key by key."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.helpers.tiny import tiny_model
from xlexport.analysis.attention import attention_by_distance, attention_terms
from xlexport.errors import XlexportError
from xltraining.layers.sinusoids import sinusoids
from xltraining.transformer_xl import TransformerXLLayer
from xltraining.transformer_xl.encodings import RelativeAttention

IDS = np.random.default_rng(3).integers(0, 20, 45)


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, {"pre_lnorm": True, "clamp_len": 9}], ids=str)
def test_terms_against_the_formula(changes: dict[str, Any]) -> None:
    model = tiny_model(**changes)
    config, S = model.config, 8
    H, h, D, M = config.n_head, config.d_head, config.d_model, config.mem_len
    report = attention_terms(model, IDS, segment_len=S)
    warmup = math.ceil(M / S) * S
    assert (report.tokens, report.mean["a"].shape) == (len(IDS) - warmup, (config.n_layer, H, M + 1))

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
    expected = {term: np.zeros((config.n_layer, H, M + 1)) for term in "abd"}
    for number, hidden, before in seen:
        attention = cast(RelativeAttention, cast(TransformerXLLayer, model.layers[number]).attention)
        rows = torch.cat([before, hidden])
        rows = attention.norm(rows) if config.pre_lnorm else rows
        query, key, _ = (attention.qkv.weight @ rows.T).T.view(-1, 3, H, h).unbind(1)
        for i in range(len(hidden)):
            for distance in range(M + 1):
                clamped = min(distance, config.clamp_len) if config.clamp_len > 0 else distance
                R = (attention.position.weight @ sinusoids(torch.tensor([clamped]), D)[0]).view(H, h)
                for n in range(H):
                    at = number, n, distance
                    expected["a"][at] += float(query[M + i, n] @ key[M + i - distance, n]) / math.sqrt(h)
                    expected["b"][at] += float(query[M + i, n] @ R[n]) / math.sqrt(h)
                    expected["d"][at] += float(attention.position_bias[n] @ R[n]) / math.sqrt(h)
    for term, sums in expected.items():
        np.testing.assert_allclose(report.mean[term], sums / report.tokens, atol=1e-5)
    heads = report.to_dict()["heads"]
    assert [(head["layer"], head["head"]) for head in heads] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(heads[0]["b"]) == M + 1


def test_terms_of_another_encoding_are_refused() -> None:
    with pytest.raises(XlexportError, match="those of encoding relative, but the model has shaw"):
        attention_terms(tiny_model(encoding="shaw"), IDS, segment_len=8)
    with pytest.raises(XlexportError, match="the memory is full only after 24"):
        attention_terms(tiny_model(), IDS[:20], segment_len=8)


def test_attention_of_absolute_places_ends_with_the_part() -> None:
    report = attention_by_distance(tiny_model(encoding="learned", mem_len=0), IDS, segment_len=4)
    assert report.mean.shape == (2, 2, 8)
    np.testing.assert_allclose(report.mean.sum(axis=2), 1.0, atol=1e-6)
