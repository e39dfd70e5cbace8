"""Modules as people write them: right ones convert and equal PyTorch, wrong ones are refused by their faults."""

from __future__ import annotations

from pathlib import Path

import pytest

import xlexport
from tests.families.recurrent.own_modules import RIGHT, WRONG
from tests.helpers.tiers import thinned
from xlexport.errors import XlexportError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.(nn.utils.weight_norm|jit.script).* is deprecated")
QUICK_WRONG = ("old keys stay", "decay that underflows", "undefined weight", "Python decides")


@pytest.mark.parametrize("name", thinned(RIGHT, ["VanillaRNN", "LogSpaceScan"], pytest.mark.release))
@pytest.mark.full(cases=1)
def test_right_module_converts(name: str, tmp_path: Path) -> None:
    report = xlexport.export_module(RIGHT[name](), tmp_path / "own.bundle", threads=1)
    assert report.passed
    assert report.max_abs_log_prob_diff < 1e-4
    ranges = report.state_ranges or {}
    assert name != "VanillaRNN" or (len(ranges) == 1 and 0.1 < max(ranges.values()) <= 1)  # of a tanh


@pytest.mark.parametrize("name", thinned(WRONG, QUICK_WRONG))
@pytest.mark.full
def test_wrong_module_is_refused_by_the_name_of_its_fault(name: str, tmp_path: Path) -> None:
    pattern, make = WRONG[name]
    with pytest.raises(XlexportError, match=pattern) as caught:
        xlexport.export_module(make(), tmp_path / "own.bundle", threads=1)
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    assert not (tmp_path / "own.bundle").exists()
