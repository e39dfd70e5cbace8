"""Measure the cost of float16 on this device in bits per token of real text, after comparing float32 with a CPU."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import numpy.typing as npt

from tests.gpu.bundles import FLOAT16, TEXT_MODEL, bundle_of
from tests.gpu.parts import PartError, Record, Settings
from xlexport.quantize.gate import compare, log_probs
from xlexport.sample import sample_text
from xlruntime import load

__all__ = ["float16_against_float32"]

TOKENS, TINY_TOKENS = 20_000, 500
# Bits per token: for float32 only rounding in another order, for float16 the limit of `xlexport quantize`.
MOST_FLOAT32, MOST_FLOAT16 = 1e-4, 0.01


def float16_against_float32(settings: Settings, record: Record) -> None:
    """Score the text on the CPU in float32, and on the device in float32 and both kinds of float16.

    Raises:
        PartError: a difference is too large or not a number.
    """
    text = bundle_of(settings, TEXT_MODEL)
    reader = load(text)
    ids = reader.tokenizer.encode(sample_text().encode())[: TINY_TOKENS if settings.tiny else TOKENS]
    exact = log_probs(reader, ids)
    here = log_probs(load(text, device=settings.device), ids)
    too_far = _judge("float32 against a CPU", exact, here, MOST_FLOAT32, record)
    for name in FLOAT16:
        found = log_probs(load(bundle_of(settings, name), device=settings.device), ids)
        too_far += _judge(name, here, found, MOST_FLOAT16, record)
    if too_far:
        raise PartError("; ".join(too_far))


def _judge(
    name: str, exact: npt.NDArray[np.float32], found: npt.NDArray[np.float32], limit: float, record: Record
) -> list[str]:
    difference = compare(exact, found)
    record({name: asdict(difference)})
    if difference.within(limit):
        return []
    return [f"{name}: {difference.delta_bits_per_token:+.5f} bits per token, {limit:g} allowed"]
