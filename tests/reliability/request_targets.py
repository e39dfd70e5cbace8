"""Requests to the HTTP server, sound and damaged, given to its application in this process."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

from tests.helpers.paths import CHUNK, EMPTY, golden_bundle
from tests.reliability.damage import VALUES, damage_bytes, damage_json
from tests.reliability.judging import Outcome
from xlexport.serve.app import make_app
from xlexport.serve.limits import ServeLimits
from xlexport.serve.models import Models, ServedModel
from xlexport.serve.scheduler import Scheduler
from xlruntime import load

__all__ = ["Requests"]

JSON = b"application/json"
BINARY = b"application/octet-stream"
TEXT = "It was the best of times, it was the worst of times: na\u00efve \u65e5\u672c.\n"
LIMITS = ServeLimits(
    body_bytes=1 << 18, tokens=4_000, new_tokens=64, prompts=8, choices=3, request_bytes=1 << 22, request_seconds=3600,
    sessions=12,
)  # fmt: skip
SOUND = {"model": EMPTY, "prompt": "It was ", "max_tokens": 2, "temperature": 0}
DEPTHS = (100, 950, 5000, 200_000)
METHODS = ("GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS", "PATCH", "\u00e4")
SENT_FOR: dict[str, dict[str, Any]] = {  # what each route takes
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
Answer = tuple[int, dict[bytes, bytes], bytes]


class _WrongAnswerError(Exception):
    """The application answered with something that it must never answer."""


class Requests:
    """The application must answer every request with a status below 500; errors have OpenAI's shape.

    After each request, it gives a sound one the same answer as at first.
    """

    def __init__(self, folder: Path) -> None:
        self._models = Models(
            ServedModel.of(name, Scheduler(load(golden_bundle(name), threads=1), 4)) for name in (EMPTY, CHUNK)
        )
        self._app = make_app(self._models, LIMITS)
        self._loop = asyncio.new_event_loop()
        self._ids: list[str] = []
        self._state = b""
        self._expected = self._sound()

    def close(self) -> None:
        """End the threads of the application."""
        self._models.close()
        self._loop.close()

    def case(self, number: int) -> Outcome:
        rng = random.Random(f"request {number}")
        try:
            answer = self._loop.run_until_complete(self._send(*self._request(rng), rng))
            outcome = _judged(answer)
            self._remember(answer)
            if self._sound() != self._expected:
                raise _WrongAnswerError("a sound request gets another answer now")
        except Exception as error:  # all are bugs
            return Outcome("wrong error", f"{type(error).__name__}: {error}"[:500])
        return outcome

    def _request(self, rng: random.Random) -> tuple[str, str, bytes, bytes]:
        """Return method, path, content type and body."""
        kind = rng.choice(("fields", "fields", "value", "bytes", "sound", "state", "read", "path", "delete"))
        path = rng.choice(list(SENT_FOR))
        body: Any = dict(SENT_FOR[path])
        if kind == "read":
            return rng.choice(METHODS if rng.random() < 0.1 else ("GET",)), self._path(rng.choice(READ), rng), b"", b""
        if kind == "delete":
            return "DELETE", self._path("/v1/sessions/ID", rng), b"", b""
        if kind == "state":
            raw = damage_bytes(self._state, rng) if rng.random() < 0.8 else self._state
            return "POST", f"/v1/sessions/restore?model={EMPTY}", BINARY, raw
        if kind == "path":
            path = damage_bytes(path.encode(), rng).decode("latin-1")
        elif kind == "value" and body:
            body[rng.choice(list(body))] = rng.choice(VALUES)
        elif kind == "sound":
            body = {name: value for name, value in body.items() if rng.random() < 0.8}
        raw = (damage_json(body, rng, DEPTHS) if kind == "fields" else json.dumps(body)).encode(
            "utf-8", "surrogatepass"
        )
        raw = damage_bytes(raw, rng, self._state) if kind == "bytes" else raw
        content_type = JSON if rng.random() < 0.97 else rng.choice((b"", b"text/plain", BINARY, b"\xff;;"))
        method = "POST" if rng.random() < 0.97 else rng.choice(METHODS)
        return method, self._path(path, rng), content_type, raw

    def _path(self, path: str, rng: random.Random) -> str:
        name = rng.choice([*self._ids * 4, "sess-absent", "\u00e4/../x"]) if rng.random() < 0.98 else "a" * 5_000
        return path.replace("ID", name)

    async def _send(self, method: str, path: str, content_type: bytes, raw: bytes, rng: random.Random) -> Answer:
        """Give one request to the application, in pieces; some clients go away in the middle."""
        path, _, query = path.partition("?")
        pieces, gone = [raw[at : at + 70_000] for at in range(0, len(raw), 70_000)] or [b""], rng.random() < 0.03
        messages = [
            {"type": "http.request", "body": piece, "more_body": gone or at + 1 < len(pieces)}
            for at, piece in enumerate(pieces)
        ]
        headers: dict[bytes, bytes] = {}
        body, status = bytearray(), 0

        async def receive() -> Any:
            if messages:
                return messages.pop(0)
            if gone:
                return {"type": "http.disconnect"}
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            headers.update(message.get("headers", ()))
            body.extend(message.get("body", b""))

        length = (str(len(raw)) if rng.random() < 0.95 else rng.choice(("", "-1", "1e9", "9" * 30))).encode()
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
            "raw_path": path.encode("utf-8", "surrogatepass"), "query_string": query.encode(), "root_path": "",
            "scheme": "http", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
            "headers": [(b"content-type", content_type), (b"content-length", length)],
        }  # fmt: skip
        await self._app(scope, receive, send)
        return (status or (499 if gone else 0)), headers, bytes(body)

    def _remember(self, answer: Answer) -> None:
        """Keep the names of sessions, and a state, for later requests."""
        status, headers, body = answer
        if headers.get(b"content-type") == BINARY and status == 200:
            self._state = body
        if status == 201:
            self._ids.append(json.loads(body)["id"])
            del self._ids[:-8]

    def _sound(self) -> Any:
        steady = random.Random(2)
        raw = json.dumps({**SOUND, "echo": True, "logprobs": 1}).encode()
        status, _, body = self._loop.run_until_complete(self._send("POST", "/v1/completions", JSON, raw, steady))
        if status != 200:
            raise _WrongAnswerError(f"{status} for a sound request: {body[:300]!r}")
        return json.loads(body)["choices"]


def _judged(answer: Answer) -> Outcome:
    status, headers, body = answer
    if not 200 <= status < 500:
        raise _WrongAnswerError(f"status {status}: {body[:300]!r}")
    if status < 400:
        if headers.get(b"content-type") == JSON:
            json.loads(body)
        return Outcome("right")
    if status == 499:
        return Outcome("refused", "499: the client went away")
    error = json.loads(body)["error"]
    if set(error) != {"message", "type", "param", "code"} or not error["message"].isprintable():
        raise _WrongAnswerError(f"status {status}: {error!r}")
    return Outcome("refused", f"{status}: {error['message']}")
