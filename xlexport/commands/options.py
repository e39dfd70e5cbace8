"""Declare the options that several commands share, including the ones of architectures."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from xlexport.choices import FORMATS, PROTOCOLS
from xlexport.commands.settings import Decorator, SettingOption, declared, rare, with_default
from xlexport.commands.values import DOWNLOAD, PATH
from xlexport.families import ARCHITECTURES
from xlexport.families.options import MEM_LEN, SEGMENT_LEN, collected
from xlexport.terminal import QUIET
from xlruntime import LoadOptions, OptionError
from xltraining.config_fields import options_of

__all__ = [
    "all_of",
    "any_memory_options",
    "attention_options",
    "batch_option",
    "checkpoint_options",
    "conversion_settings",
    "device_option",
    "device_options",
    "document_options",
    "download_option",
    "evaluation_options",
    "force_option",
    "given_options",
    "grouped",
    "is_given",
    "json_option",
    "ops_option",
    "protocol_options",
    "provider_option",
    "quiet_option",
    "reading_given",
    "refuse",
    "runtime_options",
    "settings_options",
    "threads_option",
    "timeout_option",
    "trust_option",
    "usage_errors",
]


force_option = click.option("--force", is_flag=True, help="Replace what is there.")
quiet_option = click.option(
    "-q",
    "--quiet",
    is_flag=True,
    expose_value=False,
    callback=lambda context, _, value: context.meta.update({QUIET: value}),
    help="Print only errors and warnings on stderr.",
)


def json_option(what: str = "the result") -> Decorator:
    """Return the decorator of --json; `what` is printed, in the words of help."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what} as JSON.")


def all_of(*options: Decorator) -> Decorator:
    """Return one decorator for several options."""
    return lambda function: functools.reduce(lambda decorated, option: option(decorated), reversed(options), function)


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Turn OptionError in the block into wrong usage: options that do not go together, or that would do nothing."""
    try:
        yield
    except OptionError as error:
        raise click.UsageError(str(error)) from error


def grouped(name: str, kind: type[Any]) -> Decorator:
    """Return a decorator that collects the options named like the fields of a dataclass in one argument `name`.

    Options that do not go together, which are an OptionError of the dataclass, are wrong usage.
    """
    names = [field.name for field in dataclasses.fields(kind)]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def collected(**values: Any) -> Any:
            with usage_errors():
                options = kind(**{field: values.pop(field) for field in names if field in values})
            return function(**{name: options}, **values)

        return collected

    return decorate


def is_given(name: str) -> bool:
    """Return whether the command line or a recipe gives a parameter of the command that runs."""
    source = click.get_current_context().get_parameter_source(name)
    return source in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)


def given_options(but: Collection[str]) -> dict[str, bool]:
    """Return the spellings of the options that the command line or a recipe gives, except these, for `refuse`."""
    options = [one for one in click.get_current_context().command.params if one.name not in but]
    return {
        f"--set {one.setting}" if isinstance(one, SettingOption) else one.opts[-1]: True
        for one in options
        if is_given(str(one.name))
    }


def refuse(options: Mapping[str, Any], reason: str) -> None:
    """Raise UsageError for options with a value, which would do nothing.

    Args:
        options: values by the spelling of the option; None, False and empty ones are not given.
        reason: the end of the sentence, after the names and "is" or "are"; `{}` stands for "it" or "them".
    """
    names = [name for name, value in options.items() if value]
    if names:
        verb, pronoun = ("is", "it") if len(names) == 1 else ("are", "them")
        raise click.UsageError(f"{' and '.join(names)} {verb} {reason.format(pronoun)}")


def _read_config(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the contents of files and single values; a value overrides files."""
    from xlexport.checkpoints.files import read_json

    files, single = [], {}
    for value in values:
        name, equals, text = value.partition("=")
        if equals and name.isidentifier() and not Path(value).exists():
            single[name] = _config_value(text)
        else:
            files.append(read_json(Path(value)))
    return None if not values else functools.reduce(operator.or_, [*files, single])


def _config_value(text: str) -> Any:
    """Return a JSON value, integers separated by commas as a tuple, or the text itself."""
    try:
        return tuple(map(int, text.split(","))) if "," in text else json.loads(text)
    except ValueError:
        return text


batch_option = rare("batch_size", "integer", "Documents that run at the same time.", default=1, minimum=1)


def _of_architectures(
    attribute: str, *, only: Collection[str] = ARCHITECTURES, without: Collection[str] = ()
) -> Decorator:
    """Return one decorator for the options of all architectures; its help names the architectures that have each."""
    options = []
    for option, titles in collected(attribute, only=only).items():
        if option.name not in without:
            default = "  [default: the model's own]" if option.default is None else ""
            help = f"{option.help.removesuffix('.')} ({', '.join(titles)}).{default}"
            options.append(declared(option, help=help))
    return all_of(*options)


_segment_len = declared(SEGMENT_LEN, help=f"{SEGMENT_LEN.help}  [default: the model's own]")
_mem_len = declared(MEM_LEN, help=f"{MEM_LEN.help}  [default: the model's own]")
settings_options = _of_architectures("evaluation_options")  # for commands that define their own options for lengths
evaluation_options = all_of(_segment_len, _mem_len, settings_options)
attention_options = all_of(_segment_len, _mem_len, _of_architectures("evaluation_options", only=("transformer_xl",)))

_restart = click.option(
    "--restart",
    is_flag=True,
    default=None,
    help="Reset position and memory where positions end.",
)
document_options = all_of(evaluation_options, _restart)
# For the command that tries memory lengths itself.
any_memory_options = all_of(_segment_len, settings_options, _restart)


def _load_option(name: str, **more: Any) -> Decorator:
    """Return the decorator of a field of `LoadOptions`."""
    return with_default(options_of(LoadOptions)[name], **more)


class _Pairs(click.ParamType[dict[str, str]]):
    """KEY=VALUE, several separated by commas; a value may have commas that no further KEY= follows."""

    name = "pairs"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, str]:
        """Return the values by key."""
        pairs = [pair.partition("=") for pair in re.split(r",(?=[^,=]+=)", value)]
        for name, equals, _ in pairs:
            if not (name and equals):
                self.fail(f"{name!r} has no value. Give KEY=VALUE.", param, ctx)
        return {name: value for name, _, value in pairs}


def _one_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse a device together with a provider, which comes instead of it."""

    @functools.wraps(function)
    def checked(**values: Any) -> Any:
        if is_given("device") and is_given("provider"):
            raise click.UsageError("--device and --set provider exclude each other. Give one of them.")
        return function(**values)

    return checked


provider_option = all_of(_load_option("provider"), _load_option("provider_options", type=_Pairs()), _one_place)
device_option = all_of(_load_option("device"), provider_option)
threads_option = _load_option("threads")
ops_option = _load_option("ops")
check_option = _load_option("check", default="once")
timeout_option = _load_option("step_timeout")
device_options = all_of(device_option, ops_option, _load_option("strict_device"), _load_option("cuda_graphs"))


# The choices of a conversion; its options take precedence over evaluation settings of the same names.
conversion_settings = all_of(
    _of_architectures("conversion_options"),
    _segment_len,
    _mem_len,
    _of_architectures("evaluation_options", without={option.name for option in collected("conversion_options")}),
)

trust_option = click.option(
    "--trust",
    is_flag=True,
    help="Run code that others wrote for a model or graph.",
)


download_option = click.option(
    "--download",
    is_flag=True,
    is_eager=True,  # before the arguments that it is for
    expose_value=False,
    callback=lambda context, _, value: context.meta.update({DOWNLOAD: value}),
    help="Fetch ORG/NAME[@REVISION] from the hub; no code.",
)


def _gathered(name: str, keys: Mapping[str, str]) -> Decorator:
    """Return a decorator that gathers parameters in one argument, a dictionary; `keys` has the key of each."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def gathered(**values: Any) -> Any:
            return function(**{name: {key: values.pop(parameter) for parameter, key in keys.items()}}, **values)

        return gathered

    return decorate


# Arguments of `load_source` about a checkpoint.
checkpoint_options = all_of(
    click.option(
        "--format",
        "checkpoint_format",
        cls=SettingOption,
        type=click.Choice(FORMATS),
        help="Format of the checkpoint.  [default: recognized from its content]",
    ),
    click.option(
        "--config",
        metavar="FILE|NAME=VALUE",
        multiple=True,
        callback=_read_config,
        help="Settings that the checkpoint lacks. Repeatable.",
    ),
    click.option("--weights", type=PATH, help="Tensors (.safetensors) for a model of code."),
    _gathered("reading", {"checkpoint_format": "format", "config": "config", "weights": "weights"}),
)


def reading_given(reading: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of `checkpoint_options` by their spelling, for `refuse`."""
    names = {"--set checkpoint_format": "format", "--config": "config", "--weights": "weights"}
    return {spelling: reading[name] for spelling, name in names.items()}


# Arguments of `open_bundle`.
OPENING = ("device", "provider", "provider_options", "ops", "strict_device", "cuda_graphs", "threads", "step_timeout")
runtime_options = all_of(
    *(device_options, threads_option, timeout_option, check_option, trust_option, download_option),
    _gathered("runtime", {name: name for name in (*OPENING, "check", "trust")}),
)

protocol_options = all_of(
    click.option(
        "--protocol",
        type=click.Choice(PROTOCOLS),
        default=PROTOCOLS[0],
        show_default=True,
        help="Streams of equal length (kimiyoung), the same after a warm-up (nvidia), or one stream (document).",
    ),
    click.option(
        "--batch-size",
        type=click.IntRange(1),
        help="Parallel streams; the score depends on this number.  [default: 10, 16 or 1, by protocol]",
    ),
    rare("sentences", "boolean", "Pack sentences into the streams.  [default: if the vocabulary marks them]"),
)
