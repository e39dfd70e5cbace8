"""What a step of a Reformer computes and reads, and the memory from which it is measured."""

from __future__ import annotations

import math
from typing import Any

from xlexport.families.workload import Config, StepSize, Workload

__all__ = ["ReformerWorkload"]


class ReformerWorkload(Workload):
    """The work of a Reformer.

    In the graph for long segments, LSH attention processes all sorted rows of a ring, because any chunk may hold
    queries. Sorting and TopK are not counted.
    """

    def flops(self, config: Config, size: StepSize) -> int:
        """Return the multiplications and additions of a step."""
        B, S, few = size.batch_size, size.segment_len, size.few
        D, H, d_head, R, W = (config[name] for name in ("d_model", "n_head", "d_head", "n_hashes", "chunk_length"))
        keys = size.capacity if config["rule"] == "band" else S
        shared = S * 3 * D * H * d_head  # query-key, value, output
        hashes = S * R * (sum(config["n_buckets"]) // 2)
        pairs = S * R * W if few else R * -(-keys // W) * W * W * (config["chunks_before"] + 1)
        c, before = config["local_chunk_length"], config["local_chunks_before"]
        # One more chunk, because a segment may begin inside a chunk.
        local_pairs = S * ((before + 1) * c + S) if few else -(-S // c) * c * c * (before + 2)
        products = {
            "lsh": shared + H * d_head * (hashes + 2 * pairs),  # scores, weighted values
            "full": shared + H * d_head * 2 * S * keys,
            "local": S * 4 * D * H * d_head + H * d_head * 2 * local_pairs,
        }
        layers = sum(products[kind] + S * 2 * D * config["d_inner"] for kind in config["attn_layers"])
        d_output = 2 * D if config["streams"] == "concat" else D
        return int(2 * B * (layers + (1 if size.last_only else S) * d_output * config["n_token"]))

    def rows_read(self, config: Config, memory: str, size: StepSize) -> int:
        """Return how many rows a step reads; each round of LSH attention sorts the rows and reads all of them."""
        _, kind, layer = memory.split("_")
        if kind == "bucket" or config["attn_layers"][int(layer)] != "lsh":
            return size.capacity
        rounds = config["n_hashes"]
        if size.few:
            return int(min(size.capacity, size.segment_len * rounds * config["chunk_length"]))
        return int(rounds * size.capacity)

    def integer_values(self, config: Config) -> int:
        """Return the number of buckets; a step measured with equal ids everywhere would do different work."""
        return math.prod(config["n_buckets"])

    def eager_start(self, model: Any, position: int, batch_size: int) -> tuple[Any, bool]:
        """Return a memory after `position` tokens, with buckets of about equal size.

        Measured steps all start from this memory, because the model's positions may end.
        """
        import torch

        from xltraining.reformer import ReformerMemory

        config, generator = model.config, torch.Generator().manual_seed(0)
        layers: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        for kind in config.attn_layers:
            rows = min(position, config.local_rows if kind == "local" else config.mem_len)
            buckets = None
            if kind == "lsh":
                shape = (batch_size, config.n_head, config.n_hashes, rows)
                buckets = torch.randint(config.buckets, shape, generator=generator)
            layers.append((torch.randn(batch_size, rows, config.d_model, generator=generator), buckets))
        return ReformerMemory(position, layers), False
