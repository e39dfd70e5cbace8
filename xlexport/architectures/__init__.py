"""The architectures: one object each, which holds everything that the rest of xlexport must not know by name.

A folder here whose module defines `ARCHITECTURE` is found by its name and imported when it is first asked for.
`register` adds one at run time. Nothing is imported here that takes long: adapters import torch inside their methods.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from xlexport.architectures.base import Architecture, StepSize
from xlexport.architectures.options import Option
from xlexport.architectures.step import Form, Step, traced_outputs
from xlexport.errors import ExportError

__all__ = [
    "FIRST",
    "Architecture",
    "Form",
    "Option",
    "Step",
    "StepSize",
    "architecture",
    "architectures",
    "find",
    "register",
    "require_support",
    "title_of",
    "traced_outputs",
    "unregister",
]

FIRST = "transformer_xl"  # what `xlexport train` trains unless it is asked for another
FEATURES = {"attention-plot": "attention by distance", "torchscript": "TorchScript"}  # in messages
_registered: dict[str, Architecture] = {}


@functools.cache
def _folders() -> tuple[str, ...]:
    return tuple(sorted((entry.name for entry in pkgutil.iter_modules(__path__) if entry.ispkg), key=_order))


def _order(name: str) -> tuple[bool, str]:
    return name != FIRST, name


def register(added: Architecture) -> None:
    """Add an architecture at run time, such as one of somebody's own package.

    Raises:
        ExportError: the name is taken.
    """
    if added.name in _registered or added.name in _folders():
        raise ExportError(f"architecture {added.name!r} is registered already.", repair="Choose another name.")
    _registered[added.name] = added


def unregister(name: str) -> None:
    """Forget an architecture that `register` added."""
    del _registered[name]


def find(name: str) -> Architecture | None:
    """Return the architecture of a name, or None if it is not known here."""
    if name in _registered:
        return _registered[name]
    if name not in _folders():
        return None
    found: Architecture = importlib.import_module(f"{__name__}.{name}").ARCHITECTURE
    return found


def architecture(name: str) -> Architecture:
    """Return the architecture of a name.

    Raises:
        ExportError: the name is unknown; lists the known ones.
    """
    found = find(name)
    if found is None:
        known = ", ".join((*_folders(), *_registered))
        raise ExportError(
            f"architecture {name!r} is unknown, expected one of {known}.",
            repair="Register it with xlexport.architectures.register, or upgrade xlexport.",
        )
    return found


def architectures() -> tuple[Architecture, ...]:
    """Return all architectures: `FIRST`, the other folders by name, then the registered ones."""
    return tuple(architecture(name) for name in (*_folders(), *_registered))


def title_of(name: str) -> str:
    """Return the name of an architecture for people; one that is not known keeps its own."""
    found = find(name)
    return name if found is None else found.title


def require_support(name: str, feature: str, where: str = "") -> None:
    """Refuse what an architecture does not support.

    Args:
        where: what the message begins with, such as the path of the model.

    Raises:
        ExportError: says what is not possible, why, and what to do instead.
    """
    found = architecture(name)
    if feature in found.supports:
        return
    able = [f"a {other.title}" for other in architectures() if feature in other.supports]
    instead = f"Give {' or '.join(able)}." if able else "No architecture supports it."
    reason, repair = found.unsupported.get(feature, ("the architecture does not support it", instead))
    what = f"{FEATURES.get(feature, feature)} is not possible for {found.kind({}, {})}"
    raise ExportError(f"{where and f'{where}: '}{what}: {reason}.", repair=repair)
