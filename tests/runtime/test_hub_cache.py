"""Bundles in the cache of Hugging Face's hub: files behind links, and names."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.helpers.hub import COMMIT, put_into_cache
from tests.helpers.paths import EMPTY, golden_bundle
from xlruntime import load
from xlruntime.errors import BundleDamagedError, BundleNotFoundError
from xlruntime.hub_cache import bundle_folder, folder_name

TEXT = "A short text of some words."


def bits(bundle: str | Path) -> float:
    return next(load(bundle, threads=1).score([TEXT])).bits


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    return put_into_cache(golden_bundle(EMPTY), tmp_path / "hub", "me/bundle")


@pytest.mark.parametrize("link", ["", "link"])
def test_bundle_behind_links_opens(link: str, snapshot: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(snapshot)
    assert bits(tmp_path / link if link else snapshot) == bits(golden_bundle(EMPTY))


def test_changed_blob_is_noticed(snapshot: Path) -> None:
    with (snapshot / "weights.data").open("r+b") as blob:
        blob.write(b"\xff")
    with pytest.raises(BundleDamagedError, match=r"weights\.data was changed \(SHA-256"):
        load(snapshot)


@pytest.mark.parametrize("place", ["..", "../../models--me--other/blobs", "../..", "../blobs/inner", "../refs"])
@pytest.mark.parametrize("through", ["link", "blob"])
def test_link_that_leads_elsewhere_is_refused(place: str, through: str, snapshot: Path, tmp_path: Path) -> None:
    weights = snapshot / "weights.data"
    blob, target = weights.resolve(), snapshot.parent / place / "target"
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(blob, target)
    link = weights if through == "link" else blob
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    with pytest.raises(BundleDamagedError, match=r"weights\.data is a link that leads out of the folder"):
        load(snapshot)
    with pytest.raises(BundleDamagedError, match=r"weights\.data: a link that leads out of the folder"):
        load(snapshot, check_files=False)


def test_name_means_a_bundle_in_the_cache_and_nothing_is_downloaded(
    snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    for name in ("me/bundle", "me/bundle@main", f"me/bundle@{COMMIT}"):
        assert bundle_folder(name) == snapshot
    for other in ("me/bundle@v2", "me/other", "../me/bundle", "me/bundle@../main", Path("me/bundle")):
        assert bundle_folder(other) == Path(other)
    assert bits("me/bundle") == bits(snapshot)
    with pytest.raises(BundleNotFoundError, match=r"^me/b@v2: no such .* run `hf download me/b --revision v2`\.$"):
        load("me/b@v2")
    Path("me/bundle").mkdir(parents=True)  # wins
    with pytest.raises(BundleNotFoundError, match=r"^me/bundle: no bundle\.json in it"):
        load("me/bundle")


def test_name_of_a_folder() -> None:
    folders = ("models--a--b--c/snapshots/1", "models--plain/snapshots/1", "x/y")
    assert [folder_name(Path(folder)) for folder in folders] == ["b--c", "plain", "y"]
