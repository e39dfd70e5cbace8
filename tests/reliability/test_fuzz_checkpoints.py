"""Short versions of `reliability/fuzz.py`: what needs PyTorch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.reliability.checkpoint_targets import Checkpoints
from tests.reliability.input_targets import Inputs

pytestmark = pytest.mark.full

CASES = 150


@pytest.mark.parametrize("kind", [Checkpoints, Inputs])
def test_damage_is_refused_or_does_no_harm(kind: type[Checkpoints | Inputs], tmp_path: Path) -> None:
    target = kind(tmp_path)
    outcomes = {number: target.case(number) for number in range(CASES)}
    assert not {number: outcome for number, outcome in outcomes.items() if outcome.is_bug}
    assert Counter(outcome.kind for outcome in outcomes.values())["right"] > 0
