"""Each encoding of positions as its formula, in float64, token by token and key by key."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from xltraining.transformer_xl import TransformerXLConfig

Array = npt.NDArray[np.float64]


@functools.cache
def sinusoid(number: int, D: int) -> Array:
    """Return D/2 sines and D/2 cosines."""
    angles = [number / 10000 ** (2 * i / D) for i in range(D // 2)]
    return np.array([*map(math.sin, angles), *map(math.cos, angles)])


class Ours:
    """A state dict of `TransformerXL` with one cluster; layers count from 0."""

    def __init__(self, config: TransformerXLConfig, tensors: Mapping[str, Tensor]) -> None:
        self.config = config
        self.w = {name: tensor.detach().double().numpy() for name, tensor in tensors.items()}

    def block(self, layer: int, name: str) -> Array:
        """Return a weight of a layer."""
        return self.w[f"layers.{layer}.{name}"]

    def heads(self, layer: int, x: Array, normed: Array) -> tuple[Array, Array, Array]:
        """Return query, key and value (H,h) of a layer's input x (D,), which `normed` is under pre-LayerNorm."""
        H, h = self.config.n_head, self.config.d_head
        if self.config.is_absolute:
            query = (self.block(layer, "attention.query.weight") @ x).reshape(H, h)
            key, value = (self.block(layer, "attention.key_value.weight") @ normed).reshape(2, H, h)
        else:
            query, key, value = (self.block(layer, "attention.qkv.weight") @ normed).reshape(3, H, h)
        return query, key, value

    def at_distance(self, layer: int, name: str, distance: int) -> Array:
        """Return the row `key` (H,h) or `bias` (H,) of a distance, without clamping (encoding shaw)."""
        return np.asarray(self.block(layer, f"attention.distance_{name}")[-1 - distance])

    def at_place(self, layer: int, place: int) -> Array:
        """Return the vector (D,) that a layer adds at a place of a part (encoding learned)."""
        return np.asarray(self.block(layer, "attention.places")[-self.config.tgt_len :][place])

    def norm(self, x: Array, layer: int, block: str) -> Array:
        """Return the layer normalisation of x (D,)."""
        scaled = (x - x.mean()) / math.sqrt(x.var() + self.config.layer_norm_epsilon)
        return scaled * self.block(layer, f"{block}.norm.weight") + self.block(layer, f"{block}.norm.bias")


def log_probs_by_definition(weights: Ours, ids: Tensor, lengths: Sequence[int]) -> Array:
    """Return the log-probabilities (N - 1,) of ids[1:], from ids (N,) read in segments of these lengths.

    Every layer's input of every token is kept. A token sees itself, the tokens before it in its segment, and the
    tokens in memory, which may begin with zero rows. Under an absolute encoding it sees its own part of `tgt_len`
    tokens.
    """
    config = weights.config
    zeros = range(-config.mem_len if config.first_memory == "zeros" and not config.is_absolute else 0, 0)
    H, h, D = config.n_head, config.d_head, config.d_model
    tables = weights.w
    table = tables["word_emb.clusters.0.table"]
    begins = np.repeat(np.cumsum([0, *lengths[:-1]]), lengths).tolist()  # of each token's segment
    x: dict[int, Any] = {t: table[int(ids[t])] * math.sqrt(D) for t in range(len(begins))}
    for layer in range(config.n_layer):
        x = {t: row + _placed(weights, layer, t % config.tgt_len) for t, row in x.items()}
        x |= {t: np.zeros(D) for t in zeros}
        normed = {t: weights.norm(x[t], layer, "attention") if config.pre_lnorm else x[t] for t in x}
        heads = {t: weights.heads(layer, x[t], normed[t]) for t in x}
        following = {}
        for t, begin in enumerate(begins):
            first = t - t % config.tgt_len if config.is_absolute else max(zeros.start, begin - config.mem_len)
            seen = [j for j in range(first, t + 1) if config.window is None or t - j < config.window]
            mixed = np.zeros((H, h))
            for n in range(H):
                scores = [_score(weights, layer, n, heads[t][0][n], heads[j][1][n], t - j) for j in seen]
                powers = np.exp(np.array(scores) / math.sqrt(h))
                for j, power in zip(seen, powers, strict=True):
                    mixed[n] += power / powers.sum() * heads[j][2][n]
            y = x[t] + weights.block(layer, "attention.output.weight") @ mixed.reshape(-1)
            y = y if config.pre_lnorm else weights.norm(y, layer, "attention")
            inner = weights.norm(y, layer, "feed_forward") if config.pre_lnorm else y
            inner = weights.block(layer, "feed_forward.inner.weight") @ inner
            inner = np.maximum(inner + weights.block(layer, "feed_forward.inner.bias"), 0)
            y = y + weights.block(layer, "feed_forward.outer.weight") @ inner
            y = y + weights.block(layer, "feed_forward.outer.bias")
            following[t] = y if config.pre_lnorm else weights.norm(y, layer, "feed_forward")
        x = following
    weight, bias = tables["head.clusters.0.weight"], tables["head.clusters.0.bias"]
    log_probs = []
    for t in x:
        scores = weight @ x[t] + bias
        log_probs.append(scores[int(ids[t + 1])] - np.logaddexp.reduce(scores))
    return np.array(log_probs)


def _placed(weights: Ours, layer: int, place: int) -> Array | float:
    """Return what a layer adds to its input at a place of a part."""
    config = weights.config
    if config.encoding == "learned":
        return weights.at_place(layer, place)
    if config.encoding == "sinusoidal" and layer == 0:
        number = config.tgt_len - 1 - place
        return sinusoid(min(number, config.clamp_len) if config.clamp_len > 0 else number, config.d_model)
    return 0.0


def _score(weights: Ours, layer: int, head: int, query: Array, key: Array, distance: int) -> float:
    """Return the score of a key at a distance before it is scaled by 1/sqrt(h)."""
    config = weights.config
    if config.is_absolute:
        return float(query @ key)
    if config.encoding == "shaw":
        n = config.n_embedded if config.clamp_len <= 0 else min(config.clamp_len, config.n_embedded)
        last = min(distance, n - 1)
        by_distance = query @ weights.at_distance(layer, "key", last)[head]
        if not config.shaw_biases:
            return float(query @ key + by_distance)
    content = (query + weights.block(layer, "attention.content_bias")[head]) @ key
    if config.encoding == "shaw":
        return float(content + by_distance + weights.at_distance(layer, "bias", last)[head])
    rows = slice(head * config.d_head, (head + 1) * config.d_head)
    clamped = min(distance, config.clamp_len) if config.clamp_len > 0 else distance
    R = weights.block(layer, "attention.position.weight")[rows] @ sinusoid(clamped, config.d_model)
    return float(content + (query + weights.block(layer, "attention.position_bias")[head]) @ R)
