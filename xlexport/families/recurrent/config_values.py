"""Read the sizes of a model from a stranger's `config.json`, and name everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from xlexport.errors import CheckpointError
from xlruntime.messages import shown

__all__ = ["ConfigValues", "is_number"]

LARGEST = 1 << 20  # of any size; the largest models have a tenth of it


class ConfigValues:
    """The values of a configuration. A key without a value has the default of the code that writes such files.

    Attributes:
        problems: what is wrong with the values that were read; a wrong value is replaced by its default.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = {key: value for key, value in config.items() if value is not None}
        self.problems: list[str] = []

    def size(self, key: str, default: int, least: int = 1, most: int = LARGEST) -> int:
        """Return a whole number from `least` to `most`."""
        expected = f"a whole number from {least:,} to {most:,}"
        return int(self.value(key, default, expected, lambda value: type(value) is int and least <= value <= most))

    def positive(self, key: str, default: float) -> float:
        """Return a positive number."""
        expected = f"a number between 0 and {LARGEST:,}"
        return float(self.value(key, default, expected, lambda value: is_number(value) and 0 < value < LARGEST))

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        return bool(self.value(key, default, "true or false", lambda value: isinstance(value, bool)))

    def value(self, key: str, default: Any, expected: str, fits: Callable[[Any], bool]) -> Any:
        """Return the value of a key. If it does not fit, record that, and return the default."""
        value = self.config.get(key, default)
        if fits(value):
            return value
        self.problems.append(f"{key} is {shown(value)}, expected {expected}")
        return default

    def finish(self) -> None:
        """Refuse the configuration if anything is wrong with it.

        Raises:
            CheckpointError: the message names all problems.
        """
        if self.problems:
            raise CheckpointError(f"config.json: {'; '.join(self.problems)}.", hint="Copy the folder again.")


def is_number(value: Any) -> bool:
    """Return whether it is a number that a float can hold."""
    return type(value) is float or (type(value) is int and abs(value) < LARGEST)
