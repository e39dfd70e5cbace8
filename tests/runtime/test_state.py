"""Files of states: safetensors that this package writes and reads itself, and states that lie."""

from __future__ import annotations

import hashlib
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from xlruntime import Model, StateDamagedError, StateError, StateMismatchError
from xlruntime.limits import Limits
from xlruntime.state import KIND, VERSION, read_state, write_state

IT = {"kind": "it", "version": "1"}
KINDS = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool")


@pytest.mark.parametrize("shape", [(3, 5), (1, 0, 4), (7,)])
def test_every_type_and_shape_as_safetensors_reads_them(shape: tuple[int, ...], tmp_path: Path) -> None:
    rng, file = np.random.default_rng(0), tmp_path / "it.state"
    arrays = {f"{kind} ü": (rng.random(shape) * 100).astype(kind) for kind in KINDS}
    arrays["turned"] = arrays["int32 ü"].T
    size = write_state(file, IT | {"text": "für"}, arrays)
    assert size == file.stat().st_size
    for found in (load_file(file), read_state(file, "it", 1, "")[1]):
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)
    assert read_state(file, "it", 1, "")[0] == IT | {"text": "für"}


def test_digest_is_that_of_the_specification(tmp_path: Path) -> None:
    """Compute it from the bytes of the file alone."""
    file = tmp_path / "it.state"
    write_state(file, IT | {"é": "", "z": "1", "a": "b"}, {"b": np.arange(3), "a": np.ones((2, 2), np.float32)})
    raw = file.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    lines = "a=b\nkind=it\nversion=1\nz=1\né=\n".encode()
    assert header["__metadata__"]["digest"] == hashlib.sha256(lines + raw[8 + size :]).hexdigest()
    assert (header["a"]["data_offsets"], header["b"]["data_offsets"]) == ([0, 16], [16, 40])


def test_tensors_are_aligned(tmp_path: Path) -> None:
    for length in range(8):
        write_state(tmp_path / "it.state", IT | {"text": "x" * length}, {"one": np.ones(3)})
        assert int.from_bytes((tmp_path / "it.state").read_bytes()[:8], "little") % 8 == 0
        with safe_open(tmp_path / "it.state", "numpy") as opened:
            assert opened.get_tensor("one").tolist() == [1, 1, 1]


def test_writing_needs_no_memory_of_the_size_of_the_state(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"large": np.ones(8 << 20, np.uint8)}
    tracemalloc.start()
    write_state(tmp_path / "it.state", IT, arrays)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20


def with_header(file: Path, **changes: Any) -> Path:
    """Change the header's entry of the tensor `it` in a state."""
    write_state(file, IT, {"it": np.zeros(64, np.float32)})
    raw = file.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header["it"] |= changes
    changed = json.dumps(header).encode()
    file.write_bytes(len(changed).to_bytes(8, "little") + changed + raw[8 + size :])
    return file


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [("F4", 4), ("F8_E4M3", 8), ("F8_E5M2", 8), ("F8_E8M0", 8), ("BF16", 16), ("C64", 64), (7, 8), (None, 8)],
)
def test_types_that_numpy_lacks_are_refused(dtype: object, bits: int, tmp_path: Path) -> None:
    file = with_header(tmp_path / "it.state", dtype=dtype, shape=[64 * 32 // bits])
    with pytest.raises(StateError, match=r"not a it's state \(it is not a tensor behind the one before it\)\. Save"):
        read_state(file, "it", 1, "Save it again.")


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [65]},
        {"shape": [-64]},
        {"shape": [True] * 64},
        {"shape": [2**70, 0], "data_offsets": [0, 0]},
        {"shape": [1] * 99, "data_offsets": [0, 4]},
        {"shape": [2**40], "data_offsets": [0, 2**42]},
        {"shape": [32], "data_offsets": [128, 256]},
        {"shape": [32], "data_offsets": [0, 128]},  # bytes behind the last tensor
        {"data_offsets": None},
    ],
)
def test_places_that_no_state_has_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    file = with_header(tmp_path / "it.state", **changes)
    with pytest.raises(StateDamagedError, match=r"not a tensor behind|damaged since|beyond 64 bits"):
        read_state(file, "it", 1, "")


@pytest.mark.parametrize("metadata", [{}, {"kind": "it"}, {**IT, "number": 1}, {**IT, "text": "\ud800"}])
def test_metadata_that_no_state_has_are_refused(metadata: dict[str, Any], tmp_path: Path) -> None:
    raw = json.dumps({"__metadata__": metadata}).encode()
    (tmp_path / "it.state").write_bytes(len(raw).to_bytes(8, "little") + raw)
    with pytest.raises(StateError, match=r"it\.state: (not a it's state|state version|damaged since)"):
        read_state(tmp_path / "it.state", "it", 1, "")


def test_header_takes_no_more_than_the_limits(tmp_path: Path) -> None:
    file = tmp_path / "it.state"
    write_state(file, IT | {str(number): "" for number in range(1000)}, {})
    read_state(file, "it", 1, "")
    for limits in (Limits(bytes=500), Limits(bytes=50_000), Limits(operations=100)):
        with pytest.raises(StateDamagedError, match=r"it.state: reading it would take more than"):
            read_state(file, "it", 1, "", limits)


def test_header_that_is_longer_than_the_file_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "it.state"
    file.write_bytes((2**40).to_bytes(8, "little") + b"{}")
    with pytest.raises(StateError, match=r"its header has 1,099,511,627,776 bytes, but only 2 follow"):
        read_state(file, "it", 1, "")


def test_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "it.state")
    with pytest.raises(StateError, match="not a file"):
        read_state(tmp_path / "it.state", "it", 1, "")


# States of streams with a valid digest, but with counters, settings or tensors that no stream can have.

Change = Callable[[dict[str, Any], dict[str, Any]], Any]


LIES: list[tuple[Change, str]] = [
    (lambda t, a: t.update(offset="nan"), "offset is 'nan', expected 0 to"),
    (lambda t, a: t.update(offset="-1"), "offset is -1, expected 0 to"),
    (lambda t, a: t.update(offset="+1"), "offset is '+1', expected 0 to"),
    (lambda t, a: t.update(offset="01"), "offset is '01', expected 0 to"),
    (lambda t, a: t.update(offset="²"), "offset is '²', expected 0 to"),
    (lambda t, a: t.update(offset=str(2**63)), "offset is 9223372036854775808, expected 0 to"),
    (lambda t, a: t.update(length="13"), "length is 13, expected 0 to 12"),
    (lambda t, a: t.update(length=""), "length is None, expected 0 to 12"),
    (lambda t, a: t.update(history="22"), "history is 22, but 21 tokens were read"),
    (lambda t, a: t.update(position="1" + "0" * 400), "position is '1000"),
    (lambda t, a: t.update(position="\x1b[2J"), "position is '\\x1b[2J', expected 0 to"),
    (lambda t, a: t.update(pending="256"), "pending is 256, expected 0 to 255"),
    (lambda t, a: t.update(pending=""), "21 tokens were read, and None is held"),
    (lambda t, a: t.update(pending="true"), "pending is True, expected 0 to 255"),
    (lambda t, a: t.pop("capacity"), "capacity is missing"),
    (lambda t, a: t.update(capacity=str(2**40)), "expected float32 (1, 2, 1099511627776, 8)"),
    (lambda t, a: t.update({"setting.mem_len": str(2**30)}), "capacity is 20, but 1073741824 rows are kept"),
    (lambda t, a: a.pop("memory_key_0"), "memory_key_0 is missing"),
    (lambda t, a: a.update(memory_key_0=a["memory_key_0"] * np.nan), "memory_key_0 has numbers that are not"),
]  # fmt: skip
OTHERS: list[tuple[Change, str]] = [
    (lambda t, a: t.update(fingerprint="0" * 64), "saved from another bundle"),
    (lambda t, a: t.update(version="5"), "state version '5', expected 4"),
    (lambda t, a: t.update({"setting.n_hashes": "2"}), "n_hashes: not among the settings of this bundle"),
    (lambda t, a: t.update({"setting.\n": "2"}), "not among the settings of this bundle"),
    (lambda t, a: t.update({"setting.self": "2"}), "settings of another bundle"),
    (lambda t, a: t.pop("setting.mem_len"), "expected segment_len, restart, mem_len, clamp_len"),
    (lambda t, a: t.update({"setting.mem_len": "twelve"}), "mem_len is 'twelve', expected a whole number"),
    (lambda t, a: t.update({"setting.same_length": "1"}), "same_length is 1, expected true or false"),
    (lambda t, a: t.update(segment_len="0"), "segment_len is 0, expected 1 to"),
    (lambda t, a: t.update(segment_len="x"), "settings of another bundle"),
    (lambda t, a: t.update(restart="x"), "settings of another bundle"),
]


@pytest.fixture
def changed(bytes_model: Model, tmp_path: Path) -> Callable[[Change], Path]:
    def change(how: Change) -> Path:
        file = tmp_path / "stream.state"
        stream = bytes_model.stream()
        stream.feed("a text of some length")
        stream.save(file)
        metadata, arrays = read_state(file, KIND, VERSION, "")
        how(metadata, arrays)
        write_state(file, metadata, arrays)
        return file

    return change


def test_unchanged_state_is_restored(changed: Callable[[Change], Path], bytes_model: Model) -> None:
    assert bytes_model.restore(changed(lambda texts, arrays: None)).position == 21


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        (how, kind, said)
        for kind, lies in ((StateDamagedError, LIES), (StateMismatchError, OTHERS))
        for how, said in lies
    ],
)
def test_state_that_no_stream_has_is_refused(
    how: Change, kind: type[StateError], said: str, changed: Callable[[Change], Path], bytes_model: Model
) -> None:
    file = changed(how)
    with pytest.raises(kind) as caught:
        bytes_model.restore(file)
    message = str(caught.value)
    assert said in message
    assert message.startswith(str(file))
    assert message.isprintable()
    assert len(message) < 1000
