"""What a step of a Transformer-XL computes, and the memory from which it is measured."""

from __future__ import annotations

from typing import Any

from xlexport.families.workload import Config, StepSize, Workload

__all__ = ["TransformerXLWorkload"]


class TransformerXLWorkload(Workload):
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
