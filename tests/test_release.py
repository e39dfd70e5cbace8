"""`scripts/release`: what it refuses before it builds, and that no file of a release goes untried."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from scripts import release
from tests.conformance.platforms.runners import Broken
from tests.conformance.platforms.workshop import Workshop
from tests.conformance.release import Release, rows
from tests.helpers.paths import ROOT
from xlruntime import __version__

FILES = (
    *("xlruntime-0.2.0-py3-none-any.whl", "xlexport-0.2.0-py3-none-any.whl", "xlexport-0.2.0.tar.gz"),
    *("xlexport_ops-0.2.0-py3-none-manylinux_2_17_aarch64.whl", "xlruntime-0.2.0.tgz"),
    *("xlexport-conformance-0.2.0.tar.gz", "RELEASE_NOTES.md", "xlexport-0.2.0.cdx.json"),
)


def test_notes_are_the_dated_section_of_the_version() -> None:
    assert release.notes_of(__version__, (ROOT / "CHANGELOG.md").read_text("utf-8")).startswith("### ")
    changelog = "## [0.4.0]\n\n- x\n\n## [0.3.0] - 2027-01-01\n\n- new\n\n## [0.2.0] - 2026-11-26\n\n- old\n"
    assert (release.notes_of("0.3.0", changelog), release.notes_of("0.2.0", changelog)) == ("- new\n", "- old\n")
    with pytest.raises(SystemExit, match=r"no section \[0\.4\.0\]"):
        release.notes_of("0.4.0", changelog)


def test_another_version_an_existing_folder_and_a_changed_clone_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match=r"version 9\.9: the code is"):
        release.refuse_unready("9.9", tmp_path / "dist")
    with pytest.raises(SystemExit, match="exists"):
        release.refuse_unready(__version__, tmp_path)
    monkeypatch.setattr(release, "MODULES", {})
    monkeypatch.setattr(release, "PROGRAMS", ())
    monkeypatch.setattr(release, "git", lambda *arguments: " M README.md\n?? new.py")
    with pytest.raises(SystemExit, match=r"2 changed or new files: README\.md, new\.py"):
        release.refuse_unready(__version__, tmp_path / "dist")
    assert list(tmp_path.iterdir()) == []


def test_step_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(build: object) -> None:
        raise SystemExit("it fails")

    monkeypatch.setattr(release, "refuse_unready", lambda version, output: None)
    monkeypatch.setattr(release.Build, "packages", fail)
    with pytest.raises(SystemExit, match="it fails"):
        release.release(__version__, tmp_path / "dist")
    assert list(tmp_path.iterdir()) == []


def test_check_refuses_changed_files_and_files_that_nothing_tries(tmp_path: Path) -> None:
    tried = Release(tmp_path, tmp_path, Workshop(tmp_path, offline=True), tmp_path)
    digest = hashlib.sha256(b"").hexdigest()
    for name in FILES:
        (tmp_path / name).touch()
    (tmp_path / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name in (*FILES, "other.zip")), "utf-8")
    assert len(list(rows(tried))) == 6  # the npm package runs on two systems
    (tmp_path / "other.zip").touch()
    with pytest.raises(Broken, match=r"other\.zip: nothing tries"):
        list(rows(tried))
    (tmp_path / "RELEASE_NOTES.md").write_bytes(b"changed")
    with pytest.raises(Broken, match=r"RELEASE_NOTES\.md is not the file"):
        list(rows(tried))
