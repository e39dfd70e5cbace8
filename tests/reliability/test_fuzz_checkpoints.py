"""Short versions of `reliability/fuzz.py` and `faults.py`: what needs PyTorch."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

from reliability.checkpoint_targets import Checkpoints
from reliability.faults import preloaded
from reliability.input_targets import Inputs

pytestmark = pytest.mark.full

CASES = 150
NEEDS_SHIM = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="the shim needs Linux and a C compiler"
)


@pytest.mark.parametrize("kind", [Checkpoints, Inputs])
def test_damage_is_refused_or_does_no_harm(kind: type[Checkpoints | Inputs], tmp_path: Path) -> None:
    target = kind(tmp_path)
    outcomes = {number: target.case(number) for number in range(CASES)}
    assert not {number: outcome for number, outcome in outcomes.items() if outcome.is_bug}
    assert Counter(outcome.kind for outcome in outcomes.values())["right"] > 0


@NEEDS_SHIM
@pytest.mark.parametrize("command", ["Stream.save", "train"])
def test_faults_leave_old_or_new(command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = preloaded([command, "--points", "4"], tmp_path)
    shown = capfd.readouterr()
    assert code == 0, shown.out + shown.err
    assert ", 0 bugs" in shown.out
    assert "kills" in shown.out
