"""Compute a Reformer's scores in plain NumPy from a bundle's weights, and compare them with the runtime's.

No code of xlexport takes part: `bundle.json` has settings, and an ONNX file has the weights and hash rotations. Every
query is compared with every key; graphs sort and cut into chunks to avoid that. Memory is the input of each attention;
bundles carry its keys, values and buckets instead. docs/reformer_in_one_page.md explains the equations.

Axes: S tokens of a segment, M rows of memory, K = M + S keys, H heads of width d, D width of a stream.
Needs: pip install onnx, and `reformer/` from: xlexport convert samples/reformer_bytes/checkpoint.pt -o reformer
"""

import json
import sys
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import onnx
from numpy import ndarray

import xlruntime


def read_weights(file: Path) -> dict[str, ndarray]:
    """Return the weights of an ONNX file in float64; a name that ends with `.T` has the transpose."""
    weights = {}
    for tensor in onnx.load(file).graph.initializer:  # reads weights.data, too
        array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
        weights[tensor.name.removesuffix(".T")] = array.T if tensor.name.endswith(".T") else array
    return weights


def softmax(x: ndarray) -> ndarray:
    """Return the softmax over the last axis."""
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


class Reformer:
    """A Reformer (Kitaev et al. 2020) with rotary or axial positions, by rule `band` or `paper`."""

    def __init__(self, folder: Path) -> None:
        bundle = json.loads((folder / "bundle.json").read_text("utf-8"))
        self.config = config = bundle["model"]["config"]
        assert config["rule"] in ("band", "paper") and config["position"] in ("rotary", "axial")
        settings = {name: setting["value"] for name, setting in bundle["settings"].items()}
        self.n_hashes, self.mem_len = settings["n_hashes"], settings.get("mem_len", np.inf)
        self.segment_len = 100 if config["rule"] == "band" else bundle["document"]["segment_len"]  # `band`: any length
        self.weights = read_weights(folder / "score.onnx")

    def linear(self, x: ndarray, name: str) -> ndarray:
        """Apply a linear map, with its bias if it has one."""
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)

    def heads(self, x: ndarray, name: str) -> ndarray:
        """Apply a linear map to rows (K, D), and split the result into heads: (H, K, d)."""
        return self.linear(x, name).reshape(len(x), self.config["n_head"], -1).transpose(1, 0, 2)

    def norm(self, x: ndarray, name: str) -> ndarray:
        """Normalise the last axis."""
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + self.config["layer_norm_epsilon"])
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def embed(self, tokens: ndarray, places: ndarray) -> ndarray:
        """Return the embeddings (S, D) of tokens at their places in the document."""
        embedded = self.weights["word_emb.weight"][tokens]
        if self.config["position"] == "rotary":
            return embedded
        row, column = np.unravel_index(places, self.config["axial_shape"])  # a place is a cell of a table
        first, second = self.weights["positions.weights.0"], self.weights["positions.weights.1"]
        return embedded + np.hstack([first[row], second[column]])

    def turn(self, x: ndarray, places: ndarray) -> ndarray:
        """Turn each pair of neighbours in vectors (H, K, d) by the angle of its place, if positions are rotary."""
        if self.config["position"] != "rotary":
            return x
        angles = places[:, None] / 10000 ** (np.arange(0, x.shape[2], 2) / x.shape[2])  # (K, d/2)
        pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
        return np.stack([pairs.real, pairs.imag], axis=3).reshape(x.shape)

    def buckets(self, x: ndarray, rotations: ndarray) -> ndarray:
        """Return the buckets (H, K) of vectors (H, K, d) under the rotations (H, d, columns) of a round."""
        bucket, scale, begin = 0, 1, 0
        for factor in self.config["n_buckets"]:  # whose product is the number of buckets
            projected = x @ rotations[:, :, begin : begin + factor // 2]
            bucket = bucket + scale * np.concatenate([projected, -projected], axis=2).argmax(axis=2)
            scale, begin = scale * factor, begin + factor // 2
        return bucket

    def lsh(self, x: ndarray, rotations: str) -> ndarray:
        """Return which keys each query covers in a round or more, (H, K, K), from vectors (H, K, d)."""
        W, covered = self.config["chunk_length"], np.array(False)
        for r in range(self.n_hashes):
            bucket = self.buckets(x, self.weights[rotations][:, r])
            rank = bucket.argsort(axis=1, kind="stable").argsort(axis=1)  # by bucket, then by place
            lowest = rank - W if self.config["rule"] == "band" else (rank // W - 1) * W  # of the chunk before
            in_round = (lowest[:, :, None] <= rank[:, None]) & (rank[:, None] < rank[:, :, None])
            covered = covered | (in_round & (bucket[:, :, None] == bucket[:, None]))
        return covered

    def attention(self, x: ndarray, places: ndarray, layer: int, S: int) -> ndarray:
        """Return what the last S of K rows (K, D), memory and segment, take from all of them: (S, D)."""
        config, name, kind = self.config, f"attention.{layer}", self.config["attn_layers"][layer]
        age = places[:, None] - places  # (K, K), negative for later keys
        if kind == "local":
            query, key = (self.turn(self.heads(x, f"{name}.{part}"), places) for part in ("query", "key"))
            chunk = places // config["local_chunk_length"]
            sees = (age >= 0) & (chunk[:, None] - chunk <= config["local_chunks_before"])
        else:
            shared = self.heads(x, f"{name}.query_key")  # query and key in one
            query = self.turn(shared, places)
            key = query / np.sqrt(((query**2).mean(axis=2, keepdims=True) + 1e-6) * config["d_head"])  # of length 1
            sees = (age > 0) & (age <= self.mem_len)
            if kind == "lsh":
                sees = sees & self.lsh(query if config.get("hash_turned") else shared, f"{name}.rotations")
        scale = np.sqrt(config["d_head"]) if kind == "local" or config["scale_scores"] else 1.0
        sees = sees | ((age == 0) & ~sees.any(axis=-1, keepdims=True))  # a query without keys sees itself
        scores = np.where(sees, query @ key.transpose(0, 2, 1) / scale, -np.inf)  # (H, K, K)
        attended = softmax(scores[:, -S:]) @ self.heads(x, f"{name}.value")  # (H, S, d)
        return self.linear(attended.transpose(1, 0, 2).reshape(S, -1), f"{name}.output")

    def score(self, ids: ndarray) -> ndarray:
        """Return the log-probability of each of the N ids but the first, (N - 1,), segment by segment with memory."""
        config, log_probs = self.config, []
        memories = [np.zeros((0, config["d_model"]))] * len(config["attn_layers"])
        rows = max(self.mem_len, config["local_chunk_length"] * (config["local_chunks_before"] + 1))
        for begin in range(0, len(ids) - 1, self.segment_len):
            S = len(targets := ids[begin + 1 : begin + 1 + self.segment_len])
            first = second = self.embed(ids[begin : begin + S], begin + np.arange(S))  # the two streams
            for layer, memory in enumerate(memories):
                x = np.concatenate([memory, self.norm(second, f"attention.{layer}.norm")])  # (K, D)
                memories[layer] = x[max(0, len(x) - rows) :]
                first = first + self.attention(x, np.arange(begin + S - len(x), begin + S), layer, S)
                name = f"feed_forward.{layer}"
                inner = self.linear(self.norm(first, f"{name}.norm"), f"{name}.inner")
                second = second + self.linear(np.maximum(inner, 0), f"{name}.outer")
            joined = np.hstack([first, second]) if config["streams"] == "concat" else (first + second) / 2
            probs = softmax(self.linear(self.norm(joined, "norm"), "head"))
            log_probs.append(np.log(probs[np.arange(S), targets]))
        return np.concatenate(log_probs)


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "reformer")
    runtime = xlruntime.load(folder, threads=1)
    ids = np.array(runtime.tokenizer.encode(topics["assignment"]))[:300]
    expected = np.concatenate([part.log_probs for part in runtime.score_tokens([ids])])
    difference = abs(Reformer(folder).score(ids) - expected).max()
    print(f"{len(ids)} tokens: scores differ by at most {difference:.1e} nats")
    assert difference < 1e-4
