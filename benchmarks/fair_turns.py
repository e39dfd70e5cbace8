"""Measure what one client of `xlexport serve` waits for 8 tokens and for a score of 5 bytes while another is greedy.

    python -m benchmarks.fair_turns BUNDLE [--keys]

The two clients have connections of their own or, with `--keys`, keys.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import click
import httpx
import numpy as np

from benchmarks.serving import LARGE, ROUTE, SCORING, UNDER_WAY, running
from benchmarks.sides import PATH

__all__ = ["main"]

KEYS = ("key-of-the-greedy-client", "key-of-the-other-client")
WAITING = ({"prompt": "Hello", "max_tokens": 8}, {"prompt": "Hello", **SCORING})
USUAL = "one long prompt and one stream"
LOADS = {
    "nothing": [],
    USUAL: [{"prompt": "a, " * (LARGE // 3), **SCORING}, {"prompt": "a", "max_tokens": 60_000}],
    "7 prompts of 100 kB": [{"prompt": ["a, " * 33_333] * 7, **SCORING}],
    "7 requests of 100 kB": [{"prompt": "a, " * 33_333, **SCORING}] * 7,
    "100 prompts x 16 x 900 tokens": [{"prompt": ["a"] * 100, "n": 16, "max_tokens": 900}],
    "the same with a seed": [{"prompt": ["a"] * 100, "n": 16, "max_tokens": 900, "seed": 1}],
    "2 prompts x 16 x 60,000 tokens": [{"prompt": ["a", "a"], "n": 16, "max_tokens": 60_000}],
    "1,024 prompts of 1,100 bytes": [{"prompt": ["a, " * 366] * 1_024, "max_tokens": 0}],
}


async def beside(server: str, load: str, keys: bool, samples: int) -> list[list[float]]:
    """Return the seconds of each request of one client while another one's are under way."""
    clients = [httpx.AsyncClient(base_url=server, timeout=3_600) for _ in KEYS]
    for client, key in zip(clients, KEYS if keys else (), strict=False):
        client.headers["authorization"] = f"Bearer {key}"
    async with clients[0] as greedy, clients[1] as other:
        asked = [asyncio.create_task(greedy.post(ROUTE, json=body)) for body in LOADS[load]]
        while f"{UNDER_WAY}{len(asked)}.0" not in (await other.get("/metrics")).text:
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        seconds: list[list[float]] = [[] for _ in WAITING]
        for times, body in list(zip(seconds, WAITING, strict=True)) * samples:
            began = time.perf_counter()
            (await other.post(ROUTE, json=body)).raise_for_status()
            times.append(time.perf_counter() - began)
        for one in asked:
            one.cancel()
            with suppress(asyncio.CancelledError):
                await one
        while f"{UNDER_WAY}0.0" not in (await other.get("/metrics")).text:
            await asyncio.sleep(0.1)
    return seconds


@click.command(help=__doc__)
@click.argument("bundle", type=PATH)
@click.option("--keys", is_flag=True, help="Give each client a key.")
@click.option("--samples", default=15, show_default=True, help="Requests of each kind beside each load.")
def main(bundle: Path, keys: bool, samples: int) -> None:
    with running(bundle, *(f"--api-key={key}" for key in KEYS if keys)) as server:
        found = {load: asyncio.run(beside(server, load, keys, samples)) for load in LOADS}
    for load, (eight, five) in found.items():
        half, usual = np.median(eight), np.median(found[USUAL][0])
        click.echo(f"beside {load:31} 8 tokens {1000 * half:8,.1f} ms, {half / usual:4.2f}; 5 bytes {max(five):5.3f} s")


if __name__ == "__main__":
    main()
