"""Bound to one buffer as input and output, rings are written in place; `test_cuda.py` asks the same of CUDA."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.conftest import RandomIds
from tests.runtime.in_place import walk_both_ways
from xlruntime import Model
from xlruntime.memory import Memory
from xlruntime.session import GraphSession


@pytest.mark.parametrize("batch_size", [1, 3])
def test_rings_are_written_in_place_over_many_segments(batch_size: int, variant: Model, random_ids: RandomIds) -> None:
    T = 4 * variant.new_memory(variant.bundle.settings).capacity
    ids = random_ids(batch_size * T, vocab_size=variant.bundle.vocab_size).reshape(batch_size, T)
    walk_both_ways(variant, ids, within=0)  # the same nodes on the same numbers


def test_rings_of_a_reformer_are_written_in_place(band_model: Model, random_ids: RandomIds) -> None:
    longest = band_model.bundle.evaluation.max_positions
    assert longest is not None
    ids = random_ids(2 * longest, vocab_size=band_model.bundle.vocab_size).reshape(2, longest)
    walk_both_ways(band_model, ids, within=0)


def test_rings_that_are_copied_are_found(
    bytes_model: Model, random_ids: RandomIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write outputs elsewhere, so that the buffers keep their old values."""

    def step(session: GraphSession, feeds: dict[str, Any], memory: Memory) -> dict[str, Any]:
        rings = {entry.input: memory.array(entry).copy() for entry in memory.entries}
        made = session.run({**feeds, **{name: value.numpy() for name, value in memory.constants.items()}, **rings})
        return {name: array for name, array in made.items() if name == "log_prob"}

    monkeypatch.setattr(GraphSession, "step", step)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        walk_both_ways(bytes_model, random_ids(200).reshape(2, 100), within=1e-3)
