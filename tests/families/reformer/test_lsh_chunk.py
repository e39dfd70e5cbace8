"""LSH attention under rule `chunk` against Hugging Face's; tests/oracles/test_reformer_exported.py has its graphs."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import ReformerConfig as HuggingFaceConfig
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

from tests.helpers.tiers import thinned
from xlexport.families.reformer.attention import ChunkLSH, hash_buckets
from xltraining.reformer import ReformerConfig

B, H, D_HEAD = 3, 2, 16
SEED = 3
# Float32 sums in another order: the largest observed difference is 2e-6, of numbers up to 4. For a query that sees only
# itself, Hugging Face has errors of 1e-2, so other arithmetic would show.
TOLERANCE = 1e-5

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one round": {"n_hashes": 1},
    "four rounds, factors": {"n_hashes": 4, "n_buckets": (4, 6)},
    "longer local chunks": {"chunk_length": 32, "local_chunk_length": 128},
    "shorter local chunks": {"n_hashes": 3, "local_chunk_length": 32},
    "chunks of no common length": {"chunk_length": 64, "local_chunk_length": 48},
    "no chunk before": {"chunks_before": 0},
    "three chunks before": {"n_hashes": 1, "chunk_length": 16, "chunks_before": 3},
}
LENGTHS = (1, 5, 16, 17, 31, 32, 33, 48, 49, 63, 64, 65, 96, 97, 100, 128, 129, 500, 512)


@functools.cache
def configuration(name: str) -> ReformerConfig:
    changes: dict[str, Any] = {"n_hashes": 2, "n_buckets": (8,), "chunk_length": 64, "chunks_before": 1}
    changes |= CONFIGURATIONS[name]
    return ReformerConfig(
        d_model=H * D_HEAD,
        n_head=H,
        d_head=D_HEAD,
        attn_layers=("lsh", "local") if "local_chunk_length" in changes else ("lsh",),
        rule="chunk",
        position="sinusoid",
        max_positions=0,
        **changes,
    )


@functools.cache
def huggingface(name: str) -> LSHSelfAttention:
    config = configuration(name)
    layer = LSHSelfAttention(
        HuggingFaceConfig(
            attention_head_size=D_HEAD,
            num_attention_heads=H,
            hidden_size=H * D_HEAD,
            attn_layers=list(config.attn_layers),
            num_hashes=config.n_hashes,
            num_buckets=list(config.n_buckets) if len(config.n_buckets) > 1 else config.n_buckets[0],
            lsh_attn_chunk_length=config.chunk_length,
            lsh_num_chunks_before=config.chunks_before,
            lsh_num_chunks_after=0,
            local_attn_chunk_length=config.local_chunk_length,
            hash_seed=SEED,
            is_decoder=True,
        ),
        0,
    )
    for linear, seed in ((layer.query_key, 1), (layer.value, 2)):
        linear.weight.data = 1.5 / (H * D_HEAD) ** 0.5 * draw(H * D_HEAD, H * D_HEAD, seed=seed)
    return layer.eval()


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rows(T: int) -> Tensor:
    """Hidden states (B, T, D)."""
    return draw(B, T, H * D_HEAD, seed=T)


@torch.no_grad()
def wanted(name: str, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the output (B, T, D) and buckets (B, H, R, T) of Hugging Face's layer inside its model, which pads."""
    config, T = configuration(name), hidden.shape[1]
    local = [config.local_chunk_length] if "local" in config.attn_layers else []
    padding = -T % config.chunk_multiple if min([config.chunk_length, *local]) < T else 0
    mask = torch.cat([torch.ones(B, T), torch.zeros(B, padding)], dim=1) if padding else None
    made = huggingface(name)(torch.cat([hidden, rows(padding)], dim=1), attention_mask=mask)
    buckets = made.buckets[..., :T] % (config.buckets + bool(padding)) if made.buckets is not None else None
    return made.hidden_states[:, :T], buckets


@torch.no_grad()
def given(name: str, hidden: Tensor, buckets: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return query-keys and values (B, H, T, d_head), and Hugging Face's buckets (any buckets if it hashes nothing)."""
    layer, config = huggingface(name), configuration(name)
    query_key, value = (
        linear(hidden).view(B, -1, H, D_HEAD).transpose(1, 2) for linear in (layer.query_key, layer.value)
    )
    if buckets is None:
        buckets = (draw(B, H, config.n_hashes, hidden.shape[1], seed=5) * 100).long() % config.buckets
    return query_key, value, buckets


def merged(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(2)  # (B, T, H·d_head)


@pytest.mark.parametrize("T", thinned(LENGTHS, LENGTHS[1::2]))
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_eager_against_huggingface(name: str, T: int) -> None:
    expected, buckets = wanted(name, rows(T))
    found = ChunkLSH(configuration(name))(*given(name, rows(T), buckets))
    assert (merged(found) - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("name", ["plain", "four rounds, factors"])
def test_buckets_against_huggingface(name: str) -> None:
    """Allow different buckets only if the two largest entries are almost equal, as another order of sums decides."""
    config = configuration(name)
    _, expected = wanted(name, rows(2048))
    assert expected is not None
    query_key, _, _ = given(name, rows(2048), expected)
    torch.manual_seed(SEED)
    rotations = torch.randn(H, D_HEAD, config.n_hashes, config.rotation_columns).transpose(1, 2)
    differ = hash_buckets(query_key, rotations, config.n_buckets) != expected
    assert differ.float().mean() <= 1e-3
    for factor, columns in zip(config.n_buckets, rotations.split([f // 2 for f in config.n_buckets], 3), strict=True):
        best = (query_key.unsqueeze(2) @ columns).abs().topk(min(2, factor // 2)).values[differ]
        assert len(best) == 0 or (best[:, 0] - best[:, -1] <= 1e-4 * best[:, 0]).any()
