"""Read the sizes of a model from a stranger's `config.json`, and name everything that is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from xlexport.errors import CheckpointError
from xlruntime.messages import shown

__all__ = ["ConfigValues"]

LARGEST = 1 << 20  # of any size; the largest models have a tenth of it


class ConfigValues:
    """The values of a configuration. A missing key has the default of the code that writes such files.

    Attributes:
        problems: what is wrong with the values that were read; a wrong value is replaced by its default.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.problems: list[str] = []

    def size(self, key: str, default: int, least: int = 1, most: int = LARGEST) -> int:
        """Return a whole number from `least` to `most`."""
        value = self.config.get(key, default)
        if type(value) is int and least <= value <= most:
            return value
        return int(self._refuse(key, f"a whole number from {least:,} to {most:,}", default))

    def positive(self, key: str, default: float) -> float:
        """Return a positive number."""
        value = self.config.get(key, default)
        if type(value) in (int, float) and 0 < value < LARGEST:
            return float(value)
        return float(self._refuse(key, f"a number between 0 and {LARGEST:,}", default))

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.config.get(key, default)
        return bool(value if isinstance(value, bool) else self._refuse(key, "true or false", default))

    def pair(self, key: str, default: tuple[float, float]) -> tuple[float, float]:
        """Return a list of two numbers, the first of them not the larger one."""
        value = self.config.get(key, default)
        if isinstance(value, list | tuple) and len(value) == 2 and all(type(one) in (int, float) for one in value):
            low, high = map(float, value)
            if not math.isnan(low) and low <= high:
                return low, high
        self._refuse(key, "two numbers, the smaller one first", default)
        return default

    def require(self, key: str, value: str) -> None:
        """Record a problem if the configuration has another value than the one that the equations support."""
        if self.config.get(key, value) != value:
            self._refuse(key, repr(value), value)

    def finish(self) -> None:
        """Refuse the configuration if anything is wrong with it.

        Raises:
            CheckpointError: the message names all problems.
        """
        if self.problems:
            raise CheckpointError(f"config.json: {'; '.join(self.problems)}.", hint="Copy the folder again.")

    def _refuse(self, key: str, expected: str, default: Any) -> Any:
        self.problems.append(f"{key} is {shown(self.config[key])}, expected {expected}")
        return default
