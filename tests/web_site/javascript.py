"""Run JavaScript in Node with the packages of `runtime/js`, and serve folders to browsers."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.paths import ROOT

HERE = Path(__file__).parent
WEB = ROOT / "runtime/js"
WORKER = ROOT / "xlexport/web/worker"
INSTALLED = shutil.which("node") is not None and (WEB / "node_modules/onnxruntime-node").is_dir()
PROGRAMS = {"chromium": ["chromium", "chromium-browser", "google-chrome"], "firefox": ["firefox", "firefox-esr"]}
BROWSERS = {  # as conformance/browser.mjs finds them
    name: any(map(os.path.exists, [os.environ.get(name.upper(), ""), *(f"/usr/bin/{program}" for program in programs)]))
    for name, programs in PROGRAMS.items()
}
needs_node = pytest.mark.skipif(not INSTALLED, reason="needs Node, and `npm ci` in runtime/js")
needs_chromium = pytest.mark.skipif(
    not (INSTALLED and BROWSERS["chromium"]), reason="needs Chromium, Node, and `npm ci` in runtime/js"
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


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(server: http.server.ThreadingHTTPServer) -> Iterator[str]:
    """Serve until the end of the block, which gets the address."""
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


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
