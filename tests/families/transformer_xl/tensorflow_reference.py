"""A Transformer-XL of the authors' TensorFlow code in NumPy: its variables, and its computation.

Axes: B batch, S segment, M memory, K = M + S keys, D `d_model`, H heads, h `d_head`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Floats", "Variant"]

Floats = npt.NDArray[np.float64]
L, H, h, D, INNER, N_TOKEN = 3, 2, 3, 8, 12, 16


@dataclass(frozen=True)
class Variant:
    """Choices by flags of the TensorFlow code; a model of this kind has the sizes above."""

    cutoffs: tuple[int, ...] = ()
    div_val: int = 1
    d_embed: int = D
    tie_projs: tuple[bool, ...] = (False,) * 3
    proj_same_dim: bool = True
    untie_r: bool = True

    @property
    def clusters(self) -> list[tuple[str, int, int]]:
        """Folder of each cluster's variables, its first token, and the token after its last."""
        edges = (0, *self.cutoffs, N_TOKEN)
        return [(f"cutoff_{i}", first, end) for i, (first, end) in enumerate(itertools.pairwise(edges))]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every variable, by its name without the scope."""
        heads = (L, H, h) if self.untie_r else (H, h)
        shapes: dict[str, tuple[int, ...]] = {"r_w_bias": heads, "r_r_bias": heads}
        if self.div_val == 1:
            shapes["adaptive_embed/lookup_table"] = (N_TOKEN, self.d_embed)
            if self.d_embed != D:
                shapes["adaptive_embed/proj_W"] = (self.d_embed, D)
        for i, (folder, first, end) in enumerate(self.clusters):
            width = self.d_embed // self.div_val**i
            projected = width != D or (self.div_val > 1 and self.proj_same_dim)
            if self.div_val > 1:
                shapes[f"adaptive_embed/{folder}/lookup_table"] = (end - first, width)
                if projected:
                    shapes[f"adaptive_embed/{folder}/proj_W"] = (width, D)
            if self.cutoffs:
                shapes[f"adaptive_softmax/{folder}/b"] = (end - first,)
                if projected and not self.tie_projs[i]:
                    shapes[f"adaptive_softmax/{folder}/proj"] = (width, D)
        if self.cutoffs:
            shapes["adaptive_softmax/cutoff_0/cluster_W"] = (len(self.cutoffs), self.d_embed)
            shapes["adaptive_softmax/cutoff_0/cluster_b"] = (len(self.cutoffs),)
        else:
            shapes["adaptive_softmax/bias"] = (N_TOKEN,)
        for layer in range(L):
            attention, feed_forward = f"layer_{layer}/rel_attn", f"layer_{layer}/ff"
            shapes |= {
                f"{attention}/qkv/kernel": (D, 3 * H * h),
                f"{attention}/r/kernel": (D, H * h),
                f"{attention}/o/kernel": (H * h, D),
                f"{feed_forward}/layer_1/kernel": (D, INNER),
                f"{feed_forward}/layer_1/bias": (INNER,),
                f"{feed_forward}/layer_2/kernel": (INNER, D),
                f"{feed_forward}/layer_2/bias": (D,),
            }
            for block in (attention, feed_forward):
                shapes |= {f"{block}/LayerNorm/beta": (D,), f"{block}/LayerNorm/gamma": (D,)}
        return shapes

    def variables(self, seed: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return random variables by their names in a checkpoint; none is zero, as new biases would be."""
        random = np.random.default_rng(seed)
        return {
            f"transformer/{name}": (0.3 * random.standard_normal(shape) + name.endswith("gamma")).astype(np.float32)
            for name, shape in self.shapes().items()
        }

    def walk(
        self,
        variables: dict[str, npt.NDArray[np.float32]],
        tokens: npt.NDArray[np.int64],
        segment: int,
        mem_len: int,
        clamp_len: int,
        same_length: bool,
    ) -> tuple[Floats, list[Floats]]:
        """Return log-probabilities (B, T), in nats, of tokens (B, T + 1) after the first, and memory L x (B, M, D)."""
        own = {name.removeprefix("transformer/"): value.astype(np.float64) for name, value in variables.items()}
        memory = [np.zeros((len(tokens), mem_len, D))] * L
        results = []
        for start in range(0, tokens.shape[1] - 1, segment):
            inputs, targets = tokens[:, start : start + segment], tokens[:, start + 1 : start + segment + 1]
            hidden = self._embed(own, inputs)
            for layer in range(L):
                kept = np.concatenate([memory[layer], hidden], 1)
                hidden = self._attend(own, layer, hidden, memory[layer], clamp_len, same_length)
                hidden = _feed_forward(own, layer, hidden)
                memory[layer] = kept[:, kept.shape[1] - mem_len :]
            results.append(np.take_along_axis(self._log_probs(own, hidden), targets[..., None], 2)[..., 0])
        return np.concatenate(results, 1), memory

    def _rows(self, own: dict[str, Floats]) -> list[Floats]:
        """Return the embeddings of each cluster, not projected."""
        if self.div_val == 1:
            return [own["adaptive_embed/lookup_table"][first:end] for _, first, end in self.clusters]
        return [own[f"adaptive_embed/{folder}/lookup_table"] for folder, *_ in self.clusters]

    def _embedding_projection(self, own: dict[str, Floats], folder: str) -> Floats | None:
        return own.get("adaptive_embed/proj_W" if self.div_val == 1 else f"adaptive_embed/{folder}/proj_W")

    def _embed(self, own: dict[str, Floats], tokens: npt.NDArray[np.int64]) -> Floats:
        """Return embeddings (B, S, D)."""
        projections = [self._embedding_projection(own, folder) for folder, *_ in self.clusters]
        parts = zip(self._rows(own), projections, strict=True)
        table = np.concatenate([rows if matrix is None else rows @ matrix for rows, matrix in parts])  # (N_TOKEN, D)
        return table[tokens] * D**0.5

    def _attend(
        self, own: dict[str, Floats], layer: int, hidden: Floats, memory: Floats, clamp_len: int, same_length: bool
    ) -> Floats:
        """Return the attention block's output (B, S, D), computed one query at a time."""
        B, S, _ = hidden.shape
        M = memory.shape[1]
        block = f"layer_{layer}/rel_attn"
        u, v = (own[name][layer] if self.untie_r else own[name] for name in ("r_w_bias", "r_r_bias"))
        heads = np.concatenate([memory, hidden], 1) @ own[f"{block}/qkv/kernel"]  # (B, K, 3 * H * h)
        query, key, value = heads.reshape(B, M + S, 3, H, h).transpose(2, 0, 1, 3, 4)
        distances = np.arange(M + S)
        if clamp_len > 0:
            distances = np.minimum(distances, clamp_len)
        angles = distances[:, None] / 10000 ** (np.arange(0, D, 2) / D)
        sinusoids = np.concatenate([np.sin(angles), np.cos(angles)], 1)  # (K, D)
        position = (sinusoids @ own[f"{block}/r/kernel"]).reshape(M + S, H, h)
        mixed = np.zeros((B, S, H, h))
        for i in range(S):
            seen = range(i if same_length else 0, i + M + 1)  # the mask of the code: no key before i, none after i + M
            scores = np.stack(
                [
                    ((query[:, M + i] + u) * key[:, j] + (query[:, M + i] + v) * position[i + M - j]).sum(-1) / h**0.5
                    for j in seen
                ],
                1,
            )  # (B, seen, H)
            weights = np.exp(_log_softmax(scores, 1))
            mixed[:, i] = (weights[..., None] * value[:, seen.start : seen.stop]).sum(1)
        return _layer_norm(own, block, hidden + mixed.reshape(B, S, H * h) @ own[f"{block}/o/kernel"])

    def _log_probs(self, own: dict[str, Floats], hidden: Floats) -> Floats:
        """Return log-probabilities (B, S, N_TOKEN)."""
        rows = self._rows(own)

        def logits(i: int, weight: Floats, bias: Floats) -> Floats:
            folder = self.clusters[i][0]
            matrix = own.get(f"adaptive_softmax/{folder}/proj")
            if not self.cutoffs or self.tie_projs[i]:
                matrix = self._embedding_projection(own, folder)
            return (hidden if matrix is None else hidden @ matrix.T) @ weight.T + bias

        if not self.cutoffs:
            return _log_softmax(logits(0, rows[0], own["adaptive_softmax/bias"]), -1)
        biases = [own[f"adaptive_softmax/{folder}/b"] for folder, *_ in self.clusters]
        weight = np.concatenate([rows[0], own["adaptive_softmax/cutoff_0/cluster_W"]])
        bias = np.concatenate([biases[0], own["adaptive_softmax/cutoff_0/cluster_b"]])
        head = _log_softmax(logits(0, weight, bias), -1)
        parts = [head[..., : self.cutoffs[0]]]
        for i in range(1, len(rows)):
            slot = head[..., self.cutoffs[0] + i - 1, None]
            parts.append(slot + _log_softmax(logits(i, rows[i], biases[i]), -1))
        return np.concatenate(parts, -1)


def _feed_forward(own: dict[str, Floats], layer: int, hidden: Floats) -> Floats:
    block = f"layer_{layer}/ff"
    inner = np.maximum(hidden @ own[f"{block}/layer_1/kernel"] + own[f"{block}/layer_1/bias"], 0)
    return _layer_norm(own, block, hidden + inner @ own[f"{block}/layer_2/kernel"] + own[f"{block}/layer_2/bias"])


def _layer_norm(own: dict[str, Floats], block: str, x: Floats) -> Floats:
    centred = x - x.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    return normed * own[f"{block}/LayerNorm/gamma"] + own[f"{block}/LayerNorm/beta"]


def _log_softmax(scores: Floats, axis: int) -> Floats:
    return scores - np.logaddexp.reduce(scores, axis, keepdims=True)
