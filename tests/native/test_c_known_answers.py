"""`xlr_check` compares a bundle's scores with its known answers, as `Model.check` of Python does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.c_library import c_runtime
from tests.helpers.c_runtime import CError, CRuntime
from tests.helpers.paths import golden_bundle
from tests.helpers.step_bundles import give_step_answers, write_step_bundle
from tests.runtime.conftest import bundle_copy
from tests.runtime.test_known_answers import INVALID, Change, give_answers, uncertain, wrong
from tests.step_models.test_known_steps import INVALID_STEPS, other_action, other_count, uncertain_steps
from xlruntime import load

pytestmark = pytest.mark.native

__all__ = ["bundle_copy", "c_runtime"]


@pytest.mark.parametrize("kernels", [True, False])
def test_bundle_reproduces_its_answers(kernels: bool, bundle_copy: Path, c_runtime: CRuntime) -> None:
    result = c_runtime.load(give_answers(bundle_copy), kernels=kernels).check()
    assert (result.known, result.passed, result.certain, result.tokens) == (1, 1, 1, 39) and result.largest < 0.2


def test_older_bundle_has_none(c_runtime: CRuntime) -> None:
    result = c_runtime.load(golden_bundle("relative_attention")).check()
    assert (result.known, result.passed, result.tokens) == (0, 0, 0)


def test_first_difference_is_that_of_python(bundle_copy: Path, c_runtime: CRuntime) -> None:
    give_answers(bundle_copy, wrong)
    with pytest.raises(CError, match="token 12 of the known answers has the log-probability -") as caught:
        c_runtime.load(bundle_copy, kernels=False).check()
    assert caught.value.code == "bundle_graph"
    assert str(load(bundle_copy, threads=1, ops="none").check()).partition(" has ")[0] in str(caught.value)


def test_close_hashes_are_no_error(bundle_copy: Path, c_runtime: CRuntime) -> None:
    give_answers(bundle_copy, uncertain)
    result = c_runtime.load(bundle_copy, kernels=False).check()
    assert (result.known, result.passed, result.certain) == (1, 0, 0) and result.largest > 4000


def test_shape_of_a_memory_is_compared(bundle_copy: Path, c_runtime: CRuntime) -> None:
    give_answers(bundle_copy, lambda answers: answers["memory"]["memory_key_1"].pop())
    with pytest.raises(CError, match=r"memory 'memory_key_1' has the shape \[1, 2, 16, 7\], expected \[1, 2, 16\]"):
        c_runtime.load(bundle_copy).check()


@pytest.mark.parametrize("change", [change for change, _ in INVALID])
def test_invalid_file_is_refused(change: Change, bundle_copy: Path, c_runtime: CRuntime) -> None:
    model = c_runtime.load(give_answers(bundle_copy, change), kernels=False)
    with pytest.raises(CError, match=r"known_answers\.json(:| 'memory': | 'settings': )") as caught:
        model.check()
    assert caught.value.code == "bundle_format" and "\n" not in str(caught.value)


@pytest.mark.parametrize("fixed", [None, {"batch": 2, "segment": 3}])
def test_step_model_reproduces_its_answers(fixed: dict[str, int] | None, tmp_path: Path, c_runtime: CRuntime) -> None:
    folder = write_step_bundle(tmp_path / "bundle", fixed=fixed)
    result = c_runtime.load(folder).check()
    assert (result.known, result.tokens) == (0, 0)
    result = c_runtime.load(give_step_answers(folder)).check()
    assert (result.known, result.passed, result.certain, result.tokens) == (1, 1, 1, 10) and result.largest < 0.2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_action, "step 6 of the known answers has the output 'action' "),
        (other_count, "step 5 of the known answers has the output 'counts' 4, expected 5 within 0.5"),
        (lambda answers: answers["memory"]["hidden"].append(1), r"memory 'hidden' has the shape \[1, 2\], expected"),
    ],
)
def test_first_step_that_differs_is_named(change: Change, message: str, tmp_path: Path, c_runtime: CRuntime) -> None:
    with pytest.raises(CError, match=message) as caught:
        c_runtime.load(give_step_answers(write_step_bundle(tmp_path / "bundle"), change), kernels=False).check()
    assert caught.value.code == "bundle_graph" and "\n" not in str(caught.value)


def test_steps_that_may_round_are_no_error(tmp_path: Path, c_runtime: CRuntime) -> None:
    folder = give_step_answers(write_step_bundle(tmp_path / "bundle"), uncertain_steps)
    result = c_runtime.load(folder).check()
    assert (result.known, result.passed, result.certain) == (1, 0, 0) and result.largest > 9e4


@pytest.mark.parametrize("change", [change for change, _ in INVALID_STEPS])
def test_invalid_file_of_a_step_model_is_refused(change: Change, tmp_path: Path, c_runtime: CRuntime) -> None:
    model = c_runtime.load(give_step_answers(write_step_bundle(tmp_path / "bundle"), change))
    with pytest.raises(CError, match=r"known_answers\.json(:| '(memory|settings|inputs|outputs|bounds)': )") as caught:
        model.check()
    assert caught.value.code == "bundle_format" and "\n" not in str(caught.value)


def test_more_steps_than_the_model_reads_are_refused(tmp_path: Path, c_runtime: CRuntime) -> None:
    model = c_runtime.load(give_step_answers(write_step_bundle(tmp_path / "bundle", max_positions=9)))
    with pytest.raises(CError, match="has 10 steps to read, the model reads 9"):
        model.check()
