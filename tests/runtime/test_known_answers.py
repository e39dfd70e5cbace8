"""`Model.check` compares a bundle's scores with the known answers that it brings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.manifests import write_answers
from xlruntime import BundleDamagedError, BundleFormatError, Device, Model, load
from xlruntime.known_answers import ANSWERS_FILE, KnownAnswers, walk

TOKENS = tuple(range(60, 100))
SETTINGS: dict[str, int | bool] = {"segment_len": 7, "mem_len": 9}

Change = Callable[[dict[str, Any]], object]


def give_answers(folder: Path, change: Change = lambda answers: None) -> Path:
    """Write a bundle's own scores as its known answers, changed; return the folder."""
    ids = np.array(TOKENS)
    found, shapes = walk(load(folder, threads=1, ops="none"), {"tokens": ids[:-1], "targets": ids[1:]}, SETTINGS)
    scores = found["log_prob"].tolist()
    answers = KnownAnswers(SETTINGS, TOKENS, tuple(scores), (1e-4,) * len(scores), shapes, None, True)
    write_answers(folder, answers, change)
    return folder


def wrong(answers: dict[str, Any]) -> None:
    answers["log_probs"][11] += 0.5


def uncertain(answers: dict[str, Any]) -> None:
    wrong(answers)
    answers["certain"] = False


def test_bundle_reproduces_its_answers(bundle_copy: Path) -> None:
    result = load(give_answers(bundle_copy), threads=1).check()
    assert (result.passed, result.tokens, result.problem, result.certain) == (True, 39, None, True)
    assert result.largest < 0.2 and str(result).startswith("39 known answers, largest difference ")


def test_older_bundle_has_none(bytes_model: Model) -> None:
    result = bytes_model.check()
    assert result.passed is None and str(result) == "no known answers"


def test_first_difference_is_named(bundle_copy: Path) -> None:
    def change(answers: dict[str, Any]) -> None:
        answers["log_probs"][30] -= 1.0
        answers["log_probs"][20] -= 2e-4

    result = load(give_answers(bundle_copy, change), threads=1).check()
    assert result.passed is False and result.largest == pytest.approx(1e4, rel=1e-3)
    assert str(result).startswith("token 21 of the known answers has the log-probability -")
    assert str(result).endswith(" within 1e-04")


def test_shape_of_a_memory_is_compared(bundle_copy: Path) -> None:
    result = load(give_answers(bundle_copy, lambda answers: answers["memory"]["memory_key_1"].pop()), threads=1).check()
    assert result.passed is False
    assert str(result) == "memory memory_key_1 has the shape [1, 2, 16, 7], expected [1, 2, 16]"


def test_scores_that_are_not_finite_differ(bundle_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, run = load(give_answers(bundle_copy), threads=1), Model.run
    monkeypatch.setattr(
        Model, "run", lambda *given: {name: array * float("nan") for name, array in run(*given).items()}
    )
    assert str(model.check()).startswith("token 1 of the known answers has the log-probability nan, expected ")


def test_failure_is_not_certain_without_bounds_for_the_provider(bundle_copy: Path) -> None:
    model = load(give_answers(bundle_copy), threads=1)
    assert model.check().certain
    model.device = Device("openvino", "CPU")  # graphs and constants stay where they are
    assert not model.check().certain


def set_field(name: str, value: object) -> Change:
    return lambda answers: answers.update({name: value})


INVALID: list[tuple[Change, str]] = [
    (lambda answers: answers["tokens"].__setitem__(3, -1), r"tokens\[3\] is -1, expected a whole number from 0"),
    (lambda answers: answers["tokens"].__setitem__(3, 256), r"tokens\[3\] is 256, expected 0 to 255"),
    (lambda answers: answers["bounds"].__setitem__(2, 0.0), r"bounds\[2\] is 0, expected a number above 0"),
    (lambda answers: answers["log_probs"].__setitem__(1, "x"), r"log_probs\[1\] is 'x', expected a number"),
    (lambda answers: answers["log_probs"].pop(), "40 tokens and 39 bounds for 38 log_probs"),
    (lambda answers: answers["memory"].update(x=[-1]), r"memory\.x\[0\] is -1, expected a whole number"),
    (lambda answers: answers.pop("margin"), "margin is missing"),
    (set_field("settings", {"n_hashes": 2}), "n_hashes: not among the settings"),
    (set_field("settings", {"mem_len": 0}), "mem_len is 0, expected 1 to"),
    (set_field("certain", 1), "certain is 1, expected true or false"),
    (set_field("more", "x" * 40_000), "bytes, at most 40,000 are expected"),
]


@pytest.mark.parametrize(("change", "message"), INVALID)
def test_invalid_file_is_refused_by_the_path_of_the_field(bundle_copy: Path, change: Change, message: str) -> None:
    model = load(give_answers(bundle_copy, change), threads=1)
    with pytest.raises(BundleFormatError, match=message) as caught:
        model.check()
    assert str(caught.value).startswith(str(bundle_copy / ANSWERS_FILE)) and "\n" not in str(caught.value)


def test_changed_file_is_refused_when_the_bundle_opens(bundle_copy: Path) -> None:
    file = give_answers(bundle_copy) / ANSWERS_FILE
    file.write_bytes(file.read_bytes().replace(b"60", b"61", 1))
    with pytest.raises(BundleDamagedError, match=r"known_answers\.json was changed"):
        load(bundle_copy)


def test_file_that_changes_later_is_refused(bundle_copy: Path) -> None:
    model = load(give_answers(bundle_copy), threads=1)
    (bundle_copy / ANSWERS_FILE).unlink()
    with pytest.raises(BundleDamagedError, match="was replaced while it was open"):
        model.check()
