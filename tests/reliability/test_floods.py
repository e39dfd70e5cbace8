"""A server holds its limit of memory, and answers others, while clients send too much, read nothing, or never end."""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from socket import SO_RCVBUF, SOL_SOCKET, socket

import pytest

from tests.helpers.server_process import Process, serving
from xlexport.extras import missing_packages

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(sys.platform != "linux", reason="the memory of another process is Linux's"),
    pytest.mark.skipif(bool(missing_packages("serve")), reason="the extra serve is not installed"),
]

MOST, BUFFERS = 100, 50  # MB of all requests, and of the connections' buffers and the allocator's gaps
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    options = ["--request-memory", str(MOST), "--mem-len", "20000"]  # a session has 5 MB
    with serving(tmp_path / "log", *options, descriptors=1000) as process:
        process.health()
        before = process.memory("VmHWM")
        yield process
        assert process.memory("VmHWM") < before + (MOST + BUFFERS) * 1_000_000


def test_hostile_states(server: Process) -> None:
    headers = [b'{"a":[' + piece * 1_400_000 + b"0]}" for piece in (b"[],", b"{},", b"1,", b'"",')]
    headers += [header[: 1 << 20] for header in headers]
    bodies = [len(header).to_bytes(8, "little") + header for header in headers]

    def restore(body: bytes) -> int:
        return server.ask("POST", "/v1/sessions/restore", body, "application/octet-stream")[0]

    with ThreadPoolExecutor(10) as pool:
        assert set(pool.map(restore, bodies * 5)) <= {400, 429}


def test_states_that_nobody_reads(server: Process) -> None:
    own = json.loads(server.ask("POST", "/v1/sessions", b"{}")[1])["id"]
    with ExitStack() as stack:
        clients = [stack.enter_context(socket()) for _ in range(40)]
        for client in clients:
            client.setsockopt(SOL_SOCKET, SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            client.sendall(f"GET /v1/sessions/{own}/state HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        while len(select.select(clients, [], [], 60)[0]) < len(clients):
            pass
        heads = [client.recv(12) for client in clients]
        assert {*heads} == {b"HTTP/1.1 200", b"HTTP/1.1 429"} and heads.count(b"HTTP/1.1 200") <= 20


@pytest.mark.parametrize(("count", "size"), [(600, 1), (30, 5_000_000)])
def test_bodies_that_never_end(server: Process, count: int, size: int) -> None:
    with ExitStack() as stack:
        for _ in range(count):
            client = stack.enter_context(server.connect())
            client.sendall(HEAD + f"content-length: {size + 1}\r\n\r\n".encode() + b" " * size)
        assert server.ask("POST", "/v1/completions", b'{"prompt":"a"}')[0] == 200
