"""A state that C saves on 64-bit ARM continues on this processor in C, Python, Node, Chromium and Firefox."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conformance.platforms.__main__ import DOWNLOADS
from tests.conformance.platforms.rows import ARM_C, crossings
from tests.conformance.platforms.runners import Missing
from tests.conformance.platforms.workshop import Workshop

pytestmark = pytest.mark.native


def test_states_of_the_kit_continue_as_if_uninterrupted(kit: Path) -> None:
    cases = [json.loads(file.read_text("utf-8")) for file in (kit / "cases").glob("state_*.json")]
    assert len(cases) >= 25
    for case in cases:
        fed = {one["stream"]: one["expect"]["log_probs"] for one in case["actions"] if one["do"] == "feed"}
        assert fed["a"] == fed["own"] == fed["other"], case["name"]


def test_states_of_arm_continue_here(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare what follows with the kit, within its bounds: 1e-4 nats, and those of low precision."""
    monkeypatch.setattr(Workshop, "kit", lambda self: kit)
    workshop = Workshop(DOWNLOADS, offline=True)
    workshop.built.mkdir(parents=True, exist_ok=True)
    missing = {}
    for row in crossings(workshop):
        if ARM_C in row.platform:
            try:
                outcome = row.run()
            except Missing as reason:
                missing[row.platform] = str(reason)
            else:
                assert outcome.passed, (row.platform, outcome.cases, outcome.problems)
    if missing:
        pytest.skip(f"{missing} (scripts/platforms --only states prepares all that can be downloaded)")
