"""A stream of events, which gives back what it holds however it ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

__all__ = ["EventStream", "event"]


class EventStream(StreamingResponse):
    """An answer of server-sent events. Its generator may never start, if the client goes away before."""

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], object]) -> None:
        """Send `events`, then call `close`."""
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


def event(value: dict[str, Any]) -> bytes:
    """Return one event of a stream."""
    return f"data: {json.dumps(value)}\n\n".encode()
