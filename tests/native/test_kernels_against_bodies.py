"""Walks with kernels and with bodies of the custom operators give the same, and each of them was exercised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.bundles import Converted, ConvertedReformer
from tests.helpers.paths import golden_bundle
from tests.reliability.kernels import LIMIT, Compared, compare_bundle, main
from xlruntime import load
from xlruntime.devices import Device
from xlruntime.kernels import Kernels, find_kernels

pytestmark = pytest.mark.full  # compiles C++

NAMES = ("relative_attention", "reformer_band", "reformer_chunk", "reformer_paper")


@pytest.fixture(scope="module")
def kernels(kernel_library: Path) -> Kernels:
    found = find_kernels(kernel_library, Device("cpu"))
    assert found is not None
    return found


def test_graphs_that_a_bundle_lacks_are_left_out(kernels: Kernels) -> None:
    assert [one.graph for one in compare_bundle(golden_bundle("late_reader"), kernels, tokens=20)] == ["score"]


@pytest.mark.parametrize("name", NAMES)
def test_golden_bundles(name: str, kernels: Kernels) -> None:
    found = compare_bundle(golden_bundle(name), kernels, tokens=150, threads=1)
    assert {one.graph for one in found} >= {"score", "generate", "detail"}
    for one in found:
        assert one.passed, str(one)
        assert one.ran, str(one)


def test_every_operator_of_a_fresh_bundle_has_a_kernel(
    bytes_bundle: Converted, band: ConvertedReformer, chunk: ConvertedReformer, kernels: Kernels
) -> None:
    for folder in (bytes_bundle.folder, band.folder, chunk.folder):
        for one in compare_bundle(folder, kernels, tokens=150, threads=2):
            assert one.passed, str(one)
            assert one.ran, str(one)


def test_nodes_without_kernels_are_noticed() -> None:
    """Walk with bodies on both sides: the results are equal, but no kernel was exercised."""
    found = compare_bundle(golden_bundle("relative_attention"), None, tokens=20, threads=1)
    assert not any(one.passed or one.ran or one.log_prob for one in found)
    assert {tuple(one.without_kernel) for one in found} == {("RelativeAttention",)}


def test_rows_with_a_flipped_bucket_are_counted_apart() -> None:
    """Change a bucket id in the memory of one row, and the scores of both rows."""
    model = load(golden_bundle("reformer_band"), ops="none")
    memories = [model.new_memory(model.evaluation(8), 2) for _ in range(2)]
    ids = np.arange(18).reshape(2, 9)
    made = [model.step("score", memory, ids[:, :-1], ids[:, 1:]) for memory in memories]
    (name, *_) = (entry for entry in model.bundle.memory if "bucket" in entry.input)
    memories[0].array(name)[1].flat[0] += 1
    made[0] = {**made[0], "log_prob": made[0]["log_prob"] + np.array([[2e-6], [0.5]], np.float32)}
    found = Compared("it", "score")
    found.add(model, made, memories, 8)
    assert found.flips == 1 and found.buckets > 8
    assert found.flipped == pytest.approx(0.5) and 1e-6 < found.log_prob < 3e-6
    found.ran["LSHAttention"] = 1
    assert found.passed
    np.testing.assert_array_equal(memories[0].array(name), memories[1].array(name))
    found.add(model, made, memories, 8)  # the same scores, but no bucket is to blame
    assert found.flips == 1 and not found.passed


def test_results_that_differ_are_noticed(
    kernels: Kernels, kernel_library: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(golden_bundle("relative_attention")), "--ops", str(kernel_library), "--tokens", "40"]
    assert main(arguments) == 0
    assert "FAIL" not in capsys.readouterr().out
    monkeypatch.setattr("tests.reliability.kernels.LIMIT", LIMIT / 1e4)
    assert main(arguments) == 1
    assert "FAIL" in capsys.readouterr().out
