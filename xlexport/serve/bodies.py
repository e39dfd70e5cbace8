"""Read the body of a request within its limit, and notice a client that goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from xlexport.serve.answers import JSON, ApiError

__all__ = ["Gone", "read_body", "unless_gone"]

T = TypeVar("T")
WRITER_SECONDS = 120.0  # in which a body must arrive


class Gone(Exception):
    """The client went away before it got an answer."""


async def read_body(request: Request, most: int, kind: str = JSON) -> bytes:
    """Return the body of a request.

    Args:
        kind: the content type that it must have: web pages of other sites can only send others without asking.

    Raises:
        ApiError: it is larger than `most` bytes, or of another type.
        Gone: the client went away.
    """
    found = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if found != kind:
        raise ApiError(
            415, f"the content type is {found[:60] or 'missing'}, expected {kind}.", "unsupported_media_type"
        )
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > most:
        raise _too_large(most)
    body = bytearray()
    try:
        async with asyncio.timeout(WRITER_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > most:
                    raise _too_large(most)
    except ClientDisconnect as error:
        raise Gone from error
    except TimeoutError:
        raise ApiError(408, f"the body took longer than {WRITER_SECONDS:g} seconds.", "timeout") from None
    return bytes(body)


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; cancel it if the client goes away. The body must have been read.

    Raises:
        Gone: the client went away.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Gone
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"the body is larger than {most:,} bytes.", "body_too_large")
