"""Multiplications and additions in the matrix products of one step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["step_flops"]


def step_flops(
    architecture: str,
    config: Mapping[str, Any],
    batch_size: int,
    segment_len: int,
    capacity: int,
    few: bool = False,
    *,
    last_only: bool = False,
    position_columns: int | None = None,
    targets: npt.NDArray[np.int64] | None = None,
) -> int:
    """Of one step of `batch_size` rows of `segment_len` tokens, on rings of `capacity` slots.

    Those of a Reformer are of its graph for long segments, whose LSH attention looks at all sorted rows of a ring, as
    any chunk of them may hold queries; `few`: of that for few tokens. Sorting and TopK are not counted.

    Args:
        last_only: logits of the last position are computed, not the scores of all targets.
        position_columns: of Transformer-XL's positional keys; None: one for each slot, and a zero column.
        targets: (B, S), which decide what a vocabulary that is cut into clusters costs; None: all in the first.
    """
    if architecture == "reformer":
        scored = batch_size * (1 if last_only else segment_len)
        d_output = 2 * config["d_model"] if config["streams"] == "concat" else config["d_model"]
        layers = batch_size * _reformer_layers(config, segment_len, capacity, few)
        return 2 * (layers + scored * d_output * config["n_token"])
    columns = capacity + 1 if position_columns is None else position_columns
    layers = batch_size * _transformer_xl_layers(config, segment_len, capacity, columns)
    return 2 * (layers + _clusters(config, batch_size, segment_len, last_only, targets))


def _transformer_xl_layers(config: Mapping[str, Any], S: int, C: int, columns: int) -> int:
    D, H, d_head = config["d_model"], config["n_head"], config["d_head"]
    weights = D * 4 * H * d_head + 2 * D * config["d_inner"]  # query, key, value, output; feed-forward
    attention = H * d_head * (2 * C + columns)  # content scores, weighted values; position scores
    return int(S * config["n_layer"] * (weights + attention))


def _clusters(config: Mapping[str, Any], B: int, S: int, last_only: bool, targets: npt.NDArray[np.int64] | None) -> int:
    """Embedding and output layer: one cluster, or several, of which all embed each token; see `xltraining.adaptive`."""
    from xltraining.transformer_xl_config import TransformerXLConfig

    whole = TransformerXLConfig.from_dict(config)
    D, sizes = whole.d_model, [end - first for first, end in whole.cluster_bounds]
    scored = B if last_only else B * S
    counts = [scored] * len(sizes)  # positions whose tokens of the cluster are scored
    if not last_only:
        tails = [0 if targets is None else int(_within(targets, bounds).sum()) for bounds in whole.cluster_bounds[1:]]
        counts[1:] = tails
    total = 0
    for index, (size, width) in enumerate(zip(sizes, whole.cluster_widths, strict=True)):
        slots = len(sizes) - 1 if index == 0 else 0  # of the head: one for each tail
        projection = D * width if whole.has_projection(index) else 0
        total += B * S * projection + counts[index] * (projection + width * (size + slots))
    return total


def _within(targets: npt.NDArray[np.int64], bounds: tuple[int, int]) -> npt.NDArray[np.bool_]:
    return (targets >= bounds[0]) & (targets < bounds[1])


def _reformer_layers(config: Mapping[str, Any], S: int, C: int, few: bool) -> int:
    D, H, d_head, R, W = (config[name] for name in ("d_model", "n_head", "d_head", "n_hashes", "chunk_length"))
    whole = config["rule"] == "chunk"
    keys = S if whole else C
    shared = S * 3 * D * H * d_head  # query-key, value, output
    hashes = S * R * (sum(config["n_buckets"]) // 2)
    pairs = S * R * W if few else R * -(-keys // W) * W * W * (config["chunks_before"] + 1)
    products = {
        "lsh": shared + H * d_head * (hashes + 2 * pairs),  # scores, weighted values
        "full": shared + H * d_head * 2 * S * keys,
        "local": S * 4 * D * H * d_head + H * d_head * 2 * _local_pairs(config, S, few),
    }
    return int(sum(products[kind] + S * 2 * D * config["d_inner"] for kind in config["attn_layers"]))


def _local_pairs(config: Mapping[str, Any], S: int, few: bool) -> int:
    """Pairs of query and key that local attention computes: a segment may begin inside a chunk, so one chunk more."""
    c, before = config["local_chunk_length"], config["local_chunks_before"]
    if few:
        return int(S * ((before + 1) * c + S))
    return int(-(-S // c) * c * c * (before + 2))
