"""The architectures: one object for each holds all code that depends on that architecture.

The rest of xlexport does not name architectures. Each folder here is an architecture: its module defines
`ARCHITECTURE` and is imported on first use. `register` adds an architecture at run time. Importing this package is
fast, because adapters import torch inside their methods.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from xlexport.architectures.base import Architecture
from xlexport.architectures.step import Form, Step, StepTensor, traced_outputs
from xlexport.errors import ExportError
from xltraining.config_fields import Option

__all__ = [
    "FIRST",
    "Architecture",
    "Form",
    "Option",
    "Step",
    "StepTensor",
    "architecture",
    "architectures",
    "find",
    "register",
    "require_support",
    "title_of",
    "traced_outputs",
    "unregister",
]

FIRST = "transformer_xl"  # in lists
FEATURES = {"attention-plot": "attention by distance", "torchscript": "TorchScript"}  # in messages
_registered: dict[str, Architecture] = {}


@functools.cache
def _folders() -> tuple[str, ...]:
    return tuple(sorted((entry.name for entry in pkgutil.iter_modules(__path__) if entry.ispkg), key=_order))


def _order(name: str) -> tuple[bool, str]:
    return name != FIRST, name


def register(added: Architecture) -> None:
    """Add an architecture at run time, such as one that another package defines.

    Raises:
        ExportError: the name is already used.
    """
    if added.name in _registered or added.name in _folders():
        raise ExportError(f"architecture {added.name!r} is already registered.", hint="Choose another name.")
    _registered[added.name] = added


def unregister(name: str) -> None:
    """Forget an architecture that `register` added."""
    del _registered[name]


def find(name: str) -> Architecture | None:
    """Return the architecture with this name, or None if the name is unknown."""
    if name in _registered:
        return _registered[name]
    if name not in _folders():
        return None
    found: Architecture = importlib.import_module(f"{__name__}.{name}").ARCHITECTURE
    return found


def architecture(name: str) -> Architecture:
    """Return the architecture with this name.

    Raises:
        ExportError: the name is unknown; the message lists the known names.
    """
    found = find(name)
    if found is None:
        known = ", ".join((*_folders(), *_registered))
        raise ExportError(
            f"architecture {name!r} is unknown, expected one of {known}.",
            hint="Register it with xlexport.architectures.register, or upgrade xlexport.",
        )
    return found


def architectures() -> tuple[Architecture, ...]:
    """Return all architectures: `FIRST`, the other folders by name, then the registered architectures."""
    return tuple(architecture(name) for name in (*_folders(), *_registered))


def title_of(name: str) -> str:
    """Return the display name of an architecture; an unknown name is returned unchanged."""
    found = find(name)
    return name if found is None else found.title


def require_support(name: str, feature: str, where: str = "") -> None:
    """Raise ExportError if an architecture does not support a feature.

    Args:
        where: the beginning of the message, such as the path of the model.

    Raises:
        ExportError: the feature is not supported; the message names the reason and an alternative.
    """
    found = architecture(name)
    if feature in found.supports:
        return
    able = [f"a {other.title}" for other in architectures() if feature in other.supports]
    instead = f"Use {' or '.join(able)}." if able else "No architecture supports it."
    reason, hint = found.unsupported.get(feature, ("the architecture does not support it", instead))
    what = f"{FEATURES.get(feature, feature)} is not possible for {found.kind({}, {})}"
    raise ExportError(f"{where and f'{where}: '}{what}: {reason}.", hint=hint)
