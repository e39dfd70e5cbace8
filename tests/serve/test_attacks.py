"""A server process under attack: unfinished heads, bodies of 64 MB, and no file descriptors left."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from socket import create_connection, socket

import pytest

from tests.helpers.paths import EMPTY, golden_bundle
from xlexport.extras import missing_packages

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(sys.platform != "linux", reason="the limits of another process are Linux's"),
    pytest.mark.skipif(bool(missing_packages("serve")), reason="the extra serve is not installed"),
]

DESCRIPTORS = 300  # of the server's process, so at most 172 connections
MOST_BYTES, MOST_SECONDS = 400_000_000, 1.0
SIZE = 63_000_000
SHAPES = {  # how a body begins, goes on and ends
    "fields": (b'{"prompt":"a","":1', b',"":1', b"}"),
    "stream options": (b'{"prompt":"a","stream":true,"stream_options":{"":1', b',"":1', b"}}"),
    "bias": (b'{"prompt":"a","logit_bias":{"":1', b',"":1', b"}}"),
    "lists": (b'{"prompt":[[1]', b",[1]", b"]}"),
    "ids": (b'{"prompt":[1', b",1", b"]}"),
    "texts": (b'{"prompt":[""', b',""', b"]}"),
    "text": (b'{"prompt":"', b"a, ", b'"}'),
}


@dataclass(frozen=True)
class Process:
    """The server's process: its id, its port, and the file of its log."""

    pid: int
    port: int
    log: Path

    def connect(self) -> socket:
        return create_connection(("127.0.0.1", self.port), timeout=60)

    def health(self) -> float:
        """Return the seconds until an answer on a new connection."""
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        connection.request("GET", "/health")
        assert connection.getresponse().read() == b'{"status":"ok"}'
        connection.close()
        return time.perf_counter() - began

    def memory(self, kind: str) -> int:
        """Return bytes of memory: VmRSS now, VmHWM at most so far."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return 1024 * int(status.partition(f"{kind}:")[2].split()[0])

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    log = tmp_path_factory.mktemp("server") / "log"
    command = [sys.executable, "-m", "xlexport", "serve", str(golden_bundle(EMPTY)), "--port", "0", "--json"]
    limited = ["sh", "-c", f'ulimit -n {DESCRIPTORS} && exec "$@"', "sh", *command]
    options = ["--threads", "1", "--quiet", "--max-body", "64"]
    with (
        log.open("wb") as file,
        subprocess.Popen([*limited, *options], stdout=subprocess.PIPE, stderr=file) as process,
    ):
        try:
            assert process.stdout is not None
            port = json.loads(process.stdout.readline())["url"].rpartition(":")[2].partition("/")[0]
            yield Process(process.pid, int(port), log)
        finally:
            process.kill()


def test_unfinished_heads(server: Process) -> None:
    heads, slowest = [], 0.0
    for _ in range(DESCRIPTORS + 50):
        heads.append(server.connect())
        heads[-1].sendall(b"GET /health HTTP/1.1\r\nX: ")
        slowest = max(slowest, min(server.health() for _ in range(3)))
    assert slowest < MOST_SECONDS and server.descriptors() < DESCRIPTORS - 50
    for head in heads:
        head.close()
    assert server.log.read_text() == ""


@pytest.mark.parametrize("shape", SHAPES)
def test_large_bodies(server: Process, shape: str) -> None:
    slowest = [_slowest_health(server, *SHAPES[shape])]
    while slowest[-1] > MOST_SECONDS and len(slowest) < 5:  # a busy machine may be slow now and then
        slowest.append(_slowest_health(server, *SHAPES[shape]))
    assert min(slowest) < MOST_SECONDS


def _slowest_health(server: Process, begin: bytes, part: bytes, end: bytes) -> float:
    """Return the longest time to an answer of `/health` while a body is sent and refused, in bounded memory."""
    body, statuses = begin + part * ((SIZE - len(begin + end)) // len(part)) + end, []

    def send() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        statuses.append(connection.getresponse().status)
        connection.close()

    before, sending = server.memory("VmRSS"), threading.Thread(target=send)
    sending.start()
    slowest = 0.0
    while sending.is_alive():
        slowest = max(slowest, server.health())
        assert server.memory("VmHWM") < MOST_BYTES
    assert statuses[0] in (400, 413) and server.memory("VmHWM") < MOST_BYTES
    waits = time.monotonic() + 30
    while server.memory("VmRSS") > before + SIZE / 2:  # a thread may let go of the body after its answer
        assert time.monotonic() < waits
    return slowest


def test_log_while_nothing_can_be_accepted(server: Process) -> None:
    import resource

    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (server.descriptors(), DESCRIPTORS))
    waiting = [server.connect() for _ in range(5)]
    while "accept" not in server.log.read_text():
        time.sleep(0.1)
    time.sleep(2.5)  # asyncio tries again every second
    assert len(server.log.read_text()) < 200
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    for connection in waiting:
        connection.close()
    assert server.health() < 60
