"""Check that rings are really written in place, on the device of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from xlruntime import Model


class Chain:
    """A walk that carries memory itself: each step is the unbound graph, a pure function of arrays."""

    def __init__(self, model: Model, batch_size: int) -> None:
        self.model = model
        self.memory = model.new_memory(model.bundle.settings, batch_size)  # for its counters; its buffers do not change
        self.carried = {entry.input: self.memory.array(entry).copy() for entry in self.memory.entries}
        self.constants = {name: value.numpy() for name, value in self.memory.constants.items()}

    def step(self, tokens: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Run one segment (B, S); return the log-probabilities of its targets."""
        session = self.model.session(self.model.graph_for("score", tokens.shape[1]))
        feeds = self.memory.feeds(session.graph, {"tokens": tokens, "targets": targets}) | self.constants | self.carried
        made = session.run(feeds)
        self.memory.advance(tokens.shape[1])
        self.carried = {entry.input: made[entry.output] for entry in self.memory.entries}
        return made["log_prob"]


def walk_both_ways(
    model: Model, ids: npt.NDArray[np.int64], within: float, after: Callable[[int], None] = lambda walked: None
) -> None:
    """Walk `ids` (B, T) twice: with rings bound to one buffer as input and output, and as a pure function.

    After each segment, results and memories may differ by `within` at most, and every buffer must have its old address.
    A ring must not change outside the segment's own slots. Then `after` gets the number of segments so far. A document
    restarts where its positions end, which changes no ring whose first memory is empty.
    """
    batch_size = len(ids)
    bound, chain = model.new_memory(model.bundle.settings, batch_size), Chain(model, batch_size)
    rings = [entry for entry in bound.entries if entry.layout == "ring"]
    assert rings
    places = {entry.input: bound.values[entry.input].data_ptr() for entry in rings}
    S = bound.max_segment
    for walked, start in enumerate(range(0, ids.shape[1] - S, S), start=1):
        tokens, targets = (ids[:, start + shift : start + shift + S] for shift in (0, 1))
        for row in np.flatnonzero(bound.room < S).tolist():  # where positions end
            bound.restart(row)
            chain.memory.restart(row)
        before = {entry.input: bound.array(entry).copy() for entry in rings}
        written = bound.offset + np.arange(S)
        made = model.step("score", bound, tokens, targets)
        np.testing.assert_allclose(made["log_prob"], chain.step(tokens, targets), rtol=0, atol=within)
        for entry in bound.entries:
            np.testing.assert_allclose(bound.array(entry), chain.carried[entry.input], rtol=0, atol=within)
        for entry in rings:
            changed = np.moveaxis(bound.array(entry) != before[entry.input], entry.row_axis or 0, 0)
            changed_slots = np.flatnonzero(changed.reshape(len(changed), -1).any(axis=1))
            assert set(changed_slots) <= set(written % len(changed))
        assert places == {entry.input: bound.values[entry.input].data_ptr() for entry in rings}
        after(walked)
    assert bound.offset > bound.capacity  # the rings have wrapped
