"""Bucket ids of LSH attention, computed with operators that are fast in ONNX Runtime.

Source: Kitaev et al. 2020, section 2 (angular LSH: the largest entry of [xR; -xR]). The number of buckets is split
into factors as in Trax and Hugging Face.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["hash_buckets"]


def hash_buckets(query_key: Tensor, rotations: Tensor, n_buckets: Sequence[int]) -> Tensor:
    """Return the bucket id of each row in each round; rounds are computed one after the other to save memory.

    Args:
        query_key: (B, H, S, d).
        rotations: (H, R, d, K), K = half the sum of `n_buckets`; the factors use consecutive columns.
        n_buckets: even factors of the number of buckets, the least significant first.

    Returns:
        (B, H, R, S) int64. The digit of factor f is argmax([x, -x]), where x are the f/2 projections; if entries are
        equal, the first counts.
    """
    rounds = []
    for r in range(rotations.shape[1]):
        buckets, scale, begin = None, 1, 0
        for factor in n_buckets:
            columns = rotations[:, r, :, begin : begin + factor // 2]  # (H, d, factor / 2)
            digit = scale * _largest_of_both_signs(torch.matmul(query_key, columns))
            buckets = digit if buckets is None else buckets + digit
            scale, begin = scale * factor, begin + factor // 2
        assert buckets is not None
        rounds.append(buckets)
    return torch.stack(rounds, dim=2)


def _largest_of_both_signs(x: Tensor) -> Tensor:
    """Return `argmax([x, -x])` of the last axis without a tensor of double width: (…, K) to (…) int64."""
    positive = x.amax(-1) >= -x.amin(-1)
    turned = x * torch.where(positive, 1.0, -1.0).unsqueeze(-1)
    return turned.argmax(-1) + torch.where(positive, 0, x.shape[-1])
