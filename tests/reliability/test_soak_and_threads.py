"""Short versions of `reliability/soak.py` and `threads.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reliability.soak import soak
from tests.reliability.threads import run_threads

pytestmark = pytest.mark.full


def test_long_stream_keeps_counting_and_scoring(tmp_path: Path) -> None:
    found = soak(20_000, tmp_path)
    # The same sums of at most 26 terms in another order: 2e-6 seen.
    assert found.difference < 2e-5
    assert found.large_difference < 2e-5
    assert found.resident[-1] - found.resident[0] < 10  # megabytes


@pytest.mark.parametrize("bundle", ["post_lnorm_same_length_empty", "reformer_band"])
def test_streams_in_threads_are_bit_equal_to_one_after_another(bundle: str) -> None:
    found = run_threads(bundle, rounds=1)
    assert found.streams == 8
    assert found.reopened > 0
    assert found.different == 0
