"""A short version of the target `request` of `reliability/fuzz.py`, and a planted fault that it must find."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.full
CASES = 120


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Any]:
    for name in ("prometheus_client", "pydantic", "starlette"):
        pytest.importorskip(name, reason="the extra serve is not installed")
    from tests.reliability.request_targets import Requests

    with contextlib.closing(Requests(tmp_path)) as made:
        yield made


def test_requests(target: Any) -> None:
    found = [target.case(number) for number in range(CASES)]
    assert not [outcome for outcome in found if outcome.is_bug]
    assert {"refused", "right"} == {outcome.kind for outcome in found}


def test_planted_fault_is_found(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from xlexport.serve.models import Models

    monkeypatch.setattr(Models, "find", lambda self, name: {"model": name}["missing"])
    outcome = target.case(0)
    assert outcome.is_bug and "500" in outcome.said
