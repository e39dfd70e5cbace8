"""Multiplications and additions in the matrix products of one step of a Transformer-XL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.architectures.base import StepSize

__all__ = ["step_flops"]


def step_flops(config: Mapping[str, Any], size: StepSize) -> int:
    """Return the multiplications and additions of a step.

    Positional keys have a column for each slot and a zero column, unless `size` holds their shape. Absolute places need
    none, and the bias of encoding `shaw` is not counted.
    """
    columns = next((shape[-1] for shape in size.constants.values()), size.capacity + 1)
    if config.get("encoding") in ("sinusoidal", "learned"):
        columns = 0
    layers = size.batch_size * _layers(config, size.segment_len, size.capacity, columns)
    return 2 * (layers + _clusters(config, size))


def _layers(config: Mapping[str, Any], S: int, C: int, columns: int) -> int:
    D, H, d_head = config["d_model"], config["n_head"], config["d_head"]
    weights = D * 4 * H * d_head + 2 * D * config["d_inner"]  # query, key, value, output; feed-forward
    attention = H * d_head * (2 * C + columns)  # content scores, weighted values; position scores
    return int(S * config["n_layer"] * (weights + attention))


def _clusters(config: Mapping[str, Any], size: StepSize) -> int:
    """Return the multiplications in embedding and output layer; every cluster embeds every token.

    See `xltraining.transformer_xl.adaptive`.
    """
    from xltraining.transformer_xl import TransformerXLConfig

    whole = TransformerXLConfig.from_dict(config)
    B, S, targets = size.batch_size, size.segment_len, size.targets
    D, sizes = whole.d_model, [end - first for first, end in whole.cluster_bounds]
    scored = B if size.last_only else B * S
    counts = [scored] * len(sizes)  # positions whose tokens of the cluster are scored
    if not size.last_only:
        tails = [0 if targets is None else int(_within(targets, bounds).sum()) for bounds in whole.cluster_bounds[1:]]
        counts[1:] = tails
    total = 0
    for index, (tokens, width) in enumerate(zip(sizes, whole.cluster_widths, strict=True)):
        slots = len(sizes) - 1 if index == 0 else 0  # of the head: one for each tail
        projection = D * width if whole.has_projection(index) else 0
        total += B * S * projection + counts[index] * (projection + width * (tokens + slots))
    return total


def _within(targets: npt.NDArray[np.int64], bounds: tuple[int, int]) -> npt.NDArray[np.bool_]:
    return (targets >= bounds[0]) & (targets < bounds[1])
