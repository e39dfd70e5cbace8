"""Measure `xlexport serve`: throughput beside the library's, and time to the first token beside a large prompt.

    python -m benchmarks.serving BUNDLE DOCUMENT

- throughput: tokens a second of prompts at 1, 8 and 64 clients, and of the library at these batch sizes.
- first token: time to the first event of short streams, alone and while another client's prompt of 1 MB is read.

All prompts are pieces of the document. `tests/serve` compares answers under load, and attacks a server.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path

import click
import httpx
import numpy as np

import xlruntime
from benchmarks.sides import PATH
from xlexport.bench.measuring import Clock, compared, take_turns

__all__ = ["main"]

ROUTE = "/v1/completions"
CLIENTS = (1, 8, 64)
SCORING = {"max_tokens": 0, "echo": True, "logprobs": 0}
UNDER_WAY = "xlexport_requests_under_way "
LARGE = 1_000_000  # characters of the prompt that is read while short streams begin


@contextmanager
def running(bundle: Path, *options: str) -> Iterator[str]:
    """Run a server of one thread while the block runs, and end it as Ctrl-C does; yield its address."""
    command = [sys.executable, "-m", "xlexport", "serve", str(bundle), "--port", "0", "--json", "--quiet"]
    process = subprocess.Popen([*command, "--threads", "1", *options], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"].removesuffix("/v1")
    finally:
        process.send_signal(2)
        process.wait(120)


@asynccontextmanager
async def client_of(server: str, connections: int) -> AsyncIterator[httpx.AsyncClient]:
    """Lend a client that keeps up to `connections` connections open."""
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    async with httpx.AsyncClient(base_url=server, timeout=3_600, limits=limits) as client:
        yield client


def throughput(server: str, bundle: Path, text: str, length: int, number: int) -> None:
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


async def _score_all(server: str, clients: int, waiting: Iterable[str]) -> None:
    async def score(client: httpx.AsyncClient) -> None:
        for document in waiting:
            (await client.post(ROUTE, json={"prompt": document, **SCORING})).raise_for_status()

    async with client_of(server, clients) as client:
        await asyncio.gather(*(score(client) for _ in range(clients)))


async def first_token(server: str, text: str, number: int) -> None:
    """Print the time to the first event of streams, alone and while a large prompt is read."""
    async with client_of(server, 3) as client:
        await _print_first(client, text, number, "alone")
        large = {"prompt": (text * (LARGE // len(text) + 1))[:LARGE], **SCORING}
        reading = asyncio.create_task(client.post(ROUTE, json=large))
        while f"{UNDER_WAY}0" in (await client.get("/metrics")).text:
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
@click.option("--longest", default=600, show_default=True, help="Characters of a document of the throughput.")
@click.option("--samples", default=100, show_default=True, help="Streams, and documents of a throughput.")
def main(bundle: Path, document: Path, longest: int, samples: int) -> None:
    text = document.read_text("utf-8")
    with running(bundle, "--batch-size", str(max(CLIENTS))) as server:
        throughput(server, bundle, text, longest, samples)
    with running(bundle) as server:
        asyncio.run(first_token(server, text, samples))


if __name__ == "__main__":
    main()
