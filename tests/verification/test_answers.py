"""The known answers that `convert` writes; those of `configure` and `quantize` have tests beside these."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.faults.answers import measure
from tests.helpers.manifests import edit_manifest
from xlexport.verification import answers as writing
from xlexport.verification.answers import answers_of_graphs, answers_of_model, rounded_up
from xlexport.verification.text import verify_ids
from xlruntime import Model, load
from xlruntime.bundle_files import digest_file
from xlruntime.known_answers import ANSWERS_FILE, KnownAnswers

if TYPE_CHECKING:
    from tests.helpers.bundles import Converted, ConvertedReformer

BUNDLES = ["bytes_bundle", "ids_bundle", "fixed_bundle", "band", "paper", "chunk"]


def answers_of(model: Model) -> KnownAnswers:
    answers = KnownAnswers.read(model)
    assert answers is not None
    return answers


@pytest.mark.parametrize("name", BUNDLES)
@pytest.mark.full
def test_bundle_brings_answers_that_it_reproduces(name: str, request: pytest.FixtureRequest) -> None:
    converted: Converted | ConvertedReformer = request.getfixturevalue(name)
    model = load(converted.folder, threads=1)
    answers, result = answers_of(model), model.check()
    longest = model.bundle.settings.longest_part or 200
    assert result.passed and result.tokens == len(answers.log_probs) <= min(200, longest)
    assert result.tokens == min(200, longest) or (answers.margin is not None and result.tokens >= 32)
    assert model.bundle.files[ANSWERS_FILE].size <= 40_000
    assert all(round(number, 7) == number for number in answers.log_probs)
    has_hashes = name in ("band", "paper", "chunk")
    assert (answers.margin is not None and 0 < answers.margin < 1) if has_hashes else answers.margin is None


@pytest.mark.parametrize("name", ["bytes_bundle", "ids_bundle"])
def test_bounds_follow_from_the_verified_error(name: str, request: pytest.FixtureRequest) -> None:
    converted: Converted = request.getfixturevalue(name)
    model = load(converted.folder, threads=1)
    answers, errors = answers_of(model), converted.report.rounding
    assert errors is not None and answers.certain
    error = max(errors.graph_largest, model.check().largest * max(answers.bounds))
    unit = float(np.spacing(np.float32(-min(answers.log_probs))))
    assert 10 * errors.graph_largest <= min(answers.bounds) and max(answers.bounds) <= 20 * max(error, unit)


def test_walk_carries_memory_and_overwrites_it(bytes_bundle: Converted) -> None:
    model = load(bytes_bundle.folder, threads=1)
    settings = model.evaluation(**answers_of(model).settings)
    assert settings.capacity() < 200 and settings.segment_len < 200


def test_another_conversion_writes_the_same_bytes(bytes_bundle: Converted) -> None:
    model = load(bytes_bundle.folder, threads=1, ops="none")
    ids, rules = verify_ids(model.bundle, model.tokenizer, None), model.bundle.evaluation
    again = answers_of_model(model, bytes_bundle.source.build_model, ids, bytes_bundle.report, rules)
    assert again is not None
    text = json.dumps(dataclasses.asdict(again)) + "\n"
    assert (bytes_bundle.folder / ANSWERS_FILE).read_text("utf-8") == text


def test_text_of_one_token_gives_no_answers(bytes_bundle: Converted) -> None:
    model, report = load(bytes_bundle.folder, threads=1, ops="none"), bytes_bundle.report
    ids = verify_ids(model.bundle, model.tokenizer, None)[:1]
    assert answers_of_model(model, bytes_bundle.source.build_model, ids, report, model.bundle.evaluation) is None


def test_changed_weights_are_noticed(bytes_bundle: Converted, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bytes_bundle.folder, tmp_path / "bundle"))
    weights = np.fromfile(folder / "weights.data", np.float32)
    part = slice(len(weights) // 2, len(weights) // 2 + 200)
    weights[part] *= 1.01
    weights.tofile(folder / "weights.data")
    digest = dataclasses.asdict(digest_file(folder / "weights.data"))
    edit_manifest(folder, lambda manifest: manifest["files"].update({"weights.data": digest}))
    result = load(folder, threads=1).check()
    assert result.passed is False and result.certain


def test_close_hashes_only_warn(band: ConvertedReformer, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(band.folder, threads=1, ops="none")
    ids = verify_ids(model.bundle, model.tokenizer, None)
    monkeypatch.setattr(writing, "LEAD", math.inf)
    monkeypatch.setattr(writing, "STARTS", 3)
    answers = answers_of_model(model, band.source.build_model, ids, band.report, model.bundle.evaluation)
    assert answers is not None and not answers.certain and answers.margin is not None
    assert len(answers.log_probs) == min(200, model.bundle.settings.longest_part or 200)


def test_graphs_of_a_reformer_cannot_say_how_clearly_its_buckets_lead(band: ConvertedReformer) -> None:
    model = load(band.folder, threads=1)
    before = dataclasses.replace(answers_of(model), settings={"segment_len": 3})
    after = answers_of_graphs(model, before)
    assert (after.margin, after.certain) == (None, False)


@pytest.mark.parametrize(("number", "rounded"), [(1e-4, 1e-4), (1.01e-4, 2e-4), (9.5e-6, 1e-5), (0.3, 0.3), (7, 7)])
def test_bounds_are_rounded_up_to_one_digit(number: float, rounded: Any) -> None:
    assert rounded_up(number) == rounded


@pytest.mark.full(cases=1)
@pytest.mark.parametrize("name", ["bytes_bundle", "paper"])
def test_small_faults_are_noticed(name: str, request: pytest.FixtureRequest) -> None:
    converted: Converted | ConvertedReformer = request.getfixturevalue(name)
    tried, seen = measure(converted.folder)
    assert tried.total() >= 16 and seen.total() >= 0.95 * tried.total(), tried - seen
