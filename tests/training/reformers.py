"""A small Reformer, and its computation written as loops over a whole document."""

import math
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.helpers.weights import random_model
from tests.training.test_lsh import covered_keys, in_two_chunks, naive_bucket
from xltraining.reformer import LSHTrace, Reformer, ReformerConfig, ReformerMemory
from xltraining.reformer.attention import LocalAttention, SeparateAttention, SharedAttention
from xltraining.reformer.lsh import normalised_keys
from xltraining.reformer.model import ReversibleLayer

SMALL = ReformerConfig(
    n_token=20,
    d_model=12,
    n_head=2,
    d_head=6,
    d_inner=16,
    attn_layers=("local", "lsh", "full", "lsh"),
    n_hashes=2,
    n_buckets=(4,),
    chunk_length=5,
    local_chunk_length=6,
    tgt_len=32,
    mem_len=21,
    axial_shape=(8, 16),
    axial_dims=(4, 8),
    max_positions=128,
    dropout=0.0,
)


def make(seed: int = 0, **changes: Any) -> Reformer:
    """Make a small model in float64 and evaluation mode in which every weight counts: none is zero or tiny."""
    return random_model(lambda: Reformer(replace(SMALL, **changes)).double(), seed)


def tokens_of(B: int, S: int, seed: int = 1) -> Tensor:
    return torch.randint(0, 20, (B, S), generator=torch.Generator().manual_seed(seed))


def layers_of(model: Reformer) -> list[ReversibleLayer]:
    return [layer for layer in model.layers if isinstance(layer, ReversibleLayer)]


def walk(model: Reformer, tokens: Tensor, lengths: list[int]) -> tuple[Tensor, list[Tensor], ReformerMemory]:
    """Run segments; return hidden states (B,S,d_output), each LSH layer's overflow (B,S), and the last memory."""
    memory, hidden, overflows = None, [], []
    for segment in tokens.split(lengths, dim=1):
        trace: list[LSHTrace] = []
        part, memory = model(segment, memory, trace=trace)
        hidden.append(part)
        overflows.append([entry.overflow for entry in trace])
    assert memory is not None
    return torch.cat(hidden, dim=1), [torch.cat(parts, dim=1) for parts in zip(*overflows, strict=True)], memory


def naive_positions(model: Reformer, T: int) -> Tensor:
    """Return position embeddings (T,D), one position at a time."""
    config, weights, rows = model.config, list(model.positions.weights), []
    for p in range(T):
        if config.position in ("axial", "axial_sum"):
            cells = [weights[0][p // config.axial_shape[1]], weights[1][p % config.axial_shape[1]]]
            rows.append(torch.cat(cells) if config.position == "axial" else cells[0] + cells[1])
        elif config.position == "absolute":
            rows.append(weights[0][p])
        elif config.position == "sinusoid":
            turns = [p / 10000 ** (i / config.d_model) for i in range(0, config.d_model, 2)]
            rows.append(torch.tensor([*map(math.sin, turns), *map(math.cos, turns)], dtype=torch.float64))
        else:
            rows.append(torch.zeros(config.d_model, dtype=torch.float64))
    return torch.stack(rows)


def naive_turn(model: Reformer, vectors: Tensor) -> Tensor:
    """Apply rotary positions to vectors (T,h) as complex numbers."""
    if model.config.position != "rotary":
        return vectors
    T, h = vectors.shape
    turns = torch.tensor([[p / 10000 ** (i / h) for i in range(0, h, 2)] for p in range(T)], dtype=torch.float64)
    numbers = torch.view_as_complex(vectors.reshape(T, h // 2, 2)) * torch.polar(torch.ones_like(turns), turns)
    return torch.view_as_real(numbers).flatten(1)


def naive_head(model: Reformer, layer: int, n: int, normed: Tensor, overflow: Tensor) -> Tensor:
    """Return the attended values (T,h) of one head; add to overflow (T,)."""
    config, attention, T = model.config, layers_of(model)[layer].attention, len(normed)
    h = config.d_head
    part = slice(n * h, (n + 1) * h)
    value = normed @ attention.value.weight[part].T
    if isinstance(attention, LocalAttention):
        query = naive_turn(model, normed @ attention.query.weight[part].T)
        key = naive_turn(model, normed @ attention.key.weight[part].T)
        c, before = config.local_chunk_length, config.local_chunks_before
        keys = [[j for j in range(i + 1) if j // c >= i // c - before] for i in range(T)]
        scale = h**-0.5
    elif isinstance(attention, SeparateAttention):
        query, key = normed @ attention.query.weight[part].T, normed @ attention.key.weight[part].T
        keys = [list(range(max(0, i - config.mem_len), i + 1)) for i in range(T)]
        scale = h**-0.5
    else:
        assert isinstance(attention, SharedAttention)
        raw = normed @ attention.query_key.weight[part].T
        query = naive_turn(model, raw)
        key, scale = normalised_keys(query), h**-0.5 if config.scale_scores else 1.0
        if attention.hashes:
            rounds, hashed = attention.rotations[n], query if config.hash_turned else raw  # rounds: (R,h,columns)
            buckets = torch.tensor(
                [[naive_bucket(row, rotation, config.n_buckets) for row in hashed] for rotation in rounds]
            )
            if config.rule == "paper":
                sets, missed = in_two_chunks(buckets, config.chunk_length)
                found = [(set().union(*of_rounds), over) for of_rounds, over in zip(sets, missed, strict=True)]
            else:
                found = [covered_keys(buckets, i, config.chunk_length, config.mem_len) for i in range(T)]
            keys = [sorted(covered) for covered, _ in found]
            overflow += torch.tensor([over for _, over in found])
        else:
            reach = T if config.whole_document else config.mem_len
            keys = [list(range(max(0, i - reach), i)) for i in range(T)]
    rows = []
    for i in range(T):
        chosen = keys[i] or [i]
        rows.append((key[chosen] @ query[i] * scale).softmax(0) @ value[chosen])
    return torch.stack(rows)


def naive_forward(model: Reformer, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Run rule `band` or `paper` on a document (T,); return hidden (T,d_output) and each LSH layer's overflow (T,)."""
    config, T = model.config, len(tokens)
    first = second = model.word_emb.weight[tokens] + naive_positions(model, T)
    overflows = []
    activation = {"relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}[
        config.activation
    ]
    for index, layer in enumerate(layers_of(model)):
        attention, forward = layer.attention, layer.feed_forward
        overflow = torch.zeros(T, dtype=torch.int64)
        normed = attention.norm(second)
        heads = [naive_head(model, index, n, normed, overflow) for n in range(config.n_head)]
        if config.attn_layers[index] == "lsh":
            overflows.append(overflow)
        first = first + attention.output(torch.cat(heads, dim=1))
        ordinary = config.residual == "ordinary"
        second = (first if ordinary else second) + forward.outer(activation(forward.inner(forward.norm(first))))
        first = second if ordinary else first
    hidden = torch.cat([first, second], dim=1) if config.streams == "concat" else (first + second) / 2
    return model.norm(hidden), overflows


VARIANTS: list[dict[str, Any]] = [
    {"n_hashes": 3, "n_buckets": (2, 4), "chunk_length": 2, "mem_len": 50},
    {"position": "rotary", "max_positions": 0, "scale_scores": True, "streams": "mean", "activation": "gelu"},
    {"position": "rotary", "max_positions": 0, "hash_turned": True},
    {"position": "sinusoid", "max_positions": 0, "attention_bias": True, "activation": "gelu_tanh"},
    {"position": "absolute", "local_chunks_before": 0, "n_hashes": 1},
    {"position": "axial_sum", "axial_dims": (12, 12), "local_chunks_before": 2, "mem_len": 1, "chunk_length": 64},
    {"attn_layers": ("separate", "lsh", "full"), "residual": "ordinary", "full_chunk": 4, "streams": "mean"},
]
