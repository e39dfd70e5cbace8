"""The numbered samples without PyTorch run unchanged in a folder with a bundle."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.manifests import edit_manifest
from tests.helpers.paths import ROOT
from tests.runtime.conftest import Close
from xlruntime import Model, load

pytestmark = pytest.mark.full

FOLDER = ROOT / "samples"
SAMPLES = sorted(FOLDER.glob("[0-9]*.py"))
WITH_CONVERT = {"01_convert.py", "11_reformer.py", "13_transformer_xl_in_numpy.py", "14_reformer_in_numpy.py"}
ALONE = FOLDER / "10_without_the_package.py"
LIGHT = [sample for sample in SAMPLES if sample.name not in WITH_CONVERT and sample != ALONE]
RUN = """
import runpy, sys
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
assert not {"torch", "onnx", "xlexport"} & set(sys.modules)
"""
SHOWN = {  # required parts of the output, without figures
    "02_score_a_file.py": "heapq.py: ",
    "05_streams_in_threads.py": "bit-equal to one after another",
    "06_save_and_restore.py": "restored: bit-equal",
    "08_rerank.py": "scored 4 candidates",
    "09_generate.py": "the same seed gives the same text",
}


@pytest.fixture
def folder_with_a_bundle(bytes_model: Model, tmp_path: Path) -> Path:
    """Return a folder to run a sample in."""
    (tmp_path / "bundle").symlink_to(bytes_model.folder)
    return tmp_path


@pytest.mark.parametrize("sample", LIGHT, ids=lambda sample: sample.name)
def test_sample_runs_without_pytorch(sample: Path, folder_with_a_bundle: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", RUN, str(sample)]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        command, cwd=folder_with_a_bundle, capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert SHOWN.get(sample.name, "b") in done.stdout  # bits or bytes for all other samples


@pytest.mark.parametrize("fresh_memory", ["empty", "zeros"])
def test_bundle_is_read_without_the_package(
    fresh_memory: str,
    bytes_model: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    close: Close,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "xlruntime" not in ALONE.read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(bytes_model.folder, "bundle")
    edit_manifest(Path("bundle"), lambda manifest: manifest["document"].update(fresh_memory=fresh_memory))
    model = load("bundle", threads=1)
    names = runpy.run_path(str(ALONE))
    ids, capacity = names["ids"], model.bundle.settings.capacity()
    assert len(ids) > 100 * capacity  # the ring wrapped many times
    expected = np.concatenate([part.log_probs for part in model.score_tokens([ids])])
    assert capsys.readouterr().out.startswith(f"{len(ids):,} bytes, ")
    close(names["log_probs"], expected, within=1e-5)  # another number of threads may sum in another order
