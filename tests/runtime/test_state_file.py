"""State files: safetensors that this package writes itself."""

from __future__ import annotations

import json
import os
import stat
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from xlruntime import StateError
from xlruntime.limits import Limits
from xlruntime.state_file import read_state, write_state

KINDS = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool")


@pytest.mark.parametrize("shape", [(3, 5), (1, 0, 4), (7,)])
def test_every_type_and_shape_as_safetensors_reads_them(shape: tuple[int, ...], tmp_path: Path) -> None:
    rng, file = np.random.default_rng(0), tmp_path / "it.state"
    arrays = {f"{kind} ü": (rng.random(shape) * 100).astype(kind) for kind in KINDS}
    arrays["turned"] = arrays["int32 ü"].T
    size = write_state(file, "it", 1, {"text": "für \ud800"}, arrays)
    assert size == file.stat().st_size
    for found in (load_file(file), read_state(file, "it", 1, "")[1]):
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)
    assert read_state(file, "it", 1, "")[0] == {"text": "für \ud800"}


def test_no_tensors(tmp_path: Path) -> None:
    write_state(tmp_path / "it.state", "it", 1, {"number": 1}, {})
    assert read_state(tmp_path / "it.state", "it", 1, "") == ({"number": 1}, {})


def test_tensors_are_aligned(tmp_path: Path) -> None:
    for length in range(8):
        write_state(tmp_path / "it.state", "it" * length, 1, {}, {"one": np.ones(3)})
        assert int.from_bytes((tmp_path / "it.state").read_bytes()[:8], "little") % 8 == 0
        with safe_open(tmp_path / "it.state", "numpy") as opened:
            assert opened.get_tensor("one").tolist() == [1, 1, 1]


def test_writing_needs_no_memory_of_the_size_of_the_state(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"large": np.ones(8 << 20, np.uint8)}
    tracemalloc.start()
    write_state(tmp_path / "it.state", "it", 1, {}, arrays)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20


def with_header(file: Path, **changes: Any) -> Path:
    """Change the header's entry of the tensor `it` in a state."""
    write_state(file, "it", 1, {}, {"it": np.zeros(64, np.float32)})
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
    with pytest.raises(StateError, match=r"not a it's state \(it is of type .*, which no state has\)\. Save"):
        read_state(file, "it", 1, "Save it again.")


def test_header_takes_no_more_than_the_limits(tmp_path: Path) -> None:
    file = tmp_path / "it.state"
    write_state(file, "it", 1, {"numbers": [0] * 1000}, {})
    read_state(file, "it", 1, "")
    for limits in (Limits(bytes=500), Limits(bytes=50_000), Limits(operations=100)):
        with pytest.raises(StateError, match=r"it.state: not a it's state \(reading it would take more than"):
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


def test_modes_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_state(tmp_path / "it.state", "it", 1, {}, {})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "it.state").stat().st_mode) == 0o640


def test_links_at_the_path_of_a_state_are_not_followed(tmp_path: Path) -> None:
    victim, file = tmp_path / "victim", tmp_path / "it.state"
    victim.write_text("mine")
    for name in (".it.state.tmp", "it.state"):
        (tmp_path / name).symlink_to(victim)
    write_state(file, "it", 1, {}, {})
    assert victim.read_text() == "mine"
    assert not file.is_symlink()
    read_state(file, "it", 1, "")
