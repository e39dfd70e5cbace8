"""The base of all configurations: kinds of values, and conversion to plain values and back."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, ClassVar, Self

from xltraining.errors import ConfigError
from xltraining.messages import listed

__all__ = ["PlainFields", "is_boolean", "is_finite", "is_integer"]


class PlainFields:
    """A frozen dataclass whose fields are plain values; plain mappings hold its tuples as lists."""

    NAME: ClassVar[str]  # of the architecture, in messages
    LATER: ClassVar[tuple[str, ...]] = ()
    """Fields that earlier versions lack: `to_dict` leaves out their defaults, so that files stay readable there."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build a configuration from a plain mapping, as in a checkpoint.

        Raises:
            ConfigError: names are unknown, or values invalid. The message lists all of them.
        """
        known = {field.name for field in fields(cls)}  # type: ignore[arg-type]  # every subclass is a dataclass
        unknown = sorted(str(name) for name in values if name not in known)
        if unknown:
            raise ConfigError(
                f"unknown names in the {cls.NAME} configuration: {listed(unknown)}.",
                hint=f"Remove them, or spell one of: {', '.join(sorted(known))}.",
            )
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON; `from_dict` reads them back."""
        values = asdict(self)  # type: ignore[call-overload]
        for field in fields(self):  # type: ignore[arg-type]
            if field.name in self.LATER and values[field.name] == field.default:
                del values[field.name]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def is_boolean(value: object) -> bool:
    """Return whether `value` is true or false."""
    return isinstance(value, bool)


def is_integer(value: object) -> bool:
    """Return whether `value` is a whole number; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_finite(value: object) -> bool:
    """Return whether `value` is a number that a float can hold; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
