"""The limits of `serve`: fields that declare help, default and range. Importing this module is quick."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from xlruntime.errors import OptionError
from xlruntime.messages import listed
from xltraining.config_fields import setting

__all__ = ["ServeLimits"]

_limit = functools.partial(setting, heading="Limits")
_fixed = functools.partial(setting, option=False)  # no command offers it


@dataclass(frozen=True)
class ServeLimits:
    """Limits on what clients may use.

    Attributes:
        numbers: numbers in the body of a request.
        prompts: prompts of one request; choices: continuations of each; all_choices: continuations of all together.
        transfer_seconds: how long the body of a request may take to arrive, and each part of the answer to be read.
        connections: connections at a time; head_seconds: how long one may wait for a whole head of a request.

    Raises:
        OptionError: limits of sessions, of which there are none; a cache that leaves requests no memory.
    """

    body_bytes: int = _limit(32_000_000, "Largest body of a request.", minimum=1)
    numbers: int = _fixed(1_000_000)
    tokens: int = _limit(8_000_000, "Most tokens that a request may read.", minimum=1)
    new_tokens: int = _limit(65_536, "Most tokens that a request may draw for each continuation.", minimum=1)
    prompts: int = _fixed(1_024)
    choices: int = _fixed(16)
    all_choices: int = _fixed(2_048)
    requests: int = _limit(128, "Most requests at the same time; others get status 429.", minimum=1)
    request_bytes: int = _limit(
        1_000_000_000,
        "Most memory of all requests: bodies, what becomes of them, and the scores that they ask for.",
        minimum=1,
    )
    prefix_cache: int = _limit(
        0,
        "Part of --set request_bytes that keeps what the model remembers of prompts, so that equal beginnings are read "
        "once.",
        minimum=0,
        common=True,
        metavar="bytes",
        shown="none",
    )
    request_seconds: float = _limit(3_600.0, "Longest duration of a request.", above=0)
    transfer_seconds: float = _fixed(120.0)
    connections: int = _fixed(512)
    head_seconds: float = _fixed(20.0)
    sessions: int = _limit(1_000, "Most sessions at the same time.", minimum=0)
    session_bytes: int = _limit(1_000_000_000, "Most memory of all sessions.", minimum=0)
    session_seconds: float = _limit(3_600.0, "Idle time after which a session expires.", above=0)

    def __post_init__(self) -> None:
        if self.prefix_cache >= self.request_bytes:
            raise OptionError(
                f"--prefix-cache is {self.prefix_cache:,} bytes, of the {self.request_bytes:,} of all requests.",
                hint="Give fewer, or raise --set request_bytes.",
            )
        of_sessions = ("session_bytes",) if self.prefix_cache else ("session_bytes", "session_seconds")
        changed = [f"--set {name}" for name in of_sessions if getattr(self, name) != getattr(type(self), name)]
        if self.sessions == 0 and changed:
            raise OptionError(
                f"{listed(changed)}: only for sessions, but --set sessions is 0.", hint="Leave out one of both."
            )
