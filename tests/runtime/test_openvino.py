"""The OpenVINO execution provider against the CPU's, over carried memory; skipped without `onnxruntime-openvino`.

It is the other wheel of ONNX Runtime, so these tests run in an environment of their own: docs/hardware.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.paths import BAND, GOLDEN, WHOLE
from tests.runtime.conftest import Close, Golden, RandomIds
from tests.runtime.in_place import walk_both_ways
from xlruntime import Model, load
from xlruntime.providers import import_onnxruntime

PROVIDER = "OpenVINOExecutionProvider"
# Without an artificial graph in which the provider's partition has a cycle, and bundles of older code: the loops of
# Reformers that read whole documents.
OTHERS = {"encoder_decoder", "late_reader", *WHOLE}
NAMES = sorted({path.parent.name for path in GOLDEN.glob("*/bundle")} - OTHERS)
pytestmark = pytest.mark.skipif(
    PROVIDER not in import_onnxruntime().get_available_providers(), reason="onnxruntime-openvino is not installed"
)


def opened(name: str) -> Model:
    return load(GOLDEN / name / "bundle", device="openvino", threads=1, strict_device=True)


@pytest.mark.parametrize("name", NAMES)
def test_openvino_against_cpu_over_segments(name: str, golden: Golden, random_ids: RandomIds, close: Close) -> None:
    most = golden(name).bundle.evaluation.max_positions or 400
    ids = random_ids(min(400, most), vocab_size=golden(name).bundle.vocab_size)
    close(opened(name).stream().feed(ids).log_probs, golden(name).stream().feed(ids).log_probs, within=1e-4)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("learned_places", "two_rings")])
def test_ring_on_openvino_is_written_in_place(name: str, random_ids: RandomIds) -> None:
    model = opened(name)
    T = 4 * model.new_memory(model.bundle.settings).capacity
    ids = random_ids(2 * T, vocab_size=model.bundle.vocab_size).reshape(2, T)
    walk_both_ways(model, ids[:, : model.bundle.evaluation.max_positions], within=1e-5)


def test_state_saved_on_openvino_goes_on_on_the_cpu(
    golden: Golden, random_ids: RandomIds, close: Close, tmp_path: Path
) -> None:
    ids = random_ids(150, vocab_size=golden(BAND).bundle.vocab_size)
    stream = opened(BAND).stream()
    stream.feed(ids[:100])
    stream.save(tmp_path / "state")
    close(golden(BAND).restore(tmp_path / "state").feed(ids[100:]).log_probs, stream.feed(ids[100:]).log_probs, 1e-4)
