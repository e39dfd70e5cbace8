"""The options of all architectures together, and refusals of those that a model does not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xlexport.architectures import architecture, architectures
from xlexport.architectures.options import Option
from xlexport.errors import ExportError

__all__ = ["MEM_LEN", "SEGMENT_LEN", "check_choices", "collected"]

SEGMENT_LEN = Option("segment_len", "integer", "Tokens in one step.", minimum=1)
MEM_LEN = Option(
    "mem_len", "integer", "Rows of memory that a layer keeps.", minimum=1, scope="models that carry rows of memory"
)


def collected(options: str, *, feature: str | None = None) -> dict[Option, tuple[str, ...]]:
    """Return options of all architectures, each name once, with the titles of the architectures that have it.

    Args:
        options: the attribute of `Architecture` that holds them, such as `evaluation_options`.
        feature: leave out architectures that do not support it.
    """
    found: dict[str, tuple[Option, tuple[str, ...]]] = {}
    for one in architectures():
        if feature is not None and feature not in one.supports:
            continue
        for option in getattr(one, options):
            first, titles = found.get(option.name, (option, ()))
            found[option.name] = first, (*titles, one.title)
    return dict(found.values())


def check_choices(name: str, config: Mapping[str, Any], choices: Mapping[str, Any]) -> None:
    """Refuse options of a conversion that a model does not have.

    Args:
        name: of the architecture.
        choices: what the user chose, by name; None is no choice.

    Raises:
        ExportError: names every such option, and the models that have it.
    """
    found = architecture(name)
    available, known = found.available(config, choices), _known_options()
    scopes: dict[str, list[str]] = {}
    for chosen, value in choices.items():
        if value is not None and chosen not in available:
            option = known.get(chosen, Option(chosen, "text", ""))
            scopes.setdefault(option.scope, []).append(option.flag)
    if not scopes:
        return
    wrong = ", ".join(
        f"{' and '.join(flags)} {'apply' if len(flags) > 1 else 'applies'} to {scope} only"
        for scope, flags in scopes.items()
    )
    them = "them" if sum(map(len, scopes.values())) > 1 else "it"
    raise ExportError(f"{wrong}; this model is {found.kind(config, choices)}. Remove {them}.")


def _known_options() -> dict[str, Option]:
    every = [option for one in architectures() for option in (*one.conversion_options, *one.evaluation_options)]
    return {option.name: option for option in (*every, SEGMENT_LEN, MEM_LEN)}
