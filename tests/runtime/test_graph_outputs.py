"""Outputs of graphs are compared with the bundle's description before they count as scores."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.helpers.made_graphs import DETAIL, constant, graph, made_bundle, model
from tests.runtime.conftest import RandomIds
from xlruntime import Model, load
from xlruntime.errors import BundleGraphError

node = helper.make_node
FLOATS = node("Cast", ["targets"], ["f"], to=TensorProto.FLOAT)  # (B, S)
CONSTANTS = [
    *(constant(name, np.float32(value)) for name, value in {"minus": -0.01}.items()),
    constant("one", np.array([1])),
    constant("two", np.array([2])),
    constant("more", np.array([100])),
    constant("shape", np.array([1, 1, -1])),
    constant("word", np.array([b"-1.0"], object)),
]
SCALED = node("Mul", ["f", "minus"], ["m"])  # valid values for log_prob
WRONG: dict[str, list[onnx.NodeProto]] = {
    "float32 2 x 1 x 6": [
        SCALED,
        node("Reshape", ["m", "shape"], ["x"]),
        node("Concat", ["x", "x"], ["log_prob"], axis=0),
    ],
    "float32 1 x 5": [SCALED, node("Slice", ["m", "one", "more", "one"], ["log_prob"])],
    "float32 1 x 12": [SCALED, node("Concat", ["m", "m"], ["log_prob"], axis=1)],
    "float32 1 x 0": [SCALED, node("Slice", ["m", "more", "more", "one"], ["log_prob"])],
    "float32 scalar": [node("ReduceMax", ["f"], ["log_prob"], keepdims=0)],
    "float64 1 x 6": [SCALED, node("Cast", ["m"], ["log_prob"], to=TensorProto.DOUBLE)],
    "int64 1 x 6": [node("Neg", ["targets"], ["log_prob"])],
    "object 1": [node("Identity", ["word"], ["log_prob"])],
}


def scoring(nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    return model(graph([FLOATS, *nodes], CONSTANTS))


def open_scoring(folder: Path, nodes: list[onnx.NodeProto]) -> Model:
    return load(made_bundle(folder / "bundle", {"score": scoring(nodes)}), threads=1)


@pytest.mark.parametrize("found", WRONG)
@pytest.mark.parametrize("way", ["stream", "score"])
def test_scores_of_another_kind_are_an_error(found: str, way: str, tmp_path: Path) -> None:
    opened = open_scoring(tmp_path, WRONG[found])
    expected = r"output log_prob is FOUND, expected float32 1 x 6\. Convert".replace("FOUND", found)
    with pytest.raises(BundleGraphError, match=r"bundle/score\.onnx: " + expected):
        opened.stream().feed(b"abcdefg") if way == "stream" else list(opened.score([b"abcdefg"]))


LISTED = (1, 1, 10)


def detail_graph(**changes: str) -> onnx.ModelProto:
    """Return a graph with rank 3, an entropy of 2 nats and top tokens 0; `changes` name other constants."""
    given = {"rank": "three", "entropy": "nats", "top_ids": "zero", "top_log_probs": "low", **changes}
    held = [
        constant("three", np.int64(3)),
        constant("zero", np.int64(0)),
        constant("minus one", np.int64(-1)),
        constant("beyond", np.int64(256)),
        constant("beyond by one", np.int64(257)),
        constant("nats", np.float32(2)),
        constant("low", np.float32(-3)),
        constant("tops", np.array([1, 1, 10])),
    ]
    nodes = [
        FLOATS,
        node("Mul", ["f", "minus"], ["log_prob"]),
        node("Shape", ["targets"], ["each"]),
        node("Unsqueeze", ["targets", "two"], ["t"]),
        node("Expand", ["t", "tops"], ["t10"]),
        node("Shape", ["t10"], ["listed"]),
        *(node("Expand", [given[name], "each"], [name]) for name in ("rank", "entropy")),
        *(node("Expand", [given[name], "listed"], [name]) for name in ("top_ids", "top_log_probs")),
    ]
    return model(graph(nodes, [*CONSTANTS, *held], list(DETAIL)))


def details(folder: Path, **changes: str) -> list[Any]:
    models = {"score": scoring([node("Mul", ["f", "minus"], ["log_prob"])]), "detail": detail_graph(**changes)}
    opened = load(made_bundle(folder / "bundle", models), threads=1)
    return list(opened.score_tokens([b"abcdefg"], detail=2))


def test_valid_details_are_returned(tmp_path: Path) -> None:
    (part,) = details(tmp_path)
    assert part.rank.tolist() == [3] * 6
    assert part.top_log_probs.tolist() == [[-3, -3]] * 6


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rank": "zero"}, "rank has values from 0 to 0, expected 1 to 256"),
        ({"rank": "beyond by one"}, "rank has values from 257 to 257, expected 1 to 256"),
        ({"rank": "nats"}, "rank is float32 1 x 6, expected int64 1 x 6"),
        ({"top_ids": "minus one"}, "top_ids has values from -1 to -1, expected 0 to 255"),
        ({"top_ids": "beyond"}, "top_ids has values from 256 to 256, expected 0 to 255"),
        ({"top_ids": "low"}, "top_ids is float32 1 x 6 x 10, expected int64 1 x 6 x 10"),
    ],
)
def test_invalid_details_are_an_error(changes: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(BundleGraphError) as caught:
        details(tmp_path, **changes)
    assert f"detail.onnx: output {said}" in str(caught.value)


def test_invalid_outputs_leave_the_memory_unchanged(
    bytes_model: Model, random_ids: RandomIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = random_ids(24)
    stream, other = bytes_model.stream(), bytes_model.stream()
    expected = other.feed(ids[:8]), other.feed(ids[8:])
    stream.feed(ids[:8])
    session = bytes_model.session("score")
    step = type(session).step

    def lying(self: Any, feeds: Any, memory: Any) -> Any:
        return {name: array[:, 1:] for name, array in step(self, feeds, memory).items()}

    monkeypatch.setattr(type(session), "step", lying)
    with warnings.catch_warnings(), pytest.raises(BundleGraphError, match="expected float32 1 x 8"):
        stream.feed(ids[8:])
    monkeypatch.undo()
    assert np.array_equal(stream.feed(ids[8:]).log_probs, expected[1].log_probs)
