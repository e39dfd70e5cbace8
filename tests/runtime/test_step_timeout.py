"""A step without end is stopped, and the model goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.made_graphs import endless, endless_scan, made_bundle
from xlruntime import BundleError, Model, OptionError, StepTimeoutError, load


@pytest.fixture(params=[endless, endless_scan])
def bundle(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return made_bundle(tmp_path / "bundle", {"score": request.param()})


@pytest.fixture
def opened(bundle: Path) -> Model:
    return load(bundle, threads=1, step_timeout=0.1)


def test_step_without_end_is_ended(opened: Model) -> None:
    stream = opened.stream()
    scores = stream.feed([1, 2, 3]).log_probs
    with pytest.raises(StepTimeoutError, match=r"score\.onnx: a step took longer than step_timeout, 0\.1 seconds\."):
        stream.feed([4, 255])
    assert isinstance(StepTimeoutError(), TimeoutError)
    np.testing.assert_array_equal(opened.stream().feed([1, 2, 3]).log_probs, scores)


def test_each_thread_has_its_own_time(opened: Model) -> None:
    """Stop one thread's step while the others go on."""
    outcomes: list[Any] = []

    def feed() -> None:
        try:
            opened.stream().feed([1, 255])
        except StepTimeoutError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=feed) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        opened.stream().feed([1, 2, 3])
    assert len(outcomes) == 3


def test_other_errors_pass_unchanged(opened: Model) -> None:
    memory = opened.new_memory(opened.bundle.settings)
    with pytest.raises(BundleError, match="cannot run it on cpu"):
        opened.step("score", memory, np.zeros((1, 2), np.int64), np.zeros((1, 2), np.float32))


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_invalid_timeout_is_refused(seconds: float, bundle: Path) -> None:
    with pytest.raises(OptionError, match=r"step_timeout is .*, expected a positive number of seconds"):
        load(bundle, step_timeout=seconds)
