"""The step of a model with encoding `shaw`: as `step`, but positional keys are learned and have a bias.

A bias of a distance is one more row of its key, which every query multiplies with the same number. So the keys of
`positions` have d_head + 1 rows. Only ordinary operators are used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from xlexport.architectures.transformer_xl.gathered_attention import GatheredAttention
from xlexport.architectures.transformer_xl.sliced_attention import size_of
from xlexport.architectures.transformer_xl.slot_attention import SlotAttention, StepInputs
from xlexport.architectures.transformer_xl.step import StepLayer, TransformerXLStep
from xltraining.transformer_xl.encodings.shaw import ShawAttention

if TYPE_CHECKING:
    from xltraining.transformer_xl import TransformerXLConfig
    from xltraining.transformer_xl.encodings.attention import Attention

__all__ = ["BiasedAttention", "ShawLayer", "ShawStep"]


class BiasedAttention(GatheredAttention):
    """Attention whose positional keys end in a bias."""

    def position_query(self, query: Tensor, position_bias: Tensor) -> Tensor:
        """Return the query (B, H, S, d_head) with the factor of the biases (H, 1, 1) as its last column."""
        B, H, S, _ = query.shape
        return torch.cat([query, position_bias.expand(B, H, S, 1)], dim=3)


class ShawLayer(StepLayer):
    """One decoder layer on ring memories."""

    def _take(self, attention: Attention, config: TransformerXLConfig) -> None:
        assert isinstance(attention, ShawAttention)
        self._take_projections(attention, config)
        # Queries are scaled already, biases are not.
        self.position_bias = nn.Parameter(torch.full((config.n_head, 1, 1), self.scale))
        self.distance_key, self.distance_bias = attention.distance_key, attention.distance_bias
        self.distances = len(self.distance_key)

    def keys(self) -> Tensor:
        """Return the keys of all distances with their biases, (max_klen, H, d_head + 1), largest distance first."""
        return torch.cat([self.distance_key, self.distance_bias.unsqueeze(2)], dim=2)


class ShawStep(TransformerXLStep):
    """One module that computes the outputs of all graphs of a bundle; see `TransformerXLStep`."""

    layer_class = ShawLayer

    def _add_constants(self) -> None:
        """Add nothing: keys are learned."""

    def _attention_class(self, fixed: bool) -> Callable[[StepInputs], SlotAttention]:
        return BiasedAttention

    @property
    def _position_shape(self) -> tuple[int | str, ...]:
        return (self.config.n_head, self.config.d_head + 1, "near + 1")

    def positions(self, capacity: Tensor, mem_len: Tensor, clamp_len: Tensor) -> list[Tensor]:
        """Return positional keys for distances below `near`, minus the key of the largest distance.

        The model distinguishes at most `max_klen` distances, or `clamp_len` if that is fewer. Arguments and results are
        those of `TransformerXLStep.positions`.
        """
        n = cast(ShawLayer, self.layers[0]).distances
        last = torch.where(clamp_len > 0, clamp_len.clamp(max=n), n) - 1
        near = torch.minimum(capacity, last + capacity - mem_len)
        count = size_of(near, smallest=1)
        distance = torch.arange(count, -1, -1)  # the first entry becomes the zero column
        row = n - 1 - torch.minimum(distance, last)
        found = []
        for layer in self.layers:
            assert isinstance(layer, ShawLayer)
            keys = layer.keys().index_select(0, row)  # (1 + near, H, d_head + 1)
            keys = torch.where((distance < near).view(-1, 1, 1), keys - keys[1], 0.0)
            found.append(keys.permute(1, 2, 0).contiguous())
        return found
