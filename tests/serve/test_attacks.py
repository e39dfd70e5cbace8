"""A server process under attack: unfinished heads, bodies of 64 MB, and no file descriptors left."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tests.helpers.server_process import Process, serving
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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log, "--max-body", "64", descriptors=DESCRIPTORS) as process:
        yield process


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
        statuses.append(server.ask("POST", "/v1/completions", body)[0])

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
