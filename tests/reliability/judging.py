"""Judge the result of damaged input: a clean refusal or the right result is good, everything else is a bug."""

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
    """The result of one case.

    Attributes:
        kind: `refused`; `right`, the result of the undamaged input; `other`, another result that is allowed, for
        example with other settings; or one of BUGS.
        said: the error, or a description of what is wrong.
    """

    kind: str
    said: str = ""

    @property
    def is_bug(self) -> bool:
        return self.kind in BUGS


class Target(Protocol):
    """A reader that gets damaged input."""

    def case(self, number: int) -> Outcome:
        """Do the damage with this number and judge the result; the same number does the same damage."""


def judged(
    attempt: Callable[[], Any],
    errors: Collection[type[Exception]],
    is_right: Callable[[Any], bool],
    may_differ: bool = False,
) -> Outcome:
    """Run an attempt and judge its result.

    Args:
        errors: classes of errors that count as a refusal.
        is_right: whether a result equals that of the undamaged input.
        may_differ: whether another result is allowed, too.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = attempt()
        except Exception as error:  # errors of all kinds are judged
            return refusal(error, tuple(errors))
    if is_right(result):
        return Outcome("right")
    if may_differ:
        return Outcome("other")
    if caught:
        return Outcome("other", f"warned: {caught[0].message}")
    return Outcome("wrong result", repr(result)[:300])


def refusal(error: BaseException, errors: tuple[type[Exception], ...]) -> Outcome:
    """Judge an error: it must have one of these classes and a message of one line that a terminal can show."""
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
