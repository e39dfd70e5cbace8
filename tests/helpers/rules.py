"""Evaluation rules for tests that need no bundle."""

from __future__ import annotations

from typing import Any

from xlruntime.evaluation import EvaluationRules, Ring, Setting

__all__ = ["ring_rules"]


def ring_rules(
    segment_len: int = 8, mem_len: int = 12, *, same_length: bool = True, window_extra: int = 0, **rules: Any
) -> EvaluationRules:
    """Return the rules of a model with one ring, like a Transformer-XL."""
    settings = {
        "mem_len": Setting("integer", mem_len, "rows of memory", input="mem_len", minimum=1),
        "clamp_len": Setting("integer", -1, "largest distinct distance", input="clamp_len", minimum=1, off=-1),
        "same_length": Setting("boolean", same_length, "whether every token sees equally many others"),
    }
    rings = {"capacity": Ring("mem_len", same_length="same_length", window_extra=window_extra)}
    return EvaluationRules(segment_len, settings, rings, **rules)
