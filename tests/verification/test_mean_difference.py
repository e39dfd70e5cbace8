"""`verify` limits the mean difference of a text, in bits per token, and names a text that the model does not know."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.helpers.breaking import Arrays, after_step
from xlexport.errors import ParityError
from xlexport.verification import verify
from xlruntime import Model
from xlruntime import load as load_bundle
from xlruntime.memory import Memory

if TYPE_CHECKING:
    from tests.helpers.bundles import Converted

IDS = np.random.default_rng(5).integers(0, 20, 400)


@pytest.fixture
def bundle(bytes_bundle: Converted) -> Model:
    """Open the byte bundle again, so that a test may break it."""
    return load_bundle(bytes_bundle.folder, threads=1)


def test_many_small_differences_of_one_sign_are_found(bundle: Model, bytes_bundle: Converted) -> None:
    """Check differences that are within tolerance but add up to two millionths of a bit per token."""

    def lean(memory: Memory, outputs: Arrays) -> None:
        outputs["log_prob"] += np.float32(5e-6)

    after_step(bundle, 0, lean, every=True)
    report = verify(bundle, lambda: bytes_bundle.model, IDS, segments=8)
    assert report.first_segment_over_tolerance is None
    assert report.delta_bits_per_token == pytest.approx(-5e-6 / np.log(2), rel=0.2)
    assert not report.passed


def test_rounding_of_one_token_in_a_short_text_passes(bundle: Model, bytes_bundle: Converted) -> None:
    """Check a difference within the tolerance of a token, whose part in the mean of 45 tokens exceeds 1e-6 bits."""

    def round_once(memory: Memory, outputs: Arrays) -> None:
        outputs["log_prob"][0, 3] += np.float32(5e-5)

    after_step(bundle, 2, round_once)
    report = verify(bundle, lambda: bytes_bundle.model, IDS[:46], segments=8)
    assert report.tokens == 45
    assert abs(report.delta_bits_per_token) > 1e-6
    assert report.passed


def test_text_that_the_model_does_not_know_is_named(bundle: Model, bytes_bundle: Converted) -> None:
    report = verify(bundle, lambda: bytes_bundle.model, IDS[:46], segments=8)
    for bits, hint in ((report.bits_per_token, "Make sure that bundle and checkpoint belong"), (31.0, "Give --text")):
        with pytest.raises(ParityError, match=hint):
            dataclasses.replace(report, passed=False, bits_per_token=bits).require_passed()
