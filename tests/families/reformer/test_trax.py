"""Pickles in the layout of trax' ReformerLM, made from Hugging Face's weights; the oracle computes them."""

from __future__ import annotations

import gzip
import json
import pickle
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from tests.checkpoints.refusals import refusal
from tests.oracles.reformer_configurations import ReformerCase
from tests.oracles.reformers import HuggingFaceReformer, assert_computes
from xlexport.errors import MissingAnswerError
from xlexport.formats import load

Tree = tuple[Any, ...]


@pytest.fixture(scope="module")
def oracle() -> HuggingFaceReformer:
    return HuggingFaceReformer(ReformerCase("small", {"attn_layers": ["local", "lsh"]}, ()))


@pytest.fixture
def config(oracle: HuggingFaceReformer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(oracle.model.config.to_json_string(use_diff=False))
    return found


def tree(oracle: HuggingFaceReformer, dtype: str = "<f4", chunked: bool = False) -> Tree:
    """Return the weights as trax nests them: matrices of linear maps as (in, out), of attention for each head."""
    tensors: dict[str, Tensor] = dict(oracle.model.state_dict())
    H, d = oracle.model.config.num_attention_heads, oracle.model.config.attention_head_size

    def plain(name: str) -> Any:
        return tensors[name].numpy().astype(dtype)

    def norm(name: str) -> Tree:
        return plain(f"{name}.weight"), plain(f"{name}.bias")

    def dense(name: str) -> Tree:
        return np.ascontiguousarray(plain(f"{name}.weight").T), plain(f"{name}.bias")

    layers: list[Any] = []
    for number, kind in enumerate(oracle.model.config.attn_layers):
        name = f"reformer.encoder.layers.{number}"
        projected = ("query_key", "value") if kind == "lsh" else ("query", "key", "value")
        attention = [
            np.ascontiguousarray(
                plain(f"{name}.attention.self_attention.{part}.weight").reshape(H, d, -1).transpose(0, 2, 1)
            )
            for part in projected
        ]
        attention.append(plain(f"{name}.attention.output.dense.weight").T.reshape(H, d, -1).copy())
        inner = dense(f"{name}.feed_forward.dense.dense")
        block: Tree = (
            norm(f"{name}.feed_forward.layer_norm"),
            inner,
            (),
            (),
            dense(f"{name}.feed_forward.output.dense"),
        )
        block = ((), (), block, ()) if chunked else block
        layers += [((norm(f"{name}.attention.layer_norm"),), tuple(attention)), (), (((), ((), (), block)),), ()]
    positions = tuple((plain(f"reformer.embeddings.position_embeddings.weights.{axis}"),) for axis in range(2))
    embedding = plain("reformer.embeddings.word_embeddings.weight")
    head = plain("lm_head.decoder.weight").T.copy(), plain("lm_head.bias")
    return ((), embedding, (), positions, (), tuple(layers), (), norm("reformer.encoder.layer_norm"), (), head)


def saved(weights: object, path: Path, protocol: int = 4, **more: Any) -> Path:
    path.write_bytes(pickle.dumps({"step": 7, "opt_state": (), "weights": weights, **more}, protocol))
    return path


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("chunked", [False, True])
def test_computes_what_huggingface_computes(
    oracle: HuggingFaceReformer, config: dict[str, Any], protocol: int, chunked: bool, tmp_path: Path
) -> None:
    path = saved(tree(oracle, chunked=chunked), tmp_path / "model.pkl", protocol)
    source = load(path, config=config)
    assert (source.format, source.architecture, source.config["rule"]) == ("trax", "reformer", "chunk")
    assert any("transformers' converter" in note for note in source.notes)
    assert_computes(source.build_model(), oracle, 100)


@pytest.mark.parametrize("dtype", [">f4", "<f8"])
def test_other_floats(oracle: HuggingFaceReformer, config: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    source = load(saved(tree(oracle, dtype), tmp_path / "model.pkl"), config=config)
    assert_computes(source.build_model(), oracle, 40)


def test_history_of_training_is_not_made(
    oracle: HuggingFaceReformer, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Check that an object of trax' own class does not need trax, and that nothing of it runs."""
    module = types.ModuleType("trax.history")

    class History:
        def __setstate__(self, state: object) -> None:
            pytest.fail("an object of the file was made")

    History.__module__, History.__qualname__ = "trax.history", "History"
    module.History = History  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trax", types.ModuleType("trax"))
    monkeypatch.setitem(sys.modules, "trax.history", module)
    history = History()
    history.values = {"loss": [1.0]}  # type: ignore[attr-defined]
    path = saved(tree(oracle), tmp_path / "model.pkl", history=history)
    assert load(path, config=config).format == "trax"


def test_settings_are_needed(oracle: HuggingFaceReformer, config: dict[str, Any], tmp_path: Path) -> None:
    path = saved(tree(oracle), tmp_path / "model.pkl")
    assert "does not hold its settings. Give --config FILE" in refusal(path)
    assert "does not hold its settings" in refusal(path, config={"tgt_len": 8})
    assert "has 8 entries, expected 4 for each of 3 layers" in refusal(
        path, config={**config, "attn_layers": ["local", "lsh", "lsh"]}
    )
    assert "only axial positions" in refusal(path, config={**config, "axial_pos_embds": False})
    assert "(50, 32) in the file, (51, 32) by the configuration" in refusal(path, config={**config, "vocab_size": 51})
    short = {**config, "num_buckets": None}
    assert "Give --config num_buckets=N, or N,M" in refusal(path, MissingAnswerError, config=short)
    assert load(path, config={**short, "num_buckets": (2, 4)}).config["n_buckets"] == [2, 4]


def test_compressed_file_is_refused(oracle: HuggingFaceReformer, config: dict[str, Any], tmp_path: Path) -> None:
    path = saved(tree(oracle), tmp_path / "model.pkl")
    (tmp_path / "model.pkl.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert "compressed by gzip. Unpack it" in refusal(tmp_path / "model.pkl.gz", config=config)


Edit = Callable[[list[Any]], object]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda weights: weights.pop(), "weights has 9 entries, expected more"),
        (lambda weights: weights.__setitem__(1, ()), "weights[1] is tuple, expected an array of floats"),
        (lambda weights: weights.__setitem__(1, 3), "weights[1] is int, expected an array of floats"),
        (lambda weights: weights.__setitem__(1, np.arange(4)), "expected an array of floats"),
        (lambda weights: weights.__setitem__(3, np.zeros((4, 4), "<f4")), "weights[3] is "),
        (lambda weights: weights.__setitem__(0, (np.zeros(2, "<f4"),)), "1 of its arrays have no place"),
        (lambda weights: weights.__setitem__(7, (np.zeros(2, "<f4"), np.zeros(64, "<f4"))), "(2,) in the file, (64,)"),
    ],
)
def test_other_layouts_are_refused(
    edit: Edit, message: str, oracle: HuggingFaceReformer, config: dict[str, Any], tmp_path: Path
) -> None:
    weights = list(tree(oracle))
    edit(weights)
    assert message in refusal(saved(tuple(weights), tmp_path / "model.pkl"), config=config)


def test_heads_that_are_not_stacked_are_refused(
    oracle: HuggingFaceReformer, config: dict[str, Any], tmp_path: Path
) -> None:
    """Check that the layout of trax' first code, one matrix for all heads, is not taken for this one."""
    weights = list(tree(oracle))
    layers = list(weights[5])
    norm, attention = layers[0]
    layers[0] = norm, tuple(part.reshape(-1, part.shape[-1]) for part in attention)
    weights[5] = tuple(layers)
    message = refusal(saved(tuple(weights), tmp_path / "model.pkl"), config=config)
    assert "weights[5][0][1][0] has 2 axes, expected 3: heads, rows and columns" in message
