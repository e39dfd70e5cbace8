"""Opening a bundle: what it logs, options, and a bundle that is replaced while it is open."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xlruntime
from tests.helpers.paths import GOLDEN
from xlruntime import BundleError, Model, OptionError, engine, load
from xlruntime.bundle_files import check_digests

USE = "import sys, xlruntime; print(len(list(xlruntime.load(sys.argv[1], threads=1).score(['some text']))))"
SHOW = "import logging; logging.basicConfig(level='DEBUG'); "


def test_unknown_option_of_load_is_named(bytes_model: Model) -> None:
    with pytest.raises(OptionError, match=r"^load has no option mem_len, only device, .*Give evaluation settings"):
        load(bytes_model.folder, mem_len=8)  # type: ignore[call-arg]


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.full
def test_nothing_is_shown_unless_an_application_asks(asked: bool, bytes_model: Model) -> None:
    line = [sys.executable, "-c", (SHOW if asked else "") + USE, str(bytes_model.folder)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    assert ("INFO:xlruntime.engine:" in done.stderr) if asked else done.stderr == ""


def test_graphs_are_closed_at_the_end_of_a_block(bytes_model: Model, caplog: pytest.LogCaptureFixture) -> None:
    def opened() -> list[str]:
        """Return the graphs that were opened since the last call."""
        found = [
            record.args[1] for record in caplog.records if isinstance(record.args, tuple) and "graph" in record.msg
        ]
        caplog.clear()
        return sorted(map(str, found))

    with xlruntime.load(bytes_model.folder, threads=1) as model:
        caplog.set_level(logging.INFO, "xlruntime")
        (before,) = model.score(["some text"])
        assert opened() == ["positions"]  # score has been open since `load`
    (after,) = model.score(["some text"])
    assert opened() == ["positions", "score"]
    assert before.nats == after.nats


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"threads": 0}, "threads is 0, at least 1 is needed"),
        ({"cuda_graphs": True}, "cuda_graphs needs a CUDA device"),
        ({"device": "gpu"}, "device 'gpu'"),
        ({"step_timeout": -1.0}, "step_timeout is -1"),
    ],
)
def test_options_of_load_out_of_range_are_refused(options: dict[str, Any], said: str, bytes_model: Model) -> None:
    with pytest.raises(xlruntime.OptionError, match=said):
        xlruntime.load(bytes_model.folder, **options)


def test_digest_that_is_no_text_is_refused(bytes_model: Model) -> None:
    with pytest.raises(xlruntime.ArgumentError, match="digest is 5, expected a text or None"):
        xlruntime.load(bytes_model.folder, digest=5)  # type: ignore[arg-type]


# If an open bundle is replaced, the model notices it before it opens another graph.

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
    "detail": lambda opened: list(opened.score_tokens([b"abcd"], top=2)),
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


@pytest.mark.parametrize("how", ["copied", "touched", "described"])
def test_same_files_again_are_the_same_bundle(how: str, opened: Model, folder: Path) -> None:
    if how == "copied":
        shutil.rmtree(folder)
        shutil.copytree(EMPTY, folder)
    elif how == "described":
        (folder / "README.md").write_text("Ours.\n")
    else:
        for path in folder.iterdir():
            os.utime(path, (1, 1))
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
