"""An option of the command line that an architecture declares: its name, kind of value, range and help."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Kind", "Option", "flags"]

Kind = Literal["integer", "number", "text", "boolean", "flag", "choice", "integers", "names"]


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        name: in Python, such as `clamp_len`; the command line has `--clamp-len`.
        kind: of the value; `flag` can only be switched on, `integers` and `names` are separated by commas.
        help: a sentence for `--help`, without the architecture and the default.
        default: the value that counts if the user gives none; None: the model's own, or a computed one.
        choices: the values of a `choice`.
        minimum: of an integer.
        scope: the models that have the option, in the plural, for refusals; empty: all of the architecture.
        problem: says what is wrong with a value of the right kind, or returns None.
    """

    name: str
    kind: Kind
    help: str
    default: Any = None
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    scope: str = ""
    problem: Callable[[Any], str | None] = lambda value: None

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return f"--{self.name.replace('_', '-')}"


def flags(names: Iterable[str]) -> str:
    """Return the names of options on the command line, in a list for messages."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)
