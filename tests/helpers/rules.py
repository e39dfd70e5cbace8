"""Evaluation rules for tests that need no bundle."""

from __future__ import annotations

from typing import Any

from xlruntime.evaluation import EvaluationRules, Ring, Setting


def ring_rules(
    segment_len: int = 8, mem_len: int = 12, *, same_length: bool = True, window_extra: int = 0, **rules: Any
) -> EvaluationRules:
    """Return the rules of a model with one ring, like a Transformer-XL."""
    settings = {
        "mem_len": Setting(mem_len, "rows of memory", minimum=1),
        "clamp_len": Setting(-1, "largest distinct distance", minimum=1, off=-1),
        "same_length": Setting(same_length, "whether every token sees equally many others"),
    }
    rings = {"capacity": Ring((1, 0, 0), slots=(1, 1, 0), window=(1, 0, window_extra), window_if="same_length")}
    return EvaluationRules(segment_len, settings, rings, **rules)
