"""If an open bundle is replaced, the model notices it before it opens another graph."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.paths import GOLDEN
from xlruntime import BundleError, Model, engine, load
from xlruntime.bundle_files import check_digests

EMPTY = GOLDEN / "post_lnorm_same_length_empty" / "bundle"
REPLACED = r"bundle: the bundle was replaced while it was open \((?P<files>.*) differs\)\. Load it again\."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EMPTY, tmp_path / "bundle"))


@pytest.fixture
def opened(folder: Path) -> Model:
    return load(folder, threads=1)


def replace(folder: Path) -> None:
    """Replace the bundle by one of the same sizes with other weights, as `convert --force` does."""
    other = folder.with_name("other")
    shutil.copytree(folder, other)
    weights = np.fromfile(other / "weights.data", np.float32)
    (weights * np.float32(1.5)).tofile(other / "weights.data")
    folder.rename(folder.with_name("old"))
    other.rename(folder)


USES: dict[str, Callable[[Model], Any]] = {
    "detail": lambda opened: list(opened.score_tokens([b"abcd"], detail=2)),
    "generate": lambda opened: list(opened.generate(b"abcd", max_tokens=2)),
    "positions": lambda opened: opened.stream(mem_len=5),
    "placement": lambda opened: opened.placement("detail"),
}


@pytest.mark.parametrize("use", USES)
def test_graph_of_another_bundle_is_not_opened(use: str, opened: Model, folder: Path) -> None:
    before = next(opened.score([b"abcdefgh"])).nats
    replace(folder)
    assert next(opened.score([b"abcdefgh"])).nats == before  # open graphs are unchanged
    for _ in range(2):
        with pytest.raises(BundleError, match=REPLACED):
            USES[use](opened)


def test_file_that_is_gone_is_noticed(opened: Model, folder: Path) -> None:
    (folder / "weights.data").unlink()
    with pytest.raises(BundleError, match=REPLACED):
        USES["detail"](opened)


@pytest.mark.parametrize("how", ["copied", "touched"])
def test_same_files_again_are_the_same_bundle(how: str, opened: Model, folder: Path) -> None:
    if how == "copied":
        shutil.rmtree(folder)
        shutil.copytree(EMPTY, folder)
    else:
        for path in folder.iterdir():
            os.utime(path, (1, 1))
    for use in USES.values():
        use(opened)


def test_paperwork_may_be_edited(opened: Model, folder: Path) -> None:
    (folder / "README.md").write_text("Ours.\n")
    for use in USES.values():
        use(opened)


def test_weights_that_are_replaced_while_a_graph_opens_are_noticed(
    opened: Model, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = opened._open_session

    def slow(purpose: str, graph: Any) -> Any:
        session = real(purpose, graph)
        replace(folder)
        return session

    monkeypatch.setattr(opened, "_open_session", slow)
    with pytest.raises(BundleError, match=REPLACED):
        USES["detail"](opened)


def test_weights_that_are_replaced_after_their_digest_was_compared_are_noticed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = check_digests

    def slow(*given: Any) -> None:
        real(*given)
        replace(folder)

    monkeypatch.setattr(engine, "check_digests", slow)
    with pytest.raises(BundleError, match=REPLACED):
        load(folder)
