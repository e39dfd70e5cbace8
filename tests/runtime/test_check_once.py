"""`load(check="once")` compares known answers once on each machine."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.conftest import Steps
from tests.runtime.test_known_answers import TOKENS, give_answers, uncertain, wrong
from xlruntime import BundleGraphError, Model, OptionError, check_once, load
from xlruntime.check_once import checks_folder, verdict_name
from xlruntime.kernels import Kernels
from xlruntime.known_answers import KnownAnswers
from xlruntime.providers import import_onnxruntime


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_answers_are_compared_once(bundle_copy: Path, cache: Path, steps: Steps) -> None:
    give_answers(bundle_copy)
    del steps[:]
    load(bundle_copy, threads=1)
    assert not steps and not cache.exists()
    load(bundle_copy, threads=1, check="once")
    (verdict,) = (cache / "xlexport" / "checks").iterdir()
    assert len(steps) == 6 and verdict.stat().st_mode & 0o777 == 0o600
    load(bundle_copy, threads=1, check="once")
    assert len(steps) == 6


def test_what_may_change_the_numbers_is_compared_again(bundle_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(give_answers(bundle_copy), threads=1, ops="none")
    names = {verdict_name(model)}
    library = bundle_copy / "library"
    for content in (b"one", b"two"):
        library.write_bytes(content)
        model.kernels = Kernels(library, "1", "avx512", frozenset())
        names.add(verdict_name(model))
    model.kernels = Kernels(library, "1", "base", frozenset())
    names.add(verdict_name(model))
    model.bundle = replace(model.bundle)  # another manifest, without a digest
    names.add(verdict_name(model))
    monkeypatch.setattr(check_once, "_processor", lambda: "another")
    names.add(verdict_name(model))
    monkeypatch.setattr(import_onnxruntime(), "__version__", "9.9.9")
    names.add(verdict_name(model))
    assert len(names) == 7


def test_homes_that_nobody_can_use_are_no_error(
    bundle_copy: Path, cache: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_answers(bundle_copy)
    monkeypatch.chdir(bundle_copy.parent)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as without HOME and without a name for the user
    before = sorted(bundle_copy.parent.iterdir())
    load(bundle_copy, threads=1, check="once")
    assert steps and sorted(bundle_copy.parent.iterdir()) == before
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    is_file = Path.is_file

    def searched(path: Path) -> bool:  # it raises where nobody may look into a folder
        if cache in path.parents:
            raise PermissionError(str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", searched)
    load(bundle_copy, threads=1, check="once")


def test_wrong_scores_are_refused_and_not_remembered(bundle_copy: Path) -> None:
    give_answers(bundle_copy, wrong)
    for _ in range(2):
        with pytest.raises(BundleGraphError, match="token 12 of the known answers has the log-probability") as caught:
            load(bundle_copy, threads=1, ops="none", check="once")
        assert "\n" not in str(caught.value) and list(checks_folder().iterdir()) == []


def test_wrong_kernels_give_way_to_bodies(
    bundle_copy: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = load(give_answers(bundle_copy), threads=1, ops="none")
    (bundle_copy / "library").write_bytes(b"")
    assert model.check().passed  # its graphs are open now
    model.kernels = Kernels(bundle_copy / "library", "1", "avx512", frozenset())
    run = Model.run

    def with_kernels(self: Model, *given: Any) -> Any:
        error = 0.0 if self.kernels is None else 0.01
        return {name: array + error for name, array in run(self, *given).items()}

    monkeypatch.setattr(Model, "run", with_kernels)
    caplog.set_level(logging.WARNING, "xlruntime")
    opened = check_once.check_once(model, lambda: load(bundle_copy, threads=1, ops="none"))
    assert opened.kernels is None and opened.check().passed
    assert "with xlexport-ops 1 (avx512); standard operators run instead." in caplog.text
    assert [path.name for path in checks_folder().iterdir()] == [verdict_name(opened)]


def test_close_hashes_only_warn(bundle_copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    give_answers(bundle_copy, uncertain)
    caplog.set_level(logging.WARNING, "xlruntime")
    assert load(bundle_copy, threads=1, ops="none", check="once").check().passed is False
    assert "here this may be rounding alone" in caplog.text


def test_cache_that_cannot_be_written_means_a_short_check_each_time(
    bundle_copy: Path, cache: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_answers(bundle_copy)
    cache.write_bytes(b"no folder")
    del steps[:]
    monkeypatch.setattr(check_once, "UNREMEMBERED", 60.0)
    for n in (6, 12):
        load(bundle_copy, threads=1, check="once")
        assert len(steps) == n
    monkeypatch.setattr(check_once, "UNREMEMBERED", 0.0)
    load(bundle_copy, threads=1, check="once")
    assert len(steps) == 13


def test_older_bundle_opens(bytes_model: Model, cache: Path) -> None:
    assert load(bytes_model.folder, threads=1, check="once").check().passed is None
    assert not cache.exists() and KnownAnswers.read(bytes_model) is None and len(TOKENS) == 40


def test_another_choice_is_refused(bytes_model: Model) -> None:
    with pytest.raises(OptionError, match="check is 'always', expected off or once"):
        load(bytes_model.folder, check="always")  # type: ignore[arg-type]
