"""`check_once` of `xlr_load` compares known answers once on each machine, as `load(check="once")` of Python does."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.c_library import c_runtime
from tests.helpers.c_runtime import CError, CRuntime
from tests.helpers.paths import golden_bundle
from tests.helpers.step_bundles import give_step_answers, write_step_bundle
from tests.runtime.conftest import bundle_copy
from tests.runtime.test_check_once import cache
from tests.runtime.test_known_answers import SETTINGS, TOKENS, give_answers, uncertain, wrong
from tests.step_models.test_known_steps import other_count
from xlruntime.check_once import checks_folder

pytestmark = pytest.mark.native

__all__ = ["bundle_copy", "c_runtime", "cache"]


def warning_of(runtime: CRuntime, folder: Path, **options: Any) -> str:
    model = runtime.load(folder, check_once=True, **options)  # it holds the text
    text: bytes = model.info.warning
    return text.decode()


def test_verdict_is_remembered_for_each_choice_of_kernels(bundle_copy: Path, cache: Path, c_runtime: CRuntime) -> None:
    c_runtime.load(give_answers(bundle_copy))
    assert not cache.exists()
    for verdicts in (1, 1, 2):
        assert warning_of(c_runtime, bundle_copy, kernels=verdicts == 1) == ""
        assert len(list(checks_folder().iterdir())) == verdicts
    assert {(file.stat().st_mode & 0o777, file.stat().st_size) for file in checks_folder().iterdir()} == {(0o600, 0)}
    assert checks_folder().stat().st_mode & 0o777 == 0o700


def test_close_hashes_warn_once(bundle_copy: Path, c_runtime: CRuntime) -> None:
    give_answers(bundle_copy, uncertain)
    first = warning_of(c_runtime, bundle_copy)
    assert ": token 12 of the known answers has" in first and first.endswith("here this may be rounding alone.")
    assert warning_of(c_runtime, bundle_copy) == ""


def test_wrong_scores_are_refused_and_not_remembered(bundle_copy: Path, c_runtime: CRuntime) -> None:
    give_answers(bundle_copy, wrong)
    for _ in range(2):
        with pytest.raises(CError, match=": token 12 of the known answers has the log-probability -") as caught:
            c_runtime.load(bundle_copy, check_once=True)
        assert caught.value.code == "bundle_graph" and "\n" not in str(caught.value)
        assert list(checks_folder().iterdir()) == []


def test_kernels_that_differ_give_way_to_bodies(tmp_path: Path, c_runtime: CRuntime) -> None:
    folder = Path(shutil.copytree(golden_bundle("relative_attention"), tmp_path / "bundle"))
    models = (c_runtime.load(folder, kernels=choice) for choice in (True, False))
    parts = (model.score([*TOKENS], **SETTINGS)[1] for model in models)
    kernels, bodies = (np.concatenate([part.log_probs for part in scores]) for scores in parts)
    bound = float(np.abs(kernels - bodies).max()) / 2
    assert bound > 0
    give_answers(folder, lambda answers: answers.update(log_probs=bodies.tolist(), bounds=[bound] * len(bodies)))
    for _ in range(2):
        model = c_runtime.load(folder, check_once=True)
        assert model.check().passed
        assert model.info.warning.decode().endswith("); standard operators run.")
        assert len(list(checks_folder().iterdir())) == 1  # of the bodies


@pytest.mark.parametrize("home", ["", "relative", "file"])
def test_cache_that_nobody_can_write_means_a_check_each_time(
    home: str, bundle_copy: Path, c_runtime: CRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_answers(bundle_copy, uncertain)
    monkeypatch.chdir(bundle_copy.parent)
    monkeypatch.delenv("XDG_CACHE_HOME")
    (bundle_copy.parent / "file").write_bytes(b"no folder")
    monkeypatch.setenv("HOME", str(bundle_copy.parent / home) if home == "file" else home)
    before = sorted(bundle_copy.parent.iterdir())
    assert all(warning_of(c_runtime, bundle_copy) for _ in range(2))
    assert sorted(bundle_copy.parent.iterdir()) == before


def test_older_bundle_opens(cache: Path, c_runtime: CRuntime) -> None:
    assert warning_of(c_runtime, golden_bundle("relative_attention")) == "" and not cache.exists()


def test_a_step_model_is_compared_once(tmp_path: Path, c_runtime: CRuntime) -> None:
    folder = give_step_answers(write_step_bundle(tmp_path / "bundle"))
    for _ in range(2):
        assert warning_of(c_runtime, folder) == "" and len(list(checks_folder().iterdir())) == 1
    give_step_answers(folder, other_count)
    with pytest.raises(CError, match=": step 5 of the known answers has the output 'counts' 4, expected 5"):
        c_runtime.load(folder, check_once=True)
