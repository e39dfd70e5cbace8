"""The report of a quantization: the products kept in float32, and the cost in bits."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

__all__ = ["QuantizationReport"]


@dataclass(frozen=True)
class QuantizationReport:
    """The result of quantizing a bundle; the manifest has it as `quantization` of the provenance."""

    dtype: str
    memory_dtype: str
    products: int  # products of weights in a step
    kept: dict[str, str]  # products that stay float32, with the reason
    tokens: int  # of the text
    bits_per_token: float  # of float32
    delta_bits_per_token: float  # positive: the quantized bundle is worse
    standard_error: float
    max_delta_bits: float
    mean_abs_log_prob_diff: float  # nats
    max_abs_log_prob_diff: float
    text: tuple[dict[str, str | int], ...]
    weights_bytes: int
    float32_weights_bytes: int
    float32_fingerprint: str
    version: str  # of xlexport
    memory_kept: str | None = None  # why memories stay float32 although int8 was asked for

    def to_dict(self) -> dict[str, Any]:
        """Return all fields for JSON."""
        return dataclasses.asdict(self)
