"""Tiny models in which every weight has an effect, and a driver for their steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.weights import random_model
from xlexport.families import architecture, traced_outputs
from xlexport.families.transformer_xl.step import TransformerXLStep
from xltraining.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from xltraining.reformer import Reformer, ReformerConfig
from xltraining.transformer_xl import TransformerXL, TransformerXLConfig

TINY = TransformerXLConfig(
    n_token=20, n_layer=2, n_head=2, d_model=12, d_head=5, d_inner=16, tgt_len=8, mem_len=20, dropout=0.0
)


BAND = ReformerConfig(
    n_token=30,
    d_model=16,
    n_head=2,
    d_head=6,
    d_inner=20,
    attn_layers=("local", "lsh", "full", "lsh"),
    n_hashes=2,
    n_buckets=(4, 2),
    chunk_length=4,
    local_chunk_length=3,
    tgt_len=8,
    mem_len=24,
    axial_shape=(32, 32),
    axial_dims=(6, 10),
    max_positions=1024,
    dropout=0.0,
)
CHUNK = replace(
    BAND,
    attn_layers=("lsh", "local"),
    rule="chunk",
    n_buckets=(8,),
    local_chunk_length=2,
    axial_shape=(8, 16),
    max_positions=128,
)


PAPER = replace(BAND, attn_layers=("lsh", "local", "full"), rule="paper", axial_shape=(8, 16), max_positions=128)


ENCODER_DECODER = EncoderDecoderConfig(
    d_model=8,
    n_head=2,
    d_head=3,
    d_inner=10,
    n_encoder_layer=1,
    n_decoder_layer=2,
    source_len=12,
    tgt_len=9,
    dropout=0.0,
)


class RingDriver:
    """A driver that runs segments through a step in torch, as the runtime does with a graph.

    Attributes:
        offset: rows written so far; modulo the capacity, the slot of the next row.
        memory_length: (B,) rows of memory that each row may see.
    """

    def __init__(
        self,
        step: TransformerXLStep,
        batch_size: int = 1,
        capacity: int = 70,
        window: int | None = None,
        offset: int = 0,
    ) -> None:
        config = step.config
        assert capacity > config.mem_len
        self.step, self.capacity, self.offset = step, capacity, offset
        self.evaluation = architecture("transformer_xl").evaluation(config.to_dict()).choose()
        self.window = self.evaluation.window("capacity") if window is None else window
        self.first_rows = {name: row[:, None, :] for name, row in step.first_rows().items()}  # (H, 1, d_head)
        shape = (batch_size, config.n_head, capacity, config.d_head)
        self.rings = {name: row.expand(shape).clone() for name, row in self.first_rows.items()}
        self.memory_length = torch.zeros(batch_size, dtype=torch.int64)
        for row in range(batch_size):
            self.restart(row)
        with torch.no_grad():
            keys = step.positions(*(torch.tensor([n]) for n in (capacity, config.mem_len, config.clamp_len)))
        self.constants = {f"position_key_{index}": key for index, key in enumerate(keys)}

    def restart(self, row: int) -> None:
        """Begin a document in one row while the other rows continue."""
        zeros = self.evaluation.fresh_memory == "zeros"
        self.memory_length[row] = self.evaluation.most_rows if zeros else 0
        if zeros:
            for name, ring in self.rings.items():
                ring[row] = self.first_rows[name]

    def feeds(self, tokens: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return all inputs of the step for tokens and targets (B, S), by name."""
        return {
            "tokens": tokens,
            "targets": targets,
            "offset": torch.tensor([self.offset]),
            "memory_length": self.memory_length,
            "window": torch.tensor([self.window]),
            **self.rings,
            **self.constants,
            "capacity": torch.tensor([self.capacity]),
            **{name: torch.tensor([int(self.evaluation[name])]) for name in ("mem_len", "clamp_len")},
        }

    @torch.no_grad()
    def run(self, tokens: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Run one segment and update the memory; return every output of the step by name."""
        S = tokens.shape[1]
        assert self.evaluation.max_segment(self.capacity) >= S
        feeds = self.feeds(tokens, targets)
        made = self.step(*(feeds[entry.name] for entry in self.step.inputs))
        outputs = dict(zip(traced_outputs(self.step), made, strict=True))
        self.rings = {entry.input: outputs[entry.output] for entry in self.step.memory}
        self.offset += S
        self.memory_length = (self.memory_length + S).clamp(max=self.evaluation.most_rows)
        return outputs

    def by_age(self, name: str, row: int = 0) -> Tensor:
        """Return the part of a ring that `row` may see, oldest first: (H, memory_length, d_head)."""
        length = int(self.memory_length[row])
        slots = [(self.offset - length + age) % self.capacity for age in range(length)]
        return self.rings[name][row][:, slots]


def tiny_model(seed: int = 0, **changes: Any) -> TransformerXL:
    """Return a small model in eval mode whose weights are all large enough to affect the scores."""
    return random_model(lambda: TransformerXL(replace(TINY, **changes)), seed)


def tiny_reformer(config: ReformerConfig, seed: int = 0) -> Reformer:
    """Return a small Reformer, like `tiny_model`."""
    return random_model(lambda: Reformer(config), seed)


def tiny_encoder_decoder(**changes: Any) -> EncoderDecoder:
    """Return an encoder-decoder of bytes in eval mode, always with the same random weights."""
    return random_model(lambda: EncoderDecoder(replace(ENCODER_DECODER, **changes)))


def cut(ids: Tensor, lengths: Iterable[int]) -> list[tuple[Tensor, Tensor]]:
    """Cut token ids (N,) into segments of the given lengths: tokens and targets (1, S) of each."""
    segments, start = [], 0
    for length in lengths:
        segments.append((ids[None, start : start + length], ids[None, start + 1 : start + length + 1]))
        start += length
    assert start < len(ids)
    return segments


@pytest.fixture(scope="session")
def make_model() -> Callable[..., TransformerXL]:
    return tiny_model
