"""Clients of `xlexport serve` for measurements: a server process, requests by number, and comparisons of answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

__all__ = ["MALFORMED", "Answer", "ServerProcess", "ask", "cancelled_ask", "differences", "request_body", "unread_ask"]

Body = dict[str, Any]
PATH = "/v1/completions"
MALFORMED: tuple[bytes, ...] = (
    b"",
    b"{",
    b"[]",
    b'{"prompt": 5}',
    b'{"prompt": []}',
    b'{"prompt": [-1]}',
    b'{"prompt": "a", "surprise": 1}',
    b'{"prompt": "a", "model": "another"}',
    b'{"prompt": "a", "max_tokens": -1}',
    b'{"prompt": "a", "temperature": "hot"}',
    b'{"prompt": "\xff"}',
    b'{"prompt": ' + b"[" * 5_000,
)  # each is answered with a status from 400 to 499


class ServerProcess:
    """A server in a process of its own."""

    def __init__(self, bundle: Path, *options: str) -> None:
        """Start it, and wait until it answers."""
        command = [sys.executable, "-m", "xlexport", "serve", str(bundle), "--port", "0", "--json", "--quiet", *options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = json.loads(self._process.stdout.readline())["url"].removesuffix("/v1")

    def megabytes(self) -> float:
        """Return the resident memory in MB."""
        return psutil.Process(self._process.pid).memory_info().rss / 1e6

    def metrics(self) -> dict[str, float]:
        """Return all numbers of `/metrics` by name and labels."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}

    def end(self) -> int:
        """End it as Ctrl-C does; return its status."""
        self._process.send_signal(2)
        return self._process.wait(120)

    @classmethod
    @contextlib.contextmanager
    def running(cls, bundle: Path, *options: str) -> Iterator[ServerProcess]:
        """Run a server while the block runs."""
        server = cls(bundle, *options)
        try:
            yield server
        finally:
            server.end()


@dataclass(frozen=True)
class Answer:
    """The part of an answer that must be the same whenever the request is sent."""

    status: int
    text: str
    log_probs: tuple[float | None, ...]


def request_body(number: int, text: str, longest: int) -> Body:
    """Return a request: its kind and its prompt, of 2 to `longest` characters, follow from its number."""
    rng = random.Random(number)
    length = round(math.exp(rng.uniform(math.log(2), math.log(longest))))
    start = rng.randrange(len(text) - length)
    body: Body = {"prompt": text[start : start + length], "logprobs": 0}
    kind = rng.choice(("score", "score", "draw", "stream"))
    if kind == "score":
        return {**body, "max_tokens": 0, "echo": True, "logprobs": rng.choice((0, 0, 3))}
    drawing = {"max_tokens": rng.randint(1, 16), "temperature": rng.choice((0, 0.8)), "seed": number}
    return {**body, **drawing, "stream": kind == "stream"}


async def ask(client: httpx.AsyncClient, body: Body) -> Answer:
    """Send a request, and return its answer."""
    if not body.get("stream"):
        found = await client.post(PATH, json=body)
        choices = found.json()["choices"] if found.status_code == 200 else []
        return Answer(found.status_code, *_joined(choices))
    async with client.stream("POST", PATH, json=body) as stream:
        lines = [line[6:] async for line in stream.aiter_lines() if line.startswith("data: {")]
        return Answer(stream.status_code, *_joined([json.loads(line)["choices"][0] for line in lines]))


async def unread_ask(url: str, body: Body) -> asyncio.StreamWriter:
    """Send a request on a connection of its own, whose answer nobody reads; return what closes it."""
    raw, place = json.dumps(body).encode(), httpx.URL(url)
    _, writer = await asyncio.open_connection(place.host, place.port, limit=1)
    lines = [
        f"POST {PATH} HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"content-length: {len(raw)}",
        "",
        "",
    ]
    writer.write("\r\n".join(lines).encode() + raw)
    await writer.drain()
    return writer


async def cancelled_ask(url: str, number: int, text: str) -> None:
    """Send a request that takes long, and go away after a moment."""
    body = {"prompt": text[number % 1000 :][:2000], "max_tokens": 5_000, "stream": number % 3 == 2}
    writer = await unread_ask(url, body)
    await asyncio.sleep(0.1 * (number % 5))
    writer.close()


def differences(found: Answer, expected: Answer) -> float:
    """Return the largest difference of two answers' scores; infinite if anything else differs."""
    same = (found.status, found.text, len(found.log_probs)) == (expected.status, expected.text, len(expected.log_probs))
    if not same or found.status != 200:
        return math.inf
    pairs = zip(found.log_probs, expected.log_probs, strict=True)
    return max((abs(a - b) for a, b in pairs if a is not None and b is not None), default=0.0)


def _joined(choices: list[Any]) -> tuple[str, tuple[float | None, ...]]:
    text = "".join(choice["text"] for choice in choices)
    return text, tuple(number for choice in choices for number in choice["logprobs"]["token_logprobs"])
