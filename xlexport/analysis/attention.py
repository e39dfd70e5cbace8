"""Attention by distance: the share of each head's attention at each distance, averaged over the queries of a text.

Source: Dai et al. 2019, arXiv:1901.02860, Appendix D. Graphs do not return attention weights, so the eager model
computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xlexport.architectures import title_of
from xlexport.callbacks import Progress, no_progress
from xlexport.errors import ExportError, XlexportError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.hooks import RemovableHandle

    from xltraining.language_model import LanguageModel

__all__ = ["AttentionReport", "attention_by_distance", "head_rows", "observe_segments", "require_attention"]


@dataclass(frozen=True)
class AttentionReport:
    """Mean attention of each head by distance.

    Attributes:
        tokens: number of queries in the mean; the memory was full at each of them.
        segment_len, mem_len: tokens in one step, and rows of memory.
        mean: (layers, heads, distances); the attention to the token this many places before the query. The query
            itself is at distance 0. Sums to one over the distances.
    """

    tokens: int
    segment_len: int
    mem_len: int
    mean: npt.NDArray[np.float64]

    @property
    def mean_distance(self) -> npt.NDArray[np.float64]:
        """(layers, heads): the mean distance, in tokens."""
        return self.mean @ np.arange(self.mean.shape[2])

    def within(self, share: float) -> npt.NDArray[np.int64]:
        """Return (layers, heads): the smallest distance within which at least `share` of the attention falls."""
        # If rounding keeps the sum below `share`, the last distance counts.
        enough = np.cumsum(self.mean, axis=2) >= share - 1e-9
        return np.argmax(enough, axis=2)

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON, with an entry for each head; layers and heads are numbered from 0."""
        distances, half, most = self.mean_distance, self.within(0.5), self.within(0.9)
        return {
            "tokens": self.tokens,
            "segment_len": self.segment_len,
            "mem_len": self.mem_len,
            "heads": [
                {
                    "layer": layer,
                    "head": head,
                    "mean_distance": float(distances[layer, head]),
                    "half_within": int(half[layer, head]),
                    "most_within": int(most[layer, head]),
                    "attention": self.mean[layer, head].tolist(),
                }
                for layer in range(self.mean.shape[0])
                for head in range(self.mean.shape[1])
            ],
        }


def head_rows(report: AttentionReport) -> list[tuple[str, str]]:
    """Return a row for each layer, with the mean distances of its heads, for people."""
    rows = [
        ("attention", f"of {report.tokens:,} queries, memory {report.mem_len:,}, segments of {report.segment_len:,}")
    ]
    for layer, distances in enumerate(report.mean_distance):
        near, far = int(distances.argmin()), int(distances.argmax())
        rows.append(
            (
                f"layer {layer}",
                f"mean distance {distances.mean():,.1f}; nearest head {near} {distances[near]:,.1f}, "
                f"farthest head {far} {distances[far]:,.1f}",
            )
        )
    return rows


def attention_by_distance(
    model: LanguageModel,
    ids: npt.NDArray[np.int64],
    *,
    segment_len: int,
    tokens: int | None = None,
    progress: Progress = no_progress,
) -> AttentionReport:
    """Walk `ids` as one document with carried memory, and average the attention weights.

    Only segments after the memory is full count.

    Args:
        model: the eager model in eval mode, under the settings to evaluate. Its architecture must support
            `attention-plot`.
        ids: (N,) token ids.
        tokens: the largest number of queries to count; None: all.
        progress: called after each segment with the number of tokens read, and the number of all tokens.

    Raises:
        XlexportError: there are too few tokens.
    """
    S, M = segment_len, model.config.mem_len
    sums = np.zeros((model.config.n_layer, model.config.n_head, model.config.position_limit or M + S))

    def add(layer: int, weights: Tensor) -> None:
        sums[layer, :, : weights.shape[-1]] += _by_distance(weights)

    queries = observe_segments(model, ids, S, tokens, lambda: _observe(model, add), progress)
    window = sums.shape[2] if model.config.window is None else model.config.window
    return AttentionReport(queries, S, M, sums[:, :, :window] / queries)


def observe_segments(
    model: LanguageModel,
    ids: npt.NDArray[np.int64],
    segment_len: int,
    tokens: int | None,
    add_hooks: Callable[[], Sequence[RemovableHandle]],
    progress: Progress = no_progress,
) -> int:
    """Walk `ids` as one document with carried memory, and return the number of tokens in observed segments.

    Args:
        add_hooks: adds hooks to the model; called before each segment after the memory is full.
        tokens, progress: as for `attention_by_distance`.

    Raises:
        XlexportError: there are too few tokens.
    """
    import torch

    S, M = segment_len, model.config.mem_len
    warmup = -(-M // S) * S
    if len(ids) <= warmup:
        raise XlexportError(
            f"the text has {len(ids):,} tokens, but the memory is full only after {warmup:,}.",
            hint="Give a longer text, or a smaller --mem-len.",
        )
    stop = len(ids) if tokens is None else min(len(ids), warmup + tokens)
    with torch.inference_mode():
        memory: Any = None
        for start in range(0, stop, S):
            segment = torch.from_numpy(ids[None, start : min(start + S, stop)])
            memory = model.memory_before(memory, segment.shape[1])
            hooks = add_hooks() if start >= warmup else []
            try:
                _, memory = model(segment, memory)
            finally:
                for hook in hooks:
                    hook.remove()
            progress(start + segment.shape[1], stop)
    return stop - warmup


def require_attention(name: str, where: str) -> None:
    """Raise ExportError unless the attention of an architecture can be observed.

    Args:
        where: the path of the model, with which the message begins.
    """
    if name == "transformer_xl":
        return
    reason = "the architecture does not support it"
    if name == "reformer":
        reason = "its LSH attention has weights only for the keys of one bucket, and every round has other buckets"
    raise ExportError(
        f"{where}: attention by distance is not possible for a {title_of(name)}: {reason}.",
        hint="Use a Transformer-XL.",
    )


def _observe(model: LanguageModel, add: Callable[[int, Tensor], None]) -> list[RemovableHandle]:
    """Pass each layer's number and attention weights (H, S, K) to `add`, until the handles are removed.

    The layer's dropout sees the weights, and is the identity in eval mode.
    """
    from xltraining.transformer_xl import TransformerXL, TransformerXLLayer

    def hook(number: int) -> Callable[[Any, Any, Tensor], None]:
        return lambda module, inputs, weights: add(number, weights)

    assert isinstance(model, TransformerXL)
    layers = [layer for layer in model.layers if isinstance(layer, TransformerXLLayer)]
    return [layer.attention.dropatt.register_forward_hook(hook(number)) for number, layer in enumerate(layers)]


def _by_distance(weights: Tensor) -> npt.NDArray[np.float64]:
    """Sum weights (H, S, K) of one document over the queries, by distance: (H, K).

    Query i is at column K - S + i, so a key's distance is K - S + i minus its column.
    """
    import torch

    H, S, K = weights.shape
    own = torch.arange(K - S, K)[:, None] - torch.arange(K)  # (S,K): column of the key at each distance
    aligned = weights.gather(2, own.clamp(min=0).expand(H, S, K))
    return aligned.masked_fill(own < 0, 0.0).sum(dim=1, dtype=torch.float64).numpy()
