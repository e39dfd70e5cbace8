"""Declare options by their fields, and settings: `--set NAME=VALUE` gives one, `--help-settings` lists them.

A setting is a parameter of a command like an option, with type, limits, default and help. It only has no flag.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from xlexport.commands.values import NAMES, Integers, Several
from xlexport.families import Option
from xlexport.terminal import print_text
from xltraining.config_fields import Kind
from xltraining.messages import renamed

__all__ = [
    "Decorator",
    "SettingOption",
    "declared",
    "rare",
    "set_options",
    "settings_of",
    "statement_settings",
    "unknown_option",
    "with_default",
]

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
SEPARATED = 10_000  # from which on help separates thousands

if not TYPE_CHECKING:  # which would take any name
    __getattr__ = renamed(__name__, {"Setting": "SettingOption"})


class SettingOption(click.Option):
    """A parameter that only `--set` gives.

    Args:
        table: the table of a recipe that holds the setting, such as `model`, which comes before its name and a dot.
    """

    def __init__(self, *args: Any, table: str = "", **more: Any) -> None:
        super().__init__(*args, **{**more, "hidden": True})
        self.setting = f"{table}.{self.name}" if table else str(self.name)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Add no flag: the parser knows `--set`."""

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """Return the text of the last `--set` with this name, or the default."""
        texts = [text for name, text in map(_split, opts.get("overrides") or ()) if name == self.setting]
        return (texts[-1], ParameterSource.COMMANDLINE) if texts else super().consume_value(ctx, opts)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the spelling on the command line, for errors."""
        return f"'--set {self.setting}'"

    def help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Return name and type, and the help with limits and default, for `--help-settings`."""
        self.hidden = False
        record = self.get_help_record(ctx)
        self.hidden = True
        return f"{self.setting}={self.make_metavar(ctx).removesuffix(' RANGE')}", record[1] if record else ""


def statement_settings(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declare the settings about a model's licence and data."""
    data = click.option("--data", cls=SettingOption, metavar="TEXT", help="Data that the model was trained on.")
    return click.option("--licence", cls=SettingOption, metavar="TEXT", help="Licence of the model.")(data(function))


def settings_of(command: click.Command) -> list[SettingOption]:
    """Return the settings of a command."""
    return [parameter for parameter in command.params if isinstance(parameter, SettingOption)]


def set_options() -> list[click.Parameter]:
    """Return the options `--set` and `--help-settings`, for a command that has settings."""
    return [
        click.Option(
            ["--set", "overrides"],
            multiple=True,
            metavar="NAME=VALUE",
            is_eager=True,
            expose_value=False,
            callback=_check_names,
            help="Set a value that --help-settings lists. Repeatable.",
        ),
        click.Option(
            ["--help-settings"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_settings,
            help="List the further settings, for --set, and exit.",
        ),
    ]


def unknown_option(command: click.Command, error: click.NoSuchOption) -> click.UsageError:
    """Return the error of an unknown option, which shows `--set` for a setting, and what replaces a removed option."""
    name = error.option_name.removeprefix("--").removeprefix("no-").replace("-", "_")
    if name in _removed(command):
        return click.UsageError(f"'{error.option_name}' is no longer an option. {_removed(command)[name]}", error.ctx)
    for setting in settings_of(command):
        if setting.name == name or error.option_name in setting.opts:
            use = f"It is a setting: --set {setting.setting}=VALUE."
            return click.UsageError(f"No such option '{error.option_name}'. {use}", error.ctx)
    return error


def _removed(command: click.Command) -> Mapping[str, str]:
    """Return the options and settings of the version before, with what to do instead."""
    removed: Mapping[str, str] = getattr(command, "removed", {})
    return removed


def _split(override: str) -> tuple[str, str]:
    name, _, text = override.partition("=")
    return name.strip(), text


def _check_names(ctx: click.Context, parameter: click.Parameter, overrides: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse overrides that are not NAME=VALUE of a setting; one message lists all."""
    names = {setting.setting for setting in settings_of(ctx.command)}
    options = {str(one.name): one.opts for one in ctx.command.params if not isinstance(one, SettingOption)}
    problems = []
    for override in overrides:
        name = _split(override)[0]
        if "=" not in override:
            problems.append(f"Expected NAME=VALUE after --set, found {override!r}.")
        elif name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            flags = [flag for flag in options.get(name.rpartition(".")[2], ()) if flag.startswith("--")]
            meant = f"It is an option: {flags[-1]}." if flags else f"Did you mean {near[0]!r}?" if near else ""
            meant = _removed(ctx.command).get(name.rpartition(".")[2], meant)
            problems.append(f"No such setting {name!r}. {meant}".rstrip())
    if problems:
        raise click.UsageError(" ".join(problems), ctx)
    return overrides


def _show_settings(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    """Print the settings of the command by heading, and exit."""
    if not asked or ctx.resilient_parsing:
        return
    sections: dict[str, list[tuple[str, str]]] = {}
    for setting in settings_of(ctx.command):
        sections.setdefault(str(vars(setting).get("heading", "Settings")), []).append(setting.help_record(ctx))
    formatter = ctx.make_formatter()
    for heading, records in sections.items():
        with formatter.section(heading):
            formatter.write_dl(records)
    print_text(formatter.getvalue().strip())
    ctx.exit()


def _range(kind: Callable[..., Any], option: Option) -> Any:
    """Return the type of numbers between the limits of an option; None if it has none."""
    low, high = max(option.minimum, option.above), min(option.maximum, option.below)
    if math.isinf(low) and math.isinf(high):
        return None
    return kind(
        None if math.isinf(low) else low,
        None if math.isinf(high) else high,
        min_open=option.above == low,
        max_open=option.below == high,
    )


def declared(option: Option, *, help: str | None = None, **more: Any) -> Decorator:
    """Return the decorator of a declared option; one that is not common is a `SettingOption`."""
    kinds: dict[str, Any] = {
        "integer": _range(click.IntRange, option) or click.INT,
        "number": _range(click.FloatRange, option) or click.FLOAT,
        "text": click.STRING,
        "boolean": click.BOOL,
        "choice": click.Choice(list(option.choices)),
        "integers": Integers(),
        "numbers": Several("numbers", float),
        "names": NAMES,
        "booleans": Several("booleans", click.BOOL),
    }

    def check(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        problem = None if value is None else option.problem(value)
        if problem is not None:
            raise click.BadParameter(problem, context, parameter)
        return value

    metavars = {"integer": "INTEGER", "number": "NUMBER", "boolean": "true|false"}
    text, flag = option.help if help is None else help, option.name.replace("_", "-")
    if not option.common:
        more = {"cls": SettingOption, **more}
    names = option.flags or (f"--{flag}",)
    if option.common and option.kind == "boolean":
        if not more.get("is_flag"):
            more, names = {"default": None, **more}, (f"--{flag}/--no-{flag}",)
    else:
        metavar = option.metavar or metavars.get(option.kind)
        more = {"type": kinds[option.kind], "metavar": metavar, **more}
    return click.option(*names, option.name, help=text, **{"callback": check, **more})


def rare(name: str, kind: Kind, help: str, **attributes: Any) -> Decorator:
    """Return the decorator of a `SettingOption`; the attributes are those of an `Option`."""
    return with_default(Option(name, kind, help, **attributes))


def with_default(option: Option, **more: Any) -> Decorator:
    """Return the decorator of a declared option whose help shows its default, as the command line writes it."""
    default, shown = option.default, option.shown
    if isinstance(default, bool):
        shown = str(default).lower()
    elif isinstance(default, int) and default >= SEPARATED:
        shown = f"{default:,}"
    if shown:  # click would put it into parentheses
        more = {"help": f"{option.help}  [default: {shown}]", **more}
    return declared(option, **{"default": default, "show_default": not shown and default not in (None, ()), **more})
