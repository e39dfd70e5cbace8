"""The bodies of requests, checked by pydantic: unknown fields and values of another type are refused."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from xlexport.serve.answers import ApiError
from xlruntime.messages import named

__all__ = [
    "B",
    "Body",
    "CompletionBody",
    "ContinueBody",
    "CreateBody",
    "DetokenizeBody",
    "FeedBody",
    "Ids",
    "Prompt",
    "Prompts",
    "SamplingBody",
    "ScoreBody",
    "StreamOptions",
    "Texts",
    "TokenizeBody",
    "parsed",
]

# A list is refused at its first wrong entry: a list of problems would be larger than the request.
Ids = Annotated[list[Annotated[int, Field(strict=True, ge=0, lt=2**31)]], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
Prompt = str | Ids
Prompts = str | Ids | Texts | Annotated[list[Ids], Field(fail_fast=True)]
B = TypeVar("B", bound=BaseModel)
SHOWN = 3  # problems that a message lists


class Body(BaseModel):
    """A body without unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SamplingBody(Body):
    """How to draw tokens."""

    max_tokens: int | None = Field(default=16, ge=0, le=2**31)
    temperature: float | None = Field(default=1.0, ge=0, le=100, allow_inf_nan=False)
    top_p: float | None = Field(default=1.0, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=2**31)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    stop: str | Annotated[list[str], Field(max_length=64, fail_fast=True)] | None = None
    logprobs: int | None = Field(default=None, ge=0, le=10)


class StreamOptions(Body):
    """What a stream of events has besides choices."""

    include_usage: bool | None = None


class CompletionBody(SamplingBody):
    """A request for completions. Fields of OpenAI's that have no effect here are accepted at their defaults only."""

    model: str | None = None
    prompt: Prompts
    echo: bool | None = False
    n: int | None = Field(default=1, ge=1)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    best_of: int | None = None
    suffix: str | None = None
    frequency_penalty: float | None = Field(default=0, ge=0, le=0)
    presence_penalty: float | None = Field(default=0, ge=0, le=0)
    logit_bias: dict[str, float] | None = Field(default=None, max_length=0)


class CreateBody(Body):
    """A request for a session."""

    model: str | None = None
    ttl_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class FeedBody(Body):
    """The next piece of a session's document."""

    input: Prompt
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


def parsed(kind: type[B], raw: bytes | bytearray) -> B:
    """Return the body of a request.

    Raises:
        ApiError: it is not JSON, or a field is missing, unknown or wrong; lists the first problems.
    """
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        raise ApiError(400, *_described(problems)) from None


def _described(problems: list[Any]) -> tuple[str, str, str | None]:
    """Return message, code and field of the problems that pydantic found."""
    if problems[0]["type"] == "json_invalid":
        return f"the body is not JSON: {problems[0]['msg'].removeprefix('Invalid JSON: ')}.", "invalid_json", None
    fields = [named(str(problem["loc"][0])[:40]) if problem["loc"] else "body" for problem in problems]
    lines = dict.fromkeys(f"{field}: {problem['msg']}" for field, problem in zip(fields, problems, strict=True))
    text = "; ".join(list(lines)[:SHOWN])
    more = f" and {len(lines) - SHOWN} more problems" if len(lines) > SHOWN else ""
    return f"{text}{more}.", "invalid_value", fields[0]
