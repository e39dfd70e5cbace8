"""Read the bodies of requests within limits of memory; pydantic checks their fields."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError
from starlette.requests import ClientDisconnect, Request

from xlexport.serve.errors import JSON, ApiError
from xlexport.serve.limits import Share, check_tokens
from xlexport.serve.models import ServedModel
from xlexport.serve.options import ServeLimits
from xlruntime import Sampling
from xlruntime.messages import named
from xlruntime.tokenizers import ByteTokenizer

__all__ = [
    "FIELDS",
    "SHARE",
    "Body",
    "CompletionBody",
    "ContinueBody",
    "CreateBody",
    "DetokenizeBody",
    "FeedBody",
    "Gone",
    "PreviewBody",
    "SamplingBody",
    "ScoreBody",
    "StreamOptions",
    "TokenizeBody",
    "count_numbers",
    "encode_texts",
    "parsed_bytes",
    "read_body",
    "read_json",
    "share_of",
    "unless_gone",
]

T = TypeVar("T")
B = TypeVar("B", bound=BaseModel)
SHARE = "xlexport.share"  # where the scope of a request has its `Share`
LARGE = 20_000  # bytes of a body, characters or tokens that another thread works on
# Each match begins one value of a JSON text: a text or name, a list or an object (group 1), or a number. The pattern
# matches at every place and gives nothing back, so that a search takes time in proportion to the text.
VALUE = re.compile(rb'[\s,:\]}]*+(?:("[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{])|[^\s",:\[\]{}]++|\Z)', re.DOTALL)
TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"(\s*+:)?+', re.DOTALL)  # of JSON; the group is only behind a name
SALT = 64  # characters of a `cache_salt`
FIELDS = 200  # texts, names, lists and objects of a body besides its prompts
# Memory of parsing, measured. A character may take four bytes in Python, and is copied on the way.
PARSED_BYTES, NUMBER_BYTES = 6, 100  # for each byte of a body, and for each number in it
SHOWN = 3  # problems that a message lists

# A list is refused at its first wrong entry: a list of problems would be larger than the request.
Ids = Annotated[list[Annotated[int, Field(strict=True, ge=0, lt=2**31)]], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
Prompt = str | Ids
Prompts = str | Ids | Texts | Annotated[list[Ids], Field(fail_fast=True)]


class Body(BaseModel):
    """A body without unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _printable(text: str) -> str:
    if not 1 <= len(text) <= SALT or not text.isprintable():
        raise PydanticCustomError("salt", f"expected 1 to {SALT} printable characters")  # type: ignore[arg-type]
    return text


Salt = Annotated[str, AfterValidator(_printable)]


class SamplingBody(Body):
    """The rule for drawing tokens."""

    max_tokens: int | None = Field(
        default=16, ge=0, le=2**31, validation_alias=AliasChoices("max_tokens", "max_completion_tokens")
    )
    temperature: float | None = Field(default=1.0, ge=0, le=100, allow_inf_nan=False)
    top_p: float | None = Field(default=1.0, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=2**31)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    min_p: float | None = Field(default=0.0, ge=0, le=1)
    repetition_penalty: float | None = Field(default=1.0, ge=1e-9, le=100)
    stop: str | Annotated[list[str], Field(max_length=64, fail_fast=True)] | None = None
    stop_token_ids: Annotated[Ids, Field(max_length=64)] | None = None
    ignore_eos: bool | None = False
    skip_special_tokens: bool | None = True
    logprobs: int | None = Field(default=None, ge=0, le=10)

    @property
    def n_new(self) -> int:
        """The number of tokens to draw for each continuation."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def special(self) -> bool:
        """Whether texts have the names of special tokens."""
        return self.skip_special_tokens is False

    @property
    def stops(self) -> list[str]:
        """The texts that end a continuation."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def sampling(self, number: int = 0) -> Sampling:
        """Return the rule of drawing for a continuation; each has a seed of its own."""
        return Sampling(
            1.0 if self.temperature is None else self.temperature,
            self.top_k if self.top_k is not None and self.top_k > 0 else None,
            self.top_p if self.top_p is not None and self.top_p < 1 else None,
            None if self.seed is None else self.seed + number,
            self.min_p or 0.0,
            1.0 if self.repetition_penalty is None else self.repetition_penalty,
            ignore_eos=bool(self.ignore_eos),
            stop_token_ids=tuple(self.stop_token_ids or ()),
        )


class StreamOptions(Body):
    """The content of a stream of events in addition to choices."""

    include_usage: bool | None = None


class CompletionBody(SamplingBody):
    """A request for completions. Fields of OpenAI's that have no effect here are accepted at their defaults only."""

    model: str | None = None
    prompt: Prompts
    echo: bool | None = False
    n: int | None = Field(default=1, ge=1, le=2**31)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    cache_salt: Salt | None = None
    user: str | None = None
    best_of: int | None = Field(default=None, ge=1, le=2**31)
    suffix: str | None = None
    frequency_penalty: float | None = 0
    presence_penalty: float | None = 0
    logit_bias: dict[str, float] | None = None


class CreateBody(Body):
    """A request for a session."""

    model: str | None = None
    ttl_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    cache_salt: Salt | None = None


class FeedBody(Body):
    """The next piece of a session's document; `end`: the document ends with it, so no text is held back."""

    input: Prompt
    end: bool = False
    logprobs: int | None = Field(default=None, ge=0, le=10)


class PreviewBody(Body):
    """What an answer shows of the text that a session holds."""

    logprobs: int | None = Field(default=None, ge=0, le=10)


class ScoreBody(Body):
    """Continuations to compare: one, or a list of them."""

    input: Prompts
    logprobs: int | None = Field(default=None, ge=0, le=10)


class ContinueBody(SamplingBody):
    """A continuation of a session's document, after a prompt if there is one."""

    prompt: Prompt | None = None
    stream: bool | None = False


class TokenizeBody(Body):
    """A text to tokenize. Special tokens are never added, so `add_special_tokens` has no effect."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool | None = None


class DetokenizeBody(Body):
    """Token ids to turn into text."""

    model: str | None = None
    tokens: Ids


class Gone(Exception):
    """The client disconnected before it got an answer."""


async def read_body(request: Request, limits: ServeLimits, kind: str = JSON, most: int | None = None) -> bytearray:
    """Return the body of a request, which then takes its place among the requests under way.

    Args:
        kind: the content type that it must have: web pages of other sites can only send others without asking.
        most: bytes that it may have, if that is less than `limits` says.

    Raises:
        ApiError: it is too large for itself or with those of other requests, too slow, or of another type; or too many
            requests are under way.
        Gone: the client went away.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != kind:
        raise ApiError(
            415, f"the content type is {content_type[:60] or 'missing'}, expected {kind}.", "unsupported_media_type"
        )
    most = limits.body_bytes if most is None else min(most, limits.body_bytes)
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > most:
        raise _too_large(most)
    share, body = share_of(request), bytearray()
    share.check(int(length) if length.isdecimal() else 0)  # before it is sent
    try:
        async with asyncio.timeout(limits.transfer_seconds) as timer:
            with share.arriving(timer):
                async for piece in request.stream():
                    body += piece
                    if len(body) > most:
                        raise _too_large(most)
                    share.take(len(piece))
    except ClientDisconnect as error:
        raise Gone from error
    except TimeoutError:
        message = f"the body took longer than {limits.transfer_seconds:g} seconds, or others needed its memory."
        raise ApiError(408, message, "timeout") from None
    else:
        share.enter()
    finally:
        if not share.entered:
            body.clear()  # tracebacks hold it
    return body


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"the body is larger than {most:,} bytes.", "body_too_large")


async def read_json(kind: type[B], request: Request, limits: ServeLimits) -> B:
    """Return the fields of a request's body. What parsing takes is bounded and counted before.

    Raises:
        ApiError, Gone: as `read_body`, or the body is not JSON, has too many values, or wrong fields; lists the first.
    """
    raw = await read_body(request, limits)
    share_of(request).take(await _aside(len(raw), lambda: parsed_bytes(raw, limits)))
    return await _aside(len(raw), lambda: _parse(kind, raw))


def parsed_bytes(raw: bytearray, limits: ServeLimits) -> int:
    """Return the memory that parsing a JSON text takes.

    Raises:
        ApiError: as `count_numbers`.
    """
    return PARSED_BYTES * len(raw) + NUMBER_BYTES * count_numbers(raw, limits)


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


def _parse(kind: type[B], raw: bytes | bytearray) -> B:
    """Return the body of a request.

    Raises:
        ApiError: it is not JSON, or a field is missing, unknown, wrong or there twice; lists the first problems.
    """
    try:
        body = kind.model_validate_json(raw)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        raise ApiError(400, *_describe(problems)) from None
    if sum(text[1] is not None for text in TEXT.finditer(raw)) != _names(body):  # pydantic takes the last of two
        raise ApiError(400, "the body has a name twice.", "invalid_value")
    return body


def _names(fields: object) -> int:
    """Return the number of names in a body."""
    if isinstance(fields, BaseModel):
        fields = {name: getattr(fields, name) for name in fields.model_fields_set}
    return sum(1 + _names(value) for value in fields.values()) if isinstance(fields, dict) else 0


def _describe(problems: list[Any]) -> tuple[str, str, str | None]:
    """Return message, code and field of the problems that pydantic found."""
    if problems[0]["type"] == "json_invalid":
        return f"the body is not JSON: {problems[0]['msg'].removeprefix('Invalid JSON: ')}.", "invalid_json", None
    fields = [named(str(problem["loc"][0])[:40]) if problem["loc"] else "body" for problem in problems]
    lines = dict.fromkeys(f"{field}: {problem['msg']}" for field, problem in zip(fields, problems, strict=True))
    text = "; ".join(list(lines)[:SHOWN])
    more = f" and {len(lines) - SHOWN} more problems" if len(lines) > SHOWN else ""
    return f"{text}{more}.", "invalid_value", fields[0]


async def encode_texts(
    request: Request,
    limits: ServeLimits,
    model: ServedModel,
    sources: Sequence[str | list[int]],
    convert: Callable[[str | list[int]], T],
) -> list[T]:
    """Return what `convert` makes of texts or lists of token ids; memory is counted meanwhile.

    Raises:
        ApiError: it takes too much memory, or the texts have too many bytes for a bundle whose tokens are bytes.
        TokenError, TextError: a source is not usable.
    """
    nbytes = sum(len(source.encode()) for source in sources if isinstance(source, str))
    if isinstance(model.tokenizer, ByteTokenizer):
        check_tokens(limits, nbytes, 0)
    with share_of(request).lent(nbytes * model.encoding_bytes):
        return await _aside(sum(map(len, sources)), lambda: [convert(source) for source in sources])


def share_of(request: Request) -> Share:
    """Return the memory that a request has taken."""
    share: Share = request.scope[SHARE]
    return share


async def unless_gone(request: Request, work: Coroutine[Any, Any, None]) -> None:
    """Wait for `work`; cancel it if the client disconnects. The body must have been read.

    Raises:
        Gone: the client went away.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Gone
        working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _aside(size: int, function: Callable[[], T]) -> T:
    """Call a function, in another thread if its input is large."""
    return await asyncio.to_thread(function) if size > LARGE else function()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
