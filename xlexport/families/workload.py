"""What a step of each architecture computes and reads, and the memory from which it is measured.

An architecture without a class here gets the defaults of `Workload`: its arithmetic is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["StepSize", "Workload", "workload"]

Config = Mapping[str, Any]


@dataclass(frozen=True)
class StepSize:
    """The sizes that decide how much one step computes.

    Attributes:
        capacity: slots of the rings.
        few: the graph is made for a few tokens.
        last_only: the step computes the logits of the last position, not the scores of all targets.
        constants: shapes of the tensors that are computed once for a memory, such as positional keys, by input name.
        targets: (B, S), which decide the cost of a vocabulary in clusters; None: all are in the first cluster.
    """

    batch_size: int
    segment_len: int
    capacity: int
    few: bool = False
    last_only: bool = False
    constants: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    targets: npt.NDArray[np.int64] | None = None


class Workload:
    """The work of one step, with defaults that suit a plain recurrent model."""

    def flops(self, config: Config, size: StepSize) -> int | None:
        """Return the multiplications and additions in a step's matrix products; None if they are not counted."""
        return None

    def rows_read(self, config: Config, memory: str, size: StepSize) -> int:
        """Return the least number of ring rows that a step reads; a row that it reads twice counts twice."""
        return size.capacity

    def integer_values(self, config: Config) -> int:
        """Return how many different values an integer memory holds; measurements fill it with that many values."""
        return 1

    def eager_start(self, model: Any, position: int, batch_size: int) -> tuple[Any, bool]:
        """Return a full memory to measure the eager model's step, and whether successive steps may carry it."""
        return model.first_memory(batch_size), True


class _TransformerXL(Workload):
    """The work of a Transformer-XL."""

    def flops(self, config: Config, size: StepSize) -> int:
        """Return the multiplications and additions of a step.

        Positional keys have a column for each slot and a zero column, unless `size` holds their shape. Absolute places
        need none, and the bias of encoding `shaw` is not counted.
        """
        B, S = size.batch_size, size.segment_len
        D, H, d_head = config["d_model"], config["n_head"], config["d_head"]
        columns = next((shape[-1] for shape in size.constants.values()), size.capacity + 1)
        if config.get("encoding") in ("sinusoidal", "learned"):
            columns = 0
        weights = D * 4 * H * d_head + 2 * D * config["d_inner"]  # query, key, value, output; feed-forward
        attention = H * d_head * (2 * size.capacity + columns)  # content scores, weighted values; position scores
        return int(2 * (B * S * config["n_layer"] * (weights + attention) + _cluster_products(config, size)))

    def eager_start(self, model: Any, position: int, batch_size: int) -> tuple[Any, bool]:
        """Return a full memory of zeros; steps may carry it."""
        import torch

        config = model.config
        rows = position if config.is_absolute else config.mem_len
        return [torch.zeros(batch_size, rows, config.d_model)] * config.n_layer, not config.is_absolute


def _cluster_products(config: Config, size: StepSize) -> int:
    """Return the multiplications in embedding and output layer; every cluster embeds every token.

    See `xltraining.transformer_xl.adaptive_softmax`.
    """
    from xltraining.transformer_xl import TransformerXLConfig

    model = TransformerXLConfig.from_dict(config)
    B, S, D, targets = size.batch_size, size.segment_len, model.d_model, size.targets
    bounds = model.cluster_bounds
    counts = [B if size.last_only else B * S] * len(bounds)  # positions at which tokens of the cluster are scored
    if not size.last_only:
        counts[1:] = [
            0 if targets is None else int(((targets >= first) & (targets < end)).sum()) for first, end in bounds[1:]
        ]
    total = 0
    for index, ((first, end), width) in enumerate(zip(bounds, model.cluster_widths, strict=True)):
        slots = len(bounds) - 1 if index == 0 else 0  # of the head: one for each tail
        projection = D * width if model.has_projection(index) else 0
        total += B * S * projection + counts[index] * (projection + width * (end - first + slots))
    return total


class _Reformer(Workload):
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


_WORKLOADS: Mapping[str, Workload] = {"transformer_xl": _TransformerXL(), "reformer": _Reformer()}


def workload(architecture: str) -> Workload:
    """Return the work of an architecture's steps, by the name of the architecture."""
    return _WORKLOADS.get(architecture, Workload())
