"""The server's application answers every request below status 500, and a sound one as at first."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.paths import CHUNK, EMPTY, golden_bundle
from tests.reliability.damage import THOROUGH, VALUES, damaged, damaged_json
from xlexport.serve.app import make_app
from xlexport.serve.models import Models, ServedModel
from xlexport.serve.options import ServeLimits
from xlexport.serve.scheduler import Scheduler
from xlruntime import load

pytestmark = pytest.mark.full

JSON, BINARY = b"application/json", b"application/octet-stream"
TEXT = "It was the best of times, it was the worst of times: na\u00efve \u65e5\u672c.\n"
LIMITS = ServeLimits(
    body_bytes=1 << 18, tokens=4_000, new_tokens=64, prompts=8, choices=3, request_bytes=1 << 22, request_seconds=3600,
    sessions=12,
)  # fmt: skip
SOUND = {"model": EMPTY, "prompt": "It was ", "max_tokens": 2, "temperature": 0}
POSTED: dict[str, dict[str, Any]] = {  # what each route takes
    "/v1/completions": {**SOUND, "prompt": TEXT, "echo": True, "logprobs": 2, "n": 2, "stream": True, "seed": 3,
                        "top_p": 0.9, "top_k": 5, "stop": ["x"], "user": "me", "suffix": None, "best_of": None},
    "/tokenize": {"model": EMPTY, "prompt": TEXT},
    "/detokenize": {"model": EMPTY, "tokens": [1, 2, 200]},
    "/v1/sessions": {"model": EMPTY, "ttl_seconds": 5},
    "/v1/sessions/ID/feed": {"input": TEXT, "logprobs": 2},
    "/v1/sessions/ID/score": {"input": [TEXT, [1, 2], ""], "logprobs": 0},
    "/v1/sessions/ID/generate": {"prompt": TEXT, "max_tokens": 3, "stream": True, "logprobs": 1},
    "/v1/sessions/ID/fork": {},
}  # fmt: skip
READ = ("/health", "/metrics", "/v1/models", f"/v1/models/{CHUNK}", "/tokenizer_info", "/v1/sessions",
        "/v1/sessions/ID", "/v1/sessions/ID/state")  # fmt: skip
Request = tuple[str, str, bytes, bytes]  # method, path, content type, body


@st.composite
def requests(draw: st.DrawFn, state: bytes) -> Request:
    """Draw a request, sound or not."""
    method = draw(st.sampled_from(["GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS", "PATCH", "\u00e4"]))
    kind = draw(st.sampled_from(("fields", "fields", "value", "bytes", "sound", "state", "read", "path", "delete")))
    if kind == "read":
        return draw(st.sampled_from(("GET", "GET", method))), draw(st.sampled_from(READ)), b"", b""
    if kind == "delete":
        return "DELETE", "/v1/sessions/ID", b"", b""
    if kind == "state":
        return "POST", f"/v1/sessions/restore?model={EMPTY}", BINARY, draw(damaged(state) | st.just(state))
    path = draw(st.sampled_from(sorted(POSTED)))
    body = dict(POSTED[path])
    if kind == "sound":
        body = {name: value for name, value in body.items() if draw(st.integers(0, 4))}
    elif kind == "value" and body:
        body[draw(st.sampled_from(sorted(body)))] = draw(st.sampled_from(VALUES))
    raw = json.dumps(body).encode("utf-8", "surrogatepass")
    if kind in ("fields", "bytes"):
        raw = draw(damaged_json(body) if kind == "fields" else damaged(raw))
    elif kind == "path":
        path = draw(damaged(path.encode())).decode("latin-1")
    content_type = draw(st.sampled_from([JSON] * 9 + [b"", b"text/plain", BINARY, b"\xff;;"]))
    return draw(st.sampled_from(["POST"] * 9 + [method])), path, content_type, raw


class Application:
    """The application in this process, with two models and some sessions."""

    def __init__(self) -> None:
        names = (EMPTY, CHUNK)
        self.models = Models(ServedModel.of(n, Scheduler(load(golden_bundle(n), threads=1), 4)) for n in names)
        self._app = make_app(self.models, LIMITS)
        self._loop = asyncio.new_event_loop()
        created = self.ask(("POST", "/v1/sessions", JSON, json.dumps({"model": EMPTY}).encode()))[2]
        self.session: str = json.loads(created)["id"]
        self.state = self.ask(("GET", "/v1/sessions/ID/state", b"", b""))[2]
        self.first = self.choices()

    def choices(self) -> Any:
        """Return the answer to a sound request."""
        raw = json.dumps({**SOUND, "echo": True, "logprobs": 1}).encode()
        return json.loads(self.ask(("POST", "/v1/completions", JSON, raw))[2])["choices"]

    def close(self) -> None:
        """End the threads of the application."""
        self.models.close()
        self._loop.close()

    def ask(self, request: Request, gone: bool = False, length: str | None = None) -> tuple[int, bytes, bytes]:
        """Give one request in pieces, and return status, content type and body; `gone`: the client leaves early."""
        return self._loop.run_until_complete(self._ask(request, gone, length))

    async def _ask(self, request: Request, gone: bool, length: str | None) -> tuple[int, bytes, bytes]:
        method, path, content_type, raw = request
        path, _, query = path.replace("ID", getattr(self, "session", "sess-absent")).partition("?")
        pieces = [raw[at : at + 70_000] for at in range(0, len(raw), 70_000)] or [b""]
        messages = [
            {"type": "http.request", "body": piece, "more_body": gone or at + 1 < len(pieces)}
            for at, piece in enumerate(pieces)
        ]
        started: dict[str, Any] = {"status": 499 if gone else 0, "headers": []}
        body = bytearray()

        async def receive() -> Any:
            if messages:
                return messages.pop(0)
            if gone:
                return {"type": "http.disconnect"}
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                started.update(message)
            body.extend(message.get("body", b""))

        headers = [(b"content-type", content_type), (b"content-length", (length or str(len(raw))).encode())]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
            "raw_path": path.encode("utf-8", "surrogatepass"), "query_string": query.encode(), "root_path": "",
            "scheme": "http", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "headers": headers,
        }  # fmt: skip
        await self._app(scope, receive, send)
        return started["status"], dict(started["headers"]).get(b"content-type", b""), bytes(body)


@pytest.fixture(scope="module")
def application() -> Iterator[Application]:
    with contextlib.closing(Application()) as application:
        yield application


def check(application: Application, request: Request, gone: bool = False, length: str | None = None) -> None:
    """Give a request, and check its answer; errors have OpenAI's shape."""
    status, content_type, body = application.ask(request, gone, length)
    assert 200 <= status < 500, body[:300]
    if 400 <= status < 499:
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"].isprintable()
    elif content_type == JSON:
        json.loads(body)


@THOROUGH
@given(data=st.data())
def test_every_request_is_answered(data: st.DataObject, application: Application) -> None:
    gone, length = data.draw(st.integers(0, 30)) == 7, data.draw(st.sampled_from([None] * 19 + ["-1", "1e9", "9" * 30]))
    check(application, data.draw(requests(application.state)), gone, length)
    assert application.choices() == application.first


def test_sound_request_is_answered_before_a_greedy_one(application: Application) -> None:
    body = {"model": EMPTY, "prompt": ["a"] * 8, "n": 3, "max_tokens": 16, "seed": 1}
    asked = application._ask(("POST", "/v1/completions", JSON, json.dumps(body).encode()), False, None)
    greedy = application._loop.create_task(asked)
    assert application.choices() == application.first and not greedy.done()
    assert application._loop.run_until_complete(greedy)[0] == 200


def test_planted_fault_is_found(application: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Models, "find", lambda self, name: {"model": name}["missing"])
    with pytest.raises(AssertionError):
        check(application, ("POST", "/tokenize", JSON, json.dumps(POSTED["/tokenize"]).encode()))
