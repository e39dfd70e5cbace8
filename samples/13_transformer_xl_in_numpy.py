"""Compute a Transformer-XL's scores in plain NumPy from a bundle's weights, and compare them with the runtime's.

No code of xlexport takes part: `bundle.json` has settings, and ONNX files have the weights. Memory is the paper's, of
hidden states; bundles carry their keys and values instead. docs/transformer_xl_in_one_page.md explains the equations.

Axes: S tokens of a segment, M rows of memory, K = M + S keys, H heads of width d, D width of the hidden states.
Needs: pip install onnx, and `bundle/` from 01_convert.py, or the folder of another Transformer-XL as argument.
"""

import json
import sys
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import onnx
from numpy import ndarray

import xlruntime


def read_weights(*files: Path) -> dict[str, ndarray]:
    """Return the weights of ONNX files in float64; a name that ends with `.T` has the transpose."""
    weights = {}
    for file in files:
        for tensor in onnx.load(file).graph.initializer:  # reads weights.data, too
            array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
            weights[tensor.name.removesuffix(".T")] = array.T if tensor.name.endswith(".T") else array
    return weights


def log_softmax(x: ndarray) -> ndarray:
    """Return the logarithm of the softmax over the last axis."""
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


class TransformerXL:
    """A Transformer-XL with relative positions (Dai et al. 2019)."""

    def __init__(self, folder: Path) -> None:
        bundle = json.loads((folder / "bundle.json").read_text("utf-8"))
        self.config = config = bundle["model"]["config"]
        assert bundle["model"]["architecture"] == "transformer_xl" and config.get("encoding", "relative") == "relative"
        assert config["div_val"] > 1 or config["d_embed"] in (None, config["d_model"])
        settings = {name: setting["value"] for name, setting in bundle["settings"].items()}
        self.mem_len, self.clamp_len = settings["mem_len"], settings["clamp_len"]
        self.window = self.mem_len + config["window_extra"] if settings["same_length"] else np.inf  # keys, with itself
        self.segment_len = bundle["document"]["segment_len"]
        self.first_rows = self.mem_len if bundle["document"]["fresh_memory"] == "zeros" else 0
        self.clusters = list(pairwise([0, *config["cutoffs"], config["n_token"]]))  # first id, and id after the last
        self.weights = read_weights(folder / "positions.onnx", folder / "score.onnx")

    def linear(self, x: ndarray, name: str) -> ndarray:
        """Apply a linear map, with its bias if it has one."""
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)

    def norm(self, x: ndarray, name: str) -> ndarray:
        """Normalise the last axis."""
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + self.config["layer_norm_epsilon"])
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def shared(self, *names: str) -> ndarray | None:
        """Return the weight that has one of these names: a file has shared weights once."""
        return next((self.weights[name] for name in names if name in self.weights), None)

    def embed(self, tokens: ndarray) -> ndarray:
        """Return the embeddings (S, D) of tokens (S,); each cluster of the vocabulary has its own width."""
        embedded = np.empty((len(tokens), self.config["d_model"]))
        for i, (first, end) in enumerate(self.clusters):
            own = (first <= tokens) & (tokens < end)
            rows = self.shared(f"word_emb.clusters.{i}.table", f"head.clusters.{i}.weight")[tokens[own] - first]
            projection = self.shared(f"word_emb.clusters.{i}.projection", f"head.clusters.{i}.projection")
            embedded[own] = rows if projection is None else rows @ projection.T
        return embedded * np.sqrt(self.config["d_model"])

    def attention(self, hidden: ndarray, memory: ndarray, layer: int) -> ndarray:
        """Return what the hidden states (S, D) take from memory (M, D) and themselves: (S, D)."""
        H, d, (S, D), M = self.config["n_head"], self.config["d_head"], hidden.shape, len(memory)
        rows = np.concatenate([memory, hidden])
        rows = self.norm(rows, f"layers.{layer}.attention_norm") if self.config["pre_lnorm"] else rows
        rows = self.linear(rows, f"layers.{layer}.qkv").reshape(M + S, 3, H, d)
        query, key, value = rows.transpose(1, 2, 0, 3)  # each (H, K, d); weights of queries, u and v contain 1/sqrt(d)
        u, v = (self.shared(f"layers.{layer}.{name}", f"layers.0.{name}") for name in ("content_bias", "position_bias"))
        distances = np.arange(M + S)
        clamped = np.minimum(distances, self.clamp_len) if self.clamp_len > 0 else distances
        angles = clamped[:, None] / 10000 ** (np.arange(0, D, 2) / D)
        encodings = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)  # (K, D)
        position_key = self.linear(encodings, f"layers.{layer}.position").reshape(M + S, H, d).transpose(1, 0, 2)
        distance = M + np.arange(S)[:, None] - np.arange(M + S)  # (S, K), negative for later tokens
        by_distance = (query[:, M:] + v) @ position_key.transpose(0, 2, 1)  # (H, S, K)
        position = np.take_along_axis(by_distance, np.maximum(distance, 0)[None], axis=2)  # the relative shift
        scores = (query[:, M:] + u) @ key.transpose(0, 2, 1) + position
        scores = np.where((distance >= 0) & (distance < self.window), scores, -np.inf)
        attended = np.exp(log_softmax(scores)) @ value  # (H, S, d)
        return self.linear(attended.transpose(1, 0, 2).reshape(S, H * d), f"layers.{layer}.output")

    def layer(self, hidden: ndarray, memory: ndarray, layer: int) -> ndarray:
        """Return the next hidden states (S, D)."""
        name, pre_lnorm = f"layers.{layer}", self.config["pre_lnorm"]
        hidden = hidden + self.attention(hidden, memory, layer)
        hidden = hidden if pre_lnorm else self.norm(hidden, f"{name}.attention_norm")
        normed = self.norm(hidden, f"{name}.feed_forward_norm") if pre_lnorm else hidden
        hidden = hidden + self.linear(np.maximum(self.linear(normed, f"{name}.inner"), 0), f"{name}.outer")
        return hidden if pre_lnorm else self.norm(hidden, f"{name}.feed_forward_norm")

    def cluster_log_probs(self, hidden: ndarray, i: int) -> ndarray:
        """Return the log-probabilities within cluster i; in the first, the other clusters are the last entries."""
        projection = self.weights.get(f"head.clusters.{i}.projection")
        hidden = hidden if projection is None else hidden @ projection
        table = self.shared(f"head.clusters.{i}.weight", f"word_emb.clusters.{i}.table")
        scores = hidden @ table.T + self.weights[f"head.clusters.{i}.bias"]
        if i == 0 and len(self.clusters) > 1:
            of_clusters = hidden @ self.weights["head.cluster_weight"].T + self.weights["head.cluster_bias"]
            scores = np.concatenate([scores, of_clusters], axis=1)
        return log_softmax(scores)

    def log_probs(self, hidden: ndarray, targets: ndarray) -> ndarray:
        """Return the log-probability of each target (S,): log P(cluster) + log P(token | cluster)."""
        head, result = self.cluster_log_probs(hidden, 0), np.empty(len(targets))
        for i, (first, end) in enumerate(self.clusters):
            own = np.flatnonzero((first <= targets) & (targets < end))
            within = self.cluster_log_probs(hidden[own], i)[np.arange(len(own)), targets[own] - first]
            result[own] = within if i == 0 else head[own, self.clusters[0][1] + i - 1] + within
        return result

    def score(self, ids: ndarray) -> ndarray:
        """Return the log-probability of each of the N ids but the first, (N - 1,), segment by segment with memory."""
        memories = [np.zeros((self.first_rows, self.config["d_model"]))] * self.config["n_layer"]
        log_probs = []
        for begin in range(0, len(ids) - 1, self.segment_len):
            targets = ids[begin + 1 : begin + 1 + self.segment_len]
            hidden = self.embed(ids[begin : begin + len(targets)])
            for layer, memory in enumerate(memories):
                memories[layer] = np.concatenate([memory, hidden])[-self.mem_len :]
                hidden = self.layer(hidden, memory, layer)
            log_probs.append(self.log_probs(hidden, targets))
        return np.concatenate(log_probs)


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "bundle")
    runtime = xlruntime.load(folder, threads=1)
    ids = np.array(runtime.tokenizer.encode(topics["assignment"]))[:300]
    expected = np.concatenate([part.log_probs for part in runtime.score_tokens([ids])])
    difference = abs(TransformerXL(folder).score(ids) - expected).max()
    print(f"{len(ids)} tokens: scores differ by at most {difference:.1e} nats")
    assert difference < 1e-4
