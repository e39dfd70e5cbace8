"""What clients may use of a server, called over a socket: requests, memory, time and connections."""

from __future__ import annotations

import json
import select
import socket
import time

import psutil
import pytest

from tests.serve.conftest import Start, error_of, metric

pytestmark = pytest.mark.full

JSON_TYPE = {"content-type": "application/json"}
ENDLESS = {"prompt": "a", "max_tokens": 10**9}


def head_of(length: int) -> bytes:
    """Return the head of a request whose body has this length."""
    lines = ["POST /v1/completions HTTP/1.1", "host: localhost", "content-type: application/json"]
    return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode()


def test_full_server_refuses_but_shows_metrics(start: Start) -> None:
    client = start(requests=1, new_tokens=10**9, request_bytes=10**12)
    with client.stream("POST", "/v1/completions", json={**ENDLESS, "stream": True}) as stream:
        lines = stream.iter_lines()
        assert "text_completion" in next(lines)
        refused = client.post("/v1/completions", json={"prompt": "a"})
        assert error_of(refused, 429)["code"] == "server_busy" and refused.headers["retry-after"] == "1"
        assert metric(client, "xlexport_requests_under_way") == 1
    while metric(client, "xlexport_jobs_under_way"):  # until the stream has been cancelled
        pass
    assert metric(client, 'xlexport_jobs_total{end="cancelled"') == 1 == metric(client, "xlexport_requests_refused")


def test_client_that_goes_away_ends_its_job(start: Start) -> None:
    client = start(new_tokens=10**9, request_bytes=10**12)
    raw = json.dumps(ENDLESS).encode()
    with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
        connection.sendall(head_of(len(raw)) + raw)
        while not metric(client, 'xlexport_tokens_total{kind="drawn"'):
            pass
    while metric(client, "xlexport_jobs_under_way"):
        pass
    assert metric(client, 'xlexport_requests_total{route="/v1/completions",status="499"}') == 1


def test_request_that_takes_too_long(start: Start) -> None:
    client = start(new_tokens=10**9, request_bytes=10**12, request_seconds=0.2)
    answer = client.post("/v1/completions", json=ENDLESS)
    assert "longer than 0.2 seconds" in error_of(answer, 408)["message"]
    events = client.post("/v1/completions", json={**ENDLESS, "stream": True}).text
    assert '"type": "timeout_error"' in events.split("\n\n")[-3]
    own = client.post("/v1/sessions", json={}).json()["id"]
    error_of(client.post(f"/v1/sessions/{own}/generate", json=ENDLESS), 408)
    assert client.get(f"/v1/sessions/{own}").json()["tokens"] == 0
    assert client.post(f"/v1/sessions/{own}/feed", json={"input": "ab"}).status_code == 200


def test_memory_of_all_requests(start: Start) -> None:
    client = start(requests=9, request_bytes=40_000)
    for status, user in ((200, "a" * 5_000), (413, "a" * 6_000)):  # six bytes for each while it is parsed
        assert client.post("/v1/completions", json={"prompt": "a", "user": user}).status_code == status
    error_of(client.post("/v1/completions", json={"prompt": [1] * 400, "max_tokens": 0}), 413)
    for status, n in ((200, 10), (413, 11)):  # 4,000 bytes for each continuation but the first
        assert client.post("/v1/completions", json={"prompt": "a", "n": n, "max_tokens": 1}).status_code == status
    for status, text in ((200, "a" * 500), (413, "a" * 600)):  # and 64 for its token
        assert client.post("/tokenize", json={"prompt": text}).status_code == status
    while_encoded = client.post("/v1/completions", json={"prompt": "a" * 2_500, "max_tokens": 0})
    assert "needs 42," in error_of(while_encoded, 413)["message"]  # ten more for each until its tokens are there
    alone = client.post("/v1/completions", json={"prompt": "a" * 1_000, "max_tokens": 0, "echo": True, "logprobs": 10})
    assert "bytes of memory, at most 40,000" in error_of(alone, 413)["message"]
    announced = client.post("/v1/completions", json={"prompt": "a" * 50_000})
    assert error_of(announced, 413)["code"] == "request_too_large"
    chunks = client.post("/v1/completions", content=iter([b" " * 9_000] * 5), headers=JSON_TYPE)
    assert error_of(chunks, 413)["code"] == "request_too_large"
    with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
        connection.sendall(head_of(39_000) + b" " * 38_500)
        while metric(client, "xlexport_request_bytes") < 38_500:
            pass
        assert client.post("/v1/completions", json={"prompt": "a", "user": "a" * 3_000}).status_code == 200
        assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")  # its body is not complete, so it makes room
    while metric(client, "xlexport_requests_under_way"):
        pass
    assert metric(client, "xlexport_request_bytes") == 0


@pytest.mark.parametrize("slow", ["reader", "reader of one part", "sender"])
def test_clients_that_are_too_slow(start: Start, slow: str) -> None:
    client = start(transfer_seconds=0.3, head_seconds=3)
    client.headers["connection"] = "close"  # the server closes idle connections, on a busy machine before the next use
    length = 19_000 if slow == "reader of one part" else 25_000
    raw = json.dumps({"prompt": "a" * length, "max_tokens": 0, "echo": True, "logprobs": 10}).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((client.base_url.host, client.base_url.port))
        connection.sendall(head_of(len(raw)) + (raw[:9] if slow == "sender" else raw))
        status = "408" if slow == "sender" else "499"
        while not metric(client, f'xlexport_requests_total{{route="/v1/completions",status="{status}"}}'):
            time.sleep(0.05)
        own = connection.getsockname()
        while any(other.raddr == own for other in psutil.Process().net_connections("tcp")):
            time.sleep(0.05)
    assert metric(client, "xlexport_jobs_under_way") == metric(client, "xlexport_request_bytes") == 0


def closed(connection: socket.socket) -> bool:
    """Wait until the server closes a connection; return False if it answers."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("before", [b"", b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"])
def test_head_that_does_not_end(start: Start, before: bytes) -> None:
    client = start(head_seconds=0.5)
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=60) as connection:
        if before:
            connection.sendall(before)
            while b"ok" not in connection.recv(1000):
                pass
        connection.sendall(b"GET /health HTTP/1.1\r\nX: ")
        assert closed(connection)


def test_too_many_connections(start: Start) -> None:
    import httpx

    client = start(connections=3, head_seconds=10**9, new_tokens=10**9, request_bytes=10**12)
    address = client.base_url.host, client.base_url.port
    endless = {**ENDLESS, "stream": True}
    with client.stream("POST", "/v1/completions", json=endless) as first:
        lines = first.iter_lines()
        next(lines)
        waiting = [socket.create_connection(address, timeout=60) for _ in range(6)]
        while len(select.select(waiting, [], [], 60)[0]) < 4:  # there is room for the stream and two
            pass
        assert client.get("/health").status_code == 200
        with (
            client.stream("POST", "/v1/completions", json=endless),
            client.stream("POST", "/v1/completions", json=endless),
            pytest.raises(httpx.TransportError),
        ):
            client.get("/health")
        next(lines)
    for connection in waiting:
        connection.close()
