"""Limits on what clients may use, and the count of requests under way."""

from __future__ import annotations

import contextlib
from asyncio import Timeout
from collections.abc import Iterator

from xlexport.serve.errors import ApiError, busy
from xlexport.serve.options import ServeLimits

__all__ = ["CHOICE_BYTES", "Admission", "Share", "check_tokens"]

TOKEN_BYTES = 64  # of a token with its score, in arrays and in the answer that is made of them
LIKELY_BYTES = 32  # of each likeliest token
CHOICE_BYTES = 4_000  # of each continuation but the first, in addition to its tokens


def check_tokens(limits: ServeLimits, n_prompt: int, n_new: int, choices: int = 1, prompts: int = 1) -> None:
    """Refuse a request that asks for too much.

    Raises:
        ApiError: with the limit.
    """
    for count, most, what, param in (
        (n_prompt, limits.tokens, "tokens to read", "prompt"),
        (n_new, limits.new_tokens, "tokens to draw", "max_tokens"),
        (choices, limits.choices, "continuations", "n"),
        (choices * prompts, limits.all_choices, "continuations of all prompts together", "n"),
    ):
        if count > most:
            message = f"the request has {count:,} {what}, at most {most:,} are possible."
            raise ApiError(400, message, "context_length_exceeded" if param == "prompt" else "invalid_value", param)


class Admission:
    """The requests under way, and the memory that they need. Only the thread of the server's loop uses it."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self.most = most
        self.most_bytes = most_bytes
        self.under_way = 0
        self.nbytes = 0
        self.refused = 0
        self.arriving: dict[Share, Timeout] = {}  # requests whose bodies are not complete, the oldest first

    @contextlib.contextmanager
    def share(self) -> Iterator[Share]:
        """Count the memory of a request, and its place once it has taken one, while the block runs."""
        share = Share(self)
        try:
            yield share
        finally:
            self.under_way -= share.entered
            self.nbytes -= share.nbytes

    def make_room(self, nbytes: int, own: Share) -> None:
        """End the oldest requests whose bodies are not complete, if that makes room for another one's bytes."""
        others = [share for share in self.arriving if share is not own]
        if self.nbytes + nbytes - sum(share.nbytes for share in others) <= self.most_bytes:
            for share in others:
                if self.nbytes + nbytes > self.most_bytes:
                    self.arriving.pop(share).reschedule(0)
                    self.nbytes -= share.nbytes
                    share.nbytes = 0


class Share:
    """The memory of one request, and its place once it has `entered`."""

    def __init__(self, admission: Admission) -> None:
        self.nbytes = 0
        self.entered = False
        self._admission = admission

    def enter(self) -> None:
        """Take a place, because the whole request has arrived.

        Raises:
            ApiError: too many are under way.
        """
        admission = self._admission
        if admission.under_way >= admission.most:
            admission.refused += 1
            raise busy(f"{admission.under_way:,} requests are under way, at most {admission.most:,} are possible.")
        admission.under_way += 1
        self.entered = True

    @contextlib.contextmanager
    def arriving(self, timeout: Timeout) -> Iterator[None]:
        """Receive a body while the block runs, whose `timeout` expires if others need its memory."""
        self._admission.arriving[self] = timeout
        try:
            yield
        finally:
            self._admission.arriving.pop(self, None)

    def check(self, nbytes: int) -> None:
        """Refuse a request for which further bytes have no room.

        Raises:
            ApiError: the requests under way need too much, or this one alone does.
        """
        most = self._admission.most_bytes
        if self.nbytes + nbytes > most:
            message = f"the request needs {self.nbytes + nbytes:,} bytes of memory, at most {most:,} are possible."
            raise ApiError(413, message, "request_too_large")
        self._admission.make_room(nbytes, self)
        in_use = self._admission.nbytes
        if in_use + nbytes > most:
            self._admission.refused += 1
            raise busy(f"the requests under way hold {in_use:,} of {most:,} bytes, and this one needs {nbytes:,} more.")

    def take(self, nbytes: int) -> None:
        """Count further bytes, until the request ends.

        Raises:
            ApiError: as `check`.
        """
        self.check(nbytes)
        self.nbytes += nbytes
        self._admission.nbytes += nbytes

    @contextlib.contextmanager
    def lent(self, nbytes: int) -> Iterator[None]:
        """Count bytes while the block runs.

        Raises:
            ApiError: as `check`.
        """
        self.take(nbytes)
        try:
            yield
        finally:
            self.nbytes -= nbytes
            self._admission.nbytes -= nbytes

    def take_scores(self, tokens: int, top: int | None) -> None:
        """Count the scores of tokens, each with the `top` likeliest ones.

        Raises:
            ApiError: as `check`.
        """
        self.take(tokens * (TOKEN_BYTES + LIKELY_BYTES * (top or 0)))
