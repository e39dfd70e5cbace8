"""Attention of heads: its share at each distance, that of one segment's tokens, and the terms of its scores.

Source: Dai et al. 2019, arXiv:1901.02860, Appendix D. Graphs do not return attention weights, so the eager model
computes them. A score of section 3.3 has four terms. The softmax of three of them is averaged over the queries:

    (a) q_i . k_j              content
    (b) q_i . W_kR R[i - j]    position, as the query asks
    (d) v . W_kR R[i - j]      position

Term (c), u . k_j, does not depend on the distance. All are scaled by 1/sqrt(d_head). Each softmax is over the keys that
the query sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from xlexport.callbacks import Progress, no_progress
from xlexport.errors import ExportError, XlexportError
from xlexport.families import title_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.hooks import RemovableHandle

    from xltraining.language_model import LanguageModel
    from xltraining.transformer_xl import TransformerXL, TransformerXLLayer
    from xltraining.transformer_xl.encodings import RelativeAttention

__all__ = [
    "TERMS",
    "AttentionReport",
    "AttentionTerms",
    "SegmentAttention",
    "attention_by_distance",
    "attention_of_segment",
    "attention_terms",
    "require_attention",
]

TERMS = ("a", "b", "d")


@dataclass(frozen=True)
class _Means:
    """Means over the queries of a walk.

    Attributes:
        tokens: number of queries in the mean; the memory was full at each of them.
        segment_len, mem_len: tokens in one step, and rows of memory.
    """

    tokens: int
    segment_len: int
    mem_len: int

    def with_heads(self, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
        """Return the walk for JSON, with the part of each array (layers, heads, …) that each head has, from 0."""
        layers, heads = next(iter(arrays.values())).shape[:2]
        entries = [
            {"layer": layer, "head": head, **{name: array[layer, head].tolist() for name, array in arrays.items()}}
            for layer in range(layers)
            for head in range(heads)
        ]
        walk = {"tokens": self.tokens, "segment_len": self.segment_len, "mem_len": self.mem_len}
        return {**walk, "heads": entries}


@dataclass(frozen=True)
class AttentionReport(_Means):
    """Mean attention of each head by distance.

    Attributes:
        mean: (layers, heads, distances); the attention to the token this many places before the query. The query
            itself is at distance 0. Sums to one over the distances.
    """

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
        """Return the report for JSON, with an entry for each head."""
        within = {"half_within": self.within(0.5), "most_within": self.within(0.9)}
        return self.with_heads({"mean_distance": self.mean_distance, **within, "attention": self.mean})

    def rows(self) -> list[tuple[str, str]]:
        """Return a row for each layer, with the mean distances of its heads, for people."""
        rows = [("attention", f"of {self.tokens:,} queries, memory {self.mem_len:,}, segments of {self.segment_len:,}")]
        for layer, distances in enumerate(self.mean_distance):
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
        sums[layer, :, : weights.shape[-1]] += _by_distance(weights).numpy()

    queries = _observe_segments(model, ids, S, tokens, lambda: _observe(model, add), progress)
    window = sums.shape[2] if model.config.window is None else model.config.window
    return AttentionReport(queries, S, M, sums[:, :, :window] / queries)


def _observe_segments(
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


@dataclass(frozen=True)
class SegmentAttention:
    """Attention of chosen heads for the tokens of one segment (the paper's Figure 6).

    Attributes:
        first: position in the text of the first token of the context.
        heads: (layer, head) of each chosen head, counted from 0.
        weights: (heads, S, K); the attention of each of the segment's S tokens to each of the K tokens of its context,
            which end with the segment itself. A row sums to one.
    """

    first: int
    heads: tuple[tuple[int, int], ...]
    weights: npt.NDArray[np.float32]

    def to_dict(self) -> dict[str, Any]:
        """Return the attention for JSON, with an entry for each head."""
        pairs = zip(self.heads, self.weights, strict=True)
        heads = [{"layer": layer, "head": head, "attention": weights.tolist()} for (layer, head), weights in pairs]
        return {"first": self.first, "heads": heads}


def attention_of_segment(
    model: LanguageModel,
    ids: npt.NDArray[np.int64],
    heads: Sequence[tuple[int, int]],
    *,
    segment_len: int,
    tokens: int | None = None,
    progress: Progress = no_progress,
) -> SegmentAttention:
    """Walk `ids` as one document with carried memory, and keep the attention in the last segment that is read.

    Args:
        heads: (layer, head) of each head to keep.
        model, tokens, progress: as for `attention_by_distance`.

    Raises:
        XlexportError: the model has no such head, or there are too few tokens.
    """
    L, H, S = model.config.n_layer, model.config.n_head, segment_len
    if unknown := [f"{layer}.{head}" for layer, head in heads if layer >= L or head >= H]:
        raise XlexportError(
            f"the model has no head {', '.join(unknown)}: its layers are 0 to {L - 1}, with heads 0 to {H - 1}.",
            hint="Give --head LAYER.HEAD.",
        )
    last: dict[int, Tensor] = {}
    queries = _observe_segments(model, ids, S, tokens, lambda: _observe(model, last.__setitem__), progress)
    weights = np.stack([last[layer][head].numpy() for layer, head in heads])
    stop = -(-model.config.mem_len // S) * S + queries
    return SegmentAttention(stop - weights.shape[2], tuple(heads), weights)


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


def _by_distance(weights: Tensor) -> Tensor:
    """Sum weights (H, S, K) of one document over the queries, by distance, in float64: (H, K).

    Query i is at column K - S + i, so a key's distance is K - S + i minus its column.
    """
    import torch

    H, S, K = weights.shape
    own = torch.arange(K - S, K)[:, None] - torch.arange(K)  # (S,K): column of the key at each distance
    aligned = weights.gather(2, own.clamp(min=0).expand(H, S, K))
    return aligned.masked_fill(own < 0, 0.0).sum(dim=1, dtype=torch.float64)


@dataclass(frozen=True)
class AttentionTerms(_Means):
    """Attention of each head by distance, if its scores had one term only (the paper's Figure 7).

    Attributes:
        mean: for each of `TERMS`, `AttentionReport.mean`.
    """

    mean: dict[str, npt.NDArray[np.float64]]

    def to_dict(self) -> dict[str, Any]:
        """Return the terms for JSON, with an entry for each head."""
        return self.with_heads(self.mean)

    def rows(self) -> list[tuple[str, str]]:
        """Return a row for each layer, with the mean distance under each term, for people."""
        distances = {term: (mean @ np.arange(mean.shape[2])).mean(axis=1) for term, mean in self.mean.items()}
        rows = [("mean distance", f"of {self.tokens:,} queries, memory {self.mem_len:,}, by each term alone")]
        return rows + [
            (f"layer {layer}", ", ".join(f"({term}) {distances[term][layer]:,.1f}" for term in TERMS))
            for layer in range(len(distances["a"]))
        ]


def attention_terms(
    model: TransformerXL,
    ids: npt.NDArray[np.int64],
    *,
    segment_len: int,
    tokens: int | None = None,
    progress: Progress = no_progress,
) -> AttentionTerms:
    """Walk `ids` as one document with carried memory, and average the softmax of each term over the queries.

    Arguments are those of `attention_by_distance`.

    Raises:
        XlexportError: the model has another encoding of positions, or there are too few tokens.
    """
    config, S = model.config, segment_len
    if config.encoding != "relative":
        raise XlexportError(
            f"the terms of scores are those of encoding relative, but the model has {config.encoding}.",
            hint="Leave --set position out.",
        )
    sums = {term: np.zeros((config.n_layer, config.n_head, config.mem_len + S)) for term in TERMS}
    queries = _observe_segments(model, ids, S, tokens, lambda: _add_hooks(model, sums), progress)
    mean = {term: values[:, :, : config.window] / queries for term, values in sums.items()}
    return AttentionTerms(queries, S, config.mem_len, mean)


def _add_hooks(model: TransformerXL, sums: dict[str, npt.NDArray[np.float64]]) -> list[RemovableHandle]:
    """Let the model add the terms of its next segments to `sums`, until the hooks are removed."""

    def add(layer: int, attention: RelativeAttention, inputs: tuple[Tensor, ...]) -> None:
        for term, by_distance in _terms(attention, *inputs).items():
            sums[term][layer, :, : by_distance.shape[1]] += by_distance.numpy()

    def hook(number: int) -> Any:
        return lambda module, inputs: add(number, module, inputs)

    layers = [cast("TransformerXLLayer", layer) for layer in model.layers]
    return [layer.attention.register_forward_pre_hook(hook(number)) for number, layer in enumerate(layers)]


def _terms(
    attention: RelativeAttention, hidden: Tensor, memory: Tensor, shared: Tensor, hiding: Tensor
) -> dict[str, Tensor]:
    """Return the softmax of each term, summed over the queries of one document's segment: (H, K) by distance."""
    import torch

    normed = (attention.norm(hidden), attention.norm(memory)) if attention.pre_lnorm else (hidden, memory)
    query, key, _ = attention.project(hidden, *normed)  # (H, 1, S, h), (H, 1, K, h)
    query, key, scale = query[:, 0], key[:, 0], attention.d_head**-0.5
    query = query * scale
    (H, S, h), K = query.shape, key.shape[1]
    position = attention.position(shared).view(K + 1, H, h)[1:].flip(0).permute(1, 2, 0)  # (H, h, K), distance 0 first
    distance = (torch.arange(K - S, K)[:, None] - torch.arange(K)).clamp(min=0).expand(H, S, K)
    scores = {
        "a": query @ key.transpose(1, 2),
        "b": (query @ position).gather(2, distance),
        "d": (attention.position_bias.unsqueeze(1) * scale @ position).expand(H, S, K).gather(2, distance),
    }
    return {term: _by_distance((score + hiding).softmax(dim=2)) for term, score in scores.items()}
