"""Make `data/tensorflow/` with TensorFlow itself, which the tests do without: `pip install tensorflow-cpu`.

Each folder holds a tiny Transformer-XL as a TensorFlow 1 graph builds it, its variables named and laid out as in the
authors' TensorFlow code, trained for a few steps and written by `tf.train.Saver`. The folder also holds TensorFlow's
results for a few segments with carried memory: `tokens` (B, T + 1), and `log_probs` (B, T) of tokens 1 to T in nats.

Axes: B batch, S segment, M memory, K = M + S keys, D `d_model`, H heads, h `d_head`.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parent / "data" / "tensorflow"
L, H, h, D, INNER, N_TOKEN = 2, 2, 3, 8, 12, 16
B, S, SEGMENTS, M, CLAMP = 2, 5, 4, 6, 7
EPOCHS = 3
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    # As WikiText-103: clusters of falling width, all but the first projected alike; the optimizer's state is kept.
    "adaptive": {"cutoffs": (4, 9), "tie_projs": (False, True, True), "keep_optimizer": True},
    # As One Billion Word: no projection where the widths agree, and none is shared.
    "same_dim": {"cutoffs": (4, 9), "tie_projs": (False, False, False), "proj_same_dim": False},
    # As enwik8 and text8: one softmax, biases shared by all layers.
    "plain": {"untie_r": False, "same_length": False},
}

tf: Any = importlib.import_module("tensorflow").compat.v1


def variable(name: str, *shape: int, mean: float = 0.0) -> Any:
    return tf.get_variable(
        name, shape, initializer=tf.random_normal_initializer(mean, 0.3, seed=len(tf.trainable_variables()))
    )


def layer_norm(x: Any) -> Any:
    with tf.variable_scope("LayerNorm"):
        beta, gamma = variable("beta", D), variable("gamma", D, mean=1.0)
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-12)


def dense(name: str, x: Any, out: int, bias: bool = False) -> Any:
    with tf.variable_scope(name):
        y = tf.tensordot(x, variable("kernel", int(x.shape[-1]), out), 1)
        return y + variable("bias", out) if bias else y


def tables_of(cutoffs: tuple[int, ...], proj_same_dim: bool) -> tuple[list[Any], list[Any]]:
    """Return the embeddings of each cluster and their projections; without cutoffs, one table and no projection."""
    with tf.variable_scope("adaptive_embed"):
        if not cutoffs:
            return [variable("lookup_table", N_TOKEN, D)], [None]
        tables, projections = [], []
        for index, (first, end) in enumerate(zip((0, *cutoffs), (*cutoffs, N_TOKEN), strict=True)):
            with tf.variable_scope(f"cutoff_{index}"):
                width = D // 2**index
                tables.append(variable("lookup_table", end - first, width))
                projections.append(variable("proj_W", width, D) if proj_same_dim or width != D else None)
        return tables, projections


def log_softmax(hidden: Any, tables: list[Any], projections: list[Any], tie_projs: tuple[bool, ...]) -> Any:
    """Return log-probabilities (B, S, N_TOKEN) of every token."""

    def logits(weight: Any, bias: Any, projection: Any) -> Any:
        narrow = hidden if projection is None else tf.tensordot(hidden, projection, [[2], [1]])
        return tf.tensordot(narrow, weight, [[2], [1]]) + bias

    with tf.variable_scope("adaptive_softmax"):
        if len(tables) == 1:
            return tf.nn.log_softmax(logits(tables[0], variable("bias", N_TOKEN), None))
        parts = []
        for index, (weight, projection) in enumerate(zip(tables, projections, strict=True)):
            with tf.variable_scope(f"cutoff_{index}"):
                size, width = weight.shape
                own = projection is not None and not tie_projs[index]
                rows, biases = [weight], [variable("b", size)]
                if index == 0:
                    rows.append(variable("cluster_W", len(tables) - 1, width))
                    biases.append(variable("cluster_b", len(tables) - 1))
                used = variable("proj", width, D) if own else projection
                parts.append(tf.nn.log_softmax(logits(tf.concat(rows, 0), tf.concat(biases, 0), used)))
    head, *tails = parts
    shortlist = int(tables[0].shape[0])
    slots = [head[..., shortlist + index, None] for index in range(len(tails))]
    return tf.concat([head[..., :shortlist], *(slot + tail for slot, tail in zip(slots, tails, strict=True))], -1)


def attention(x: Any, memory: Any, u: Any, v: Any, same_length: bool) -> Any:
    """Return the block's output (B, S, D) from its input (B, S, D) and memory (B, M, D)."""
    K = M + S
    distance = np.arange(M, K)[:, None] - np.arange(K)  # (S, K)
    masked = (distance < 0) | (same_length & (distance > M))
    angles = np.minimum(np.arange(K), CLAMP)[:, None] / 10000 ** (np.arange(0, D, 2) / D)
    sinusoids = np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)  # (K, D), by distance

    query, key, value = tf.split(dense("qkv", tf.concat([memory, x], 1), 3 * H * h), 3, -1)
    query = tf.reshape(query[:, -S:], [B, S, H, h])
    key, value = tf.reshape(key, [B, K, H, h]), tf.reshape(value, [B, K, H, h])
    position = tf.reshape(dense("r", tf.constant(sinusoids), H * h), [K, H, h])
    by_content = tf.einsum("bihd,bjhd->ijbh", query + u, key)
    by_distance = tf.einsum("bihd,nhd->inbh", query + v, position)
    by_position = tf.gather(by_distance, np.maximum(distance, 0), axis=1, batch_dims=1)  # (S, K, B, H)
    scores = tf.where(
        masked[:, :, None, None] & np.ones((S, K, B, H), bool),
        tf.fill([S, K, B, H], -1e30),
        (by_content + by_position) / h**0.5,
    )
    mixed = tf.einsum("ijbh,bjhd->bihd", tf.nn.softmax(scores, 1), value)
    return layer_norm(x + dense("o", tf.reshape(mixed, [B, S, H * h]), D))


def model(
    tokens: Any,
    memory: list[Any],
    cutoffs: tuple[int, ...] = (),
    tie_projs: tuple[bool, ...] = (),
    proj_same_dim: bool = True,
    untie_r: bool = True,
    same_length: bool = True,
) -> tuple[Any, list[Any]]:
    """Return log-probabilities (B, S, N_TOKEN), and the inputs (B, S, D) of each layer."""
    with tf.variable_scope("transformer"):
        own = (L,) if untie_r else ()
        u, v = variable("r_w_bias", *own, H, h), variable("r_r_bias", *own, H, h)
        tables, projections = tables_of(cutoffs, proj_same_dim)
        rows = [table if P is None else table @ P for table, P in zip(tables, projections, strict=True)]
        x = tf.gather(tf.concat(rows, 0), tokens) * D**0.5
        inputs = []
        for layer in range(L):
            inputs.append(x)
            with tf.variable_scope(f"layer_{layer}"):
                with tf.variable_scope("rel_attn"):
                    biases = (u[layer], v[layer]) if untie_r else (u, v)
                    x = attention(x, memory[layer], *biases, same_length)
                with tf.variable_scope("ff"):
                    inner = tf.nn.relu(dense("layer_1", x, INNER, bias=True))
                    x = layer_norm(x + dense("layer_2", inner, D, bias=True))
        return log_softmax(x, tables, projections, tie_projs), inputs


def make(folder: Path, keep_optimizer: bool = False, **variant: Any) -> None:
    """Train a model, save it, and compute the results with which the tests compare."""
    tokens = np.random.default_rng(1).integers(0, N_TOKEN, (B, SEGMENTS * S + 1))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tf.Graph().as_default(), tf.Session() as session:
        inputs = tf.placeholder(tf.int32, [B, S])
        targets = tf.placeholder(tf.int32, [B, S])
        memory = [tf.placeholder(tf.float32, [B, M, D]) for _ in range(L)]
        log_probs, hidden = model(inputs, memory, **variant)
        chosen = tf.gather(log_probs, targets, axis=2, batch_dims=2)  # (B, S)
        step = tf.train.get_or_create_global_step()
        train = tf.train.AdamOptimizer(0.01).minimize(-tf.reduce_mean(chosen), step)
        session.run(tf.global_variables_initializer())

        def walk(*fetches: Any) -> list[Any]:
            kept, results = [np.zeros((B, M, D), np.float32)] * L, []
            for start in range(0, SEGMENTS * S, S):
                feed = {inputs: tokens[:, start : start + S], targets: tokens[:, start + 1 : start + S + 1]}
                new, *result = session.run([hidden, *fetches], {**feed, **dict(zip(memory, kept, strict=True))})
                kept = [np.concatenate(pair, 1)[:, -M:] for pair in zip(kept, new, strict=True)]
                results.append(result)
            return results

        for _ in range(EPOCHS):
            walk(train)
        kept = None if keep_optimizer else [*tf.trainable_variables(), step]
        saver = tf.train.Saver(kept, save_relative_paths=True)
        saver.save(session, str(folder / "model.ckpt"), step, write_meta_graph=False)
        expected = np.concatenate([result[0] for result in walk(chosen)], 1)
    np.savez(folder / "expected.npz", tokens=tokens.astype(np.uint8), log_probs=expected)


if __name__ == "__main__":
    for name, variant in VARIANTS.items():
        make(DATA / name, **variant)
