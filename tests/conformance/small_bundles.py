"""The bundles that the exporter makes for a kit: what the golden ones, which older code wrote, do not have.

Their graphs have the operators for which there are kernels today. Copies in lower precision are made of them.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xlexport import checkpoints
from xlexport.convert import ConversionOptions, convert
from xlexport.quantize.run import QuantizeOptions, quantize
from xltraining.checkpoint import save_checkpoint
from xltraining.reformer import Reformer, ReformerConfig
from xltraining.transformer_xl import TransformerXL, TransformerXLConfig

__all__ = ["WITHIN", "write_small_bundles"]

SEED = 1
SPREAD = 0.15  # standard deviation of weights: with more, one rounding moves a token as far as a wrong memory does
ENOUGH_BITS = 100.0  # no product stays float32: these models know no text
TOKENS, SEGMENTS = 512, 20  # on which copies are measured, and which a conversion verifies
SIZES: dict[str, Any] = {"n_token": 256, "n_head": 2, "d_model": 64, "d_head": 32, "d_inner": 96, "tgt_len": 8}
MODELS: Mapping[str, TransformerXLConfig | ReformerConfig] = {
    "small_transformer_xl": TransformerXLConfig(**SIZES, n_layer=2, mem_len=12, clamp_len=15, first_memory="empty"),
    "small_reformer": ReformerConfig(
        **SIZES, attn_layers=("local", "lsh"), n_hashes=2, n_buckets=(4,), chunk_length=8, local_chunk_length=8,
        mem_len=24, position="rotary", max_positions=0,
    ),
}  # fmt: skip
# Name of the copy: the bundle, its precision, that of its memories, and its bounds. These are some three times the
# largest differences (in the comments) between kernels and fallback on AVX-512, AVX2, SSE4.2 and ARM.
COPIES: Mapping[str, tuple[str, str, str, dict[str, float]]] = {
    "small_int8": ("small_transformer_xl", "int8", "float32", {"nats": 0.1, "totals": 0.001}),  # 0.034, 0.0003
    "small_int8_memories": ("small_transformer_xl", "int8", "int8", {"nats": 0.25, "totals": 0.01}),  # 0.104, 0.0033
    "small_int4": ("small_transformer_xl", "weight-int4", "float32", {"nats": 0.25, "totals": 0.05}),  # 0.087, 0.017
    "small_float16": ("small_transformer_xl", "float16", "float16", {"nats": 0.06, "totals": 0.006}),  # 0.019, 0.0019
    "small_reformer_int8": ("small_reformer", "int8", "float32", {"nats": 0.05, "totals": 0.001}),  # 0.014, 0.0001
}
WITHIN = {name: bounds for name, (*_, bounds) in COPIES.items()}


def write_small_bundles(folder: Path, report: Callable[[str], object] = print) -> None:
    """Write the bundles into `folder`; `report` is called with a line before something slow."""
    for name, config in MODELS.items():
        report(f"converting {name}")
        with tempfile.TemporaryDirectory() as work, contextlib.redirect_stdout(io.StringIO()):
            save_checkpoint(Path(work, name), config, random_model(config).state_dict())
            options = ConversionOptions(tokenizer="bytes", threads=1, verify_segments=SEGMENTS)
            convert(checkpoints.load(Path(work, name)), folder / name, options)
    for name, (source, dtype, memory_dtype, _) in COPIES.items():
        choices = QuantizeOptions(dtype, ENOUGH_BITS, memory_dtype=memory_dtype, tokens=TOKENS, threads=1)
        found = quantize(folder / source, folder / name, choices)
        assert not found.kept and found.memory_dtype == memory_dtype, (name, found)


@torch.no_grad()
def random_model(config: TransformerXLConfig | ReformerConfig) -> TransformerXL | Reformer:
    """Return a model in eval mode in which every weight matters, from random numbers of NumPy."""
    model = (Reformer(config) if isinstance(config, ReformerConfig) else TransformerXL(config)).eval()
    random = np.random.default_rng(SEED)
    for name, parameter in model.named_parameters():
        drawn = random.normal(float(name.endswith("norm.weight")), SPREAD, tuple(parameter.shape))
        parameter.copy_(torch.from_numpy(drawn))
    return model
