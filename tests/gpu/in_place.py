"""Run ten thousand segments: buffers stay in place, only a segment's own slots change, and memory does not grow."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import numpy as np
import psutil

from tests.gpu.parts import PartError, Record, Settings
from tests.helpers.paths import EMPTY, golden_bundle
from tests.runtime.in_place import walk_both_ways
from xlruntime import Model, load

__all__ = ["Megabytes", "many_segments_in_place", "megabytes"]

BUNDLE = golden_bundle(EMPTY)
SEGMENTS, TINY_SEGMENTS = 10_000, 300
ROWS = 2
# A copy of the rings in each segment would cost more than 10 kB, which is 90 MB after the first tenth.
MOST_GROWTH = 16.0
WITHIN = {"cpu": 0.0, "cuda": 1e-5}  # as in `tests/runtime/test_cuda.py`: kernels may sum in any order


@dataclass(frozen=True)
class Megabytes:
    """Memory of this process, and memory that all processes use on the device."""

    resident: float
    device: float

    def beyond(self, before: Megabytes) -> float:
        """Return the larger of both growths."""
        return max(self.resident - before.resident, self.device - before.device)


def megabytes(settings: Settings) -> Megabytes:
    """Measure both; a CPU device does not have separate memory."""
    gc.collect()
    used = 0.0
    if settings.on_cuda:
        import torch

        free, total = torch.cuda.mem_get_info(settings.index)
        used = (total - free) / 1e6
    return Megabytes(psutil.Process().memory_info().rss / 1e6, used)


def many_segments_in_place(settings: Settings, record: Record) -> None:
    """Step with rings bound in place and as a pure function, and compare both after each segment.

    Raises:
        PartError: memory grew, or a ring's rows were not written by the device.
        AssertionError: results differ, a buffer moved, or a slot changed that does not belong to the segment.
    """
    model = load(BUNDLE, device=settings.device, threads=None if settings.on_cuda else 1)
    _check_writers(model)
    segments = TINY_SEGMENTS if settings.tiny else SEGMENTS
    longest = model.new_memory(model.bundle.settings, ROWS).max_segment
    ids = np.random.default_rng(0).integers(0, model.bundle.vocab_size, (ROWS, segments * longest + 1))
    readings: list[Megabytes] = []

    def after(walked: int) -> None:
        if walked % (segments // 10) == 0:
            readings.append(megabytes(settings))
            growth = readings[-1].beyond(readings[0])
            record({"segments": walked, "rows": ROWS, "growth_mb": growth})

    walk_both_ways(model, ids, WITHIN["cuda" if settings.on_cuda else "cpu"], after)
    assert len(readings) == 10
    growth = readings[-1].beyond(readings[0])
    if growth > MOST_GROWTH:
        raise PartError(f"memory grew by {growth:.1f} MB after the first tenth of {segments:,} segments")


def _check_writers(model: Model) -> None:
    """Check that the device itself writes to every ring."""
    rings = [entry for entry in model.bundle.memory if entry.layout == "ring"]
    here = model.placement("score").get(model.device.provider, {}).get("ScatterND", 0)
    if here != len(rings):
        raise PartError(f"{here} of {len(rings)} rings are written by {model.device.provider}")
