"""The options of a lower precision: fields that declare help, default and range. Importing this module is quick."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from xltraining.config_fields import setting

__all__ = ["PrecisionOptions", "QuantizeOptions"]

_precision = functools.partial(setting, heading="Precision")


@dataclass(frozen=True, kw_only=True)
class PrecisionOptions:
    """What a lower precision may cost, and what it leaves out.

    Attributes:
        max_delta_bits: the largest allowed difference from float32, in bits per token.
        keep_float: names of weight matrices that stay float32; `*` matches any characters.
        memory_dtype: dtype of carried memories: `float32`, `float16` with the same precision, `int8` with integers.
    """

    max_delta_bits: float = _precision(0.01, "Bits per token that quantization may cost.")
    keep_float: tuple[str, ...] = _precision(
        (), "Weight matrices to leave in float32, such as 'head.*'.", metavar="NAME,NAME"
    )
    memory_dtype: str = _precision(
        "float32", "Precision of carried memories: float16 only with --dtype float16, int8 only with integers."
    )


@dataclass(frozen=True)
class QuantizeOptions(PrecisionOptions):
    """Choices of a quantization.

    Attributes:
        dtype: `int8`, `weight-int8`, `weight-int4` or `float16`.
        tokens: number of tokens to measure on; None: enough to fill the memory twice.
        threads: threads of one step; None: ONNX Runtime chooses.
    """

    dtype: str = _precision(
        "int8",
        "int8: products of integers, smaller, and faster on CPUs with VNNI. weight-int8, weight-int4: only weights, "
        "smaller and slower. float16: for CUDA.",
        common=True,
    )
    tokens: int | None = setting(
        None, "Tokens to measure on.  [default: 16,384, or twice the memory]", heading="Input", minimum=2048
    )
    threads: int | None = setting(None, option=False)
