"""The command-line options that an architecture declares: name, kind of value, range and help."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["REVERSIBLE", "Kind", "Option", "flags"]

Kind = Literal["integer", "number", "text", "boolean", "flag", "choice", "integers", "names"]


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        name: the name in Python, such as `clamp_len`; the command line has `--clamp-len`.
        kind: the kind of the value; `flag` can only be switched on, `integers` and `names` are separated by commas.
        help: a sentence for `--help`, without the architecture and the default.
        default: the value if the user gives none; None: the model's own value, or a computed one.
        choices: the values of a `choice`.
        minimum: the smallest integer that is allowed.
        scope: the models that have the option, in the plural, for error messages; empty: all of the architecture.
        problem: returns what is wrong with a value of the right kind, or None.
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


REVERSIBLE = Option(
    "reversible",
    "boolean",
    "Whether reversible layers compute activations again in the backward pass, to save memory.",
    True,
)


def flags(names: Iterable[str]) -> str:
    """Return the flags of these options, separated by commas, for messages."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)
