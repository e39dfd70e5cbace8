"""Values that a graph reads, from files and by rules; files of strangers are refused before they are read."""

from __future__ import annotations

import io
import wave
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xlexport import GraphOptions, array_files
from xlexport.array_files import read_arrays
from xlexport.errors import ArrayFileError, GraphError
from xlexport.graph_proof.graph_file import GraphFile, Port
from xlexport.graph_proof.inputs import Source, make_source, read_values
from xlexport.graph_proof.layout import Layout
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


@pytest.mark.parametrize(("word", "expected"), [("count", [[6, 7]]), ("total", [[8, 8]]), ("length", [[2, 2]])])
def test_numbers_that_follow_the_stream(word: str, expected: list[list[int]]) -> None:
    assert values(source(FREE, word), 3, 4).tolist() == expected


def test_values_that_nobody_gives() -> None:
    whole = {"ids": "random 0 to 4", "attention_mask": "1", "position_ids": "its place in the stream"}
    for name, words in whole.items():
        assert str(source(Port(name, np.dtype("int64"), ("b", "t")), None)).endswith(words)
    with pytest.raises(GraphError, match=r"n int64 \[\] holds whole numbers"):
        source(Port("n", np.dtype("int64"), ()), None)


def test_files(tmp_path: Path) -> None:
    data = np.arange(12, dtype=np.float32)
    np.savez(tmp_path / "x.npz", x=data.reshape(2, 1, 6), other=data)
    (tmp_path / "x.txt").write_text("0 1 2 3 4 5\n6 7 8 9 10 11\n", "utf-8")
    with wave.open(str(tmp_path / "x.wav"), "wb") as sound:
        sound.setnchannels(2)
        sound.setsampwidth(2)
        sound.setframerate(16_000)
        sound.writeframes(np.stack([data * 1024, -data], 1).astype("<i2").tobytes())
    for name, scale in (("x.npz", 1), ("x.txt", 1), ("x.wav", 32)):
        one = source(FRAME, name, folder=tmp_path)
        assert (values(one, 1, 2) * scale).tolist() == [[6, 7, 8, 9, 10, 11]]
    with pytest.raises(GraphError, match="does not fit"):
        source(Port("x", np.dtype("float32"), (2, 6)), "x.txt", folder=tmp_path)


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
