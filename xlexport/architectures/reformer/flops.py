"""Multiplications and additions in the matrix products of one step of a Reformer.

In the graph for long segments, LSH attention processes all sorted rows of a ring, because any chunk may hold queries.
Sorting and TopK are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xlexport.architectures.base import StepSize

__all__ = ["step_flops"]


def step_flops(config: Mapping[str, Any], size: StepSize) -> int:
    """Return the multiplications and additions of a step."""
    scored = size.batch_size * (1 if size.last_only else size.segment_len)
    d_output = 2 * config["d_model"] if config["streams"] == "concat" else config["d_model"]
    layers = size.batch_size * _layers(config, size.segment_len, size.capacity, size.few)
    return int(2 * (layers + scored * d_output * config["n_token"]))


def _layers(config: Mapping[str, Any], S: int, C: int, few: bool) -> int:
    D, H, d_head, R, W = (config[name] for name in ("d_model", "n_head", "d_head", "n_hashes", "chunk_length"))
    whole = config["rule"] != "band"
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
    """Count the query-key pairs of local attention; one more chunk, because a segment may begin inside a chunk."""
    c, before = config["local_chunk_length"], config["local_chunks_before"]
    if few:
        return int(S * ((before + 1) * c + S))
    return int(-(-S // c) * c * c * (before + 2))
