"""Differences from other code bases, for the summary of a run."""

from __future__ import annotations

import pytest

Figure = tuple[str, int, float, float]  # name of the comparison, batch size, largest differences in nats and in memory
FIGURES = pytest.StashKey[list[Figure]]()
