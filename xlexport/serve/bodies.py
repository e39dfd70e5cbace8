"""Read the body of a request within its limit, and notice a client that goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from xlexport.serve.answers import JSON, ApiError
from xlexport.serve.limits import ServeLimits, Share

__all__ = ["SHARE", "Gone", "read_body", "share_of", "unless_gone"]

T = TypeVar("T")
SHARE = "xlexport.share"  # where the scope of a request has its `Share`


class Gone(Exception):
    """The client went away before it got an answer."""


async def read_body(request: Request, limits: ServeLimits, kind: str = JSON, most: int | None = None) -> bytearray:
    """Return the body of a request.

    Args:
        kind: the content type that it must have: web pages of other sites can only send others without asking.
        most: bytes that it may have; None: as `limits` says.

    Raises:
        ApiError: it is too large for itself or with those of other requests, too slow, or of another type.
        Gone: the client went away.
    """
    found = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if found != kind:
        raise ApiError(
            415, f"the content type is {found[:60] or 'missing'}, expected {kind}.", "unsupported_media_type"
        )
    most = limits.body_bytes if most is None else most
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > most:
        raise _too_large(most)
    share, body = share_of(request), bytearray()
    share.check(int(length) if length.isdecimal() else 0)  # before it is sent
    try:
        async with asyncio.timeout(limits.transfer_seconds):
            async for piece in request.stream():
                body += piece
                if len(body) > most:
                    raise _too_large(most)
                share.take(len(piece))
    except ClientDisconnect as error:
        raise Gone from error
    except TimeoutError:
        raise ApiError(408, f"the body took longer than {limits.transfer_seconds:g} seconds.", "timeout") from None
    return body


def share_of(request: Request) -> Share:
    """Return the memory that a request has taken."""
    share: Share = request.scope[SHARE]
    return share


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
