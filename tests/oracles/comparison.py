"""Differences between our models and the oracle, and their limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tests.helpers.figures import Figure
from xltraining.transformer_xl import TransformerXL

if TYPE_CHECKING:
    from tests.oracles.huggingface import Oracle, OracleSegment  # which transformers 5 lacks

# float32 on both sides, with sums in another order: observed differences are about a tenth of this.
LOG_PROB_TOLERANCE = 1e-4  # nats, of any token of the vocabulary at any position
MEMORY_TOLERANCE = 1e-3  # of any number in any memory


@dataclass
class Difference:
    """The largest differences of one walk so far; NaN if any value was NaN."""

    log_prob: Tensor = field(default_factory=lambda: torch.zeros(()))
    memory: Tensor = field(default_factory=lambda: torch.zeros(()))

    def add_log_probs(self, found: Tensor, wanted: Tensor) -> None:
        assert found.shape == wanted.shape
        self.log_prob = torch.maximum(self.log_prob, (found - wanted).abs().max())

    def add_memory(self, found: Tensor, wanted: Tensor) -> None:
        """Add the difference of two memories; it is infinite if their shapes differ."""
        if found.shape != wanted.shape:
            self.memory = torch.tensor(math.inf)
        elif found.numel():
            self.memory = torch.maximum(self.memory, (found - wanted).abs().max())

    def add_outputs(self, made: Mapping[str, Tensor], wanted: OracleSegment) -> None:
        """Compare all outputs of a step for a segment, except its memory."""
        everything, own = wanted.log_probs, wanted.target_log_probs
        self.add_log_probs(made["log_prob"], own)
        self.add_log_probs(made["logits"].log_softmax(dim=-1), everything[:, -1])
        self.add_log_probs(made["entropy"], -(everything.exp() * everything).sum(dim=2))
        top = made["top_log_probs"]
        self.add_log_probs(top, everything.topk(top.shape[2], dim=2).values)
        self.add_log_probs(top, everything.gather(2, made["top_ids"]))
        # Tokens as probable as the target, within tolerance, may rank on either side of it.
        surely, perhaps = (
            1 + (everything > own.unsqueeze(2) + slack).sum(dim=2)
            for slack in (LOG_PROB_TOLERANCE, -LOG_PROB_TOLERANCE)
        )
        assert ((surely <= made["rank"]) & (made["rank"] < perhaps)).all()


@torch.no_grad()
def eager_difference(oracle: Oracle, model: TransformerXL, segments: Iterable[tuple[Tensor, Tensor]]) -> Difference:
    """Walk segments in both, each with its own memory of hidden states."""
    difference, memory = Difference(), None
    for segment in oracle.walk(segments):
        hidden, memory = model(segment.tokens, memory)
        difference.add_log_probs(model.all_log_probs(hidden), segment.log_probs)
        difference.add_log_probs(model.logits(hidden).log_softmax(dim=-1), segment.log_probs)
        difference.add_log_probs(model.log_probs(hidden, segment.targets), segment.target_log_probs)
        for found, wanted in zip(memory, segment.memory, strict=True):
            difference.add_memory(found, wanted)
    return difference


class Figures:
    """The differences of the walks of a test run, for its summary."""

    def __init__(self, found: list[Figure]) -> None:
        self.found = found

    def check(self, what: str, batch_size: int, difference: Difference) -> None:
        """Record `difference`, and fail if it is over tolerance."""
        self.found.append((what, batch_size, float(difference.log_prob), float(difference.memory)))
        assert difference.log_prob <= LOG_PROB_TOLERANCE
        assert difference.memory <= MEMORY_TOLERANCE
