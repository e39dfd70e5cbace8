"""Files of states: safetensors that this package lays out itself."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from xlruntime.state_file import read_state, write_state

KINDS = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64")


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


def test_tensors_begin_where_numbers_may(tmp_path: Path) -> None:
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
