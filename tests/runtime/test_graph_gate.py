"""Graphs that xlexport cannot have written are refused before ONNX Runtime sees them; outputs are compared."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.helpers.made_graphs import DETAIL, constant, external, graph, made_bundle, model
from tests.runtime.conftest import RandomIds
from tests.runtime.test_bundle_errors import refusal
from xlruntime import BundleError, Model, load, providers
from xlruntime.devices import Device
from xlruntime.errors import BundleGraphError
from xlruntime.graph_gate import DEEPEST, MOST_NODES, check_graph, read_graph
from xlruntime.limits import Limits
from xlruntime.providers import open_session

node = helper.make_node
SCORED = [node("Cast", ["targets"], ["c"], to=TensorProto.FLOAT), node("Mul", ["c", "s"], ["log_prob"])]
SCALE = constant("s", np.float32(-0.01))
HONEST = model(graph(SCORED, [SCALE]))


@pytest.fixture(autouse=True)
def unopened(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Record the graphs that ONNX Runtime receives; it must never receive a refused one."""
    opened: list[bytes] = []
    real = providers.import_onnxruntime()
    session = real.InferenceSession

    def spy(content: bytes, *options: Any, **named: Any) -> Any:
        opened.append(content)
        return session(content, *options, **named)

    monkeypatch.setattr(real, "InferenceSession", spy)
    return opened


def refused(made: onnx.ModelProto, *data_files: str) -> str:
    with pytest.raises(BundleError) as caught:
        check_graph(made.SerializeToString(), "score.onnx", data_files)
    message = str(caught.value)
    assert message.startswith("score.onnx: ") and message.isprintable() and len(message) < 600
    return message


def function(name: str, nodes: list[onnx.NodeProto], domain: str = "ai.xlexport") -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.xlexport", 1)]
    return helper.make_function(domain, name, ["x"], ["y"], nodes, opsets)


def call(name: str, x: str, y: str) -> onnx.NodeProto:
    return node(name, [x], [y], domain="ai.xlexport")


def with_functions(*functions: onnx.FunctionProto, called: str) -> onnx.ModelProto:
    return model(graph([*SCORED, call(called, "c", "unused")], [SCALE]), functions)


def laughs(levels: int, calls: int) -> onnx.ModelProto:
    """Return a model of nested functions: each calls the previous one several times."""
    functions = [function("f0", [node("Identity", ["x"], ["y"])])]
    for level in range(1, levels + 1):
        names = ["x", *(f"t{number}" for number in range(1, calls)), "y"]
        functions.append(function(f"f{level}", [call(f"f{level - 1}", *names[n : n + 2]) for n in range(calls)]))
    return with_functions(*functions, called=f"f{levels}")


def test_honest_graph_passes_and_scores(tmp_path: Path, unopened: list[bytes]) -> None:
    opened = load(made_bundle(tmp_path / "bundle", {"score": HONEST}))
    np.testing.assert_allclose(opened.stream().feed([1, 2, 3]).log_probs, [-0.02, -0.03], rtol=1e-6)
    assert len(unopened) == 1


def test_operator_that_crashes_onnxruntime_never_reaches_it(tmp_path: Path, unopened: list[bytes]) -> None:
    """Refuse AttnLSTM without inputs of its attention: ONNX Runtime would end with SIGSEGV."""
    rows, sizes = (4, 1, 3), {"W": (2, 8, 5), "R": (2, 8, 2), "B": (2, 16), "h": (2, 1, 2), "c": (2, 1, 2), "P": (2, 6)}
    weights = [constant(name, np.zeros(shape, np.float32)) for name, shape in {"X": rows, **sizes}.items()]
    given = ["X", "W", "R", "B", "", "h", "c", "P"]
    attention = node("AttnLSTM", given, ["log_prob"], domain="com.microsoft", hidden_size=2, direction="bidirectional")
    bundle = made_bundle(tmp_path / "bundle", {"score": model(graph([attention], weights), (), "com.microsoft")})
    assert "score.onnx: it holds operators that xlexport does not write (com.microsoft.AttnLSTM)" in refusal(bundle)
    assert unopened == []


@pytest.mark.parametrize(
    ("operator", "domain"),
    [
        ("If", ""),
        ("DFT", ""),
        ("SequenceMap", ""),
        ("RandomNormal", ""),
        ("SequenceConstruct", ""),
        ("RegexFullMatch", ""),
        ("ImageDecoder", "ai.onnx"),
        ("TreeEnsemble", "ai.onnx.ml"),
        ("Gradient", "ai.onnx.preview.training"),
        ("MatMul", "com.microsoft"),
        ("MatMul", "xlexport"),
        ("add", ""),
    ],
)
def test_foreign_operators_are_refused_in_every_place(operator: str, domain: str) -> None:
    strange = node(operator, ["c"], ["unused"], domain=domain)
    body = helper.make_graph([strange], "body", [], [])
    within = node("Loop", ["n", "", "c"], ["unused"], body=body)
    scanned = node("Scan", ["c", "s"], ["unused"], body=body, num_scan_inputs=1)
    beyond = function("f", [node("Loop", ["n", "", "x"], ["y"], body=body)])
    said = ".".join(filter(None, (domain.removeprefix("ai.onnx") if domain == "ai.onnx" else domain, operator)))
    for made in (
        model(graph([*SCORED, strange], [SCALE])),
        model(graph([*SCORED, within], [SCALE])),
        model(graph([*SCORED, scanned], [SCALE])),
        with_functions(beyond, called="f"),
        model(graph(SCORED, [SCALE]), [beyond]),  # a function without calls
    ):
        assert f"operators that xlexport does not write ({said})" in refused(made)


def test_repeated_name_is_read_as_onnx_reads_it() -> None:
    """Take the last value of a repeated field, as protocol buffers do."""
    strange = model(graph([*SCORED, node("Scam", ["c"], ["unused"])], [SCALE])).SerializeToString()
    twice = strange.replace(b"\x22\x04Scam", b"\x22\x04Mul ").replace(b"Mul ", b"Scam")
    assert onnx.load_from_string(twice).graph.node[-1].op_type == "Scam"
    assert "does not write (Scam)" in refused(onnx.load_from_string(twice))


@pytest.mark.parametrize(
    "location",
    [
        "../secret.txt",
        "/etc/hostname",
        "sub/weights.data",
        "weights.data/../../x",
        "*/_ORT_MEM_ADDR_/*",
        "",
        ".",
        "x\x1b[",
    ],
)
def test_weights_that_lie_elsewhere_are_refused_in_every_kind_of_tensor(location: str, tmp_path: Path) -> None:
    tensor = external("w", location, 4)
    sparse = onnx.SparseTensorProto(values=tensor, dims=[4])
    indices = onnx.SparseTensorProto(indices=tensor, dims=[4])
    constants = [
        node("Constant", [], ["unused"], value=tensor),
        node("Constant", [], ["unused"], sparse_value=sparse),
        node("Constant", [], ["unused"], values=[tensor]),
        node("Constant", [], ["unused"], values=[sparse]),
    ]
    inner = helper.make_graph([], "inner", [], [], [tensor])
    made = [model(graph([*SCORED, made], [SCALE])) for made in constants]
    made += [
        model(graph(SCORED, [SCALE, tensor])),
        model(graph([*SCORED, node("Loop", ["n", "", "c"], ["unused"], body=inner)], [SCALE])),
        with_functions(function("f", [node("Constant", [], ["y"], value=tensor)]), called="f"),
    ]
    for kind in (sparse, indices):
        held = model(graph(SCORED, [SCALE]))
        held.graph.sparse_initializer.append(kind)
        made.append(held)
    defaults = function("f", [node("Identity", ["x"], ["y"])])
    defaults.attribute_proto.append(helper.make_attribute("value", tensor))
    made.append(with_functions(defaults, called="f"))
    for each in made:
        assert "its weights lie in " in refused(each, "weights.data")


def reads(location: str) -> onnx.ModelProto:
    """Return a model whose scores of token ids 0 to 7 reveal the bytes of a file."""
    nodes = [
        node("Gather", ["w", "targets"], ["byte"]),
        node("Cast", ["byte"], ["c"], to=TensorProto.FLOAT),
        node("Neg", ["c"], ["log_prob"]),
    ]
    return model(graph(nodes, [external("w", location, 8)]))


def test_unlisted_file_is_not_read(tmp_path: Path, unopened: list[bytes]) -> None:
    bundle = made_bundle(tmp_path / "bundle", {"score": reads("secret.bin")}, unlisted={"secret.bin": b"password"})
    assert "its weights lie in secret.bin, which bundle.json does not list" in refusal(bundle)
    assert unopened == []


def test_listed_file_that_is_a_link_out_is_not_read(tmp_path: Path, unopened: list[bytes]) -> None:
    (tmp_path / "secret.bin").write_bytes(b"password")
    path = tmp_path / "graph"
    path.mkdir()
    (path / "score.onnx").write_bytes(reads("weights.data").SerializeToString())
    (path / "weights.data").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(BundleError, match=r"weights\.data: a link that leads out of the folder"):
        open_session(path / "score.onnx", Device("cpu"), data_files=["weights.data"])
    assert unopened == []


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: laughs(12, 4), f"it has more than {MOST_NODES:,} nodes, its functions expanded"),
        (lambda: laughs(30, 4), f"functions within functions are more than {DEEPEST} deep"),
        (lambda: laughs(30, 1), f"functions within functions are more than {DEEPEST} deep"),
        (lambda: with_functions(function("f", [call("f", "x", "y")]), called="f"), "function ai.xlexport.f calls its"),
        (
            lambda: with_functions(
                function("f", [call("g", "x", "y")]), function("g", [call("f", "x", "y")]), called="g"
            ),
            "calls itself",
        ),
        (lambda: with_functions(called="f"), "it calls ai.xlexport.f, which it does not hold"),
        (
            lambda: with_functions(*[function("f", [node("Identity", ["x"], ["y"])])] * 2, called="f"),
            "it holds the function ai.xlexport.f twice",
        ),
        (
            lambda: with_functions(function("Mul", [node("Identity", ["x"], ["y"])], ""), called="f"),
            "it holds the function Mul, expected functions of ai.xlexport only",
        ),
    ],
)  # fmt: skip
def test_functions_that_expand_without_bound_are_refused(made: Any, said: str) -> None:
    assert said in refused(made())


def test_functions_that_expand_within_the_bound_pass() -> None:
    check_graph(laughs(7, 4).SerializeToString(), "score.onnx", [])  # 4^7 nodes


@pytest.mark.parametrize("operator", ["Loop", "Scan"])
def test_graphs_within_graphs_are_bounded_also_across_functions(operator: str) -> None:
    def nested(depth: int, innermost: onnx.NodeProto) -> onnx.NodeProto:
        for _ in range(depth):
            innermost = node(operator, ["", "", "c"], ["unused"], body=helper.make_graph([innermost], "b", [], []))
        return innermost

    assert "graphs within nodes are more than 16 deep" in refused(
        model(graph([*SCORED, nested(20, SCORED[0])], [SCALE]))
    )
    check_graph(model(graph([*SCORED, nested(8, SCORED[0])], [SCALE])).SerializeToString(), "it", [])
    half = with_functions(function("f", [nested(8, node("Identity", ["x"], ["y"]))]), called="f")
    check_graph(half.SerializeToString(), "it", [])
    half.graph.node.append(nested(8, call("f", "c", "unused")))
    assert "graphs and functions within each other are more than 16 deep" in refused(half)


def scanning(*nodes: onnx.NodeProto, functions: Sequence[onnx.FunctionProto] = ()) -> onnx.ModelProto:
    """Return a model with a Scan of these nodes."""
    body = helper.make_graph(nodes, "body", [], [])
    return model(
        graph([*SCORED, node("Scan", ["c", "s"], ["unused"], body=body, num_scan_inputs=1)], [SCALE]), functions
    )


def test_scan_of_a_recurrent_model_passes() -> None:
    """Pass LSTM and GRU, whose activations are texts, and calls of functions, within the body of a Scan."""
    lstm = node("LSTM", ["x", "W", "R"], ["y"], hidden_size=2, activations=["Sigmoid", "Tanh", "Tanh"])
    gru = node("GRU", ["x", "W", "R"], ["z"], hidden_size=2, linear_before_reset=1)
    made = scanning(lstm, gru, call("f", "c", "d"), functions=[function("f", [node("Identity", ["x"], ["y"])])])
    check_graph(made.SerializeToString(), "score.onnx", [])


@pytest.mark.parametrize(
    ("made", "said"),
    [
        pytest.param(
            lambda: scanning(*[SCORED[0]] * (MOST_NODES + 1)),
            f"it has more than {MOST_NODES:,} nodes",
            marks=pytest.mark.full,
        ),
        (lambda: scanning(call("f12", "c", "d"), functions=laughs(12, 4).functions), "nodes, its functions expanded"),
        (lambda: scanning(call("f", "c", "d")), "it calls ai.xlexport.f, which it does not hold"),
        (
            lambda: scanning(call("f", "c", "d"), functions=[function("f", scanning(call("f", "x", "y")).graph.node)]),
            "calls itself",
        ),
        (lambda: scanning(node("Constant", [], ["v"], value=external("w", "../secret", 4))), "its weights lie in "),
    ],
)
def test_hostile_bodies_of_scans_are_refused(made: Any, said: str) -> None:
    assert said in refused(made())


def test_training_graph_is_refused() -> None:
    made = model(graph(SCORED, [SCALE]))
    made.training_info.add()
    assert "it holds a training graph" in refused(made)


def test_walk_is_bounded() -> None:
    content = model(graph(SCORED * 100, [SCALE])).SerializeToString()
    with pytest.raises(BundleError, match=r"score.onnx: reading it would take more than 500 operations"):
        check_graph(content, "score.onnx", [], Limits(operations=500))


def test_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "score.onnx"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: it needs no disk space, but would need all memory
    with pytest.raises(BundleError, match=r"score\.onnx: reading it would take more than 1,073,741,824 bytes"):
        read_graph(path)


def test_path_that_is_not_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    for path in (tmp_path, tmp_path / "pipe.onnx", tmp_path / "absent.onnx"):
        with pytest.raises(BundleError, match="no such file"):
            read_graph(path)


@pytest.mark.parametrize(
    "content",
    [b"\x0b", b"\x0c", b"\x07", b"\x00\x00", b"\x3a", b"\x3a\x05ab", b"\x3a" + b"\xff" * 12, b"\x80" * 11, b"\x09abc"],
    ids=["group", "end of group", "wire type 7", "number 0", "no length", "too long", "no end", "endless", "cut off"],
)
def test_bytes_that_are_not_a_message_are_refused(content: bytes) -> None:
    with pytest.raises(BundleError, match=r"score\.onnx: not an ONNX graph"):
        check_graph(content, "score.onnx", [])


def test_checked_content_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unopened: list[bytes]) -> None:
    """Replace the file between check and opening: ONNX Runtime still reads the checked content."""
    bundle = made_bundle(tmp_path / "bundle", {"score": HONEST})
    wanted = (bundle / "score.onnx").read_bytes()

    def exchanged(path: Path, data_files: Any) -> bytes:
        content = read_graph(path, data_files)
        path.write_bytes(b"something else")
        return content

    monkeypatch.setattr(providers, "read_graph", exchanged)
    assert re.search(r"the bundle was replaced while it was open \(score.onnx differs\)", refusal(bundle))
    assert unopened == [wanted]


def test_file_of_empty_messages_takes_little_memory() -> None:
    """Refuse it before the places of its fields are held: they take fifty times the file's memory."""
    content = b"\x3a\x00" * 1_000_000
    with pytest.raises(BundleError, match=r"score\.onnx: reading it would take more than 16,777,216 bytes of memory"):
        check_graph(content, "score.onnx", [], Limits(bytes=1 << 24))


# Outputs of graphs are compared with the bundle's description before they count as scores.

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
    return list(opened.score_tokens([b"abcdefg"], top=2))


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
