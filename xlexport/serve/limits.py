"""The most that clients may use, and the count of requests under way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from xlexport.serve.answers import ApiError, busy

__all__ = ["Admission", "ServeLimits"]


@dataclass(frozen=True)
class ServeLimits:
    """The most that clients may use.

    Attributes:
        body_bytes: bytes of a request's body.
        tokens: tokens that one request may read; new_tokens: tokens that it may draw for each continuation.
        prompts: prompts of one request; choices: continuations of each.
        requests: requests under way at a time.
        request_seconds: how long a request may take.
        sessions: sessions at a time; session_bytes: memory of all of them; session_seconds: how long one may be idle.
    """

    body_bytes: int = 64 << 20
    tokens: int = 8_000_000
    new_tokens: int = 65_536
    prompts: int = 1_024
    choices: int = 16
    requests: int = 128
    request_seconds: float = 3_600.0
    sessions: int = 1_000
    session_bytes: int = 1 << 30
    session_seconds: float = 3_600.0

    def check_tokens(self, read: int, drawn: int, choices: int = 1) -> None:
        """Refuse a request that asks for too much.

        Raises:
            ApiError: with the limit.
        """
        for found, most, what, param in (
            (read, self.tokens, "tokens to read", "prompt"),
            (drawn, self.new_tokens, "tokens to draw", "max_tokens"),
            (choices, self.choices, "continuations", "n"),
        ):
            if found > most:
                message = f"the request has {found:,} {what}, at most {most:,} are possible."
                raise ApiError(400, message, "context_length_exceeded" if param == "prompt" else "invalid_value", param)


class Admission:
    """The requests under way. Only the thread of the server's loop uses it."""

    def __init__(self, most: int) -> None:
        """Start with none."""
        self.most = most
        self.under_way = 0
        self.refused = 0

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """Count a request while the block runs.

        Raises:
            ApiError: too many are under way.
        """
        if self.under_way >= self.most:
            self.refused += 1
            raise busy(f"{self.under_way:,} requests are under way, at most {self.most:,} are possible.")
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1
