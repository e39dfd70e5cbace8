"""Multiplications and additions in the matrix products of one step that scores targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["step_flops"]


def step_flops(
    architecture: str, config: Mapping[str, Any], batch_size: int, segment_len: int, capacity: int, few: bool = False
) -> int:
    """Of one step of `batch_size` rows of `segment_len` tokens, on rings of `capacity` slots.

    Those of a Reformer are of its graph for long segments, whose LSH attention looks at all sorted rows of a ring, as
    any chunk of them may hold queries; `few`: of that for few tokens. Sorting and TopK are not counted.
    """
    if architecture == "reformer":
        return batch_size * _reformer(config, segment_len, capacity, few)
    return batch_size * _transformer_xl(config, segment_len, capacity)


def _transformer_xl(config: Mapping[str, Any], S: int, C: int) -> int:
    D, H, d_head = config["d_model"], config["n_head"], config["d_head"]
    weights = D * 4 * H * d_head + 2 * D * config["d_inner"]  # query, key, value, output; feed-forward
    attention = H * d_head * (3 * C + 1)  # content and position scores, weighted values
    return 2 * S * (config["n_layer"] * (weights + attention) + D * config["n_token"])


def _reformer(config: Mapping[str, Any], S: int, C: int, few: bool) -> int:
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
    layers = sum(products[kind] + S * 2 * D * config["d_inner"] for kind in config["attn_layers"])
    d_output = 2 * D if config["streams"] == "concat" else D
    return 2 * (layers + S * d_output * config["n_token"])


def _local_pairs(config: Mapping[str, Any], S: int, few: bool) -> int:
    """Pairs of query and key that local attention computes: a segment may begin inside a chunk, so one chunk more."""
    c, before = config["local_chunk_length"], config["local_chunks_before"]
    if few:
        return S * ((before + 1) * c + S)
    return -(-S // c) * c * c * (before + 2)
