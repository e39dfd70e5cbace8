"""A short version of the target `request` of `reliability/fuzz.py`, and a planted fault that it must find."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.full
CASES = 120


@pytest.fixture
def target(tmp_path: Path) -> object:
    for name in ("prometheus_client", "pydantic", "starlette"):
        pytest.importorskip(name, reason="the extra serve is not installed")
    from reliability.request_targets import Requests

    return Requests(tmp_path)


def test_requests(target: object) -> None:
    found = [target.case(number) for number in range(CASES)]  # type: ignore[attr-defined]
    assert not [outcome for outcome in found if outcome.is_bug]
    assert {"refused", "right"} == {outcome.kind for outcome in found}


def test_planted_fault_is_found(target: object, monkeypatch: pytest.MonkeyPatch) -> None:
    from xlexport.serve.models import Models

    monkeypatch.setattr(Models, "find", lambda self, name: {"model": name}["missing"])
    outcome = target.case(0)  # type: ignore[attr-defined]
    assert outcome.is_bug and "500" in outcome.said
