"""Files and graphs that `verify` cannot judge: each is refused in one line that says how to repair it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import xlexport
from tests.graph_proof.broken import GRU, LSTM, write_graph
from tests.graph_proof.graphs import ENDLESS
from xlexport import GraphOptions
from xlexport.callbacks import no_progress
from xlexport.graph_proof.run import run_proof
from xlruntime.errors import HintedError

STATELESS = "(float[time, 4] x) => (float[time, 4] y) { y = Tanh(x) }"
LOST = LSTM.replace("all, hn, cn =", "all, hn =").replace(", float[1, batch, 4] cn)", ")")
TWO_OUTPUTS = GRU.replace("hn)\n", "hn, float[1, batch, 4] h_out)\n").replace("  y =", "  h_out = Tanh(hn)\n  y =")
WIDER = GRU.replace("4] hn)", "8] hn)").replace("all, hn =", "all, h4 =").replace(
    "  y =", "  hn = Concat <axis = 2> (h4, h4)\n  y ="
)  # fmt: skip
CUSTOM = "(float[1, 4] x, float[1, 4] h) => (float[1, 4] y, float[1, 4] hn) { y, hn = com.example.Cell(x, h) }"
LARGE = """
(float[1, 4] x, float[1, 4] h) => (float[1, 4] y, float[1, 4] hn) <int64[1] size = {25000000000}> {
  hn = Tanh(h)
  one = ReduceMax <keepdims = 0> (hn)
  large = Expand(one, size)
  same = ReduceMax <keepdims = 0> (large)
  y = Add(x, same)
}"""


def in_this_process(path: Path, options: GraphOptions) -> object:
    return run_proof(path, None, options, path.parent, no_progress)


def refusal(path: Path, verify: Callable[..., object] = in_this_process, **options: Any) -> str:
    """Return the message of the error that the graph must cause; it and its hint are one line each."""
    with pytest.raises(HintedError) as caught:
        verify(path, options=GraphOptions(**options))
    error = caught.value
    assert error.message.isprintable() and error.hint and error.hint.isprintable()
    return error.message


@pytest.mark.parametrize(
    ("text", "options", "pattern"),
    [
        pytest.param(STATELESS, {}, "no .*state", id="no state"),
        pytest.param(TWO_OUTPUTS, {}, "hn.* h_out", id="two outputs for one state"),
        pytest.param(GRU, {"state": ("h=hn", "h=y")}, "'?h'?.* hn .*y", id="two outputs given for one state"),
        pytest.param(GRU, {"state": ("h=y",)}, "y.* cannot carry .*h", id="axes of the output given do not fit"),
        pytest.param(LOST, {}, "could carry c: y", id="state whose output is missing"),
        pytest.param(WIDER, {}, "hn.* cannot carry .*h.* 8.* 4", id="output is wider than the state"),
        pytest.param(GRU, {"state": ("h=h_out",)}, "h_out", id="no such output"),
        pytest.param(CUSTOM, {}, "com.example", id="custom domain"),
    ],
)
def test_graph_whose_state_or_operators_do_not_fit_is_refused(
    text: str, options: dict[str, Any], pattern: str, tmp_path: Path
) -> None:
    path = write_graph(tmp_path / "graph.onnx", text)
    assert re.search(rf"graph\.onnx.*{pattern}|--state.*{pattern}", refusal(path, **options))


def test_file_that_is_no_graph_is_refused(tmp_path: Path) -> None:
    whole = write_graph(tmp_path / "whole.onnx", GRU).read_bytes()
    contents = {"empty": b"", "text": b"Call me Ishmael.\n" * 20, "cut": whole[: len(whole) // 2], "zeros": bytes(500)}
    for name, content in contents.items():
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(content)
        assert str(path) in refusal(path)
    assert "folder" in refusal(tmp_path)
    assert "absent.onnx" in refusal(tmp_path / "absent.onnx")


def external(folder: Path, location: str, weights: Path) -> Path:
    """Write a graph whose weights are said to lie at `location`, and lie in `weights`."""
    folder.mkdir(parents=True)
    path = write_graph(folder / "graph.onnx", GRU)
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    weights.parent.mkdir(parents=True, exist_ok=True)
    (folder / "w.bin").rename(weights)
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("location", ["../weights.bin", "link.bin", "{folder}/weights.bin", "absent.bin", "self.bin"])
def test_weights_outside_the_folder_of_the_graph_are_refused(location: str, tmp_path: Path) -> None:
    place = location.format(folder=tmp_path)
    path = external(tmp_path / "graph", place, tmp_path / "weights.bin")
    (path.parent / "link.bin").symlink_to(tmp_path / "weights.bin")
    (path.parent / "self.bin").symlink_to("self.bin")
    assert place in refusal(path)


@pytest.mark.parametrize("folder", ["snapshots/0a1b/onnx", "snapshots/0a1b", "graph"])
def test_weights_in_a_folder_below_or_in_the_cache_of_the_hub_are_read(folder: str, tmp_path: Path) -> None:
    below = tmp_path / folder / "weights" / "w.bin"
    path = external(tmp_path / folder, "weights/w.bin", below if folder == "graph" else tmp_path / "blobs" / "0123")
    if folder != "graph":
        below.parent.mkdir()
        below.symlink_to(tmp_path / "blobs" / "0123")
        path.rename(tmp_path / "blobs" / "4567")
        path.symlink_to(tmp_path / "blobs" / "4567")
    assert run_proof(path, None, GraphOptions(steps=20), tmp_path, no_progress).passed
    if folder != "graph":
        (tmp_path / "blobs" / "0123").rename(tmp_path / "0123")
        (tmp_path / "blobs" / "0123").symlink_to(tmp_path / "0123")
        assert "leads out" in refusal(path)


@pytest.mark.full
@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        pytest.param(ENDLESS, "5 s|5.* seconds", id="time"),
        pytest.param(LARGE, "bytes of memory|memory runs out", id="memory"),
    ],
)
def test_graph_that_wants_too_much_ends_at_the_limit(text: str, pattern: str, tmp_path: Path) -> None:
    path = write_graph(tmp_path / "graph.onnx", text)
    assert re.search(pattern, refusal(path, xlexport.verify_graph, seconds=5.0, memory=2 << 30))
