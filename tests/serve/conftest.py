"""A server of golden bundles, in a thread of this process, and clients for it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.paths import CHUNK, EMPTY, golden_bundle
from xlruntime import PrefixCache, load

Start = Callable[..., Any]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a server and returns an HTTP client for it; skip if `serve` is not installed."""
    for name in ("httpx", "prometheus_client", "pydantic", "starlette", "uvicorn"):
        pytest.importorskip(name, reason=f"the extra serve, or {name} of the extra dev, is not installed")
    with contextlib.ExitStack() as stack:
        yield lambda *bundles, **options: stack.enter_context(_served(bundles or (EMPTY,), **options))


@contextlib.contextmanager
def _served(
    bundles: Sequence[str | Path], *, keys: Sequence[str] = (), hosts: Sequence[str] = (), most: int = 4, **limits: Any
) -> Iterator[Any]:
    import httpx

    from xlexport.serve.app import make_app
    from xlexport.serve.models import Models, ServedModel
    from xlexport.serve.options import ServeLimits
    from xlexport.serve.scheduler import Scheduler
    from xlexport.serve.server import Server, listening_socket

    folders = {Path(bundle).name: golden_bundle(bundle) if isinstance(bundle, str) else bundle for bundle in bundles}
    bounds = ServeLimits(**limits)
    prefixes = PrefixCache(bounds.prefix_cache, bounds.session_seconds) if bounds.prefix_cache else None
    models = {name: Scheduler(load(path, threads=1), most, prefixes=prefixes) for name, path in folders.items()}
    served = [ServedModel.of(name, scheduler) for name, scheduler in models.items()]
    listening, started = listening_socket("127.0.0.1", 0), threading.Event()
    server = Server(make_app(Models(served), bounds, keys, hosts), bounds, 5, started.set, lambda: None)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    assert started.wait(60)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=60) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(60)
        listening.close()
    assert not thread.is_alive()
    assert all(model.scheduler.load == 0 for model in served)


def error_of(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"].isprintable() and error["message"].endswith(".")
    return error


def metric(client: Any, name: str) -> float:
    found = [line for line in client.get("/metrics").text.splitlines() if line.startswith(name)]
    return sum(float(line.rpartition(" ")[2]) for line in found)
