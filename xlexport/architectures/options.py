"""The options that an architecture declares, and their names on the command line."""

from __future__ import annotations

from collections.abc import Iterable

from xltraining.config_fields import Option

__all__ = ["REVERSIBLE", "Option", "flags"]

REVERSIBLE = Option(
    "reversible",
    "boolean",
    "Whether reversible layers compute activations again in the backward pass, to save memory.",
    True,
    common=True,
)


def flags(names: Iterable[str]) -> str:
    """Return the flags of these options, separated by commas, for messages."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)
