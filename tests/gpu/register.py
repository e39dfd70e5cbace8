"""All parts of the trial, in their order."""

from __future__ import annotations

from tests.gpu.bundles import make_bundles
from tests.gpu.capture import captured_against_plain
from tests.gpu.float16 import float16_against_float32
from tests.gpu.in_place import many_segments_in_place
from tests.gpu.machine import describe_machine
from tests.gpu.parts import Part
from tests.gpu.placement import strictly_placed
from tests.gpu.skipped_tests import run_skipped_tests
from tests.gpu.speed import measure_speed

__all__ = ["NEEDED", "PARTS", "TOTAL_SECONDS"]

TOTAL_SECONDS = 595  # for all parts; the last part gets the remaining time
PARTS = {
    part.name: part
    for part in (
        Part("machine", "GPU, driver and libraries; PyTorch and ONNX Runtime in one process", 30, describe_machine),
        Part("bundles", "checkpoints and bundles for the other parts", 165, make_bundles),
        Part("tests", "all tests that a missing GPU skips", 100, run_skipped_tests, needs_cuda=True),
        Part("in_place", "rings written in place over many segments, memory flat", 80, many_segments_in_place),
        Part("placement", "strict_device", 30, strictly_placed, needs_cuda=True),
        Part("capture", "CUDA graphs against plain runs", 30, captured_against_plain, needs_cuda=True),
        Part("float16", "float16 against float32, in bits", 30, float16_against_float32),
        Part("speed", "the bundle, PyTorch eager and torch.compile", 130, measure_speed),
    )
}
# Parts that always run first, because the tables of speed name the machine.
NEEDED = {"speed": ("machine", "bundles"), **{name: ("bundles",) for name in ("placement", "capture", "float16")}}
