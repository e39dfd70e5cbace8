"""Graphs are refused by the C runtime exactly if Python refuses them, with the same messages."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from reliability.damage import damage_bytes
from tests.helpers.c_base import CRefusal, ask, outcome
from tests.helpers.made_graphs import external, graph, model
from tests.helpers.paths import GOLDEN
from tests.runtime.test_graph_gate import SCALE, SCORED, call, function, laughs, node, with_functions
from xlruntime.graph_gate import check_graph, read_graph
from xlruntime.limits import Limits

pytestmark = pytest.mark.native

GRAPHS = sorted(GOLDEN.glob("*/bundle/*.onnx"))
SAMPLES = 1500  # damaged graphs
NUMBERS = (1, 2, 4, 5, 6, 7, 8, 10, 11, 13, 15, 20, 22, 25)  # of fields that matter
VALUES = (b"", b"Add", b"location", b"\xff\xe9")
NOT_MESSAGES = [
    *(b"", b"\x0b", b"\x0c", b"\x07", b"\x00\x00", b"\x3a", b"\x3a\x05ab", b"\x3a" + b"\xff" * 12, b"\x80" * 11),
    *(b"\x09abc", b"\x3a" + b"\xff" * 9 + b"\x7f", b"\x3a" + b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x01"),
    *(b"\x08" + b"\xff" * 9 + b"\x7f", b"\x3a" + b"\x80" * 9 + b"\x00", b"\x80\x80\x80\x80\x10\x00"),
]


def both(content: bytes, data_files: Iterable[str] = (), limits: Limits | None = None) -> tuple[Any, Any]:
    names = list(data_files)
    given = {} if limits is None else {"limits": [limits.bytes, limits.operations]}
    ours = outcome(lambda: sorted(check_graph(content, "score.onnx", names, **({"limits": limits} if limits else {}))))
    return ours, outcome(lambda: ask("graph", text=content, data_files=names, **given))


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: f"{path.parents[1].name}-{path.stem}")
def test_golden_graphs_pass(path: Path) -> None:
    ours, theirs = both(path.read_bytes(), ["weights.data"])
    assert theirs == ours == ["weights.data"] or theirs == ours == []


def nested(depth: int, innermost: onnx.NodeProto) -> onnx.NodeProto:
    for _ in range(depth):
        innermost = node("Loop", ["", "", "c"], ["unused"], body=helper.make_graph([innermost], "b", [], []))
    return innermost


def strange(operator: str, domain: str = "") -> onnx.ModelProto:
    return model(graph([*SCORED, node(operator, ["c"], ["unused"], domain=domain)], [SCALE]))


def deep_call(depth: int) -> onnx.ModelProto:
    half = with_functions(function("f", [nested(8, node("Identity", ["x"], ["y"]))]), called="f")
    half.graph.node.append(nested(depth, call("f", "c", "unused")))
    return half


def training() -> onnx.ModelProto:
    made = model(graph(SCORED, [SCALE]))
    made.training_info.add()
    return made


MADE: dict[str, Callable[[], onnx.ModelProto]] = {
    "If": lambda: strange("If"),
    "ai.onnx": lambda: strange("Add", "ai.onnx"),
    "ml": lambda: strange("TreeEnsemble", "ai.onnx.ml"),
    "no name": lambda: strange(""),
    "odd name": lambda: strange("é\x1b\n" + "a" * 200),
    "many": lambda: model(graph([*SCORED, *(node(f"X{n}", ["c"], ["u"]) for n in range(20))], [SCALE])),
    "elsewhere": lambda: model(graph(SCORED, [SCALE, external("w", "../secret\x1b", 4)])),
    "everywhere": lambda: model(graph(SCORED, [SCALE, *(external("w", f"x{n}", 4) for n in range(9))])),
    "nowhere": lambda: model(graph(SCORED, [SCALE, external("w", "", 4)])),
    "constant": lambda: model(graph([*SCORED, node("Constant", [], ["u"], value=external("w", "x", 4))], [SCALE])),
    "12 laughs": lambda: laughs(12, 4),
    "7 laughs": lambda: laughs(7, 4),
    "30 laughs": lambda: laughs(30, 4),
    "narrow laughs": lambda: laughs(30, 1),
    "16 laughs": lambda: laughs(15, 1),
    "very many": lambda: laughs(15, 40),
    "itself": lambda: with_functions(function("f", [call("f", "x", "y")]), called="f"),
    "absent": lambda: with_functions(called="f"),
    "twice": lambda: with_functions(*[function("f", [node("Identity", ["x"], ["y"])])] * 2, called="f"),
    "foreign": lambda: with_functions(function("Mul", [node("Identity", ["x"], ["y"])], ""), called="f"),
    "uncalled": lambda: model(graph(SCORED, [SCALE]), [function("f", [node("If", ["x"], ["y"])])]),
    "deep": lambda: model(graph([*SCORED, nested(20, SCORED[0])], [SCALE])),
    "16 deep": lambda: model(graph([*SCORED, nested(15, SCORED[0])], [SCALE])),
    "17 deep": lambda: model(graph([*SCORED, nested(16, SCORED[0])], [SCALE])),
    "across": lambda: deep_call(8),
    "almost across": lambda: deep_call(5),
    "training": training,
}


@pytest.mark.parametrize("name", MADE)
def test_made_graphs(name: str) -> None:
    ours, theirs = both(MADE[name]().SerializeToString())
    assert theirs == ours


@pytest.mark.parametrize("domain", ["", "ai.xlexport"])
def test_graph_of_many_nodes(domain: str) -> None:
    nodes = [node("Identity", ["x"], ["y"])] * 100_001
    made = model(graph(nodes if not domain else SCORED, [SCALE]), [function("f", nodes)] if domain else [])
    ours, theirs = both(made.SerializeToString())
    assert theirs == ours and "more than 100,000 nodes" in theirs[1]


@pytest.mark.parametrize("operations", [100, 500, 1000, 1500, 3000])
def test_same_operations_are_counted(operations: int) -> None:
    content = model(graph(SCORED * 100, [SCALE])).SerializeToString()
    ours, theirs = both(content, limits=Limits(operations=operations))
    assert theirs == ours


def test_damaged_graphs() -> None:
    rng = random.Random(8)
    contents = [path.read_bytes() for path in GRAPHS if path.stat().st_size < 100_000]
    contents += [made().SerializeToString() for name, made in MADE.items() if "laughs" not in name]
    accepted = 0
    for _ in range(SAMPLES):
        content = damage_bytes(rng.choice(contents), rng)
        ours, theirs = both(content, ["weights.data"])
        assert theirs == ours, content.hex()
        accepted += isinstance(ours, list)
    assert SAMPLES / 10 < accepted < SAMPLES * 9 / 10


def test_random_fields() -> None:
    """Write messages from random fields: most numbers and texts are of no graph."""
    rng = random.Random(9)

    def message(depth: int) -> bytes:
        parts = b""
        for _ in range(rng.randrange(1, 6)):
            number, wire_type = rng.choice(NUMBERS), rng.choice((2, 2, 2, 0, 1, 5))
            value = message(depth - 1) if depth and rng.random() < 0.7 else rng.choice(VALUES)
            size = {0: b"\x01", 1: bytes(8), 5: bytes(4), 2: bytes([len(value) % 128 | 128, len(value) // 128]) + value}
            tag = number << 3 | wire_type
            parts += (bytes([tag]) if tag < 128 else bytes([tag % 128 | 128, tag // 128])) + size[wire_type]
        return parts

    for _ in range(1500):
        content = message(4)
        ours, theirs = both(content, ["Add"])
        assert theirs == ours, content.hex()


@pytest.mark.parametrize("content", NOT_MESSAGES, ids=bytes.hex)
def test_bytes_that_are_not_a_message(content: bytes) -> None:
    ours, theirs = both(content)
    assert theirs == ours


def test_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    (tmp_path / "large.onnx").touch()
    os.truncate(tmp_path / "large.onnx", 1 << 40)  # sparse
    for path in (tmp_path, tmp_path / "pipe.onnx", tmp_path / "absent.onnx", tmp_path / "large.onnx"):
        ours = outcome(lambda: read_graph(path))  # noqa: B023
        assert outcome(lambda: ask("graph_file", path=path, data_files=[])) == ours  # noqa: B023
        assert ours[0] == "BundleError"


def test_link_out_of_the_folder(tmp_path: Path) -> None:
    inside, store = tmp_path / "inside", tmp_path / "store"
    inside.mkdir()
    store.mkdir()
    content = model(graph(SCORED, [SCALE, external("w", "weights.data", 8)])).SerializeToString()
    (store / "score").write_bytes(content)
    (store / "weights").write_bytes(bytes(8))
    (inside / "score.onnx").symlink_to(store / "score")  # as a store of files by digest has them
    (inside / "weights.data").symlink_to(store / "weights")
    ours = outcome(lambda: read_graph(inside / "score.onnx", ["weights.data"]))
    assert "a link that leads out of the folder" in ours[1]
    assert outcome(lambda: ask("graph_file", path=inside / "score.onnx", data_files=["weights.data"])) == ours
    (inside / "weights.data").unlink()
    (inside / "other.data").write_bytes(bytes(8))
    (inside / "weights.data").symlink_to("other.data")
    found = ask("graph_file", path=inside / "score.onnx", data_files=["weights.data"])
    assert found == hashlib.sha256(content).hexdigest()
    os.symlink(inside, tmp_path / "turn")  # the folder itself may be a link
    ask("graph_file", path=tmp_path / "turn" / "score.onnx", data_files=["weights.data"])
    with pytest.raises(CRefusal, match=r"which bundle\.json does not list"):
        ask("graph_file", path=inside / "score.onnx", data_files=[])


CHECKS: list[tuple[str, list[float], str]] = [
    ("log_prob", [-1.5, 0.0, 1e-3], "float32"),
    ("log_prob", [-1.5, 0.0011], "float32"),
    ("log_prob", [np.nan, np.inf, -np.inf], "float32"),
    ("log_prob", [np.nan, 5.0], "float32"),
    ("top_log_probs", [1.0], "float32"),
    ("rank", [1, 256], "int64"),
    ("rank", [0, 3], "int64"),
    ("rank", [257], "int64"),
    ("top_ids", [-1, 3], "int64"),
    ("top_ids", [0, 255], "int64"),
    ("entropy", [-0.06, 5.6], "float32"),
    ("entropy", [-0.07], "float32"),
    ("entropy", [5.7], "float32"),
    ("entropy", [np.inf, 0.0], "float32"),
    ("entropy", [np.nan], "float32"),
    ("logits", [1e30], "float32"),
    ("log_prob", [0.5, *[-1.0] * 100], "float32"),
]


@pytest.mark.parametrize(("name", "values", "dtype"), CHECKS, ids=str)
def test_ranges_of_outputs(name: str, values: list[float], dtype: str) -> None:
    from xlruntime.graph_outputs import OutputCheck
    from xlruntime.spec import Tensor

    array = np.array(values, dtype)[None]
    check = OutputCheck(Path("it.onnx"), [Tensor(name, dtype, ("batch", "segment"))], 256)
    ours = outcome(lambda: check.require({name: array}, 1, len(values)))
    assert outcome(lambda: ask("range", name=name, dtype=dtype, data=array.tobytes(), vocab_size=256)) == ours


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 4), (1, 4, 10), (1, 4, 9), (2, 4, 10), (1, 5, 10)])
def test_types_and_shapes_of_outputs(shape: tuple[int, ...], dtype: str) -> None:
    from xlruntime.graph_outputs import require_kind
    from xlruntime.spec import Tensor

    for axes in (("batch", "segment", 10), ("batch", "segment", "any"), ("batch",), ()):
        tensor = Tensor("it", "float32", axes)
        found = np.zeros(shape, dtype)
        ours = outcome(lambda: require_kind(Path("it.onnx"), tensor, found, {"batch": 1, "segment": 4}))  # noqa: B023
        asked: dict[str, Any] = {"dtype": "float32", "axes": axes, "found": dtype, "shape": shape}
        assert outcome(lambda: ask("kind", **asked, batch=1, segment=4)) == ours  # noqa: B023
