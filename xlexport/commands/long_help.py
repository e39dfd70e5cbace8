"""Help of commands with many options: examples first, then the options under headings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from xlexport.commands.options import all_of, grouped
from xlexport.commands.settings import Decorator, declared, set_options, settings_of, unknown_option, with_default
from xltraining.config_fields import options_of

__all__ = ["HEADINGS", "LongCommand", "headed", "options_from"]

OTHER = "Other options"
POSITIVE = re.compile(r"; x>=1(?=\])|  \[x>=1\]$")  # a limit that goes without saying
WIDEST = 22  # characters of an option in the left column
# In the order in which help shows them; options under further headings follow.
HEADINGS = (
    "Input",
    "Run",
    "Curves",
    "Texts",
    "Tokens",
    "Clusters",
    "Protocol",
    "Precision",
    "Measurement",
    "Sampling",
    "Search",
    "Server",
    "Limits",
    "Page",
    "Output",
    "Graphs",
    "Verification",
    "Graph of others",
    "Tokenizer",
    "Checkpoint",
    "Training",
    "Model settings",
    "Device",
    OTHER,
)


def headed(heading: str, *options: Decorator) -> Decorator:
    """Return one decorator for options that help shows under a heading of a `LongCommand`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        before = list(getattr(function, "__click_params__", ()))
        decorated = all_of(*options)(function)
        for parameter in getattr(decorated, "__click_params__", ()):
            if not any(parameter is other for other in before):
                vars(parameter).setdefault("heading", heading)
        return decorated

    return decorate


def options_from(kind: type[Any], name: str = "options", **special: Mapping[str, Any]) -> Decorator:
    """Return one decorator for the options that the fields of a dataclass declare; they become one argument `name`.

    Args:
        special: arguments of `click.option` for fields whose values the command line writes in a way of its own.
    """
    decorators = []
    for option in options_of(kind).values():
        own: dict[str, Any] = dict(special.get(option.name, {}))
        if option.common and option.kind == "boolean":
            flag = {} if option.default is None else {"is_flag": True}
            decorator = declared(option, **{**flag, **own})
        else:
            decorator = with_default(option, **own)
        decorators.append(headed(option.heading, decorator) if option.heading else decorator)
    return all_of(*decorators, grouped(name, kind))


class LongCommand(click.Command):
    """A command with many options.

    Args:
        examples: command lines, each with what it does.
        removed: options and settings of the version before, by name, with what to do instead.
    """

    def __init__(
        self,
        *args: Any,
        examples: Sequence[tuple[str, str]] = (),
        removed: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self.examples, self.removed = examples, removed or {}
        if settings_of(self):
            self.params += set_options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; for an option that became a setting or was removed, say what to use."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise unknown_option(self, error) from None

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what the command does, then its examples."""
        super().format_help_text(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for line, text in self.examples:
                    formatter.write(f"  {line}\n      {text}\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings."""
        sections: dict[str, list[tuple[str, str]]] = {heading: [] for heading in HEADINGS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                names = record[0].removesuffix(" RANGE")  # click's word for a number with limits, which help shows
                text = POSITIVE.sub("", record[1])
                sections.setdefault(str(vars(parameter).get("heading", OTHER)), []).append((names, text))
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records, col_max=WIDEST)
