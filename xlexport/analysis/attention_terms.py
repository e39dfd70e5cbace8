"""The terms of attention scores by distance: Figure 7 of the Transformer-XL paper.

A score of section 3.3 has four terms. Three of them are averaged over the queries of a text, for each distance:

    (a) q_i . k_j              content
    (b) q_i . W_kR R[i - j]    position, as the query asks
    (d) v . W_kR R[i - j]      position

Term (c), u . k_j, does not depend on the distance. All are scaled by 1/sqrt(d_head).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from xlexport.analysis.attention import observe_segments
from xlexport.callbacks import Progress, no_progress
from xlexport.errors import XlexportError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.hooks import RemovableHandle

    from xltraining.transformer_xl import TransformerXL, TransformerXLLayer
    from xltraining.transformer_xl.encodings import RelativeAttention

__all__ = ["TERMS", "AttentionTerms", "attention_terms"]

TERMS = ("a", "b", "d")


@dataclass(frozen=True)
class AttentionTerms:
    """Mean terms of each head by distance.

    Attributes:
        tokens: number of queries in the mean; the memory was full at each of them.
        segment_len, mem_len: tokens in one step, and rows of memory.
        mean: for each of `TERMS`, (layers, heads, distances) up to `mem_len`, which every query sees.
    """

    tokens: int
    segment_len: int
    mem_len: int
    mean: dict[str, npt.NDArray[np.float64]]

    def to_dict(self) -> dict[str, Any]:
        """Return the terms for JSON, with an entry for each head; layers and heads are numbered from 0."""
        layers, heads, _ = self.mean["a"].shape
        return {
            "tokens": self.tokens,
            "segment_len": self.segment_len,
            "mem_len": self.mem_len,
            "heads": [
                {"layer": layer, "head": head, **{term: self.mean[term][layer, head].tolist() for term in TERMS}}
                for layer in range(layers)
                for head in range(heads)
            ],
        }


def attention_terms(
    model: TransformerXL,
    ids: npt.NDArray[np.int64],
    *,
    segment_len: int,
    tokens: int | None = None,
    progress: Progress = no_progress,
) -> AttentionTerms:
    """Walk `ids` as one document with carried memory, and average the terms; see `attention_by_distance`.

    Raises:
        XlexportError: the model has another encoding of positions, or there are too few tokens.
    """
    config, S, M = model.config, segment_len, model.config.mem_len
    if config.encoding != "relative":
        raise XlexportError(
            f"the terms of scores are those of encoding relative, but the model has {config.encoding}.",
            hint="Leave --position out.",
        )
    sums = {term: np.zeros((config.n_layer, config.n_head, M + 1)) for term in TERMS}
    queries = observe_segments(model, ids, S, tokens, lambda: _add_hooks(model, sums), progress)
    return AttentionTerms(queries, S, M, {term: values / queries for term, values in sums.items()})


def _add_hooks(model: TransformerXL, sums: dict[str, npt.NDArray[np.float64]]) -> list[RemovableHandle]:
    """Let the model add the terms of its next segments to `sums`, until the hooks are removed."""

    def add(layer: int, attention: RelativeAttention, inputs: tuple[Tensor, ...]) -> None:
        hidden, memory, shared = inputs[:3]
        for term, by_distance in _terms(attention, hidden, memory, shared).items():
            most = sums[term].shape[2]
            sums[term][layer] += by_distance[:, :most].double().numpy()

    def hook(number: int) -> Any:
        return lambda module, inputs: add(number, module, inputs)

    layers = [cast("TransformerXLLayer", layer) for layer in model.layers]
    return [layer.attention.register_forward_pre_hook(hook(number)) for number, layer in enumerate(layers)]


def _terms(attention: RelativeAttention, hidden: Tensor, memory: Tensor, shared: Tensor) -> dict[str, Tensor]:
    """Return the terms of one document's segment, summed over its queries: (H, K) by distance, from 0 on."""
    import torch

    normed = (attention.norm(hidden), attention.norm(memory)) if attention.pre_lnorm else (hidden, memory)
    query, key, _ = attention.project(hidden, *normed)  # (H, 1, S, h), (H, 1, K, h)
    query, key, scale = query[:, 0], key[:, 0], attention.d_head**-0.5
    query = query * scale
    (H, S, h), K = query.shape, key.shape[1]
    position = attention.position(shared).view(K + 1, H, h)[1:].flip(0).permute(1, 2, 0)  # (H, h, K), distance 0 first
    own = torch.arange(K - S, K)[:, None] - torch.arange(K)  # (S, K): column of the key at each distance
    content = (query @ key.transpose(1, 2)).gather(2, own.clamp(min=0).expand(H, S, K))
    return {
        "a": content.masked_fill(own < 0, 0.0).sum(dim=1),
        "b": (query @ position).sum(dim=1),
        "d": (attention.position_bias.unsqueeze(1) * scale @ position).squeeze(1) * S,
    }
