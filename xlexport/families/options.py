"""Collect the options of all architectures, and reject the options that a model does not have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from xlexport.errors import ExportError
from xlexport.families import ARCHITECTURES, architecture, architectures
from xltraining.config_fields import Option

__all__ = ["MEM_LEN", "SEGMENT_LEN", "check_choices", "collected", "spellings"]

SEGMENT_LEN = Option("segment_len", "integer", "Tokens in one step.", minimum=1, common=True)
MEM_LEN = Option("mem_len", "integer", "Tokens of memory.", minimum=1, common=True)


def collected(options: str, *, only: Collection[str] = ARCHITECTURES) -> dict[Option, tuple[str, ...]]:
    """Return the options of all architectures, one for each name, with the titles of the architectures that have it.

    Args:
        options: the attribute of `Architecture` that holds them, such as `evaluation_options`.
        only: names of architectures.
    """
    titles_of: dict[str, tuple[Option, tuple[str, ...]]] = {}
    for one in map(architecture, only):
        for option in getattr(one, options):
            first, titles = titles_of.get(option.name, (option, ()))
            titles_of[option.name] = first, (*titles, one.title)
    return dict(titles_of.values())


def check_choices(architecture_name: str, config: Mapping[str, Any], choices: Mapping[str, Any]) -> None:
    """Raise ExportError if the user chose conversion options that the model does not have.

    Args:
        choices: the user's values by name; None means not chosen.

    Raises:
        ExportError: the message names every such option, and the models that have it.
    """
    model = architecture(architecture_name)
    available, options_by_name = model.available(config, choices), _known_options()
    unavailable = [name for name, value in choices.items() if value is not None and name not in available]
    if not unavailable:
        return
    scopes: dict[str, list[str]] = {}
    for name in unavailable:
        scopes.setdefault(options_by_name[name][1] if name in options_by_name else "", []).append(spellings([name]))
    problems = ", ".join(_only(flags, scope) for scope, flags in scopes.items())
    them = "them" if len(unavailable) > 1 else "it"
    raise ExportError(f"{problems}; this model is {model.kind(config, choices)}.", hint=f"Remove {them}.")


def _only(flags: Sequence[str], scope: str) -> str:
    one, named = len(flags) == 1, " and ".join(flags)
    if not scope:
        return f"{named} {'belongs' if one else 'belong'} to no architecture"
    return f"{named} {'applies' if one else 'apply'} to {scope} only"


def spellings(names: Iterable[str]) -> str:
    """Return how commands spell these options, such as "--mem-len, --set clamp_len", for messages."""
    options_by_name = _known_options()
    return ", ".join(
        options_by_name[name][0].spelling if name in options_by_name else f"--set {name}" for name in names
    )


def _known_options() -> dict[str, tuple[Option, str]]:
    """Return each option and the models that have it, by the option's name."""
    every = [
        (option, option.scope or f"{one.title} models")
        for one in architectures()
        for option in (*one.conversion_options, *one.evaluation_options)
    ]
    common = ((SEGMENT_LEN, "models that are read in segments"), (MEM_LEN, "models that carry rows of memory"))
    return {option.name: (option, scope) for option, scope in (*every, *common)}
