"""Errors as answers, in the shape that clients of OpenAI's interface know."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException

from xlexport.serve.jobs import ClosedError
from xlruntime.errors import HintedError, StepTimeoutError, XlruntimeError

__all__ = ["JSON", "ApiError", "answer_of", "busy", "error_body", "hide"]

JSON = "application/json"
KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    429: "rate_limit_error",
    503: "unavailable_error",
}
_NAMES: dict[str, str] = {}  # what answers show instead of paths


@dataclass(eq=False)
class ApiError(Exception):
    """A request that is answered with an error.

    Attributes:
        status: the status of the answer; message: what is wrong; code: a word for programs; param: the field at fault.
        retry_after: seconds after which the client may try again; None: that would not help.
    """

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    retry_after: int | None = None

    def __str__(self) -> str:
        return self.message

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        headers = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        return headers | ({"www-authenticate": "Bearer"} if self.status == 401 else {})


def error_body(error: ApiError) -> dict[str, Any]:
    """Return the body of an answer."""
    kind = KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def hide(path: Path, name: str) -> None:
    """Show a name instead of this path of the server's machine in all answers."""
    _NAMES[str(path)] = name


def answer_of(error: Exception) -> ApiError:
    """Return the answer to an error of any kind. An unexpected one is not described: its text is for the log."""
    text = str(error)
    for path, name in _NAMES.items():
        text = text.replace(path, name)
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):  # of Starlette's routes
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        return ApiError(error.status_code, f"{error.detail}.", code)
    if isinstance(error, ClosedError | StepTimeoutError):
        code = "shutting_down" if isinstance(error, ClosedError) else error.code
        return ApiError(503, text, code, retry_after=1)
    if isinstance(error, HintedError) and isinstance(error, ValueError | TypeError):
        return ApiError(400, text, getattr(error, "code", "invalid_value"))
    if isinstance(error, XlruntimeError):
        return ApiError(500, text, error.code, retry_after=1)
    return ApiError(500, "an error of the server; its log has the details.", "internal_error")


def busy(what: str, seconds: int = 1) -> ApiError:
    """Return the answer to a request that the server has no room for now."""
    return ApiError(429, f"{what} Try again later.", "server_busy", retry_after=seconds)
