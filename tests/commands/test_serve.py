"""The `serve` command: it says when it is ready, ends with a signal, and refuses what cannot be served."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.invoking import Invoke
from tests.helpers.paths import CHUNK, EMPTY, golden_bundle
from xlexport.extras import missing_packages

needs_server = pytest.mark.skipif(bool(missing_packages("serve")), reason="the extra serve is not installed")


def post(url: str, body: Any, key: str) -> Any:
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@needs_server
@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_server_answers_until_a_signal(number: signal.Signals, environment: dict[str, str], tmp_path: Path) -> None:
    for name in (EMPTY, CHUNK):
        (tmp_path / name).symlink_to(golden_bundle(name))
    command: list[str | Path] = [sys.executable, "-m", "xlexport", "serve", tmp_path / EMPTY, tmp_path / CHUNK]
    options = ["--port", "0", "--json", "--threads", "1", "--batch-size", "2"]
    with subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, "XLEXPORT_API_KEY": "correct horse\nsecret"},
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        ready = json.loads(process.stdout.readline())
        assert ready["models"] == [EMPTY, CHUNK] and ready["url"].startswith("http://127.0.0.1:")
        for key in ("secret", "correct horse"):
            answer = post(f"{ready['url']}/completions", {"model": EMPTY, "prompt": "a", "max_tokens": 3}, key)
            assert answer["usage"]["completion_tokens"] == 3
        process.send_signal(number)
        assert process.wait(60) == 0
        assert process.stdout.read() == ""
        assert "POST /v1/completions 200 " in process.stderr.read()


@needs_server
def test_answers_are_sent_at_once() -> None:
    from xlexport.serve.server import listening_socket

    with listening_socket("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@needs_server
@pytest.mark.full
def test_second_signal_cuts_requests_off(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "xlexport", "serve", str(golden_bundle(EMPTY)), "--port", "0", "--threads", "1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        url = process.stdout.readline().strip()
        body = json.dumps({"prompt": "a", "max_tokens": 65_000, "stream": True}).encode()
        request = urllib.request.Request(f"{url}/completions", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.readline()
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)  # two signals at once arrive as one
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 128 + signal.SIGINT
        said = process.stderr.read()
        assert "Traceback" not in said and said.splitlines()[-1].startswith("Error: ")


@needs_server
def test_what_cannot_be_served(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = golden_bundle(EMPTY)
    assert "absent" in invoke("serve", tmp_path / "absent", "--port", "0").error
    same = invoke("serve", bundle, bundle, "--port", "0", "--json").error
    assert "two bundles have the same name" in same
    assert "not one token" in invoke("serve", bundle, "--port", "0", "--set=prefix=ab").error
    small = invoke("serve", bundle, "--port", "0", "--prefix-cache", "1000").error
    assert re.search(r"a prefix cache of 1,000 bytes, but one memory of this model takes [\d,]+\. Give more", small)
    whole = invoke("serve", golden_bundle(CHUNK), "--port", "0", "--prefix-cache", "1000000").error
    assert "a prefix cache: this model reads each document in one step" in whole
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = invoke("serve", bundle, "--port", str(port)).error
        assert found.endswith(
            f"address 127.0.0.1:{port}: Address already in use. Choose another port; 0 takes a free one."
        )
    for key in ("", "short", " secret"):
        assert "key 2 of --api-key" in invoke("serve", bundle, "--api-key", "secret", "--api-key", key).err
        monkeypatch.setenv("XLEXPORT_API_KEY", key)
        assert "key 1 of XLEXPORT_API_KEY" in invoke("serve", bundle).err
        monkeypatch.delenv("XLEXPORT_API_KEY")


def test_missing_packages_are_named(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xlexport.extras.is_installed", lambda name: name != "uvicorn")
    assert "uvicorn" in invoke("serve", golden_bundle(EMPTY)).error
