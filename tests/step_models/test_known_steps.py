"""`StepModel.check` compares the outputs of a few steps with the known answers of the bundle."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xlexport
import xlruntime
from tests.helpers.manifests import edit_manifest
from tests.helpers.step_bundles import give_step_answers, write_step_bundle
from tests.runtime.test_check_once import cache
from xlruntime import BundleFormatError, BundleGraphError, StepModel
from xlruntime.check_once import check_once, checks_folder
from xlruntime.kernels import Kernels
from xlruntime.known_answers import ANSWERS_FILE

__all__ = ["INVALID_STEPS", "cache", "other_action", "other_count", "uncertain_steps"]

Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_step_bundle(tmp_path / "bundle", max_positions=12)


def other_action(answers: dict[str, Any]) -> None:
    answers["outputs"]["action"][11] += 1.5e-5
    answers["outputs"]["action"][14] += 1.0


def other_count(answers: dict[str, Any]) -> None:
    answers["outputs"]["counts"][4] += 1


def uncertain_steps(answers: dict[str, Any]) -> None:
    other_action(answers)
    answers["certain"] = False


@pytest.mark.parametrize("fixed", [None, {"batch": 2, "segment": 3}])
def test_bundle_reproduces_its_answers(fixed: dict[str, int] | None, tmp_path: Path) -> None:
    folder = give_step_answers(write_step_bundle(tmp_path / "bundle", fixed=fixed))
    result = xlruntime.load_step_model(folder).check()
    assert (result.passed, result.tokens, result.problem, result.certain) == (True, 10, None, True)
    assert str(result).startswith("10 known answers, largest difference ")


def test_bundle_without_answers_has_none(folder: Path) -> None:
    assert xlruntime.load_step_model(folder, check="once").check().passed is None
    assert not checks_folder().exists()


def test_first_difference_beyond_its_bound_is_named(folder: Path) -> None:
    result = xlruntime.load_step_model(give_step_answers(folder, other_action)).check()
    assert result.passed is False and result.largest == pytest.approx(1e5, rel=1e-3)
    assert str(result).startswith("step 6 of the known answers has the output action ")
    assert str(result).endswith(" within 1e-05")


def test_integers_are_compared_exactly(folder: Path) -> None:
    result = xlruntime.load_step_model(give_step_answers(folder, other_count)).check()
    assert str(result).startswith("step 5 of the known answers has the output counts ") and not result.passed


def test_booleans_that_are_read_matter(folder: Path) -> None:
    def change(answers: dict[str, Any]) -> None:
        answers["inputs"]["active"][7] = 1 - answers["inputs"]["active"][7]

    assert xlruntime.load_step_model(give_step_answers(folder, change)).check().passed is False


def test_shape_of_a_memory_is_compared(folder: Path) -> None:
    give_step_answers(folder, lambda answers: answers["memory"]["hidden"].append(1))
    assert str(xlruntime.load_step_model(folder).check()) == "memory hidden has the shape [1, 2], expected [1, 2, 1]"


def put(kind: str, name: str, place: int, value: float) -> Change:
    """Return the change of one number."""
    return lambda answers: answers[kind][name].__setitem__(place, value)


INVALID_STEPS: list[tuple[Change, str]] = [
    (lambda answers: answers["inputs"].pop("active"), "inputs has observation, expected observation, active"),
    (lambda answers: answers["outputs"].update(x=[1.0]), "outputs has action, counts, x, expected action, counts"),
    (
        lambda answers: answers["bounds"].pop("counts"),
        "bounds is {'action': 1e-05}, expected a number",
    ),
    (
        lambda answers: answers["bounds"].update(action=0.0),
        "bounds is {'action': 0.0, ",
    ),
    (lambda answers: answers["outputs"]["action"].pop(), r"outputs\.action has 19 numbers, expected 20"),
    (put("inputs", "active", 3, 2), r"inputs\.active\[3\] is 2, expected a number of bool"),
    (put("outputs", "counts", 3, 0.5), r"outputs\.counts\[3\] is 0\.5, expected a number of int64"),
    (put("outputs", "counts", 3, 2**60), r"outputs\.counts\[3\] is 1\.15292e\+18, expected a number of int64"),
    (put("inputs", "observation", 1, 1e39), r"inputs\.observation\[1\] is 1e\+39, expected a number of float32"),
    (lambda answers: answers.update(steps=0), "steps is 0, expected a whole number from 1"),
    (lambda answers: answers.update(tokens=[1]), "tokens is unknown"),
    (lambda answers: answers["settings"].update(mem_len=3), "mem_len: not among the settings"),
]


@pytest.mark.parametrize(("change", "message"), INVALID_STEPS)
def test_invalid_file_is_refused_by_the_path_of_the_field(folder: Path, change: Change, message: str) -> None:
    model = xlruntime.load_step_model(give_step_answers(folder, change))
    with pytest.raises(BundleFormatError, match=message) as caught:
        model.check()
    assert str(caught.value).startswith(str(folder / ANSWERS_FILE)) and "\n" not in str(caught.value)


def test_more_steps_than_the_model_reads_are_refused(tmp_path: Path) -> None:
    model = xlruntime.load_step_model(give_step_answers(write_step_bundle(tmp_path / "bundle", max_positions=9)))
    with pytest.raises(BundleFormatError, match="has 10 steps to read, the model reads 9"):
        model.check()


def test_another_segment_len_keeps_the_answers(folder: Path, tmp_path: Path) -> None:
    edit_manifest(give_step_answers(folder), lambda manifest: manifest["provenance"].update(notes=[]))
    xlexport.configure(folder, tmp_path / "other", segment_len=2)
    model = xlruntime.load_step_model(tmp_path / "other")
    assert model.bundle.settings.segment_len == 2 and model.check().passed


def test_load_compares_once(folder: Path) -> None:
    give_step_answers(folder)
    for _ in range(2):
        xlruntime.load_step_model(folder, check="once")
        assert len(list(checks_folder().iterdir())) == 1
    give_step_answers(folder, other_count)
    with pytest.raises(BundleGraphError, match="step 5 of the known answers has the output counts"):
        xlruntime.load_step_model(folder, ops="none", check="once")


def test_differences_that_are_not_certain_warn(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "xlruntime")
    xlruntime.load_step_model(give_step_answers(folder, uncertain_steps), check="once")
    assert "step 6 of the known answers" in caplog.text and "here this may be rounding alone" in caplog.text


def test_wrong_kernels_give_way_to_bodies(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = xlruntime.load_step_model(give_step_answers(folder), ops="none")
    assert model.check().passed  # its graphs are open now
    model.kernels = Kernels(Path(shutil.copyfile(folder / "run.onnx", folder / "library")), "1", "avx512", frozenset())
    run = StepModel.run

    def with_kernels(self: StepModel, *given: Any) -> Any:
        error = 0 if self.kernels is None else 1
        return {name: array + error for name, array in run(self, *given).items()}

    monkeypatch.setattr(StepModel, "run", with_kernels)
    caplog.set_level(logging.WARNING, "xlruntime")
    opened = check_once(model, lambda: xlruntime.load_step_model(folder, ops="none"))
    assert opened.kernels is None and "standard operators run instead." in caplog.text
