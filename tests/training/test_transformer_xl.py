"""The model against definitions written as plain loops."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.training.conftest import SMALL
from xltraining.errors import ConfigError
from xltraining.transformer_xl import TransformerXL, TransformerXLLayer

MakeModel = Callable[..., TransformerXL]


def tokens_of(B: int, S: int, seed: int = 1) -> Tensor:
    return torch.randint(0, 20, (B, S), generator=torch.Generator().manual_seed(seed))


def walk(model: TransformerXL, tokens: Tensor, segments: list[int]) -> tuple[Tensor, list[Tensor]]:
    """Run segments of the given lengths; return hidden states (B,S,D) and the last memory."""
    memory, parts = model.first_memory(len(tokens)), []
    for segment in tokens.split(segments, dim=1):
        hidden, memory = model(segment, memory)
        parts.append(hidden)
    return torch.cat(parts, dim=1), memory


def naive_sinusoid(distance: int, d_model: int) -> Tensor:
    angles = [distance / 10000 ** (i / d_model) for i in range(0, d_model, 2)]
    return torch.tensor([math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles])


def naive_forward(model: TransformerXL, tokens: Tensor, memory: list[Tensor]) -> Tensor:
    """Compute Section 3.3 of the paper for one row, key by key: (S,D) from (S,) and n_layer x (M,D)."""
    config = model.config
    H, h, D, M, S = config.n_head, config.d_head, config.d_model, len(memory[0]), len(tokens)
    hidden = model.word_emb.clusters[0].table[tokens] * D**0.5
    for layer, layer_memory in zip(model.layers, memory, strict=True):
        assert isinstance(layer, TransformerXLLayer)
        attention, feed_forward = layer.attention, layer.feed_forward
        context = torch.cat([layer_memory, hidden])
        inputs = attention.norm(context) if config.pre_lnorm else context
        W_q, W_k, W_v = attention.qkv.weight.split(H * h)
        rows = []
        for i in range(S):
            heads = []
            for n in range(H):
                part = slice(n * h, (n + 1) * h)
                u, v = attention.content_bias[n], attention.position_bias[n]
                query = W_q[part] @ inputs[M + i]
                scores, values = [], []
                for j in range(M + S):
                    distance = i + M - j
                    if distance < 0 or (config.window is not None and distance >= config.window):
                        continue
                    clamped = min(distance, config.clamp_len) if config.clamp_len > 0 else distance
                    R = attention.position.weight[part] @ naive_sinusoid(clamped, D)
                    scores.append(((query + u) @ (W_k[part] @ inputs[j]) + (query + v) @ R) / math.sqrt(h))
                    values.append(W_v[part] @ inputs[j])
                heads.append(torch.stack(scores).softmax(0) @ torch.stack(values))
            rows.append(attention.output.weight @ torch.cat(heads))
        hidden = hidden + torch.stack(rows)
        hidden = hidden if config.pre_lnorm else attention.norm(hidden)
        inputs = feed_forward.norm(hidden) if config.pre_lnorm else hidden
        hidden = hidden + feed_forward.outer(F.relu(feed_forward.inner(inputs)))
        hidden = hidden if config.pre_lnorm else feed_forward.norm(hidden)
    return hidden


@pytest.mark.parametrize("M", [0, 3, 11])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pre_lnorm": True},
        {"clamp_len": 4},
        {"same_length": True},
        {"same_length": True, "mem_len": 3, "pre_lnorm": True},
        {"untie_r": False, "d_head": 4},
    ],
    ids=str,
)
@torch.no_grad()
def test_against_the_paper_written_as_loops(make_model: MakeModel, changes: dict[str, object], M: int) -> None:
    model = make_model(**changes)
    tokens = tokens_of(2, 5)
    memory = [torch.randn(2, M, 12, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    hidden, _ = model(tokens, memory)
    for row in range(2):
        expected = naive_forward(model, tokens[row], [layer[row] for layer in memory])
        torch.testing.assert_close(hidden[row], expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("segments", [[1] * 30, [7, 7, 7, 9], [8, 1, 21]])
@torch.no_grad()
def test_segmentation_does_not_matter_with_same_length(make_model: MakeModel, segments: list[int]) -> None:
    model = make_model(same_length=True, mem_len=6)
    tokens = tokens_of(2, 30)
    torch.testing.assert_close(walk(model, tokens, segments)[0], model(tokens)[0], atol=1e-5, rtol=1e-5)


def test_gradient_stops_at_the_memory(make_model: MakeModel) -> None:
    model = make_model()
    memory = [layer.requires_grad_() for layer in [torch.randn(1, 4, 12) for _ in range(3)]]
    hidden, new_memory = model(tokens_of(1, 6), memory)
    assert hidden.requires_grad
    assert not any(layer.requires_grad for layer in new_memory)


@torch.no_grad()
def test_evaluation_settings_leave_the_model_as_it_was(make_model: MakeModel) -> None:
    model = make_model()
    tokens = tokens_of(1, 30)
    before = walk(model, tokens, [10] * 3)[0]
    longer = model.with_evaluation(mem_len=20, clamp_len=5, same_length=True)
    assert (longer.config.mem_len, longer.config.clamp_len, longer.config.window) == (20, 5, 20)
    assert longer.word_emb is model.word_emb
    expected = make_model(mem_len=20, clamp_len=5, same_length=True)
    assert torch.equal(walk(longer, tokens, [10] * 3)[0], walk(expected, tokens, [10] * 3)[0])
    assert torch.equal(walk(model, tokens, [10] * 3)[0], before)
    with pytest.raises(ConfigError):
        model.with_evaluation(mem_len=-1)


def test_dropout_acts_in_training_only() -> None:
    model = TransformerXL(replace(SMALL, dropout=0.5, dropatt=0.5))
    tokens = tokens_of(1, 6)
    assert not torch.equal(model.train()(tokens)[0], model(tokens)[0])
    assert torch.equal(model.eval()(tokens)[0], model(tokens)[0])
