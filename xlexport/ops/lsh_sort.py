"""`ai.xlexport::LSHSort`: the stable order of bucket ids."""

from __future__ import annotations

from typing import no_type_check

import torch
from onnxscript import INT64, script
from onnxscript import opset20 as op
from torch import Tensor

from xlexport.ops.operator import OWN_OPSET, operator, shapes_of

__all__ = ["LSHSort", "lsh_sort"]


@operator("lsh_sort")
def lsh_sort(buckets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the stable ascending order of bucket ids, and its inverse.

    Args:
        buckets: (…, N) int64, of any sign; |bucket| · N must stay below 2^63.

    Returns:
        order (…, N) int64: places by bucket, and within a bucket in ascending order; and inverse (…, N) int64, the
        rank of each place: `inverse[…, order[…, k]] = k`.
    """
    order = torch.argsort(buckets.contiguous(), dim=-1, stable=True)
    ranks = torch.arange(buckets.shape[-1], device=buckets.device).expand_as(order)
    return order, torch.empty_like(order).scatter_(-1, order, ranks)


@shapes_of("lsh_sort")
def _(buckets: Tensor) -> tuple[Tensor, Tensor]:
    return buckets.new_empty(buckets.shape), buckets.new_empty(buckets.shape)


@script(OWN_OPSET, default_opset=op)
@no_type_check  # onnxscript gives its tensors no arithmetic
def LSHSort(buckets: INT64[...]) -> tuple[INT64[...], INT64[...]]:
    """Compute `lsh_sort` in standard operators; the keys bucket · N + place are all different.

    TopK should keep equal keys in order, but not every execution provider does so.
    """
    count = op.Shape(buckets, start=-1)
    places = op.Range(0, op.Squeeze(count), 1)
    keys = buckets * count + places
    _, order = op.TopK(keys, count, axis=-1, largest=0, sorted=1)
    inverse = op.ScatterElements(order, order, op.Expand(places, op.Shape(order)), axis=-1)
    return order, inverse
