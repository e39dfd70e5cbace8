"""Walks with kernels and with bodies of the custom operators give the same, and each of them was exercised."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliability.kernels import LIMIT, compare_bundle, main
from tests.helpers.bundles import Converted, ConvertedReformer
from tests.helpers.paths import golden_bundle
from xlruntime.devices import Device
from xlruntime.kernels import Kernels, find_kernels

NAMES = ("relative_attention", "reformer_band", "reformer_chunk")


@pytest.fixture(scope="module")
def kernels(kernel_library: Path) -> Kernels:
    found = find_kernels(kernel_library, Device("cpu"))
    assert found is not None
    return found


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
    assert {tuple(one.without_kernel) for one in found} == {("RelativeAttention", "RelativeAttentionPlan")}


def test_results_that_differ_are_noticed(
    kernels: Kernels, kernel_library: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(golden_bundle("relative_attention")), "--ops", str(kernel_library), "--tokens", "40"]
    assert main(arguments) == 0
    assert "FAIL" not in capsys.readouterr().out
    monkeypatch.setattr("reliability.kernels.LIMIT", LIMIT / 1e4)
    assert main(arguments) == 1
    assert "FAIL" in capsys.readouterr().out
