"""Measure `xlexport serve` under load: answers, memory, counters, throughput, and time to the first token.

    python -m benchmarks.serving BUNDLE DOCUMENT

Three parts, each with a server of its own:

- answers: many clients send requests of mixed kinds and lengths, among them requests that are cancelled, malformed
  requests, and clients that read nothing. Every answer is compared with that of the same request alone.
- throughput: tokens a second of prompts at 1, 8 and 64 clients, and of the library at these batch sizes.
- first token: time to the first event of short streams, alone and while another client's prompt of 1 MB is read.

All prompts are pieces of the document.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import httpx
import numpy as np
import psutil

import xlruntime
from benchmarks.sides import PATH
from xlexport.bench.measuring import Clock, compared, take_turns

__all__ = ["main"]

Body = dict[str, Any]

PARTS = ("answers", "throughput", "first-token")
ROUTE = "/v1/completions"
CLIENTS = (1, 8, 64)
JSON_TYPE = {"content-type": "application/json"}
SCORING = {"max_tokens": 0, "echo": True, "logprobs": 0}
SLOW_READERS = 8
UNREAD = {"prompt": "a", "max_tokens": 60_000, "logprobs": 5, "stream": True}
LARGE = 1_000_000  # characters of the prompt that is read while short streams begin
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


class Server:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Wait until it answers."""
        assert process.stdout is not None
        self.url: str = json.loads(process.stdout.readline())["url"].removesuffix("/v1")
        self._process = psutil.Process(process.pid)

    def megabytes(self) -> float:
        """Return the resident memory in MB."""
        return float(self._process.memory_info().rss / 1e6)

    def metrics(self) -> dict[str, float]:
        """Return all numbers of `/metrics` by name and labels."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}

    @asynccontextmanager
    async def clients(self, connections: int) -> AsyncIterator[httpx.AsyncClient]:
        """Lend a client that keeps up to `connections` connections open."""
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        async with httpx.AsyncClient(base_url=self.url, timeout=3_600, limits=limits) as client:
            yield client


@contextmanager
def running(bundle: Path, *options: str) -> Iterator[Server]:
    """Run a server of one thread while the block runs, and end it as Ctrl-C does."""
    command = [sys.executable, "-m", "xlexport", "serve", str(bundle), "--port", "0", "--json", "--quiet"]
    process = subprocess.Popen([*command, "--threads", "1", *options], stdout=subprocess.PIPE, text=True)
    try:
        yield Server(process)
    finally:
        process.send_signal(2)
        process.wait(120)


# Requests


@dataclass(frozen=True)
class Answer:
    """The part of an answer that must be the same whenever the request is sent."""

    status: int
    text: str
    log_probs: tuple[float | None, ...]

    def difference(self, other: Answer) -> float:
        """Return the largest difference of two answers' scores; infinite if anything else differs."""
        own, others = self.log_probs, other.log_probs
        same = (self.status, self.text, len(own)) == (other.status, other.text, len(others))
        if not same or self.status != 200:
            return math.inf
        pairs = zip(own, others, strict=True)
        return max((abs(a - b) for a, b in pairs if a is not None and b is not None), default=0.0)


def request_body(number: int, text: str, longest: int) -> Body:
    """Return a request: its kind and its prompt, of 2 to `longest` characters, follow from its number."""
    rng = random.Random(number)
    length = round(math.exp(rng.uniform(math.log(2), math.log(longest))))
    start = rng.randrange(len(text) - length)
    body: Body = {"prompt": text[start : start + length], "logprobs": 0}
    kind = rng.choice(("score", "score", "draw", "stream"))
    if kind == "score":
        return {**body, **SCORING, "logprobs": rng.choice((0, 0, 3))}
    drawing = {"max_tokens": rng.randint(1, 16), "temperature": rng.choice((0, 0.8)), "seed": number}
    return {**body, **drawing, "stream": kind == "stream"}


async def ask(client: httpx.AsyncClient, body: Body) -> Answer:
    """Send a request, and return its answer."""
    if body.get("stream"):
        async with client.stream("POST", ROUTE, json=body) as answer:
            events = [json.loads(line[6:]) async for line in answer.aiter_lines() if line.startswith("data: {")]
        choices = [event["choices"][0] for event in events]
    else:
        answer = await client.post(ROUTE, json=body)
        choices = answer.json()["choices"] if answer.status_code == 200 else []
    text = "".join(choice["text"] for choice in choices)
    return Answer(
        answer.status_code, text, tuple(nats for choice in choices for nats in choice["logprobs"]["token_logprobs"])
    )


async def unread_ask(url: str, body: Body) -> asyncio.StreamWriter:
    """Send a request on a connection of its own, whose answer nobody reads; return what closes it."""
    content, place = json.dumps(body).encode(), httpx.URL(url)
    _, writer = await asyncio.open_connection(place.host, place.port, limit=1)
    head = f"POST {ROUTE} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    await writer.drain()
    return writer


async def cancelled_ask(url: str, number: int, text: str) -> None:
    """Send a request that takes long, and go away after a moment."""
    body = {"prompt": text[number % 1000 :][:2000], "max_tokens": 5_000, "stream": number % 3 == 2}
    writer = await unread_ask(url, body)
    await asyncio.sleep(0.1 * (number % 5))
    writer.close()


# Parts


class Load:
    """The part about answers."""

    def __init__(self, server: Server, text: str, requests: int, others: int, distinct: int, longest: int):
        """Plan `requests` requests of `distinct` kinds, and as many as `others` of cancelled and malformed ones."""
        self._server = server
        self._text = text
        self._bodies = [request_body(number, text, longest) for number in range(distinct)]
        self._plan = [("checked", number) for number in range(requests)]
        self._plan += [(kind, number) for kind in ("cancelled", "malformed") for number in range(others)]
        np.random.default_rng(0).shuffle(self._plan)
        self._alone: list[Answer] = []
        self._differences: list[float] = []
        self._statuses: Counter[int] = Counter()
        self._megabytes: list[float] = []

    async def run(self, clients: int) -> None:
        """Send everything, and print the results."""
        before = self._server.metrics()
        async with self._server.clients(1) as client:
            self._alone = [await ask(client, body) for body in self._bodies]
        self._statuses.update(answer.status for answer in self._alone)
        alone, started = self._server.metrics(), time.perf_counter()
        slow = [await unread_ask(self._server.url, UNREAD) for _ in range(SLOW_READERS)]
        waiting = iter(enumerate(self._plan))
        async with self._server.clients(clients) as client:
            await asyncio.gather(*(self._work(client, waiting) for _ in range(clients)))
        seconds = time.perf_counter() - started
        for writer in slow:
            writer.close()
        while (after := self._server.metrics())["xlexport_requests_under_way"]:
            await asyncio.sleep(0.2)
        rate = growth(alone, after, "xlexport_tokens_total") / seconds
        for name, value in self._rows(f"{clients} clients in {seconds:,.0f} s, {rate:,.0f} tokens/s", before, after):
            click.echo(f"{name:32}{value}")

    async def _work(self, client: httpx.AsyncClient, waiting: Iterable[tuple[int, tuple[str, int]]]) -> None:
        for place, (kind, number) in waiting:
            if kind == "checked":
                which = number % len(self._bodies)
                answer = await ask(client, self._bodies[which])
                self._statuses[answer.status] += 1
                self._differences.append(answer.difference(self._alone[which]))
            elif kind == "cancelled":
                await cancelled_ask(self._server.url, number, self._text)
            else:
                content = MALFORMED[number % len(MALFORMED)]
                self._statuses[(await client.post(ROUTE, content=content, headers=JSON_TYPE)).status_code] += 1
            if place % 1_000 == 999:
                self._megabytes.append(self._server.megabytes())
                click.echo(f"{place + 1:,} of {len(self._plan):,}: {self._megabytes[-1]:,.1f} MB", err=True)

    def _rows(self, work: str, before: dict[str, float], after: dict[str, float]) -> Iterator[tuple[str, str]]:
        differences, memory = self._differences, self._megabytes
        route, requests = f'route="{ROUTE}"', "xlexport_requests_total"
        malformed = sum(count for status, count in self._statuses.items() if status >= 400)
        cancelled = len(self._plan) - len(differences) - malformed
        ends = {
            end: growth(before, after, "xlexport_jobs_total", f'end="{end}"')
            for end in ("finished", "cancelled", "failed")
        }
        yield "requests", f"{len(self._plan):,} by {work}"
        yield "largest difference", f"{max(differences, default=math.nan):.1e} nats"
        yield "answers not bit for bit equal", f"{sum(nats > 0 for nats in differences):,} of {len(differences):,}"
        yield "resident memory", ", ".join(f"{each:,.0f}" for each in memory) + " MB, after each thousand"
        yield "last to first", f"{memory[-1] / memory[0] - 1:+.1%}" if len(memory) > 1 else "-"
        yield "statuses here", ", ".join(f"{status}: {count:,}" for status, count in sorted(self._statuses.items()))
        yield "cancelled and slow here", f"{cancelled:,} and {SLOW_READERS}"
        for status in sorted({*self._statuses, 499}):
            yield f"/metrics {status}", f"{growth(before, after, requests, route, str(status)):,}"
        yield "/metrics jobs", f"{growth(before, after, 'xlexport_jobs_submitted_total'):,} = {ends}"
        yield "/metrics all requests", f"{growth(before, after, requests, route):,}"
        yield "requests sent", f"{len(self._alone) + len(self._plan) + SLOW_READERS:,}"


def growth(before: dict[str, float], after: dict[str, float], name: str, *labels: str) -> int:
    """Return how much the counters of a name with these labels grew in all."""
    keys = [key for key in after if key.startswith(name) and all(label in key for label in labels)]
    return round(sum(after[key] - before.get(key, 0) for key in keys))


def throughput(server: Server, bundle: Path, text: str, length: int, number: int) -> None:
    """Print tokens a second of the server and of the library, for the same documents."""
    model = xlruntime.load(bundle, threads=1)
    click.echo(f"{'documents of':>14} {length} characters: clients, server, library, share")
    for clients in CLIENTS:
        documents = [text[index * length :][:length] for index in range(max(number, 2 * clients))]
        tokens = sum(len(model.tokenizer.encode(document)) - 1 for document in documents)
        served, alone = Clock(elsewhere=True), Clock()

        def serve(documents: list[str] = documents, clients: int = clients) -> None:
            asyncio.run(_score_all(server, clients, iter(documents)))

        def score(documents: list[str] = documents, clients: int = clients) -> None:
            list(model.score(documents, batch_size=clients))

        take_turns([partial(served.round, serve, 1), partial(alone.round, score, 1)], 3)
        shares = [library / service for library, service in zip(alone.runs, served.runs, strict=True)]
        rates = [tokens / clock.quantile(0.5) for clock in (served, alone)]
        share = f"{rates[0] / rates[1]:.2f}  ({min(shares):.2f} to {max(shares):.2f})"
        click.echo(f"{clients:14} {rates[0]:12,.0f} {rates[1]:12,.0f}     {compared(share, served, alone)}")


async def _score_all(server: Server, clients: int, waiting: Iterable[str]) -> None:
    async def score(client: httpx.AsyncClient) -> None:
        for document in waiting:
            await ask(client, {"prompt": document, **SCORING})

    async with server.clients(clients) as client:
        await asyncio.gather(*(score(client) for _ in range(clients)))


async def first_token(server: Server, text: str, number: int) -> None:
    """Print the time to the first event of streams, alone and while a large prompt is read."""
    async with server.clients(2) as client:
        await _print_first(client, text, number, "alone")
        large = {"prompt": (text * (LARGE // len(text) + 1))[:LARGE], **SCORING}
        reading = asyncio.create_task(client.post(ROUTE, json=large))
        while not server.metrics()["xlexport_requests_under_way"]:
            await asyncio.sleep(0.05)
        await _print_first(client, text, number, "while 1 MB is read")
        click.echo(f"{'':24}the large prompt was {'done before' if reading.done() else 'still being read'}")
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading


async def _print_first(client: httpx.AsyncClient, text: str, number: int, when: str) -> None:
    seconds = []
    for index in range(number):
        body = {"prompt": text[40 * index :][:40], "max_tokens": 2, "temperature": 0, "stream": True}
        started = time.perf_counter()
        async with client.stream("POST", ROUTE, json=body) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            seconds.append(time.perf_counter() - started)
            async for _ in lines:
                pass
    p50, p95 = np.quantile(seconds, (0.5, 0.95))
    click.echo(f"first token, {when:24} p50 {1000 * p50:,.1f} ms, p95 {1000 * p95:,.1f} ms of {number}")


@click.command(help=__doc__)
@click.argument("bundle", type=PATH)
@click.argument("document", type=PATH)
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), default=PARTS, help="Parts to run.")
@click.option("--clients", default=64, show_default=True, help="Clients at once.")
@click.option("--requests", default=10_000, show_default=True, help="Requests whose answers are compared.")
@click.option("--others", default=1_000, show_default=True, help="Cancelled requests, and malformed ones.")
@click.option("--distinct", default=250, show_default=True, help="Different requests among those compared.")
@click.option("--longest", default=600, show_default=True, help="Characters of the longest prompt.")
@click.option("--samples", default=100, show_default=True, help="Streams, and documents of a throughput.")
def main(
    bundle: Path,
    document: Path,
    parts: tuple[str, ...],
    clients: int,
    requests: int,
    others: int,
    distinct: int,
    longest: int,
    samples: int,
) -> None:
    text = document.read_text("utf-8")
    if "answers" in parts:
        with running(bundle) as server:
            asyncio.run(Load(server, text, requests, others, distinct, longest).run(clients))
    if "throughput" in parts:
        with running(bundle, "--batch-size", str(max(CLIENTS))) as server:
            throughput(server, bundle, text, longest, samples)
    if "first-token" in parts:
        with running(bundle) as server:
            asyncio.run(first_token(server, text, samples))


if __name__ == "__main__":
    main()
