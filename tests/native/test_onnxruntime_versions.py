"""Kernels and bodies give the same scores in other versions of ONNX Runtime, and C the bits of Python.

The environment variable XLEXPORT_TEST_PYTHONS lists interpreters, separated as in PATH. Each needs an environment with
another version of onnxruntime, with numpy and with safetensors.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.c_library import build_c_runtime
from tests.helpers.paths import EMPTY, GOLDEN, ROOT, golden_bundle

PYTHONS = [path for path in os.environ.get("XLEXPORT_TEST_PYTHONS", "").split(os.pathsep) if path]
TOLERANCE = 1e-5  # nats
# Of golden bundles.
OPERATORS = ("LSHSort", "LSHAttention", "LSHBandAttention", "LSHChunkAttention", "RelativeAttention")
SCORE = """
import json, sys
import numpy as np
import onnxruntime
import xlruntime

library, *folders = sys.argv[1:]
found = {}
for folder in folders:
    scores = []
    for ops in ("none", library):
        model = xlruntime.load(folder, threads=2, ops=ops)
        ids = np.random.default_rng(0).integers(2, model.bundle.vocab_size, 90)
        scores.append(np.concatenate([part.log_probs for part in model.score_tokens([ids])]))
    used = " ".join(model.kernels_used(name) for name in model.bundle.graphs)
    found[folder] = [used, float(np.abs(scores[0] - scores[1]).max()), len(scores[0])]
print(json.dumps([onnxruntime.__version__, found]))
"""


IN_PYTHON = """
import sys
from pathlib import Path
import onnxruntime
import xlruntime

library, folder, text = sys.argv[1:]
(total,) = xlruntime.load(folder, threads=1, ops=library).score([Path(text)])
(found,) = Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*")
print(repr(total.bits), found)
"""


@pytest.mark.full
@pytest.mark.parametrize("python", [sys.executable, *PYTHONS])
def test_kernels_equal_bodies(python: str, kernel_library: Path) -> None:
    folders = [str(path) for path in sorted(GOLDEN.glob("*/bundle"))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "runtime" / "python")}
    command = [python, "-c", SCORE, str(kernel_library), *folders]
    shown = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=300)
    assert shown.returncode == 0, shown.stderr
    version, found = json.loads(shown.stdout)
    differences = {Path(folder).parent.name: difference for folder, (_, difference, _) in found.items()}
    print(f"onnxruntime {version}: {differences}")
    assert {name: difference for name, difference in differences.items() if not difference <= TOLERANCE} == {}
    used = " ".join(text for text, _, _ in found.values())
    assert {name for name in OPERATORS if f" {name}" not in used} == set()


@pytest.mark.native
@pytest.mark.parametrize("python", [sys.executable, *PYTHONS])
def test_c_has_the_bits_of_python(python: str, kernel_library: Path, tmp_path: Path) -> None:
    folder, text = golden_bundle(EMPTY), tmp_path / "text.txt"
    text.write_text("The old man walked down to the river. " * 40, "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "runtime" / "python")}
    command: list[str | Path] = [python, "-c", IN_PYTHON, kernel_library, folder, text]
    shown = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=300)
    bits, library = shown.stdout.split(maxsplit=1)
    environment = {**os.environ, "XLRUNTIME_ONNXRUNTIME": library.strip()}
    command = [build_c_runtime() / "xlscore", folder, text, "--threads", "1"]
    shown = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=300)
    found = float(shown.stdout.partition("bits ")[2].partition(",")[0])
    assert found == pytest.approx(float(bits), rel=1e-14)  # sums are added in another order
