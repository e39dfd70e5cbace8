"""Values that a graph reads, from files and by rules; files of strangers are refused before they are read."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.graph_proof.broken import GRU, write_graph
from xlexport import GraphOptions, array_files
from xlexport.array_files import read_arrays
from xlexport.callbacks import no_progress
from xlexport.errors import ArrayFileError, GraphError
from xlexport.graph_proof.graph_file import GraphFile, Port
from xlexport.graph_proof.inputs import Source, make_source, read_values
from xlexport.graph_proof.layout import Layout
from xlexport.graph_proof.report import GraphReport
from xlexport.graph_proof.run import run_proof
from xlruntime.errors import OptionError

FRAME = Port("x", np.dtype("float32"), (1, 6))
FREE = Port("x", np.dtype("float32"), ("b", "t"))
LAYOUT = Layout(frozenset("b"), "t")


def source(port: Port, text: str | None, *, context: int = 0, length: int = 2, folder: Path = Path()) -> Source:
    graph = GraphFile(Path("graph.onnx"), b"", (port,), (), (), (), {"ids": 5})
    layout = LAYOUT if port.shape and "t" in port.shape else Layout(frozenset(), None)
    return make_source(graph, port, text, layout, length, context, folder, seed=0)


def values(one: Source, start: int, stop: int, rows: tuple[int, ...] = (0,)) -> Any:
    layout = LAYOUT if "t" in (one.port.shape or ()) else Layout(frozenset(), None)
    return one.values(layout, rows, start, stop, 2, 0)


def test_random_numbers_are_the_same_however_a_stream_is_cut() -> None:
    one = source(FREE, "0..3")
    whole = values(one, 0, 40)
    assert whole.shape == (1, 80) and whole.min() >= 0 and whole.max() <= 3 and np.ptp(whole) > 1
    assert np.array_equal(np.concatenate([values(one, at, at + 1) for at in range(40)], 1), whole)
    rows = values(one, 0, 40, (0, 1))
    assert np.array_equal(rows[:1], whole) and not np.array_equal(rows[1:], whole)


@pytest.mark.parametrize(("port", "size"), [(FREE, 2), (FRAME, 3)])
def test_context_is_the_end_of_the_step_before(port: Port, size: int, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(1, 13, dtype=np.float64))
    one = source(port, "x.npy", context=3, folder=tmp_path)
    assert values(one, 0, 1).tolist() == [[0, 0, 0, *range(1, size + 1)]]
    assert values(one, 3, 4).tolist() == [list(range(3 * size - 2, 4 * size + 1))]
    assert one.steps == 12 // size


def test_axis_of_the_context_is_shown() -> None:
    assert str(source(FREE, "0..1", context=3)).endswith("random 0 to 1, on axis 1 after the last 3 of the step before")


@pytest.mark.parametrize(("word", "expected"), [("count", [[6, 7]]), ("total", [[8, 8]]), ("length", [[2, 2]])])
def test_numbers_that_follow_the_stream(word: str, expected: list[list[int]]) -> None:
    assert values(source(FREE, word), 3, 4).tolist() == expected


def test_values_that_nobody_gives() -> None:
    whole = {"ids": "random 0 to 4", "attention_mask": "1", "position_ids": "its place in the stream"}
    for name, words in whole.items():
        assert str(source(Port(name, np.dtype("int64"), ("b", "t")), None)).endswith(words)
    for name, value in {"done": False, "key_padding_mask": False, "attn_mask": True}.items():
        assert values(source(Port(name, np.dtype("bool"), ("b", "t")), None), 0, 4).all() == value
    with pytest.raises(GraphError, match=r"n int64 \[\] holds whole numbers"):
        source(Port("n", np.dtype("int64"), ()), None)


def test_files(tmp_path: Path) -> None:
    data = np.arange(12, dtype=np.float32)
    np.savez(tmp_path / "x.npz", x=data.reshape(2, 1, 6), other=data)
    (tmp_path / "x.txt").write_text("0 1 2 3 4 5\n6 7 8 9 10 11\n", "utf-8")
    (tmp_path / "x.wav").write_bytes(sound((data * 1024).astype("<i2").view(np.uint8).reshape(12, 2), 1, 2))
    for name, scale in (("x.npz", 1), ("x.txt", 1), ("x.wav", 32)):
        one = source(FRAME, name, folder=tmp_path)
        assert (values(one, 1, 2) * scale).tolist() == [[6, 7, 8, 9, 10, 11]]
    with pytest.raises(GraphError, match="does not fit"):
        source(Port("x", np.dtype("float32"), (2, 6)), "x.txt", folder=tmp_path)


def sound(samples: Any, kind: int, channels: int = 1, size: int | None = None, extensible: bool = False) -> bytes:
    """Return a file of sound: samples as an array of bytes (n, width) of one channel, repeated in others as zeros."""
    width = samples.shape[1]
    data = np.hstack([samples, np.zeros((len(samples), width * (channels - 1)), np.uint8)]).tobytes()
    block = width * channels
    form = struct.pack("<HHIIHH", 0xFFFE if extensible else kind, channels, 16_000, 16_000 * block, block, 8 * width)
    form += struct.pack("<HHIH14x", 22, 8 * width, 0, kind) if extensible else b""
    size = len(data) if size is None else size
    note = b"LIST" + struct.pack("<I", 5) + b"data!\0"  # an odd size, and a word that is no chunk
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + note + b"data" + struct.pack("<I", size) + data
    return b"RIFF" + struct.pack("<I", min(size + 36, 0xFFFFFFFF)) + b"WAVE" + chunks


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("size", [None, 0, 0xFFFFFFFF])
@pytest.mark.parametrize("kind", ["u1", "<i2", "<i3", "<i4", "<f4"])
def test_sound_of_any_width_and_of_streams(kind: str, size: int | None, channels: int, tmp_path: Path) -> None:
    wanted = np.array([-1.0, -0.5, 0.0, 0.25, 0.5, 0.75])
    if kind == "u1":
        samples = (wanted * 128 + 128).astype("u1")[:, None]
    elif kind == "<f4":
        samples = wanted.astype("<f4").view(np.uint8).reshape(6, 4)
    else:
        samples = (wanted * 2.0**31).astype("<i4").view(np.uint8).reshape(6, 4)[:, 4 - int(kind[2]) :]
    number = 3 if "f" in kind else 1
    (tmp_path / "x.wav").write_bytes(sound(samples, number, channels, size, extensible=channels == 2))
    assert values(source(FRAME, "x.wav", folder=tmp_path), 0, 1).tolist() == [wanted.tolist()]
    for dtype, scale in (("int16", 2**15), ("int8", 2**7), ("int32", 2**31)):
        port = Port("x", np.dtype(dtype), (1, 6))
        assert values(source(port, "x.wav", folder=tmp_path), 0, 1).tolist() == [(wanted * scale).tolist()]
    assert values(source(Port("x", np.dtype("uint8"), (1, 6)), "x.wav", folder=tmp_path), 0, 1).tolist() == [
        (wanted * 128 + 128).tolist()
    ]


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        ("int64", "9223372036854775808"), ("int64", "0..1e30"), ("int64", "0.5"), ("uint8", "-1"), ("bool", "2"),
        ("float32", "1e39"), ("float32", "0..1e400"), ("float64", "-1e308..1e308"), ("float32", "2..1"),
        ("int64", "x.txt"), ("int16", "wide.npy"), ("uint8", "negative.npy"), ("int64", "half.npy"),
        ("int32", "nan.npy"), ("float16", "wide.npy"),
    ],
)  # fmt: skip
def test_values_that_an_input_cannot_hold_are_refused(dtype: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("1 2 3 4 5 99999999999999999999", "utf-8")
    for name, number in (("wide", 70_000), ("negative", -1), ("half", 0.5), ("nan", np.nan)):
        np.save(tmp_path / f"{name}.npy", np.full(6, number))
    with pytest.raises(GraphError, match=r"cannot hold|is no range") as caught:
        source(Port("x", np.dtype(dtype), (1, 6)), text, folder=tmp_path)
    assert caught.value.hint and caught.value.message.startswith("--input x")


def test_range_of_a_whole_type(tmp_path: Path) -> None:
    one = source(Port("x", np.dtype("uint64"), (1, 6)), "9223372036854775800..9223372036854775807")
    assert values(one, 0, 1).min() >= 9223372036854775800


def changed(path: Path, change: Callable[[onnx.GraphProto], object]) -> Path:
    """Write a graph of a recurrent network after a change."""
    model = onnx.load(write_graph(path, GRU.replace("batch", "1")))
    change(model.graph)
    onnx.save(model, path)
    return path


def proved(path: Path, **options: Any) -> GraphReport:
    return run_proof(path, None, GraphOptions(steps=20, **options), path.parent, no_progress)


def test_state_with_a_value_of_its_own_begins_with_it(tmp_path: Path) -> None:
    own = onnx.numpy_helper.from_array(np.full((1, 1, 4), 3e4, np.float32), "h")
    report = proved(changed(tmp_path / "graph.onnx", lambda graph: graph.initializer.append(own)))
    checks = {check.name: check for check in report.checks}
    assert report.passed and [pair.input for pair in report.pairs] == ["h"], report.rows()
    assert checks["range"].value > 1e4, report.rows()  # the first step keeps most of it


def test_state_of_unknown_shape_takes_that_of_its_first_value(tmp_path: Path) -> None:
    def forget(graph: onnx.GraphProto) -> None:
        for value in (graph.input[1], graph.output[1]):
            value.type.tensor_type.ClearField("shape")

    path = changed(tmp_path / "graph.onnx", forget)
    with pytest.raises(GraphError, match="h float32 unknown shape: nothing says") as caught:
        proved(path)
    assert "--first" in caught.value.hint
    np.savez(tmp_path / "first.npz", h=np.zeros((1, 1, 4)))
    assert proved(path, first=Path("first.npz")).passed


def test_input_of_unknown_shape_takes_that_of_a_step(tmp_path: Path) -> None:
    path = changed(tmp_path / "graph.onnx", lambda graph: graph.input[0].type.tensor_type.ClearField("shape"))
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(20, 1, 1, 3)))
    assert proved(path, input=("x=x.npy",)).passed


def test_first_value_of_what_is_no_state_is_refused(tmp_path: Path) -> None:
    path = changed(tmp_path / "graph.onnx", lambda graph: None)
    np.savez(tmp_path / "first.npz", x=np.zeros((1, 1, 3)), h=np.zeros((1, 1, 4)))
    with pytest.raises(GraphError, match="x is no state, and --first names it"):
        proved(path, first=Path("first.npz"))


def test_code_without_a_name_is_refused(tmp_path: Path) -> None:
    path = changed(tmp_path / "graph.onnx", lambda graph: None)
    (tmp_path / "own.py").write_text("def step(x, h): return x, h\n", "utf-8")
    for other in ("own.py", "own.py:"):
        with pytest.raises(GraphError, match=r"own\.py: Python code, without a name") as caught:
            run_proof(path, other, GraphOptions(), tmp_path, no_progress)
        assert "own.py:NAME" in caught.value.hint


def test_files_of_strangers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_files, "MOST_BYTES", 1000)
    np.save(tmp_path / "pickle.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "large.npy", np.zeros(1000))
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10,)})
    (tmp_path / "cut.npy").write_bytes(header.getvalue() + bytes(8))
    (tmp_path / "text.wav").write_bytes(b"Call me Ishmael.")
    (tmp_path / "words.txt").write_bytes(b"Call me Ishmael.")
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(1_000_000))
    (tmp_path / "text.npz").write_bytes(b"Call me Ishmael.")
    for name, words in {
        "pickle.npy": "holds object", "large.npy": "8,000 bytes", "cut.npy": "ends after 8 of 80",
        "text.wav": "damaged", "words.txt": "damaged", "text.npz": "damaged", "bomb.npz": "more than 1,000 bytes",
        "absent.npy": "no such file",
    }.items():  # fmt: skip
        with pytest.raises((ArrayFileError, GraphError), match=words) as caught:
            read_values(tmp_path / name, "x")
        assert caught.value.hint and name in caught.value.message
    with pytest.raises(ArrayFileError, match="damaged"):
        read_arrays(tmp_path / "text.npz")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"state": ("h",)}, "expected INPUT=OUTPUT"),
        ({"input": ("x=1", "x=2")}, "two values for 'x': 1 and 2"),
        ({"context": ("x=-1",)}, "expected NAME=N"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"seconds": 0.5}, "seconds must be at least 1"),
    ],
)
def test_options_are_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        GraphOptions(**options)
    assert caught.value.hint
