"""A server process under attack: unfinished heads, bodies of 64 MB, no file descriptors left, too much at once."""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from socket import SO_RCVBUF, SOL_SOCKET, create_connection, socket

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
REQUESTS, BUFFERS = 100, 50  # MB of all requests, and of the connections' buffers and the allocator's gaps
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

    def ask(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> tuple[int, bytes]:
        """Return status and body of an answer on a new connection."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, body, {"content-type": kind})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def health(self) -> float:
        """Return the seconds until an answer on a new connection."""
        began = time.perf_counter()
        assert self.ask("GET", "/health") == (200, b'{"status":"ok"}')
        return time.perf_counter() - began

    def memory(self, kind: str) -> int:
        """Return bytes of memory: VmRSS now, VmHWM at most so far."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return 1024 * int(status.partition(f"{kind}:")[2].split()[0])

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))


@contextlib.contextmanager
def serving(log: Path, *options: str) -> Iterator[Process]:
    command = [sys.executable, "-m", "xlexport", "serve", str(golden_bundle(EMPTY)), "--port", "0", "--json"]
    limited = ["sh", "-c", f'ulimit -n {DESCRIPTORS} && exec "$@"', "sh", *command, "--threads", "1", "--quiet"]
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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with serving(tmp_path_factory.mktemp("server") / "log", "--set", "body_bytes=64000000") as process:
        yield process


@pytest.fixture
def flooded(tmp_path: Path) -> Iterator[Process]:
    """Yield a server that must hold its limit of memory."""
    options = ["--set", f"request_bytes={REQUESTS}000000", "--mem-len", "20000"]  # a session has 5 MB
    with serving(tmp_path / "log", *options) as process:
        process.health()
        before = process.memory("VmHWM")
        yield process
        assert process.memory("VmHWM") < before + (REQUESTS + BUFFERS) * 1_000_000


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
    assert any(_answers_meanwhile(server, *SHAPES[shape]) for _ in range(5))  # a busy machine may be slow now and then


def _answers_meanwhile(server: Process, begin: bytes, part: bytes, end: bytes) -> bool:
    """Send a body that is refused, in bounded memory; return whether no `/health` waits for most of that time."""
    body, statuses = begin + part * ((SIZE - len(begin + end)) // len(part)) + end, []

    def send() -> None:
        statuses.append(server.ask("POST", "/v1/completions", body)[0])

    before, sending = server.memory("VmRSS"), threading.Thread(target=send)
    began, slowest = time.perf_counter(), 0.0
    sending.start()
    while sending.is_alive():
        slowest = max(slowest, server.health())
        assert server.memory("VmHWM") < MOST_BYTES
    most = max(MOST_SECONDS, (time.perf_counter() - began) / 2)
    assert statuses[0] in (400, 413) and server.memory("VmHWM") < MOST_BYTES
    waits = time.monotonic() + 30
    while server.memory("VmRSS") > before + SIZE / 2:  # a thread may let go of the body after its answer
        assert time.monotonic() < waits
    return slowest < most


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


def test_hostile_states(flooded: Process) -> None:
    headers = [b'{"a":[' + piece * 1_400_000 + b"0]}" for piece in (b"[],", b"{},", b"1,", b'"",')]
    headers += [header[: 1 << 20] for header in headers]
    bodies = [len(header).to_bytes(8, "little") + header for header in headers]

    def restore(body: bytes) -> int:
        return flooded.ask("POST", "/v1/sessions/restore", body, "application/octet-stream")[0]

    with ThreadPoolExecutor(10) as pool:
        assert set(pool.map(restore, bodies * 5)) <= {400, 429}


def test_states_that_nobody_reads(flooded: Process) -> None:
    own = json.loads(flooded.ask("POST", "/v1/sessions", b"{}")[1])["id"]
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket()) for _ in range(40)]
        for client in clients:
            client.setsockopt(SOL_SOCKET, SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", flooded.port))
            client.sendall(f"GET /v1/sessions/{own}/state HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        while len(select.select(clients, [], [], 60)[0]) < len(clients):
            pass
        heads = [client.recv(12) for client in clients]
        assert {*heads} == {b"HTTP/1.1 200", b"HTTP/1.1 429"} and heads.count(b"HTTP/1.1 200") <= 20


@pytest.mark.parametrize(("count", "size"), [(DESCRIPTORS + 50, 1), (30, 5_000_000)])
def test_bodies_that_never_end(flooded: Process, count: int, size: int) -> None:
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    begin = f"{head}content-length: {size + 1}\r\n\r\n".encode() + b" " * size
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(flooded.connect()).sendall(begin)
        assert flooded.ask("POST", "/v1/completions", b'{"prompt":"a"}')[0] == 200
