"""The step of a model with absolute places (encodings `sinusoidal` and `learned`): content scores over a ring.

A document is read in parts of `tgt_len` tokens, after each of which the runtime begins again (`max_positions`). The
input `position` counts the tokens read of a part, and is the place of the step's first token. Rings hold the part's
earlier keys and values, so a part may be read in steps of any length. Only ordinary operators are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xlexport.architectures.ring import Ring, reach_mask
from xlexport.architectures.step import StepTensor, carried_inputs, example_of
from xlexport.architectures.transformer_xl.step import StepLayer, TransformerXLStep
from xlruntime.bundle import Feed
from xltraining.transformer_xl.encodings.absolute import AttentionByContent
from xltraining.transformer_xl.encodings.learned import LearnedAttention
from xltraining.transformer_xl.encodings.sinusoidal import SinusoidalAttention

if TYPE_CHECKING:
    from xltraining.transformer_xl import TransformerXLConfig
    from xltraining.transformer_xl.encodings.attention import Attention

__all__ = ["AbsoluteLayer", "AbsoluteStep", "PartAttention"]


class PartAttention:
    """The parts of a step's attention that all layers share."""

    def __init__(self, tokens: Tensor, memory_key: Tensor, offset: Tensor, memory_length: Tensor) -> None:
        S, C = tokens.shape[1], memory_key.shape[2]
        self.ring = Ring(S, C, offset)
        steps = torch.arange(S).view(S, 1)
        distance = self.ring.newest_first.view(1, C) + steps - (S - 1)  # (S, C), negative for tokens after the query
        self.mask = reach_mask(distance, steps, memory_length, torch.full((1,), C + 1))

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, memory_key: Tensor, memory_value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Write key and value (B, H, S, d_head) into the rings (B, H, C, d_head), and compute attention to all slots.

        Returns:
            attended (B, S, H·d_head), and the two rings with this step's rows.
        """
        memory_key = self.ring.write(memory_key, key, axis=2)
        memory_value = self.ring.write(memory_value, value, axis=2)
        weights = torch.softmax(torch.matmul(query, memory_key.transpose(2, 3)) + self.mask, dim=-1)
        return torch.matmul(weights, memory_value).transpose(1, 2).flatten(2), memory_key, memory_value


class AbsoluteLayer(StepLayer):
    """One decoder layer on ring memories, which adds places to its input if `encodings` is a table."""

    encodings: Tensor | None

    def _take(self, attention: Attention, config: TransformerXLConfig) -> None:
        assert isinstance(attention, AttentionByContent)
        self.n_head, self.d_head = config.n_head, config.d_head
        self.query = nn.Linear(config.d_model, config.n_head * config.d_head, bias=False)
        self.query.weight = nn.Parameter(attention.query.weight.detach() * self.scale)
        self.key_value = attention.key_value
        assert isinstance(attention, SinusoidalAttention | LearnedAttention)
        table = attention.encodings()
        self.register_buffer("encodings", None if table is None else table.detach().clone())  # (tgt_len, D)

    def placed(self, hidden: Tensor, places: Tensor) -> Tensor:
        """Return the layer's input (B, S, D) with its places (B, S)."""
        return hidden if self.encodings is None else hidden + F.embedding(places, self.encodings)

    def run(
        self, hidden: Tensor, memory_key: Tensor, memory_value: Tensor, attention: PartAttention
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the next hidden states from `hidden` (B, S, D), with places, and the layer's two rings."""
        B, S, _ = hidden.shape
        normed = self.attention_norm(hidden) if self.pre_lnorm else hidden
        query, key, value = (
            part.view(B, S, self.n_head, self.d_head).transpose(1, 2)  # (B, H, S, d_head)
            for part in (self.query(hidden), *self.key_value(normed).chunk(2, dim=-1))
        )
        attended, memory_key, memory_value = attention.attend(query, key, value, memory_key, memory_value)
        return self.after_attention(hidden, attended), memory_key, memory_value


class AbsoluteStep(TransformerXLStep):
    """One module that computes the outputs of all graphs of a bundle; see `TransformerXLStep`."""

    layer_class = AbsoluteLayer

    def _add_constants(self) -> None:
        """Add nothing: every layer has its table."""

    @property
    def inputs(self) -> tuple[StepTensor, ...]:
        """The inputs of `forward`, in order: see `TransformerXLStep.inputs`, and `position` above."""
        return (
            StepTensor("targets", "int64", ("batch", "segment"), Feed("targets")),
            StepTensor(
                "tokens", "int64", ("batch", "segment"), Feed("tokens")
            ),  # the last with the segment's length, for tracing
            StepTensor("offset", "int64", (1,), Feed("offset", ring="capacity")),
            StepTensor("memory_length", "int64", ("batch",), Feed("length", ring="capacity")),
            StepTensor("position", "int64", ("batch",), Feed("position")),
            *carried_inputs(self.memory),
        )

    @property
    def purposes(self) -> dict[str, tuple[StepTensor, ...]]:
        """The graphs of `TransformerXLStep`, except `positions`: places have no constants that depend on settings."""
        return {purpose: outputs for purpose, outputs in super().purposes.items() if purpose != "positions"}

    def example(self) -> tuple[Tensor, ...]:
        """Return example inputs to trace with. No free axis has size 1, because tracing would fix it."""
        return example_of(self, {"batch": 2, "segment": 5, "capacity": 19}, {})

    def _constants(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {}

    def _run_layers(self, given: Mapping[str, Tensor], fixed: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Run all layers; return the last hidden states (B, S, D) and the written rings by output name."""
        tokens, made = given["tokens"], {}
        S, limit = tokens.shape[1], self.config.tgt_len
        attention = PartAttention(tokens, given["memory_key_0"], given["offset"], given["memory_length"])
        # Padding may follow a part's last token.
        places = (given["position"].unsqueeze(1) + torch.arange(S)).clamp(max=limit - 1)  # (B, S)
        hidden = self.word_emb(tokens) * self.embedding_scale
        for index, module in enumerate(self.layers):
            layer, key, value = cast(AbsoluteLayer, module), f"memory_key_{index}", f"memory_value_{index}"
            hidden = layer.placed(hidden, places)
            hidden, made[f"new_{key}"], made[f"new_{value}"] = layer.run(hidden, given[key], given[value], attention)
        return hidden, made

    def first_rows(self) -> Mapping[str, Tensor]:
        """Return an empty mapping, because a part starts with no memory."""
        return {}

    def discard(self) -> None:
        """Release all weights, including the trained model's; neither can run afterwards."""
        super().discard()
        for buffer in self.buffers():
            buffer.data = torch.empty(0)
