"""What may come of damaged input: a clean refusal, or the right result. Everything else is a bug."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["BUGS", "Outcome", "Target", "judged", "refusal"]

BUGS = ("wrong error", "bad message", "wrong result")
LONGEST_MESSAGE = 2000


@dataclass(frozen=True)
class Outcome:
    """What came of one case.

    Attributes:
        kind: `refused`; `right`, the result of the undamaged input; `other`, a result of its own that the input is
            allowed to have, as where other settings were asked for; or one of BUGS.
        said: the error, or what is wrong.
    """

    kind: str
    said: str = ""

    @property
    def is_bug(self) -> bool:
        return self.kind in BUGS


class Target(Protocol):
    """Something that is fed damaged input."""

    def case(self, number: int) -> Outcome:
        """Do the damage of this number and look at what comes of it; the same number does the same."""


def judged(
    attempt: Callable[[], Any],
    errors: Collection[type[Exception]],
    is_right: Callable[[Any], bool],
    may_differ: bool = False,
) -> Outcome:
    """Run an attempt.

    Args:
        errors: classes that a refusal may have.
        is_right: whether a result is that of the undamaged input.
        may_differ: another result is allowed, too.
    """
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            result = attempt()
        except Exception as error:  # which kind it is, is what is looked at
            return refusal(error, tuple(errors))
    if is_right(result):
        return Outcome("right")
    if may_differ:
        return Outcome("other")
    if told:
        return Outcome("other", f"warned: {told[0].message}")
    return Outcome("wrong result", repr(result)[:300])


def refusal(error: BaseException, errors: tuple[type[Exception], ...]) -> Outcome:
    """Judge an error: it must be of one of these classes, and its message one line that a terminal can show."""
    message = str(error)
    said = f"{type(error).__name__}: {message}"
    if not isinstance(error, errors):
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = f" at {place.tb_frame.f_code.co_filename}:{place.tb_lineno}" if place is not None else ""
        return Outcome("wrong error", said[:500] + where)
    if not message or not message.isprintable() or len(message) > LONGEST_MESSAGE:
        return Outcome("bad message", ascii(said)[:LONGEST_MESSAGE])
    return Outcome("refused", said)
