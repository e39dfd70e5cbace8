"""A process of `xlexport serve`, its memory, and connections to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from socket import create_connection, socket

from tests.helpers.paths import EMPTY, golden_bundle

__all__ = ["Process", "serving"]


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

    def ask(
        self, method: str, path: str, body: bytes | None = None, kind: str = "application/json"
    ) -> tuple[int, bytes]:
        """Return status and body of an answer on a new connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body, {} if body is None else {"content-type": kind})
        answer = connection.getresponse()
        raw = answer.read()
        connection.close()
        return answer.status, raw


@contextlib.contextmanager
def serving(log: Path, *options: str, descriptors: int) -> Iterator[Process]:
    """Serve a golden bundle from a process with so many file descriptors."""
    command = [sys.executable, "-m", "xlexport", "serve", str(golden_bundle(EMPTY)), "--port", "0", "--json"]
    limited = ["sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh", *command, "--threads", "1", "--quiet"]
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
