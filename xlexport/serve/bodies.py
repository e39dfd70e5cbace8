"""Read the body of a request within limits of memory, and notice a client that goes away."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, TypeVarTuple

import numpy as np
import numpy.typing as npt
from starlette.requests import ClientDisconnect, Request

from xlexport.serve.answers import JSON, ApiError
from xlexport.serve.limits import ServeLimits, Share
from xlexport.serve.models import Served
from xlexport.serve.schemas import B, parsed
from xlruntime.tokenizers import ByteTokenizer

__all__ = ["SHARE", "Gone", "count_numbers", "encoded", "read_body", "read_json", "share_of", "unless_gone"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
SHARE = "xlexport.share"  # where the scope of a request has its `Share`
LARGE = 20_000  # bytes of a body, characters or tokens that another thread works on
# Each match begins one value of a JSON text: a text or name, a list or an object (group 1), or a number. The pattern
# matches at every place and gives nothing back, so that a search takes time in proportion to the text.
VALUE = re.compile(rb'[\s,:\]}]*+(?:("[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{])|[^\s",:\[\]{}]++|\Z)', re.DOTALL)
FIELDS = 200  # texts, names, lists and objects of a body besides its prompts
# Memory of parsing, measured. A character may take four bytes in Python, and is copied on the way.
PARSED_BYTES, NUMBER_BYTES = 6, 100  # for each byte of a body, and for each number in it


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
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != kind:
        raise ApiError(
            415, f"the content type is {content_type[:60] or 'missing'}, expected {kind}.", "unsupported_media_type"
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


async def read_json(kind: type[B], request: Request, limits: ServeLimits) -> B:
    """Return the fields of a request's body. What parsing takes is bounded and counted before.

    Raises:
        ApiError, Gone: as `read_body` and `parsed`, or the body has too many values.
    """
    raw = await read_body(request, limits)
    numbers = await _aside(len(raw), count_numbers, raw, limits)
    share_of(request).take(PARSED_BYTES * len(raw) + NUMBER_BYTES * numbers)
    return await _aside(len(raw), parsed, kind, raw)


async def encoded(
    request: Request,
    limits: ServeLimits,
    model: Served,
    sources: Sequence[str | list[int]],
    whole: bool = False,
    previous: int | None = None,
) -> list[npt.NDArray[np.int64]]:
    """Return the token ids of texts, or of lists of them, as `Served.ids` does; memory is counted meanwhile.

    Raises:
        ApiError: it takes too much memory, or the texts have too many bytes for a bundle whose tokens are bytes.
        TokenError, TextError: a source is not usable.
    """
    nbytes = sum(len(source.encode()) for source in sources if isinstance(source, str))
    if isinstance(model.tokenizer, ByteTokenizer):
        limits.check_tokens(nbytes, 0)
    with share_of(request).lent(nbytes * model.encoding_bytes):
        return await _aside(sum(map(len, sources)), lambda: [model.ids(source, whole, previous) for source in sources])


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


async def _aside(size: int, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """Call a function, in another thread if its input is large."""
    return await asyncio.to_thread(function, *arguments) if size > LARGE else function(*arguments)


def count_numbers(raw: bytearray, limits: ServeLimits) -> int:
    """Return the number of numbers, true, false and null in a JSON text.

    Raises:
        ApiError: there are too many of them, or of other values. Each takes up to a kilobyte while a body is checked.
    """
    numbers, others, most = 0, 0, limits.prompts + FIELDS
    for value in VALUE.finditer(raw):
        if value.lastindex is None:
            numbers += 1
        else:
            others += 1
        if others > most:
            message = f"more than {most:,} texts, names, lists and objects, of which {limits.prompts:,} may be prompts."
            raise ApiError(413, f"the body has {message}", "body_too_large")
        if numbers > limits.numbers:
            message = f"more than {limits.numbers:,} numbers; give a text, or feed a session piece by piece."
            raise ApiError(413, f"the body has {message}", "body_too_large")
    return numbers


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"the body is larger than {most:,} bytes.", "body_too_large")
