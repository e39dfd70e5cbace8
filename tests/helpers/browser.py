"""A headless Chromium, driven through chromedriver by the plain W3C WebDriver protocol."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
NAMES = (("chromium", "chromium-browser", "google-chrome"), ("chromedriver",))
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # how the protocol marks a reference to an element


def missing_browser() -> str | None:
    """Return the names of missing programs, as the reason of a skip."""
    missing = [names[0] for names in NAMES if not any(map(shutil.which, names))]
    return f"{' and '.join(missing)} not found on PATH" if missing else None


class Browser:
    """One window."""

    def __init__(self, driver: str, folder: Path, width: int, height: int) -> None:
        self._url = driver
        (binary,) = [found for name in NAMES[0] if (found := shutil.which(name))][:1]
        options = {
            "binary": binary,
            "args": [*FLAGS, f"--user-data-dir={folder}", f"--window-size={width},{height}"],
        }
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._url += f"/session/{session['sessionId']}"
        self._call("POST", "/timeouts", {"script": 60_000, "pageLoad": 120_000})

    def open(self, page: Path) -> None:
        """Open a file, and wait until its script is done."""
        self._call("POST", "/url", {"url": page.resolve().as_uri()})
        self.wait("document.documentElement.classList.contains('ready')")

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script and return its value, or the value of its promise."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(f"return Boolean({condition})"):
            assert time.monotonic() < end, f"not true after {seconds} s: {condition}; log: {self.log()}"
            time.sleep(0.02)

    def keys(self, *keys: str) -> None:
        """Press keys at the current focus."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._act({"type": "key", "id": "keyboard", "actions": actions})

    def point(self, selector: str, click: bool = False, x: int = 0, y: int = 0) -> None:
        """Move the mouse to the middle of an element, or to a number of pixels from it."""
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        origin = {ELEMENT: found[ELEMENT]}
        actions: list[dict[str, Any]] = [{"type": "pointerMove", "duration": 0, "x": x, "y": y, "origin": origin}]
        if click:
            actions += [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self._act({"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": actions})

    def resize(self, width: int, height: int) -> None:
        """Set the inner size of the window."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def prefer(self, scheme: str, **features: str) -> None:
        """Set the system's preference: `light` or `dark`."""
        named = {"prefers-color-scheme": scheme, **features}
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": n, "value": v} for n, v in named.items()])

    def devtools(self, command: str, **parameters: Any) -> Any:
        """Run a command of the DevTools protocol."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def picture(self, file: Path) -> None:
        """Save the content of the window as PNG."""
        file.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

    def printed(self) -> bytes:
        """Return the page as PDF."""
        return base64.b64decode(self._call("POST", "/print", {"background": True}))

    def log(self) -> list[str]:
        """Return the console's messages since the last call, including network and policy errors."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def quit(self) -> None:
        """Close it."""
        self._call("DELETE", "")

    def _act(self, source: dict[str, Any]) -> None:
        self._call("POST", "/actions", {"actions": [source]})

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=180) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{method} {path}: {json.load(error)['value']['message']}") from None


@contextmanager
def open_browser(folder: Path, width: int = 1280, height: int = 860) -> Iterator[Browser]:
    """Open a browser with its own profile in `folder`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (binary,) = [found for name in NAMES[1] if (found := shutil.which(name))]
    with subprocess.Popen([binary, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        try:
            for _ in range(600):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            browser = Browser(f"http://127.0.0.1:{port}", folder, width, height)
            try:
                yield browser
            finally:
                browser.quit()
        finally:
            driver.terminate()
