"""Run JavaScript of a site in Node, with the packages of `runtime/js`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.paths import ROOT

__all__ = ["HERE", "WEB", "WORKER", "needs_chromium", "needs_node", "node", "prepared"]

HERE = Path(__file__).parent
WEB = ROOT / "runtime/js"
WORKER = ROOT / "xlexport/web/worker"
INSTALLED = shutil.which("node") is not None and (WEB / "node_modules/onnxruntime-node").is_dir()
CHROMIUM = next(
    (path for path in (os.environ.get("CHROMIUM"), "/usr/bin/chromium") if path and Path(path).exists()), ""
)
needs_node = pytest.mark.skipif(not INSTALLED, reason="needs Node, and `npm ci` in runtime/js")
needs_chromium = pytest.mark.skipif(
    not (INSTALLED and CHROMIUM), reason="needs Chromium, Node, and `npm ci` in runtime/js"
)


@cache
def build() -> None:
    """Compile the package `xlruntime`, once for all tests."""
    subprocess.run(["npm", "run", "build"], cwd=WEB, capture_output=True, timeout=300, check=True)


def prepared(folder: Path) -> Path:
    """Return a folder in which programs find the packages."""
    build()
    modules = folder / "node_modules"
    modules.mkdir()
    for installed in (WEB / "node_modules").iterdir():
        (modules / installed.name).symlink_to(installed)
    (modules / "xlruntime").symlink_to(WEB)
    return folder


def node(program: str, folder: Path, request: dict[str, Any], timeout: float = 300) -> Any:
    """Run a program of this folder with a request, and return what it prints, which is JSON."""
    copied = folder / program
    shutil.copyfile(HERE / program, copied)
    result = subprocess.run(
        ["node", str(copied)],
        input=json.dumps(request),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-8000:]
    return json.loads(result.stdout)
